"""Memory of an engine on its device: buffers that grow, blocks that live for one step, and the caches of every slot.

Letters: N slots, C rows of a cache, D width of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peagle_trt.engine.tensorrt.device import Device, HostBuffer

# What cudaMalloc aligns to, and TensorRT asks for.
_ALIGNMENT = 256


class NamedBuffers:
    """Buffers by name, each as large as the largest size asked for; one on the device, one in page-locked memory.

    Args:
        device: Where.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._device_buffers: dict[str, tuple[int, int]] = {}
        self._host_buffers: dict[str, HostBuffer] = {}

    def on_device(self, name: str, size_bytes: int) -> int:
        """Address of a buffer of at least that size, zero at first; the same one until it has to grow."""
        address, size = self._device_buffers.get(name, (0, 0))
        if size >= size_bytes and size:
            return address
        if size:
            self._device.free(address)
        address = self._device.allocate(size_bytes)
        # Slots that sit out a pass are computed from whatever lies here, and write it into their caches, where it is
        # multiplied by a weight of zero: it must be a number.
        self._device.fill_zero(address, size_bytes)
        self._device_buffers[name] = address, max(size_bytes, 1)
        return address

    def on_host(self, name: str, size_bytes: int) -> HostBuffer:
        """Page-locked memory of at least that size."""
        kept = self._host_buffers.get(name)
        if kept is not None and kept.size_bytes >= size_bytes:
            return kept
        if kept is not None:
            self._device.free_host(kept)
        self._host_buffers[name] = self._device.allocate_host(size_bytes)
        return self._host_buffers[name]

    def upload(self, name: str, array: NDArray[Any]) -> int:
        """Copy an array to the buffer of that name; returns its address on the device."""
        staging, address = self.on_host(name, array.nbytes), self.on_device(name, array.nbytes)
        staging.view(array.dtype, array.shape)[...] = array
        self._device.upload(address, staging.address, array.nbytes)
        return address

    def download(self, name: str, address: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Copy from the device into the page-locked buffer of that name, once the stream has come so far.

        Returns:
            A view of the buffer, which holds the numbers after `Device.wait` and until the next call for this name.
        """
        size_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        staging = self.on_host(name, size_bytes)
        self._device.download(staging.address, address, size_bytes)
        return staging.view(dtype, shape)

    def close(self) -> None:
        """Give all of it back."""
        for address, _ in self._device_buffers.values():
            self._device.free(address)
        for buffer in self._host_buffers.values():
            self._device.free_host(buffer)
        self._device_buffers.clear()
        self._host_buffers.clear()


class StepArena:
    """Blocks that live from one `reset` to the next, at the same addresses once a step has shown what it needs.

    Args:
        device: Where.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._chunks: list[tuple[int, int]] = []
        self._used = 0
        self.generation = 0

    def reset(self) -> None:
        """Forget every block."""
        self.generation += 1
        self._used = 0
        if len(self._chunks) > 1:
            total = sum(size for _, size in self._chunks)
            self._free_chunks()
            self._chunks = [(self._device.allocate(total), total)]

    def take(self, size_bytes: int) -> int:
        """Address of a new block."""
        rounded = -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
        if not self._chunks or self._used + rounded > self._chunks[-1][1]:
            self._chunks.append((self._device.allocate(rounded), rounded))
            self._used = 0
        address = self._chunks[-1][0] + self._used
        self._used += rounded
        return address

    def close(self) -> None:
        """Give all of it back."""
        self._free_chunks()

    def _free_chunks(self) -> None:
        for address, _ in self._chunks:
            self._device.free(address)
        self._chunks = []


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePort:
    """One cache of a graph.

    Attributes:
        name: Of the input; the output's ends in `.out`.
        dtype: Type of an element.
        shape: Of one slot, [heads, C, D].
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, int, int]

    @property
    def slot_bytes(self) -> int:
        """Size of one slot's."""
        return int(np.prod(self.shape)) * self.dtype.itemsize


class DeviceCaches:
    """Every cache of one engine, N slots each, zero at first.

    Args:
        device: Where.
        ports: The caches.
        num_slots: N.
        first_key_row: What row 0 of every key cache holds from the start, [D], or None for nothing.
    """

    def __init__(
        self,
        device: Device,
        ports: Mapping[str, CachePort],
        *,
        num_slots: int,
        first_key_row: NDArray[np.float32] | None,
    ) -> None:
        self._device = device
        self._ports = ports
        self._addresses = {name: device.allocate(num_slots * port.slot_bytes) for name, port in ports.items()}
        for name, port in ports.items():
            # What lies behind a sequence's end is multiplied by a weight of zero: it must be a number.
            device.fill_zero(self._addresses[name], num_slots * port.slot_bytes)
            if first_key_row is not None and name.startswith("key."):
                self._write_first_rows(port, num_slots, first_key_row)

    def addresses(self, first_slot: int) -> dict[str, int]:
        """Where the caches of the slots from `first_slot` on begin, by the names of inputs and outputs."""
        found = {}
        for name, port in self._ports.items():
            found[name] = found[f"{name}.out"] = self._addresses[name] + first_slot * port.slot_bytes
        return found

    def copy_rows(self, source_slot: int, target_slot: int, num_rows: int) -> None:
        """Copy the first rows of a slot over those of another, one copy a cache, behind what the stream does."""
        for name, port in self._ports.items():
            heads, capacity, width = port.shape
            row_bytes = width * port.dtype.itemsize
            source, target = (self._addresses[name] + slot * port.slot_bytes for slot in (source_slot, target_slot))
            rows = min(num_rows, capacity)
            self._device.move_rows(target, source, capacity * row_bytes, rows * row_bytes, heads)

    def close(self) -> None:
        """Give all of it back."""
        for address in self._addresses.values():
            self._device.free(address)
        self._addresses = {}

    def _write_first_rows(self, port: CachePort, num_slots: int, row_D: NDArray[np.float32]) -> None:
        heads, capacity, width = port.shape
        row_bytes, num_rows = width * port.dtype.itemsize, num_slots * heads
        staging = self._device.allocate_host(row_bytes * num_rows)
        staging.view(port.dtype, (num_rows, width))[...] = row_D.astype(port.dtype)
        self._device.upload_rows(self._addresses[port.name], capacity * row_bytes, staging, row_bytes, num_rows)
        self._device.wait()
        self._device.free_host(staging)
