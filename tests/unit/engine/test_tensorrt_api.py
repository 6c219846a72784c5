"""Whatever our code calls exists in the real classes: TensorRT 11.4's bindings, TensorRT-RTX, and CUDA's."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

import peagle_trt.engine.tensorrt as room
from peagle_trt.engine.tensorrt.device import Device, HostBuffer
from peagle_trt.engine.tensorrt.library import check_library
from peagle_trt.errors import MachineError
from peagle_trt.machine import probe_machine
from tests.support import fake_tensorrt
from tests.support.capabilities import needs, needs_program
from tests.support.fake_cuda import FakeCuda
from tests.support.tensorrt_bindings import Bindings

FOLDER = Path(str(room.__file__)).parent
# How our code names what TensorRT gives it.
RECEIVERS = {
    "trt": "",
    "library.module": "",
    "self._library.module": "",
    "builder": "Builder",
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "config": "IBuilderConfig",
    "made": "IOptimizationProfile",
    "tensor": "ITensor",
    "layer": "ILayer",
    "attention": "IAttention",
    "context": "IExecutionContext",
    "timing_cache": "ITimingCache",
    "self._engine": "ICudaEngine",
    "self._runtime": "Runtime",
    "trt.LayerType": "LayerType",
    "trt.DataType": "DataType",
    "trt.CausalMaskKind": "CausalMaskKind",
    "trt.NetworkDefinitionCreationFlag": "NetworkDefinitionCreationFlag",
    "self._library.module.ExecutionContextAllocationStrategy": "ExecutionContextAllocationStrategy",
}
# Asked for before they are used, for only one of the two libraries has them.
ONLY_AHEAD_OF_TIME = {("", "ComputeCapability"), *(("IBuilderConfig", f"{name}") for name in (
    "num_compute_capabilities", "set_compute_capability",
))}  # fmt: skip
ONLY_FULL = {("NetworkDefinitionCreationFlag", "PREFER_AOT_PYTHON_PLUGINS")}


def calls() -> set[tuple[str, str]]:
    """Class and name of everything that our code reads off TensorRT's objects."""
    found = set()
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in RECEIVERS:
                found.add((RECEIVERS[ast.unparse(node.value)], node.attr))
    # The layer is given its own class before its attention is read.
    found = {("IAttentionInputLayer", "attention") if each == ("ILayer", "attention") else each for each in found}
    return {(owner, name) for owner, name in found if not name.startswith("__")}


def rtx_members() -> dict[str, list[str]]:
    import tensorrt_rtx as trt

    found = {name: dir(value) for name in dir(trt) if isinstance(value := getattr(trt, name), type)}
    return found | {"": dir(trt)}


def missing(members: dict[str, list[str]], wanted: set[tuple[str, str]]) -> list[tuple[str, str]]:
    return sorted((owner, name) for owner, name in wanted if name not in members.get(owner, []))


def test_the_walk_sees_the_calls_that_matter() -> None:
    expected = {
        ("Builder", "build_serialized_network_to_stream"),
        ("IAttention", "key_value_lengths"),
        ("ICudaEngine", "get_aliased_input_tensor"),
        ("IExecutionContext", "execute_async_v3"),
        ("IOptimizationProfile", "set_shape"),
        ("ITimingCache", "serialize"),
        ("ITensor", "get_dimension_name"),
        ("DataType", "BF16"),
    }
    assert expected <= calls()
    assert len(calls()) > 45


@pytest.mark.rtx
@needs("rtx")
def test_tensorrt_rtx_has_every_name() -> None:
    assert missing(rtx_members(), calls() - ONLY_FULL) == []


@pytest.fixture(scope="module")
def bindings_members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    bindings = Bindings(tmp_path_factory.mktemp("bindings"), interprets=False)
    found: dict[str, list[str]] = bindings.ask("class_members")
    bindings.close()
    return found


@needs("bindings")
@needs_program("gcc")
def test_tensorrt_has_every_name(bindings_members: dict[str, list[str]]) -> None:
    assert missing(bindings_members, calls() - ONLY_AHEAD_OF_TIME) == []


@pytest.mark.rtx
@needs("rtx")
@pytest.mark.parametrize(
    ("fake", "owner"),
    [
        (fake_tensorrt.FakeRuntime, "Runtime"),
        (fake_tensorrt.FakeEngine, "ICudaEngine"),
        (fake_tensorrt.FakeContext, "IExecutionContext"),
        (fake_tensorrt.DataType, "DataType"),
    ],
)
def test_a_fake_has_nothing_that_the_real_class_has_not(fake: type, owner: str) -> None:
    assert {name for name in vars(fake) if not name.startswith("_")} <= set(rtx_members()[owner])


@pytest.mark.rtx
@needs("rtx")
def test_the_fakes_take_the_parameters_of_the_real_methods() -> None:
    import tensorrt_rtx as trt

    for fake, real in (
        (fake_tensorrt.FakeRuntime, trt.Runtime),
        (fake_tensorrt.FakeEngine, trt.ICudaEngine),
        (fake_tensorrt.FakeContext, trt.IExecutionContext),
    ):
        for name, method in vars(fake).items():
            if name.startswith("_") or not callable(method):
                continue
            for parameter in method.__code__.co_varnames[1 : method.__code__.co_argcount]:
                assert f"{parameter}: " in getattr(real, name).__doc__, f"{name} has no parameter {parameter}"


def test_tensorrt_10_is_refused_with_what_it_lacks() -> None:
    old = SimpleNamespace(
        __version__="10.16.1.11",
        IAttention=SimpleNamespace(mask=None),
        INetworkDefinition=SimpleNamespace(add_kv_cache_update=None),
        ICudaEngine=SimpleNamespace(get_aliased_input_tensor=None),
    )
    with pytest.raises(MachineError, match=r"`tensorrt` 10.16.1.11 has no CausalMaskKind.LOWER_RIGHT, IAttention.key"):
        check_library("tensorrt", old)


@needs("cuda")
def test_cuda_has_every_function_of_the_fake() -> None:
    from cuda.bindings import runtime

    assert {name for name in vars(FakeCuda) if name.startswith("cuda")} <= set(dir(runtime))


@needs("cuda")
@pytest.mark.skipif(bool(probe_machine().gpus), reason="the addresses are made up, and a GPU would use them")
def test_cuda_takes_our_arguments_and_says_that_there_is_no_driver() -> None:
    from cuda.bindings import runtime

    device = object.__new__(Device)
    device._cuda, device.stream = runtime, 5
    buffer = HostBuffer.__new__(HostBuffer)
    buffer.address, buffer.size_bytes = 4096, 16
    for call in (
        lambda: Device(runtime),
        lambda: device.allocate(16),
        lambda: device.allocate_host(16),
        lambda: device.free(4096),
        lambda: device.free_host(buffer),
        lambda: device.fill_zero(4096, 16),
        lambda: device.upload(4096, 8192, 16),
        lambda: device.upload_rows(4096, 64, buffer, 16, 1),
        lambda: device.download(8192, 4096, 16),
        lambda: device.move(4096, 8192, 16),
        lambda: device.wait(),
        lambda: device.capture(lambda: None),
        lambda: device.replay(3),
        lambda: device.forget(3),
        lambda: device.close(),
    ):
        with pytest.raises(MachineError, match="failed: cudaErrorInsufficientDriver"):
            call()
