"""Plain steps of neighbouring slots go through a graph of their own, and nothing else about them changes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from peagle_trt.build_folder import read_manifest
from peagle_trt.cli.main import run
from peagle_trt.engine import ort_graph
from peagle_trt.engine.onnxruntime import OnnxRuntimeEngine
from peagle_trt.engine.protocol import TargetRows
from peagle_trt.errors import MachineError
from peagle_trt.graph import target as target_module
from peagle_trt.graph.target import has_step_graph
from peagle_trt.spec import TensorSpec

LENGTHS = (30, 5, 17, 64, 1)
"""Tokens that slots 0 to 4 hold."""


@pytest.fixture
def engine(tiny_build: Path) -> Iterator[OnnxRuntimeEngine]:
    engine = OnnxRuntimeEngine(tiny_build, read_manifest(tiny_build), num_threads=1)
    yield engine
    engine.close()


def read_prompts(engine: OnnxRuntimeEngine) -> None:
    rng = np.random.default_rng(0)
    for slot, length in enumerate(LENGTHS):
        ids = rng.integers(3, engine.target.vocab_size, length).astype(np.int32)
        engine.run_target([TargetRows(slot=slot, token_ids=ids, start_position=0, num_logit_rows=0)])


def step(engine: OnnxRuntimeEngine, slots: Sequence[int], *, without_logits: int = -1) -> list[bytes]:
    """What each slot is told about one token more; running it again changes nothing."""
    rows = [
        TargetRows(
            slot=slot,
            token_ids=np.array([40 + slot], np.int32),
            start_position=LENGTHS[slot],
            num_logit_rows=int(slot != without_logits),
        )
        for slot in slots
    ]
    return [output.logits.tobytes() + np.asarray(output.hidden).tobytes() for output in engine.run_target(rows)]


@pytest.mark.parametrize("slots", [(0, 1), (3, 2, 4), (4, 1, 3, 0, 2)])
def test_both_ways_give_the_same_bits(
    engine: OnnxRuntimeEngine, slots: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_prompts(engine)
    expected = step(engine, slots), step(engine, slots, without_logits=slots[1])
    monkeypatch.setattr(ort_graph, "STEPS_BEFORE_LOADING", 0)
    runs: list[int] = []
    run_graph = ort_graph.CachedGraph.run
    monkeypatch.setattr(
        ort_graph.CachedGraph, "run", lambda self, *a, **k: runs.append(len(k["slots"])) or run_graph(self, *a, **k)
    )
    assert (step(engine, slots), step(engine, slots, without_logits=slots[1])) == expected
    assert engine._targets._step_graph is not None
    assert runs == [len(slots)] * 2
    # A verify step behind it reads the rows that it wrote.
    after = TargetRows(slot=1, token_ids=np.int32([7, 8]), start_position=LENGTHS[1] + 1, num_logit_rows=2)
    if 1 in slots:
        found = engine.run_target([after])[0].logits.tobytes()
        engine._targets._step_path, engine._targets._step_graph = None, None
        step(engine, slots)
        assert engine.run_target([after])[0].logits.tobytes() == found


def test_it_is_loaded_beforehand_or_once_it_pays(engine: OnnxRuntimeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    read_prompts(engine)
    engine.preload(plain_steps=False)
    monkeypatch.setattr(ort_graph, "STEPS_BEFORE_LOADING", 3)
    found = []
    for _ in range(5):
        step(engine, (0, 1))
        found.append(engine._targets._step_graph is not None)
    assert found == [False, False, False, True, True]
    engine.close()
    assert engine._targets._step_graph is None
    engine.preload()
    assert engine._targets._step_graph is not None


def test_it_is_loaded_alone(engine: OnnxRuntimeEngine) -> None:
    read_prompts(engine)
    expected = step(engine, (0, 1))
    engine.close()
    assert engine.preload_steps()
    assert step(engine, (0, 1)) == expected
    assert not engine._targets._graphs


def test_verify_steps_between_them_put_it_off(engine: OnnxRuntimeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    read_prompts(engine)
    monkeypatch.setattr(ort_graph, "STEPS_BEFORE_LOADING", 3)
    for count in (4, 4, 30, 30):
        step(engine, (0, 1))
        step(engine, (0, 1))
        ids = np.full(count, 9, np.int32)
        engine.run_target([TargetRows(slot=4, token_ids=ids, start_position=LENGTHS[4], num_logit_rows=1)])
    # Thirty rows are a prompt's: behind the second verify step, four plain steps came in a row.
    assert engine._targets._step_graph is not None
    engine.close()
    for _ in range(4):
        step(engine, (0, 1))
        engine.run_target([TargetRows(slot=4, token_ids=np.int32([9, 9]), start_position=1, num_logit_rows=1)])
    assert engine._targets._step_graph is None


@pytest.mark.parametrize("slots", [(0,), (0, 2), (1, 2, 4)])
def test_slots_apart_and_one_alone_go_the_usual_way(
    engine: OnnxRuntimeEngine, slots: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort_graph, "STEPS_BEFORE_LOADING", 0)
    read_prompts(engine)
    step(engine, slots)
    assert engine._targets._step_graph is None


def test_several_rows_go_the_usual_way(engine: OnnxRuntimeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort_graph, "STEPS_BEFORE_LOADING", 0)
    read_prompts(engine)
    rows = [
        TargetRows(slot=slot, token_ids=np.int32([5, 6][:count]), start_position=LENGTHS[slot], num_logit_rows=1)
        for slot, count in ((0, 1), (1, 2))
    ]
    engine.run_target(rows)
    assert engine._targets._step_graph is None


def test_a_build_without_the_graph_decodes(tiny_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = read_manifest(tiny_build)
    graphs = {role: path for role, path in manifest.graphs.items() if role != "target.step"}
    assert len(graphs) == len(manifest.graphs) - 1
    engine = OnnxRuntimeEngine(tiny_build, msgspec.structs.replace(manifest, graphs=graphs), num_threads=1)
    monkeypatch.setattr(ort_graph, "STEPS_BEFORE_LOADING", 0)
    read_prompts(engine)
    assert len(step(engine, (0, 1))) == 2
    assert not engine.preload_steps()
    engine.close()


def test_a_damaged_graph_costs_speed_and_no_request(
    tiny_build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(tiny_build, tmp_path / "build")
    path = tmp_path / "build" / "engine" / "target.step.onnx"
    path.write_bytes(bytes(path.stat().st_size))
    engine = OnnxRuntimeEngine(tmp_path / "build", read_manifest(tiny_build), num_threads=1)
    monkeypatch.setattr(ort_graph, "STEPS_BEFORE_LOADING", 1)
    read_prompts(engine)
    with caplog.at_level("WARNING"):
        assert len({tuple(step(engine, (0, 1))) for _ in range(4)}) == 1
    assert [record.message.split(":")[0] for record in caplog.records] == ["plain steps stay slower"]
    engine.close()
    with pytest.raises(MachineError, match=r"target\.step\.onnx"):
        OnnxRuntimeEngine(tmp_path / "build", read_manifest(tiny_build), num_threads=1).preload()


def test_any_order_of_passes_gives_the_same_bits(tiny_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort_graph, "STEPS_BEFORE_LOADING", 0)
    manifest = read_manifest(tiny_build)
    graphs = {role: path for role, path in manifest.graphs.items() if role != "target.step"}
    with_steps, without = (
        OnnxRuntimeEngine(tiny_build, each, num_threads=1)
        for each in (manifest, msgspec.structs.replace(manifest, graphs=graphs))
    )
    rng = np.random.default_rng(11)
    ends = [0] * manifest.shapes.max_batch_size
    num_steps = 0
    for _ in range(150):
        slots = rng.permutation(len(ends))[: rng.integers(1, len(ends) + 1)].tolist()
        if rng.random() < 0.6:
            first = int(rng.integers(0, len(ends) - 1))
            slots = rng.permutation(range(first, len(ends)))[: len(ends) - first].tolist()
        is_step = rng.random() < 0.7
        rows = []
        for slot in slots:
            # Back to an earlier place now and then, as after refused drafts or with a new prompt.
            ends[slot] = int(rng.integers(0, ends[slot] + 1)) if rng.random() < 0.2 else ends[slot]
            count = 1 if is_step else int(rng.integers(1, 9))
            ids = rng.integers(3, manifest.target.vocab_size, count).astype(np.int32)
            wanted = int(rng.integers(0, count + 1))
            rows.append(TargetRows(slot=slot, token_ids=ids, start_position=ends[slot], num_logit_rows=wanted))
            ends[slot] += count
        found, expected = (
            [(output.logits.tobytes(), np.asarray(output.hidden).tobytes()) for output in engine.run_target(rows)]
            for engine in (with_steps, without)
        )
        assert found == expected
        num_steps += is_step and len(slots) > 1 and max(slots) - min(slots) < len(slots)
        if rng.random() < 0.1 and len(slots) > 1:
            for engine in (with_steps, without):
                engine.copy_rows(slots[0], slots[1], min(ends[slots[0]], 5))
            ends[slots[1]] = min(ends[slots[0]], 5)
    assert num_steps > 30
    for engine in (with_steps, without):
        engine.close()


@pytest.mark.parametrize("options", [["--precision", "int8"], ["--max-batch-size", "1"]])
def test_integers_and_single_slots_have_none(options: list[str], tmp_path: Path) -> None:
    assert run(["--quiet", "build", "--target", "tiny", *options, "-o", str(tmp_path / "build")]) == 0
    assert "target.step" not in read_manifest(tmp_path / "build").graphs


def test_a_large_target_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"embed_tokens": TensorSpec(name="embed_tokens", dtype="F32", shape=(30, 40))}
    assert has_step_graph(stored)
    monkeypatch.setattr(target_module, "STEP_GRAPH_WEIGHTS", 1199)
    assert not has_step_graph(stored)
