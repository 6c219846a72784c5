"""The few calls of the CUDA runtime that an engine needs, with errors that raise."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import MachineError


class Device:
    """Memory, one stream and captured launches of this machine's first GPU.

    Args:
        runtime: `cuda.bindings.runtime`, or what has its functions.
    """

    def __init__(self, runtime: Any) -> None:
        self._cuda = runtime
        self.stream = int(self._call(runtime.cudaStreamCreate))

    def allocate(self, size_bytes: int) -> int:
        """Address of new memory on the device; what it holds is undefined."""
        return int(self._call(self._cuda.cudaMalloc, max(size_bytes, 1)))

    def free(self, address: int) -> None:
        """Give memory back."""
        self._call(self._cuda.cudaFree, address)

    def allocate_host(self, size_bytes: int) -> HostBuffer:
        """Memory of this process that the device copies from and to without a detour."""
        address = int(self._call(self._cuda.cudaMallocHost, max(size_bytes, 1)))
        return HostBuffer(address, max(size_bytes, 1))

    def free_host(self, buffer: HostBuffer) -> None:
        """Give it back; arrays over it must be gone."""
        self._call(self._cuda.cudaFreeHost, buffer.address)

    def fill_zero(self, address: int, size_bytes: int) -> None:
        """Write zeros, behind what the stream does already."""
        self._call(self._cuda.cudaMemsetAsync, address, 0, size_bytes, self.stream)

    def upload(self, address: int, source_address: int, size_bytes: int) -> None:
        """Copy to the device, behind what the stream does already."""
        self._copy(address, source_address, size_bytes, self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice)

    def upload_rows(self, address: int, pitch_bytes: int, source: HostBuffer, row_bytes: int, num_rows: int) -> None:
        """Copy rows that lie side by side to rows `pitch_bytes` apart, behind what the stream does already."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        arguments = (address, pitch_bytes, source.address, row_bytes, row_bytes, num_rows, kind, self.stream)
        self._call(self._cuda.cudaMemcpy2DAsync, *arguments)

    def download(self, target_address: int, address: int, size_bytes: int) -> None:
        """Copy from the device, behind what the stream does already; done after `wait`."""
        self._copy(target_address, address, size_bytes, self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost)

    def move(self, address: int, source_address: int, size_bytes: int) -> None:
        """Copy within the device, behind what the stream does already."""
        self._copy(address, source_address, size_bytes, self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToDevice)

    def move_rows(self, address: int, source_address: int, pitch_bytes: int, row_bytes: int, num_rows: int) -> None:
        """Copy rows that lie `pitch_bytes` apart within the device, behind what the stream does already."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        arguments = (address, pitch_bytes, source_address, pitch_bytes, row_bytes, num_rows, kind, self.stream)
        self._call(self._cuda.cudaMemcpy2DAsync, *arguments)

    def wait(self) -> None:
        """Until the stream has done everything."""
        self._call(self._cuda.cudaStreamSynchronize, self.stream)

    def capture(self, launch: Callable[[], None]) -> int:
        """Record what `launch` puts on the stream, without running it.

        Returns:
            A handle for `replay`.
        """
        # Other threads of the process may use CUDA meanwhile; only what this one does is recorded.
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call(self._cuda.cudaStreamBeginCapture, self.stream, mode)
        try:
            launch()
        finally:
            graph = self._call(self._cuda.cudaStreamEndCapture, self.stream)
        executable = self._call(self._cuda.cudaGraphInstantiate, graph, 0)
        self._call(self._cuda.cudaGraphDestroy, graph)
        return int(executable)

    def replay(self, executable: int) -> None:
        """Run what was recorded, behind what the stream does already."""
        self._call(self._cuda.cudaGraphLaunch, executable, self.stream)

    def forget(self, executable: int) -> None:
        """Give a recording back."""
        self._call(self._cuda.cudaGraphExecDestroy, executable)

    def close(self) -> None:
        """Give the stream back; nothing may be called after."""
        self._call(self._cuda.cudaStreamDestroy, self.stream)

    def _copy(self, target: int, source: int, size_bytes: int, kind: Any) -> None:
        self._call(self._cuda.cudaMemcpyAsync, target, source, size_bytes, kind, self.stream)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the runtime, which answers with a status and perhaps a value."""
        status, *values = function(*arguments)
        if int(status) != 0:
            raise MachineError(f"{function.__name__} failed: {status.name}", hint=_hint(status.name))
        return values[0] if values else None


class HostBuffer:
    """Page-locked memory of this process.

    Args:
        address: Where it begins.
        size_bytes: Size.
    """

    def __init__(self, address: int, size_bytes: int) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self._bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))

    def view(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Its first bytes as an array."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self._bytes[:size].view(dtype).reshape(shape)


def open_device() -> Device:
    """This machine's first GPU.

    Raises:
        MachineError: NVIDIA's bindings are not installed, or the driver does not answer.
    """
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise MachineError(
            f"running an engine needs the package `cuda-bindings`: {error}", hint="install `peagle-trt[rtx]`"
        ) from error
    return Device(runtime)


def _hint(status: str) -> str:
    if "MemoryAllocation" in status:
        return "build with a smaller --max-batch-size or --max-sequence-length"
    if "InsufficientDriver" in status:
        return "update the NVIDIA driver, or install one: it does not answer, or is older than CUDA 13.0"
    return "see whether `nvidia-smi` works; if it does, report this"
