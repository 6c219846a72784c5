"""`doctor --trtllm` names all that a container lacks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from peagle_trt.bundle.gpus import KNOWN_CAPABILITIES
from peagle_trt.cli.main import run
from peagle_trt.machine import Gpu, Machine
from peagle_trt.trtllm import container, refusals
from peagle_trt.trtllm.releases import support
from peagle_trt.trtllm.releases.table import read_table
from tests.support.fake_trtllm import installed

PACKAGES = dict.fromkeys(("msgspec", "numpy", "torch", "safetensors"), "1")


def machine(capability: str | None = "10.0", **changes: Any) -> Machine:
    gpus = (
        () if capability is None else (Gpu(name="B200", compute_capability=capability, memory_bytes=1, driver="580"),)
    )
    whole = Machine(
        system="Linux",
        processor="",
        num_usable_cores=1,
        memory_bytes=1,
        python="3.12",
        packages=PACKAGES,
        gpus=gpus,
        triton_server=None,
    )
    return replace(whole, **changes)


@pytest.mark.parametrize(("release", "version"), [("1.2.1", "1.2.1"), ("1.4", "1.4.0rc4")])
def test_a_whole_container_lacks_nothing(release: str, version: str) -> None:
    with installed(release):
        report = container.look_at_container(machine())
    assert (report.version, report.release, report.problems) == (version, release, ())


def test_everything_that_is_missing_is_named_at_once() -> None:
    report = container.look_at_container(machine(None, packages={}))
    text = "\n".join(report.problems)
    assert "TensorRT-LLM is not installed" in text
    assert "no NVIDIA GPU" in text
    assert all(f"`{name}` is not installed" in text for name in PACKAGES)


@pytest.mark.parametrize(
    ("capability", "what"), [("8.9", "SM89"), ("12.0", "gibberish"), ("11.0", "SM110"), ("12.1", "SM121")]
)
def test_a_gpu_that_is_not_known_is_named(capability: str, what: str) -> None:
    with installed("1.2.1"):
        report = container.look_at_container(machine(capability))
    assert len(report.problems) == 1
    assert what in report.problems[0]


def test_it_takes_the_gpus_that_builds_are_made_for() -> None:
    assert tuple(map(str, refusals.KNOWN_CAPABILITIES)) == KNOWN_CAPABILITIES


@pytest.mark.parametrize("error", [ImportError, OSError, RuntimeError])
def test_a_package_that_does_not_load_is_a_problem_not_a_crash(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def import_module(name: str) -> object:
        raise error("libcuda.so.1: cannot open shared object file")

    table = read_table("1.2.1")
    monkeypatch.setattr(support.importlib, "import_module", import_module)
    problems = support.find_differences(table)
    assert len(problems) == len(table.functions) + len(table.classes)
    assert all("cannot be imported: libcuda.so.1" in problem for problem in problems)


def test_an_unknown_release_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "find_version", lambda: "1.3.0rc24")
    report = container.look_at_container(machine())
    assert report.release is None
    assert "1.3.0rc24" in report.problems[0]


def test_an_interface_that_changed_is_named() -> None:
    import sys

    with installed("1.4"):
        module: Any = sys.modules["tensorrt_llm._torch.models.modeling_speculative"]
        module.get_draft_model = lambda model_config: None
        report = container.look_at_container(machine())
    assert report.problems == (
        "`tensorrt_llm._torch.models.modeling_speculative.get_draft_model` takes ['model_config']; expected "
        "['model_config', 'draft_config', 'lm_head', 'model']",
    )


def test_the_command_exits_with_3_where_something_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", "doctor", "--trtllm"]) == 3
    assert "TensorRT-LLM is not installed" in json.loads(capsys.readouterr().out)["error"]["message"]
    assert run(["--quiet", "doctor", "--trtllm", "--kernels"]) == 2
