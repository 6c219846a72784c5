"""CUDA's runtime as this process's own memory: every address is real, checked, and poisoned until it is written."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np


class Status(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorMemoryAllocation = 2


class FakeCuda:
    """Has the functions of `cuda.bindings.runtime` that the engine calls; a stream does everything at once.

    Attributes:
        num_bytes_down: Copied to the host.
        num_moves: Copies within the device.
        num_captures: Launches that were captured.
        num_replays: Launches that were replayed.
    """

    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2, cudaMemcpyDeviceToDevice=3)
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)

    def __init__(self, *, memory_bytes: int = 1 << 33) -> None:
        self.device: dict[int, np.ndarray] = {}
        self.host: dict[int, np.ndarray] = {}
        self.memory_bytes = memory_bytes
        self.num_bytes_down = self.num_moves = self.num_captures = self.num_replays = 0
        self._recording: list[Callable[[], None]] | None = None
        self._recordings: dict[int, list[Callable[[], None]]] = {}

    @property
    def is_clean(self) -> bool:
        """Whether everything was given back."""
        return not (self.device or self.host or self._recordings)

    def require(self, address: int, size_bytes: int) -> None:
        """Refuse a range of device memory that nobody allocated."""
        assert self._holds(self.device, address, size_bytes), f"{size_bytes} bytes at {address} are not the device's"

    def enqueue(self, work: Callable[[], None]) -> None:
        """What a launch does: runs at once, or is recorded."""
        if self._recording is None:
            work()
        else:
            self._recording.append(work)

    def cudaStreamCreate(self) -> tuple[Status, int]:
        return Status.cudaSuccess, 77

    def cudaStreamDestroy(self, stream: int) -> tuple[Status]:
        return (Status.cudaSuccess,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[Status]:
        assert self._recording is None, "a capture cannot wait"
        assert stream == 77
        return (Status.cudaSuccess,)

    def cudaMalloc(self, size: int) -> tuple[Status, int | None]:
        assert self._recording is None, "a capture cannot allocate"
        if size + sum(array.nbytes for array in self.device.values()) > self.memory_bytes:
            return Status.cudaErrorMemoryAllocation, None
        return self._allocate(self.device, size)

    def cudaMallocHost(self, size: int) -> tuple[Status, int | None]:
        return self._allocate(self.host, size)

    def cudaFree(self, address: int) -> tuple[Status]:
        del self.device[address]
        return (Status.cudaSuccess,)

    def cudaFreeHost(self, address: int) -> tuple[Status]:
        del self.host[address]
        return (Status.cudaSuccess,)

    def cudaMemsetAsync(self, address: int, value: int, count: int, stream: int) -> tuple[Status]:
        self.require(address, count)
        ctypes.memset(address, value, count)
        return (Status.cudaSuccess,)

    def cudaMemcpyAsync(self, target: int, source: int, count: int, kind: int, stream: int) -> tuple[Status]:
        assert self._recording is None, "copies are not captured"
        places = {1: (self.device, self.host), 2: (self.host, self.device), 3: (self.device, self.device)}[kind]
        assert self._holds(places[0], target, count), "the copy runs past its target"
        assert self._holds(places[1], source, count), "the copy runs past its source"
        ctypes.memmove(target, source, count)
        self.num_bytes_down += count if kind == 2 else 0
        self.num_moves += kind == 3
        return (Status.cudaSuccess,)

    def cudaMemcpy2DAsync(
        self, target: int, pitch: int, source: int, source_pitch: int, width: int, height: int, kind: int, stream: int
    ) -> tuple[Status]:
        for row in range(height):
            self.cudaMemcpyAsync(target + row * pitch, source + row * source_pitch, width, kind, stream)
        return (Status.cudaSuccess,)

    def cudaStreamBeginCapture(self, stream: int, mode: int) -> tuple[Status]:
        self._recording = []
        return (Status.cudaSuccess,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[Status, Any]:
        recorded, self._recording = self._recording, None
        return Status.cudaSuccess, recorded

    def cudaGraphInstantiate(self, graph: list[Callable[[], None]], flags: int) -> tuple[Status, int]:
        self.num_captures += 1
        self._recordings[self.num_captures] = graph
        return Status.cudaSuccess, self.num_captures

    def cudaGraphDestroy(self, graph: Any) -> tuple[Status]:
        return (Status.cudaSuccess,)

    def cudaGraphLaunch(self, executable: int, stream: int) -> tuple[Status]:
        self.num_replays += 1
        for work in self._recordings[executable]:
            work()
        return (Status.cudaSuccess,)

    def cudaGraphExecDestroy(self, executable: int) -> tuple[Status]:
        del self._recordings[executable]
        return (Status.cudaSuccess,)

    def _allocate(self, place: dict[int, np.ndarray], size: int) -> tuple[Status, int]:
        # All ones are a NaN to floats and a negative number to integers.
        array = np.full(size, 0xFF, np.uint8)
        place[array.ctypes.data] = array
        return Status.cudaSuccess, array.ctypes.data

    @staticmethod
    def _holds(place: dict[int, np.ndarray], address: int, size: int) -> bool:
        return any(start <= address and address + size <= start + array.nbytes for start, array in place.items())
