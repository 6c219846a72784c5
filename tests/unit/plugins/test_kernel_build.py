"""Compiling the kernels without a GPU."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest

import peagle_trt_plugins
from peagle_trt.cli.main import run
from peagle_trt_plugins import contract, kernel_build
from peagle_trt_plugins.kernel_targets import ARCHITECTURES, DRIVER_OF_PTX, kernel_variants
from peagle_trt_plugins.kernel_variants import KernelVariant
from tests.support.capabilities import needs

VARIANTS = {f"{variant.kernel}: {variant.label}": variant for variant in kernel_variants(hidden_size=576)}
# One of each kernel; `peagle-trt doctor --kernels` compiles all of them, at the sizes of gpt-oss.
COMPILED = {variant.kernel: variant for variant in reversed(VARIANTS.values()) if "8 candidates" not in variant.label}
COMPILED["merge_candidates_kernel"] = list(VARIANTS.values())[-1]
KERNELS_PATH = Path(peagle_trt_plugins.__file__).with_name("triton_kernels.py")


def parameters_of(kernel: str) -> list[str]:
    tree = ast.parse(KERNELS_PATH.read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    return [argument.arg for argument in functions[kernel].args.args]


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_a_variant_names_parameters_of_its_kernel(variant: KernelVariant) -> None:
    assert {*variant.pointers, *variant.constants} <= set(parameters_of(variant.kernel))


def test_parallel_draft_takes_its_parameters_as_tensorrt_supplies_them() -> None:
    inputs = [port.name for port in contract.INPUTS]
    outputs = [port.name for port in contract.OUTPUTS]
    names = parameters_of("parallel_draft_kernel")
    assert names[: len(inputs) + 2 + len(outputs)] == [*inputs, "num_rows", "num_slots", *outputs]


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda architecture: architecture.name)
def test_the_driver_of_a_written_ptx_is_known(architecture: kernel_build.Architecture) -> None:
    major, minor = divmod(architecture.ptx_version, 10)
    assert f"{major}.{minor}" in DRIVER_OF_PTX


@needs("kernels")
@pytest.mark.parametrize("kernel", COMPILED)
def test_a_kernel_compiles_for_a_b200(kernel: str) -> None:
    compiled = kernel_build.compile_kernel(COMPILED[kernel], ARCHITECTURES[1])
    assert (compiled.problems, compiled.spilled_bytes) == ((), 0)
    assert compiled.cubin_bytes > 0 < compiled.registers


@needs("kernels")
@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda architecture: architecture.name)
def test_parallel_draft_compiles_for_every_gpu(architecture: kernel_build.Architecture) -> None:
    compiled = kernel_build.compile_kernel(COMPILED["parallel_draft_kernel"], architecture)
    assert compiled.problems == ()
    assert list(compiled.parameters) == ["u64"] * len(contract.INPUTS) + ["u32"] * 2 + ["u64"] * len(contract.OUTPUTS)


@needs("kernels")
def test_a_gpu_with_too_little_shared_memory_is_a_problem() -> None:
    small = replace(ARCHITECTURES[1], max_shared_bytes=1024)
    compiled = kernel_build.compile_kernel(COMPILED["select_blocks_kernel"], small)
    assert compiled.problems == (f"{compiled.shared_bytes} bytes of shared memory, of 1024",)


@needs("kernels")
def test_a_newer_ptx_than_asked_for_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    real = kernel_build.write_ptx

    def write_newer(*arguments: object) -> tuple[str, int]:
        ptx, shared_bytes = real(*arguments)
        return ptx.replace(".version 8.7", ".version 9.0"), shared_bytes

    monkeypatch.setattr(kernel_build, "write_ptx", write_newer)
    compiled = kernel_build.compile_kernel(COMPILED["merge_best_kernel"], ARCHITECTURES[1])
    assert compiled.problems == ("PTX 9.0, newer than asked for: older drivers refuse it",)


@needs("kernels")
def test_a_kernel_that_does_not_fit_its_constants_is_named() -> None:
    broken = replace(COMPILED["merge_best_kernel"], constants={"BLOCK": 3})
    with pytest.raises(kernel_build.KernelError, match=r"merge_best_kernel .* for sm_100a"):
        kernel_build.compile_kernel(broken, ARCHITECTURES[1])


@needs("kernels")
def test_doctor_lists_the_kernels(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from peagle_trt_plugins import kernel_targets

    monkeypatch.setattr(kernel_targets, "kernel_variants", lambda: (COMPILED["merge_best_kernel"],))
    assert run(["--json", "doctor", "--kernels"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [kernel["architecture"] for kernel in document["kernels"]] == [a.name for a in ARCHITECTURES]
    assert document["problems"] == []


def test_doctor_says_what_is_missing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_build.importlib.util, "find_spec", lambda name: None)
    assert run(["--json", "doctor", "--kernels"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert "no Triton compiler" in error["message"]
    assert "peagle-trt[kernels]" in error["hint"]


@needs("kernels")
def test_doctor_names_a_kernel_that_does_not_compile(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from peagle_trt_plugins import kernel_targets

    broken = replace(COMPILED["merge_best_kernel"], constants={"BLOCK": 3})
    monkeypatch.setattr(kernel_targets, "kernel_variants", lambda: (broken,))
    assert run(["doctor", "--kernels"]) == 1
    assert "merge_best_kernel" in capsys.readouterr().err
