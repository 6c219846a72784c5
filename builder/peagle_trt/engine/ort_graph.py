"""One ONNX Runtime session whose caches are bound in place, and the caches themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from peagle_trt.errors import MachineError


class SlotCaches:
    """Keys and values of every slot and layer, [1, heads, capacity, dim] float32 each.

    Memory is touched, and so taken, only where tokens are written.

    Args:
        num_slots: Slots.
        num_layers: Layers.
        num_heads: Key/value heads.
        capacity: Positions.
        head_dim: Width of a head.
    """

    def __init__(self, num_slots: int, num_layers: int, num_heads: int, capacity: int, head_dim: int) -> None:
        shape = (1, num_heads, capacity, head_dim)
        self.num_slots = num_slots
        self.num_layers = num_layers
        self.arrays = {
            (kind, layer, slot): np.zeros(shape, np.float32)
            for kind in ("key", "value")
            for layer in range(num_layers)
            for slot in range(num_slots)
        }


class CachedGraph:
    """A loaded graph with its caches bound.

    Args:
        path: The ONNX file.
        caches: Caches it appends to.
        num_groups: Groups of the graph: 1 (any slot, chosen at each run) or `caches.num_slots` (group g is slot g).
        num_threads: Threads; None takes every core this process may use.

    Raises:
        MachineError: ONNX Runtime cannot load the graph.
    """

    def __init__(self, path: Path, caches: SlotCaches, *, num_groups: int, num_threads: int | None) -> None:
        self._session = _load(path, num_threads or len(os.sched_getaffinity(0)))
        self._num_groups = num_groups
        runs = [list(range(caches.num_slots))] if num_groups > 1 else [[slot] for slot in range(caches.num_slots)]
        self._bindings = [self._bind(caches, slots) for slots in runs]
        self._outputs: dict[str, NDArray[np.generic]] = {}

    def run(
        self,
        feeds: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, tuple[DTypeLike, tuple[int, ...]]],
        *,
        slot: int | None,
    ) -> dict[str, NDArray[Any]]:
        """Run once.

        Args:
            feeds: Inputs except the caches; C-contiguous.
            outputs: Type and shape of every wanted output.
            slot: The slot of a one-group graph; None for the graph of all slots.

        Returns:
            The outputs, in buffers that the next run overwrites.
        """
        binding = self._bindings[slot or 0]
        for name, array in feeds.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        found = {}
        for name, (dtype, shape) in outputs.items():
            found[name] = self._buffer(name, dtype, shape)
            binding.bind_output(name, "cpu", 0, found[name].dtype, shape, found[name].ctypes.data)
        self._session.run_with_iobinding(binding)
        return found

    def _buffer(self, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """A view of a buffer that grows to the largest shape asked for."""
        size = int(np.prod(shape))
        kept = self._outputs.get(name)
        if kept is None or kept.size < max(size, 1):
            kept = self._outputs[name] = np.empty(max(size, 1), dtype)
        return kept[:size].reshape(shape)

    def _bind(self, caches: SlotCaches, slots: list[int]) -> Any:
        binding = self._session.io_binding()
        for layer in range(caches.num_layers):
            for group, slot in enumerate(slots):
                for kind in ("key", "value"):
                    array = caches.arrays[kind, layer, slot]
                    place = ("cpu", 0, array.dtype, array.shape, array.ctypes.data)
                    binding.bind_input(f"{kind}.{layer}.{group}", *place)
                    binding.bind_output(f"{kind}.{layer}.{group}.out", *place)
        return binding


def _load(path: Path, num_threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # ONNX Runtime raises its own classes without a common base that is public.
        raise MachineError(
            f"ONNX Runtime cannot load `{path}`: {error}", hint="build again; if it persists, report it"
        ) from error
