"""The TensorRT plugins, in the hands of TensorRT's own bindings: description, launch, code, numbers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from peagle_trt_plugins import tensorrt_plugin
from peagle_trt_plugins.kernel_build import MissingToolError
from peagle_trt_plugins.kernel_targets import ARCHITECTURES
from peagle_trt_plugins.ptx import kernel_name, kernel_parameters, ptx_version
from tests.support.capabilities import needs, needs_program
from tests.support.plugin_cases import DRAFT_CASES, SELECT_CASES, DraftCase, SelectCase, assert_agrees
from tests.support.tensorrt_bindings import Bindings
from tests.support.tensorrt_nodes import TYPES, blocks_node, draft_node, merge_node
from tests.support.tensorrt_worker import Node

bindings_needed = [needs("kernels"), needs("bindings"), needs_program("gcc")]
B200 = 1
# The interpreter's product of two bfloat16 matrices is garbage (Triton 3.9).
NUMBERED = [case for case in SELECT_CASES if case.dtype != "bfloat16"]
EVERY_TACTIC = [*itertools.product(NUMBERED, (16, 32, 64))]
SMALL = SelectCase(batch=2, slots=3, hidden=48, vocabulary=600, candidates=4)


class Asked:
    """Bindings whose answers that are errors fail the test."""

    def __init__(self, bindings: Bindings) -> None:
        self.bindings = bindings

    def __call__(self, function: str, *arguments: Any) -> Any:
        answer = self.bindings.ask(function, *arguments)
        assert not isinstance(answer, str), answer
        return answer


@pytest.fixture(scope="module")
def compiling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    yield from start(tmp_path_factory, interprets=False)


@pytest.fixture(scope="module")
def interpreting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    yield from start(tmp_path_factory, interprets=True)


def start(factory: pytest.TempPathFactory, *, interprets: bool) -> Iterator[Asked]:
    bindings = Bindings(factory.mktemp("bindings"), interprets=interprets)
    asked = Asked(bindings)
    asked("register", B200)
    yield asked
    bindings.close()


def run_draft(asked: Asked, case: DraftCase, tactic: int) -> None:
    assert_agrees(case, asked("execute", draft_node(case), list(case.inputs().values()), tactic))


def run_select(asked: Asked, case: SelectCase, tactic: int) -> None:
    values, ids = asked("execute", blocks_node(case), list(case.inputs().values())[:3], tactic)
    assert_agrees(case, asked("execute", *merge_node(case, values, ids), 0))


def draft_tactic(case: DraftCase) -> int:
    return 1 if case.hidden <= 512 else 4 if case.hidden <= 2048 else 8


def nodes() -> list[Node]:
    """One of each plugin."""
    entries = np.zeros((2, 3, 40), np.float32), np.zeros((2, 3, 40), np.int32)
    best, candidates = (merge_node(case, *entries)[0] for case in (replace(SMALL, candidates=0), SMALL))
    return [draft_node(DraftCase(batch=2, rows=4, slots=3, hidden=96)), blocks_node(SMALL), best, candidates]


class TestDescription:
    pytestmark = bindings_needed

    def test_registering_twice_does_nothing(self, compiling: Asked) -> None:
        names = ["ParallelDraft", "SelectBlocks", "MergeBest", "MergeCandidates"]
        assert compiling("register", B200) == [(name, "1", "peagle") for name in names]

    def test_another_gpu_is_refused_by_both_names(self, compiling: Asked) -> None:
        answer = compiling.bindings.ask("register", B200 + 1)
        assert "version 1 are registered for sm_100a; found sm_103a" in answer

    def test_a_name_that_is_taken_is_refused(self, compiling: Asked) -> None:
        answer = compiling.bindings.ask("register_as_a_stranger")
        assert "peagle::ParallelDraft of version 1 cannot be registered" in answer

    @pytest.mark.parametrize("case", DRAFT_CASES, ids=str)
    def test_parallel_draft_is_described_as_the_contract_says(self, compiling: Asked, case: DraftCase) -> None:
        types, shapes = compiling("describe", draft_node(case))
        assert types == [TYPES[case.dtype], TYPES[case.dtype], "INT32", "INT32"]
        assert shapes == [[output.shape for output in case.expected()]]

    @pytest.mark.parametrize("case", SELECT_CASES, ids=str)
    def test_the_stages_are_described_as_the_contract_says(self, compiling: Asked, case: SelectCase) -> None:
        types, shapes = compiling("describe", blocks_node(case))
        ids_per_block = 64 if case.table_dtype or case.dtype == "float32" else 128
        entries = -(-case.vocabulary // ids_per_block) * (case.candidates or 1)
        assert (types, shapes) == (["FLOAT", "INT32"], [[(case.batch, case.slots, entries)] * 2])
        values, ids = np.zeros(shapes[0][0], np.float32), np.zeros(shapes[0][1], np.int32)
        types, shapes = compiling("describe", merge_node(case, values, ids)[0])
        assert types == [TYPES[output.dtype.name] for output in case.expected()]
        assert shapes == [[output.shape for output in case.expected()]]

    def test_a_refusal_reaches_whoever_builds(self, compiling: Asked) -> None:
        wrong = replace(blocks_node(SMALL), attributes={"candidates": 4, "contract_version": 2})
        assert "keeps version 2 of the contract; the plugins keep 1" in compiling.bindings.ask("describe", wrong)

    def test_an_attribute_left_out_is_named(self, compiling: Asked) -> None:
        wrong = replace(blocks_node(SMALL), attributes={"contract_version": 1})
        assert "without ['candidates']" in compiling.bindings.ask("describe", wrong)

    def test_a_wrong_type_is_named(self, compiling: Asked) -> None:
        wrong = replace(blocks_node(SMALL), types=["FLOAT", "INT64", "FLOAT"])
        assert "type of `sample_rows` is i64; expected i32" in compiling.bindings.ask("describe", wrong)


class TestLaunch:
    pytestmark = bindings_needed

    def test_a_draft_launches_a_program_for_each_row_at_any_k_and_batch(self, interpreting: Asked) -> None:
        opened = [{"B": b, "R": k + 1, "K": k} for k in range(1, 17) for b in (1, 2, 5, 64)]
        launches = self.launches(interpreting, replace(nodes()[0], opened=opened))
        for tactic, sizes, found in launches:
            assert found["grid_x"] == sizes["B"] * 2 * sizes["K"]
            assert (found["grid_y"], found["grid_z"], found["block_x"]) == (1, 1, 32 * tactic)
            assert found["integers"] == [sizes["R"], sizes["K"]]

    def test_blocks_are_launched_for_every_sample_and_id(self, interpreting: Asked) -> None:
        opened = [{"B": b, "W": 2 * k, "K": k} for k in range(1, 17) for b in (1, 3, 8, 64)]
        launches = self.launches(interpreting, replace(blocks_node(SMALL), opened=opened))
        assert {tactic for tactic, _, _ in launches} == {16, 32, 64}
        for tactic, sizes, found in launches:
            samples = sizes["B"] * sizes["K"]
            assert (found["grid_x"], found["grid_y"]) == (-(-samples // tactic), 10)
            assert found["integers"] == [samples, sizes["K"], sizes["W"], 600]

    def test_merges_are_launched_for_every_sample(self, interpreting: Asked) -> None:
        opened = [{"B": b, "K": k} for k in range(1, 17) for b in (1, 8, 64)]
        for node, more in zip(nodes()[2:], ([], ["K"]), strict=True):
            for _, sizes, found in self.launches(interpreting, replace(node, opened=opened)):
                assert found["grid_x"] == sizes["B"] * sizes["K"]
                assert found["integers"] == [40, *(sizes[letter] for letter in more)]

    @staticmethod
    def launches(asked: Asked, node: Node) -> list[tuple[int, dict[str, int], dict[str, Any]]]:
        asked("compile_nothing")
        built = asked("build", node)
        return [
            (tactic, sizes, found)
            for tactic, launch in built["launches"].items()
            for sizes, found in zip(node.opened, launch["evaluated"], strict=True)
        ]


class TestCode:
    pytestmark = bindings_needed

    @pytest.mark.parametrize("node", nodes(), ids=lambda node: node.plugin)
    def test_a_kernel_takes_what_tensorrt_hands_over(self, compiling: Asked, node: Node) -> None:
        built = compiling("build", node)
        for launch in built["launches"].values():
            ptx, found = launch["code"].decode(), launch["evaluated"][0]
            kinds = ["u64"] * len(node.types) + ["u32"] * len(found["integers"]) + ["u64"] * len(built["types"])
            assert [kind for kind, _ in kernel_parameters(ptx)] == kinds
            assert kernel_name(ptx) == launch["kernel"]
            assert ptx_version(ptx) == "8.7"
            assert ".target sm_100a" in ptx
            assert re.findall(r"\.reqntid (\d+)", ptx) == [str(found["block_x"])]
            assert found["shared_mem"] <= 48 << 10

    def test_the_second_time_nothing_is_compiled(self, compiling: Asked) -> None:
        assert compiling("build", nodes()[2]) == compiling("build", nodes()[2])


class TestNumbers:
    pytestmark = bindings_needed

    @pytest.mark.parametrize("case", DRAFT_CASES[::6], ids=str)
    def test_what_is_launched_equals_the_reference(self, interpreting: Asked, case: DraftCase) -> None:
        run_draft(interpreting, case, draft_tactic(case))

    @pytest.mark.parametrize(("case", "tactic"), EVERY_TACTIC[::7], ids=str)
    def test_both_stages_launched_equal_the_reference(self, interpreting: Asked, case: SelectCase, tactic: int) -> None:
        run_select(interpreting, case, tactic)

    @pytest.mark.slow
    @pytest.mark.parametrize("tactic", [1, 2], ids=["few warps", "many warps"])
    @pytest.mark.parametrize("case", DRAFT_CASES, ids=str)
    def test_every_draft_equals_the_reference(self, interpreting: Asked, case: DraftCase, tactic: int) -> None:
        run_draft(interpreting, case, tactic * draft_tactic(case))

    @pytest.mark.slow
    @pytest.mark.parametrize(("case", "tactic"), EVERY_TACTIC, ids=str)
    def test_every_choice_equals_the_reference(self, interpreting: Asked, case: SelectCase, tactic: int) -> None:
        run_select(interpreting, case, tactic)


def test_without_tensorrt_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt_plugin.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingToolError, match="TensorRT is not installed") as raised:
        tensorrt_plugin.register_tensorrt_plugins(ARCHITECTURES[B200])
    assert "peagle-trt[trt]" in raised.value.hint
