"""TensorRT's runtime over ONNX Runtime: the engine's file names a float32 graph, which runs on the very addresses.

Everything that the engine's code may call is here and nothing else; tests compare the names with the real classes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, SupportsBytes

import msgspec
import numpy as np
import onnxruntime

from peagle_trt.spec import EngineProfile
from tests.support.fake_cuda import FakeCuda

NUMPY_TYPES = {"tensor(float)": np.float32, "tensor(int32)": np.int32}


class DataType(enum.Enum):
    FLOAT = 0
    HALF = 1
    BF16 = 7
    INT32 = 3
    INT64 = 8


class Plan(msgspec.Struct):
    """What a file of a fake engine holds."""

    graph: str
    profiles: tuple[EngineProfile, ...]
    is_aliased: bool = True


class ILogger:
    def __init__(self) -> None:
        pass


def fake_tensorrt(cuda: FakeCuda, *, version: str = "1.2.3", can_capture: bool = True) -> SimpleNamespace:
    """A module; `can_capture` is what its contexts answer."""

    class Runtime(FakeRuntime):
        def __init__(self, logger: Any) -> None:
            super().__init__(logger, cuda, can_capture=can_capture)

    return SimpleNamespace(
        __version__=version,
        __name__="fake_tensorrt",
        ILogger=ILogger,
        DataType=DataType,
        Runtime=Runtime,
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED="user-managed"),
        CausalMaskKind=SimpleNamespace(LOWER_RIGHT=2),
        IAttention=SimpleNamespace(key_value_lengths=None),
        INetworkDefinition=SimpleNamespace(add_kv_cache_update=None),
        ICudaEngine=FakeEngine,
        ComputeCapability=SimpleNamespace(__members__={"SM120": 120}),
    )


class FakeRuntime:
    def __init__(self, logger: Any, cuda: FakeCuda, *, can_capture: bool) -> None:
        self._logger, self._cuda, self._can_capture = logger, cuda, can_capture

    def deserialize_cuda_engine(self, serialized_engine: SupportsBytes) -> FakeEngine | None:
        try:
            plan = msgspec.json.decode(bytes(serialized_engine), type=Plan)
        except msgspec.MsgspecError:
            self._logger.log(1, "magic tag does not match")
            return None
        return FakeEngine(plan, self._cuda, can_capture=self._can_capture)


class FakeEngine:
    def __init__(self, plan: Plan, cuda: FakeCuda, *, can_capture: bool) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(plan.graph, options, providers=["CPUExecutionProvider"])
        self._ports = {port.name: port for port in (*self._session.get_inputs(), *self._session.get_outputs())}
        self._plan, self._cuda, self._can_capture = plan, cuda, can_capture

    @property
    def num_io_tensors(self) -> int:
        return len(self._ports)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._plan.profiles)

    def get_tensor_name(self, index: int) -> str:
        return list(self._ports)[index]

    def get_tensor_dtype(self, name: str) -> DataType:
        return {"tensor(float)": DataType.FLOAT, "tensor(int32)": DataType.INT32}[self._ports[name].type]

    def get_tensor_shape(self, name: str) -> Sequence[int]:
        return tuple(-1 if isinstance(size, str) else size for size in self._ports[name].shape)

    def get_aliased_input_tensor(self, name: str) -> str:
        return name.removesuffix(".out") if self._plan.is_aliased and name.endswith(".out") else ""

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        return 1000 + profile_index

    def create_execution_context(self, strategy: str) -> FakeContext:
        assert strategy == "user-managed"
        return FakeContext(self._session, self._ports, self._plan, self._cuda, can_capture=self._can_capture)


class FakeContext:
    def __init__(self, session: Any, ports: dict[str, Any], plan: Plan, cuda: FakeCuda, *, can_capture: bool) -> None:
        self._session, self._ports, self._plan, self._cuda = session, ports, plan, cuda
        self._can_capture = can_capture
        self._profile: EngineProfile | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._has_memory = False

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self._profile = self._plan.profiles[profile_index]
        return True

    def set_device_memory(self, memory: int, size: int) -> None:
        self._cuda.require(memory, size)
        assert size >= 1000 + len(self._plan.profiles) - 1
        self._has_memory = True

    def is_stream_capturable(self, stream: int) -> bool:
        return self._can_capture

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert self._profile is not None
        for size, wanted in zip(shape, self._ports[name].shape, strict=True):
            low, _, high = self._profile.dims[wanted] if isinstance(wanted, str) else (wanted, wanted, wanted)
            if not low <= size <= high:
                return False
        self._shapes[name] = shape
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if name not in self._ports:
            return False
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        assert self._has_memory
        assert set(self._addresses) == set(self._ports), "something is not bound"
        inputs = {port.name for port in self._session.get_inputs()}
        assert set(self._shapes) == inputs
        shapes, addresses = dict(self._shapes), dict(self._addresses)
        self._cuda.enqueue(lambda: self._compute(inputs, shapes, addresses))
        return True

    def _compute(self, inputs: set[str], shapes: dict[str, tuple[int, ...]], addresses: dict[str, int]) -> None:
        sizes = {
            wanted: size
            for name in inputs
            for wanted, size in zip(self._ports[name].shape, shapes[name], strict=True)
            if isinstance(wanted, str)
        }
        binding = self._session.io_binding()
        for name, port in self._ports.items():
            shape = tuple(sizes[size] if isinstance(size, str) else size for size in port.shape)
            if name in inputs:
                assert shape == shapes[name], f"{name}: {shape} and {shapes[name]}"
            dtype = np.dtype(NUMPY_TYPES[port.type])
            self._cuda.require(addresses[name], int(np.prod(shape)) * dtype.itemsize)
            if name.endswith(".out"):
                assert addresses[name] == addresses[name.removesuffix(".out")], "a cache's two ends lie apart"
            bind = binding.bind_input if name in inputs else binding.bind_output
            bind(name, "cpu", 0, dtype, shape, addresses[name])
        self._session.run_with_iobinding(binding)


def write_plan(path: Path, graph: Path, profiles: tuple[EngineProfile, ...], *, is_aliased: bool = True) -> None:
    path.write_bytes(msgspec.json.encode(Plan(graph=str(graph), profiles=profiles, is_aliased=is_aliased)))
