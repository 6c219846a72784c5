"""One compiled engine on the device: a context for every profile, and captured launches of the shapes that recur.

An engine with plugins has a context for every shape of a step: TensorRT 11.1 and 11.2 lose memory on the device
whenever a context with Python plugins changes its shapes. Source: github.com/NVIDIA/TensorRT/issues/4849.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from peagle_trt.engine.tensorrt.device import Device
from peagle_trt.engine.tensorrt.library import Library, MessageLog
from peagle_trt.engine.tensorrt.memory import CachePort
from peagle_trt.engine.tensorrt.profiles import PROMPT
from peagle_trt.errors import MachineError, UsageError
from peagle_trt.spec import CompiledEngine

MAX_CAPTURES = 64
"""Launches that are kept captured; each takes a few hundred kilobytes on the device."""

Shapes = Mapping[str, tuple[int, ...]]
_Sizes = tuple[tuple[str, int], ...]
_Key = tuple[int, tuple[tuple[str, tuple[int, ...]], ...], tuple[tuple[str, int], ...]]


class LoadedEngine:
    """An engine that is ready to run.

    Args:
        library: What compiled it.
        device: Where it runs.
        plan_path: Its file.
        record: What the build says about it.

    Raises:
        PeagleError: The library refuses the file.
        MachineError: The file is gone.
    """

    def __init__(self, library: Library, device: Device, plan_path: Path, record: CompiledEngine) -> None:
        self._library = library
        self._device = device
        self._record = record
        self._log = MessageLog(library, needs_gpu=True)
        self._engine = self._deserialize(plan_path)
        self._contexts: dict[tuple[int, _Sizes], Any] = {}
        self._scratch = (0, 0)
        self._seen: set[_Key] = set()
        self._captures: OrderedDict[_Key, int] = OrderedDict()
        self.caches = self._read_caches()

    @property
    def scratch_bytes(self) -> int:
        """Memory that a pass needs for itself, under the profile that needs most."""
        count = self._engine.num_optimization_profiles
        return max(int(self._engine.get_device_memory_size_for_profile_v2(index)) for index in range(count))

    def use_scratch(self, address: int, size_bytes: int) -> None:
        """Let passes use this memory; other engines may use it too, since passes take turns."""
        self._scratch = (address, size_bytes)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Type of an input or output."""
        return _numpy_dtype(self._library.module, self._engine.get_tensor_dtype(name))

    def run(self, sizes: Mapping[str, int], shapes: Shapes, addresses: Mapping[str, int]) -> None:
        """Put one pass on the stream.

        Args:
            sizes: Size of every free dimension, by the names in the profiles.
            shapes: Shape of every input.
            addresses: Where every input and output lies.

        Raises:
            UsageError: No profile takes these sizes.
            PeagleError: The library refused something.
        """
        profile = self._choose_profile(sizes)
        key = profile, tuple(sorted(shapes.items())), tuple(sorted(addresses.items()))
        if key in self._captures:
            self._captures.move_to_end(key)
            self._device.replay(self._captures[key])
            return
        context = self._context(profile, self._own_sizes(profile, sizes))
        self._bind(context, shapes, addresses)
        self._launch(context)
        self._consider_capture(context, key)

    def prepare(self) -> None:
        """Make the context of every profile whose shapes share one."""
        for index in range(len(self._record.profiles)):
            if self._shares_context(index):
                self._context(index, ())

    def close(self) -> None:
        """Give captures and contexts back."""
        for executable in self._captures.values():
            self._device.forget(executable)
        self._captures.clear()
        self._seen.clear()
        self._contexts.clear()
        self._engine = None

    def _deserialize(self, plan_path: Path) -> Any:
        if not plan_path.is_file() or plan_path.stat().st_size == 0:
            raise MachineError(f"the engine `{plan_path}` is not there, or empty", hint="build it again")
        self._runtime = self._library.module.Runtime(self._log.logger)
        # Mapped, not read: gigabytes of weights go to the device and need no second copy here.
        with plan_path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
            engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise self._log.fail(f"load `{plan_path.name}`")
        self._log.require_clean(f"load `{plan_path.name}`")
        return engine

    def _read_caches(self) -> dict[str, CachePort]:
        """The caches, each of which must be an output that shares its input's memory."""
        found = {}
        for index in range(self._engine.num_io_tensors):
            name = self._engine.get_tensor_name(index)
            if not name.startswith(("key.", "value.")) or name.endswith(".out"):
                continue
            if self._engine.get_aliased_input_tensor(f"{name}.out") != name:
                raise UsageError(
                    f"`{self._record.path}` does not update `{name}` in place", hint="build it again with this release"
                )
            _, heads, capacity, width = tuple(self._engine.get_tensor_shape(name))
            found[name] = CachePort(name=name, dtype=self.dtype(name), shape=(heads, capacity, width))
        return found

    def _choose_profile(self, sizes: Mapping[str, int]) -> int:
        for index, profile in enumerate(self._record.profiles):
            if all(low <= sizes[name] <= high for name, (low, _, high) in profile.dims.items()):
                return index
        asked = ", ".join(f"{name} {size}" for name, size in sizes.items())
        taken = "; ".join(
            f"{profile.name}: " + ", ".join(f"{name} {low}..{high}" for name, (low, _, high) in profile.dims.items())
            for profile in self._record.profiles
        )
        raise UsageError(
            f"a pass of {asked} fits no profile of `{self._record.path}`, which takes {taken}",
            hint="build again with the K and the batch size that are asked for",
        )

    def _shares_context(self, profile: int) -> bool:
        return not self._record.plugin_version or self._record.profiles[profile].name == PROMPT

    def _own_sizes(self, profile: int, sizes: Mapping[str, int]) -> _Sizes:
        """The sizes that a context of their own serves; none where all of a profile share one."""
        return () if self._shares_context(profile) else tuple(sorted(sizes.items()))

    def _context(self, profile: int, sizes: _Sizes) -> Any:
        if (profile, sizes) not in self._contexts:
            strategy = self._library.module.ExecutionContextAllocationStrategy.USER_MANAGED
            context = self._engine.create_execution_context(strategy)
            if context is None or not context.set_optimization_profile_async(profile, self._device.stream):
                raise self._log.fail(f"prepare `{self._record.path}`")
            context.set_device_memory(*self._scratch)
            self._device.wait()
            self._log.require_clean(f"prepare `{self._record.path}`")
            self._contexts[profile, sizes] = context
        return self._contexts[profile, sizes]

    def _bind(self, context: Any, shapes: Shapes, addresses: Mapping[str, int]) -> None:
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise self._log.fail(f"take `{name}` as {shape}")
        for name, address in addresses.items():
            if not context.set_tensor_address(name, address):
                raise self._log.fail(f"bind `{name}`")

    def _launch(self, context: Any) -> None:
        if not context.execute_async_v3(self._device.stream):
            raise self._log.fail(f"run `{self._record.path}`")
        self._log.require_clean(f"run `{self._record.path}`")

    def _consider_capture(self, context: Any, key: _Key) -> None:
        """Capture what comes the second time: prompts rarely do, steps always.

        TensorRT prepares itself for new shapes in the launch that follows; that one must not be captured. So the
        capture comes right after a launch of the same shapes, which it records once more without running it.
        """
        if self._record.profiles[key[0]].name == PROMPT:
            return
        if key not in self._seen:
            self._seen.add(key)
            return
        # TensorRT-RTX tells; TensorRT has no such question, and can always be captured.
        can_capture = getattr(context, "is_stream_capturable", None)
        if can_capture is not None and not can_capture(self._device.stream):
            return
        self._captures[key] = self._device.capture(lambda: self._launch(context))
        if len(self._captures) > MAX_CAPTURES:
            self._device.wait()
            self._device.forget(self._captures.popitem(last=False)[1])


def _numpy_dtype(trt: Any, element: Any) -> np.dtype[Any]:
    import ml_dtypes

    found = {
        trt.DataType.FLOAT: np.float32,
        trt.DataType.HALF: np.float16,
        trt.DataType.BF16: ml_dtypes.bfloat16,
        trt.DataType.INT32: np.int32,
        trt.DataType.INT64: np.int64,
    }
    return np.dtype(found[element])
