"""One ONNX Runtime session whose caches are bound in place, and the caches themselves."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from peagle_trt.errors import MachineError, UsageError
from peagle_trt.quant import find_recipe
from peagle_trt.spec import DrafterConfig, EngineManifest, TargetConfig

MAX_THREADS_A_CORE = 4

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
_FOLDING_LIMIT = "optimization.constant_folding_max_output_size_in_bytes"

MAX_BINDINGS = 32
"""Sets of slots whose bindings a graph keeps; making one costs about a microsecond a cache."""


class SlotCaches:
    """Keys and values of every slot and layer, [1, heads, capacity, dim] float32 each, and one scratch slot more.

    Memory is touched, and so taken, only where tokens are written.

    Args:
        num_slots: Slots that sequences own; the scratch slot is number `num_slots`.
        num_layers: Layers.
        num_heads: Key/value heads.
        capacity: Positions.
        head_dim: Width of a head.
    """

    def __init__(self, *, num_slots: int, num_layers: int, num_heads: int, capacity: int, head_dim: int) -> None:
        shape = (1, num_heads, capacity, head_dim)
        self.scratch_slot = num_slots
        self.num_layers = num_layers
        self.arrays = {
            (kind, layer, slot): np.zeros(shape, np.float32)
            for kind in ("key", "value")
            for layer in range(num_layers)
            for slot in range(num_slots + 1)
        }

    def copy_rows(self, source_slot: int, target_slot: int, num_rows: int) -> None:
        """Copy the first positions of a slot over those of another."""
        for (kind, layer, slot), source in self.arrays.items():
            if slot == source_slot:
                self.arrays[kind, layer, target_slot][:, :, :num_rows] = source[:, :, :num_rows]


class CachedGraph:
    """A loaded graph that appends to caches in place.

    Args:
        path: The ONNX file.
        caches: Caches it appends to.
        num_groups: Sequences a pass takes.
        num_threads: Threads; None takes every core this process may use.
        max_folded_bytes: Largest constant that ONNX Runtime may compute when it loads the graph; None sets no limit.

    Raises:
        MachineError: ONNX Runtime cannot load the graph.
        UsageError: The file holds another graph, or the number of threads is out of range.
    """

    def __init__(
        self,
        path: Path,
        caches: SlotCaches,
        *,
        num_groups: int,
        num_threads: int | None,
        max_folded_bytes: int | None = None,
    ) -> None:
        self._session = load_session(path, num_threads, max_folded_bytes=max_folded_bytes)
        self._num_groups = num_groups
        self._caches = caches
        _require_caches(path, self._session, caches, num_groups)
        self._bindings: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._outputs: dict[str, NDArray[np.generic]] = {}

    def run(
        self,
        feeds: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, tuple[DTypeLike, tuple[int, ...]]],
        *,
        slots: Sequence[int],
    ) -> dict[str, NDArray[Any]]:
        """Run once.

        Args:
            feeds: Inputs except the caches; C-contiguous.
            outputs: Type and shape of every wanted output.
            slots: Slot of each group; groups past the end of it work on the scratch slot.

        Returns:
            The outputs, in buffers that the next run overwrites.
        """
        padding = self._num_groups - len(slots)
        binding = self._binding((*slots, *(self._caches.scratch_slot for _ in range(padding))))
        for name, array in feeds.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        found = {}
        for name, (dtype, shape) in outputs.items():
            found[name] = self._buffer(name, dtype, shape)
            binding.bind_output(name, "cpu", 0, found[name].dtype, shape, found[name].ctypes.data)
        self._session.run_with_iobinding(binding)
        return found

    def _binding(self, slots: tuple[int, ...]) -> Any:
        """The binding of these slots' caches; kept, since which sequences share a pass changes rarely."""
        binding = self._bindings.pop(slots, None) or self._bind(slots)
        self._bindings[slots] = binding
        if len(self._bindings) > MAX_BINDINGS:
            self._bindings.popitem(last=False)
        return binding

    def _buffer(self, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """A view of a buffer that grows to the largest shape asked for."""
        size = int(np.prod(shape))
        kept = self._outputs.get(name)
        if kept is None or kept.size < max(size, 1):
            kept = self._outputs[name] = np.empty(max(size, 1), dtype)
        return kept[:size].reshape(shape)

    def _bind(self, slots: tuple[int, ...]) -> Any:
        binding = self._session.io_binding()
        for layer in range(self._caches.num_layers):
            for group, slot in enumerate(slots):
                for kind in ("key", "value"):
                    array = self._caches.arrays[kind, layer, slot]
                    place = ("cpu", 0, array.dtype, array.shape, array.ctypes.data)
                    binding.bind_input(f"{kind}.{layer}.{group}", *place)
                    binding.bind_output(f"{kind}.{layer}.{group}.out", *place)
        return binding


class GraphFamily:
    """The graphs of one model, one for each number of groups, over the same caches; each loaded at its first use.

    Args:
        build_path: Folder of the build.
        manifest: Its manifest.
        model: "target" or "drafter".
        config: Sizes of the caches.
        num_threads: Threads; None takes every core this process may use.
    """

    def __init__(
        self,
        build_path: Path,
        manifest: EngineManifest,
        model: str,
        config: TargetConfig | DrafterConfig,
        num_threads: int | None,
    ) -> None:
        prefix = f"{model}.b"
        roles = {role: path for role, path in manifest.graphs.items() if role.startswith(prefix)}
        self._paths = {int(role.removeprefix(prefix)): build_path / path for role, path in roles.items()}
        self._num_threads = num_threads
        self._max_folded_bytes = folding_limit(manifest)
        self._graphs: dict[int, CachedGraph] = {}
        self._caches = SlotCaches(
            num_slots=manifest.shapes.max_batch_size,
            num_layers=config.num_layers,
            num_heads=config.num_key_value_heads,
            capacity=manifest.shapes.cache_capacity,
            head_dim=config.head_dim,
        )

    def copy_rows(self, source_slot: int, target_slot: int, num_rows: int) -> None:
        """Copy the first positions of a slot's caches over those of another."""
        self._caches.copy_rows(source_slot, target_slot, num_rows)

    def smallest(self, count: int) -> int:
        """Groups of the smallest graph that takes `count` sequences."""
        return min(groups for groups in self._paths if groups >= count)

    def graph(self, groups: int) -> CachedGraph:
        """The graph of that many groups.

        Raises:
            MachineError: ONNX Runtime cannot load it.
        """
        if groups not in self._graphs:
            self._graphs[groups] = CachedGraph(
                self._paths[groups],
                self._caches,
                num_groups=groups,
                num_threads=self._num_threads,
                max_folded_bytes=self._max_folded_bytes,
            )
        return self._graphs[groups]

    def preload(self) -> None:
        """Load every graph."""
        for groups in self._paths:
            self.graph(groups)

    def close(self) -> None:
        """Free every graph."""
        self._graphs.clear()


def usable_threads(requested: int | None) -> int:
    """Threads to run on: what was asked for, or every core this process may use.

    Raises:
        UsageError: More are asked for than could ever help; each would take memory for its stack.
    """
    cores = len(os.sched_getaffinity(0))
    if requested is None:
        return cores
    if not 1 <= requested <= MAX_THREADS_A_CORE * cores:
        raise UsageError(f"{requested} threads were asked for; expected 1..{MAX_THREADS_A_CORE * cores}")
    return requested


def check_graph(path: Path, manifest: EngineManifest) -> None:
    """Load a graph of a build and let it go again.

    Raises:
        MachineError: ONNX Runtime cannot load it.
    """
    load_session(path, 1, max_folded_bytes=folding_limit(manifest))


def folding_limit(manifest: EngineManifest) -> int | None:
    """Largest constant that ONNX Runtime may compute when it loads a graph of a build; None sets no limit.

    Weights that are widened where they are used would be widened once and for all at load: measured on 0.67 GB of
    bfloat16, 1.3 GB more memory and 16 seconds, against nothing and 0.02 seconds. Only the rotary tables are to be
    folded, [capacity, head_dim / 2] float32, and what is smaller.
    """
    if find_recipe(manifest.precision).weight_type == "F32":
        return None
    widest_head = max(manifest.target.head_dim, manifest.drafter.head_dim)
    return manifest.shapes.cache_capacity * (widest_head // 2) * 4


def _require_caches(path: Path, session: Any, caches: SlotCaches, num_groups: int) -> None:
    """Refuse a graph that does not take these caches: binding would fail in the middle of a request."""
    found = {item.name: tuple(item.shape) for item in session.get_inputs()}
    shape = next(iter(caches.arrays.values())).shape
    for layer in range(caches.num_layers):
        for group in range(num_groups):
            for name in (f"key.{layer}.{group}", f"value.{layer}.{group}"):
                if found.get(name) != shape:
                    raise UsageError(
                        f"`{path}` takes `{name}` as {found.get(name)}, expected {shape}",
                        hint="the file is not the one that was built; build again with --force",
                    )


def load_session(
    model: Path | bytes,
    num_threads: int | None,
    *,
    max_folded_bytes: int | None = None,
    weights_path: Path | None = None,
) -> Any:
    """A session on the CPU.

    Args:
        model: The ONNX file, or what one would hold.
        num_threads: Threads; None takes every core this process may use.
        max_folded_bytes: Largest constant that ONNX Runtime may compute when it loads the graph; None sets no limit.
        weights_path: Folder of the weights of a model that is no file; those of a file lie beside it.

    Raises:
        MachineError: ONNX Runtime cannot load the graph.
        UsageError: The number of threads is out of range.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = usable_threads(num_threads)
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Target and drafter take turns. Threads of the one that would keep spinning after its pass hold the cores that the
    # other needs: a verify step and a draft pass took 82 ms together instead of 43.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if weights_path is not None:
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(weights_path))
    if max_folded_bytes is not None:
        options.add_session_config_entry(_FOLDING_LIMIT, str(max_folded_bytes))
        # A pattern reserves what a whole pass allocates in one block beside the arena's own: for gpt-oss-20b's drafter,
        # whose matrices are widened one after another, another 1.9 GB.
        options.enable_mem_pattern = False
    given, name = (str(model), str(model)) if isinstance(model, Path) else (model, f"a graph over {weights_path}")
    try:
        return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # ONNX Runtime raises its own classes without a common base that is public.
        raise MachineError(
            f"ONNX Runtime cannot load `{name}`: {error}", hint="build again; if it persists, report it"
        ) from error
