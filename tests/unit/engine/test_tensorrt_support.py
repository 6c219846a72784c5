"""What a TensorRT backend is refused for before anything long begins, and what `auto` takes."""

from __future__ import annotations

import importlib.machinery
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peagle_trt.engine.registry import choose_backend
from peagle_trt.engine.tensorrt import library as library_module
from peagle_trt.engine.tensorrt.library import Library, MessageLog, load_library
from peagle_trt.engine.tensorrt.support import choose_capabilities
from peagle_trt.errors import MachineError, PeagleError, PlanError
from peagle_trt.machine import Gpu, Machine, probe_machine
from tests.support.capabilities import needs
from tests.support.fake_cuda import FakeCuda
from tests.support.fake_tensorrt import fake_tensorrt

B200 = Gpu(name="B200", compute_capability="10.0", memory_bytes=1 << 37, driver="580.1")
L40 = Gpu(name="L40", compute_capability="8.9", memory_bytes=1 << 35, driver="580.1")


def machine(*gpus: Gpu, cuda: int | None = 13_010) -> Machine:
    return replace(probe_machine(), gpus=gpus, driver_cuda_version=cuda)


@pytest.mark.rtx
@needs("rtx")
@pytest.mark.parametrize(
    ("gpus", "requested", "expected"),
    [((), (), ("120",)), ((L40,), (), ("89",)), ((L40,), ("120",), ("120",)), ((), ("120", "89"), ("89", "120"))],
)
def test_rtx_compiles_for_what_is_asked_for_else_this_gpu_else_blackwell(
    gpus: tuple[Gpu, ...], requested: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert choose_capabilities("tensorrt-rtx", requested, "bf16", machine(*gpus)) == expected


@pytest.mark.rtx
@needs("rtx")
@pytest.mark.parametrize("capability", ["90", "100", "103", "110", "999"])
def test_rtx_refuses_data_center_gpus_and_names_the_backend_for_them(capability: str) -> None:
    with pytest.raises(PlanError, match=f"does not compile for SM{capability}; it does for SM75, .*SM120") as caught:
        choose_capabilities("tensorrt-rtx", ("120", capability), "bf16", machine())
    assert "--backend tensorrt" in caught.value.hint


@pytest.mark.rtx
@needs("rtx")
@pytest.mark.parametrize(("precision", "capability", "first"), [("nvfp4", "89", "100"), ("fp8", "86", "89")])
def test_numbers_that_a_gpu_cannot_multiply_are_refused(precision: str, capability: str, first: str) -> None:
    with pytest.raises(PlanError, match=f"SM{capability} cannot multiply {precision}; SM{first} is the first"):
        choose_capabilities("tensorrt-rtx", ("120", capability), precision, machine())


def test_tensorrt_without_a_gpu_is_refused_at_once() -> None:
    with pytest.raises(MachineError, match="`tensorrt` runs on an NVIDIA GPU, and this machine shows none"):
        choose_capabilities("tensorrt", (), "bf16", machine())


def test_tensorrt_compiles_for_no_other_gpu() -> None:
    with pytest.raises(PlanError, match=r"SM100 \(B200\); --sm asks for 120"):
        choose_capabilities("tensorrt", ("120",), "bf16", machine(B200))


def test_tensorrt_that_is_not_installed_says_where_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(library_module.MODULES, "tensorrt", "a_module_that_is_not_there")
    with pytest.raises(MachineError, match="needs the module `a_module_that_is_not_there`") as caught:
        choose_capabilities("tensorrt", (), "bf16", machine(B200))
    assert "container" in caught.value.hint


def test_an_old_driver_is_refused_with_both_versions() -> None:
    with pytest.raises(MachineError, match=r"driver 580.1 is made for CUDA 12.8; `tensorrt` needs one for CUDA 13.0"):
        choose_capabilities("tensorrt", (), "bf16", machine(B200, cuda=12_080))


def fake_library(backend: str) -> Library:
    return Library(backend=backend, module=SimpleNamespace(), version="1")


def test_an_old_driver_is_known_by_its_number_where_cuda_cannot_be_asked() -> None:
    old = replace(B200, driver="535.54.03")
    with pytest.raises(MachineError, match=r"driver 535.54.03 is older than 580; `tensorrt` needs one for CUDA 13.0"):
        choose_capabilities("tensorrt", (), "bf16", machine(old, cuda=None))
    assert choose_backend("auto", machine(old, cuda=None)) == (
        "onnxruntime",
        "the B200 stays unused: driver 535.54.03 is older than 580",
    )


@pytest.mark.rtx
@needs("rtx")
def test_an_old_driver_keeps_nobody_from_compiling_for_another_gpu() -> None:
    assert choose_capabilities("tensorrt-rtx", ("120",), "bf16", machine(L40, cuda=12_080)) == ("120",)
    with pytest.raises(MachineError, match=r"made for CUDA 12.8; `tensorrt_rtx` needs one for CUDA 13.0"):
        choose_capabilities("tensorrt-rtx", ("89",), "bf16", machine(L40, cuda=12_080))


@pytest.mark.rtx
@needs("rtx")
def test_a_second_gpu_that_rtx_does_not_know_is_left_out() -> None:
    assert choose_capabilities("tensorrt-rtx", (), "bf16", machine(L40, B200)) == ("89",)


@pytest.mark.rtx
@needs("rtx")
@pytest.mark.parametrize("precision", ["bf16", "native"])
def test_turing_has_no_bfloat16(precision: str) -> None:
    with pytest.raises(PlanError, match=f"SM75 cannot multiply {precision}; SM80 is the first") as caught:
        choose_capabilities("tensorrt-rtx", ("75",), precision, machine())
    assert "fp16" in caught.value.hint
    assert choose_capabilities("tensorrt-rtx", ("75",), "fp16", machine()) == ("75",)


@pytest.mark.parametrize("error", ["ImportError", "OSError", "RuntimeError", "AttributeError"])
def test_a_library_that_fails_as_it_is_imported_is_a_fault_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    (tmp_path / "broken_tensorrt.py").write_text(f'raise {error}("libnvinfer.so.11 is gone")')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(library_module.MODULES, "tensorrt", "broken_tensorrt")
    with pytest.raises(MachineError, match=r"`broken_tensorrt`, which cannot be imported: libnvinfer.so.11 is gone"):
        load_library("tensorrt")


def test_a_folder_of_the_same_name_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder_tensorrt").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(library_module.MODULES, "tensorrt", "folder_tensorrt")
    with pytest.raises(MachineError, match=r"`folder_tensorrt` found in `.*` is not NVIDIA's"):
        load_library("tensorrt")


@pytest.mark.rtx
@needs("rtx")
def test_auto_passes_over_a_library_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old_tensorrt.py").write_text('__version__ = "10.16.1.11"')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(library_module.MODULES, "tensorrt", "old_tensorrt")
    backend, why = choose_backend("auto", machine(L40))
    assert backend == "tensorrt-rtx"
    assert "10.16.1.11 has no CausalMaskKind" in why


def find_only(*names: str) -> Any:
    spec = importlib.machinery.ModuleSpec("found", None)
    return lambda name: spec if name in names else None


@pytest.mark.parametrize(
    ("gpus", "installed", "backend", "reason"),
    [
        ((), ("tensorrt_rtx",), "onnxruntime", "shows no NVIDIA GPU"),
        ((B200,), ("tensorrt", "tensorrt_rtx"), "tensorrt", "compiles for this B200"),
        ((B200,), (), "onnxruntime", "stays unused: `tensorrt` is not installed, and `tensorrt_rtx` is not"),
    ],
)
def test_auto_says_what_it_takes_and_why(
    monkeypatch: pytest.MonkeyPatch, gpus: tuple[Gpu, ...], installed: tuple[str, ...], backend: str, reason: str
) -> None:
    monkeypatch.setattr("peagle_trt.engine.registry.importlib.util.find_spec", find_only(*installed))
    monkeypatch.setattr("peagle_trt.engine.tensorrt.library.load_library", fake_library)
    found, why = choose_backend("auto", machine(*gpus))
    assert found == backend
    assert reason in why


@pytest.mark.rtx
@needs("rtx")
@pytest.mark.parametrize(("gpu", "backend"), [(L40, "tensorrt-rtx"), (B200, "onnxruntime")])
def test_auto_takes_rtx_only_for_its_gpus(monkeypatch: pytest.MonkeyPatch, gpu: Gpu, backend: str) -> None:
    monkeypatch.setattr("peagle_trt.engine.registry.importlib.util.find_spec", find_only("tensorrt_rtx"))
    assert choose_backend("auto", machine(gpu))[0] == backend


def fake_log(*, needs_gpu: bool) -> MessageLog:
    module = fake_tensorrt(FakeCuda())
    return MessageLog(Library(backend="tensorrt-rtx", module=module, version="1"), needs_gpu=needs_gpu)


NO_DRIVER = "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (cudaError 35: too old)"


def test_a_logged_error_is_raised_once() -> None:
    log = fake_log(needs_gpu=True)
    log.logger.log(1, "first")
    log.logger.log(0, "second")
    log.logger.log(2, "only a warning")
    with pytest.raises(PeagleError, match="could not compile `x`: first; second"):
        log.require_clean("compile `x`")
    log.require_clean("compile `x`")


def test_a_missing_driver_is_noise_to_a_compiler_and_an_error_to_an_engine() -> None:
    compiler, engine = fake_log(needs_gpu=False), fake_log(needs_gpu=True)
    for log in (compiler, engine):
        log.logger.log(1, NO_DRIVER)
    compiler.require_clean("compile")
    with pytest.raises(PeagleError, match="cudaError 35"):
        engine.require_clean("run")


def test_another_cuda_error_is_no_noise() -> None:
    log = fake_log(needs_gpu=False)
    log.logger.log(1, NO_DRIVER.replace("35", "700"))
    with pytest.raises(PeagleError, match="cudaError 700"):
        log.require_clean("compile")


@pytest.mark.rtx
@needs("rtx")
def test_rtx_has_what_the_graphs_need() -> None:
    assert load_library("tensorrt-rtx").is_ahead_of_time
