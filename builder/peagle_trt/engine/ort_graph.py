"""One ONNX Runtime session whose caches are bound in place, and the caches themselves."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from peagle_trt.errors import MachineError, UsageError
from peagle_trt.quant import find_recipe
from peagle_trt.spec import DrafterConfig, EngineManifest, TargetConfig

logger = logging.getLogger(__name__)

MAX_THREADS_A_CORE = 4

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
_FOLDING_LIMIT = "optimization.constant_folding_max_output_size_in_bytes"

CACHE_KINDS = ("key", "value")

STEPS_BEFORE_LOADING = 32
"""Plain steps after which more of them are expected: loading their graph takes a second, and each then saves 3 ms."""

MAX_BINDINGS = 32
"""Sets of slots whose bindings a graph keeps; making one costs about a microsecond a cache."""


class SlotCaches:
    """Keys and values of every layer, [slots, heads, capacity, dim] float32 each, the last slot for scratch.

    Memory is touched, and so taken, only where tokens are written.

    Args:
        num_slots: Slots that sequences own; the scratch slot is number `num_slots`.
        num_layers: Layers.
        num_heads: Key/value heads.
        capacity: Positions.
        head_dim: Width of a head.
    """

    def __init__(self, *, num_slots: int, num_layers: int, num_heads: int, capacity: int, head_dim: int) -> None:
        self.shape = (num_heads, capacity, head_dim)
        self.scratch_slot = num_slots
        self.num_layers = num_layers
        self._arrays = {
            (kind, layer): np.zeros((num_slots + 1, *self.shape), np.float32)
            for kind in CACHE_KINDS
            for layer in range(num_layers)
        }

    def of_slots(self, kind: str, layer: int, first: int, count: int = 1) -> NDArray[np.float32]:
        """The caches of neighbouring slots, [count, heads, capacity, dim]."""
        return self._arrays[kind, layer][first : first + count]

    def copy_rows(self, source_slot: int, target_slot: int, num_rows: int) -> None:
        """Copy the first positions of a slot over those of another."""
        for array in self._arrays.values():
            array[target_slot, :, :num_rows] = array[source_slot, :, :num_rows]


Places = Iterator[tuple[str, NDArray[np.float32]]]
"""Inputs of a graph and the caches that belong there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedCaches:
    """The caches of a graph that takes a sequence a group, wherever its slot is.

    Attributes:
        caches: Of every slot.
        num_groups: Sequences a pass takes; groups past the last one work on the scratch slot.
    """

    caches: SlotCaches
    num_groups: int

    def places(self, slots: Sequence[int]) -> Places:
        """Inputs and caches of a pass over these slots."""
        scratch = [self.caches.scratch_slot] * (self.num_groups - len(slots))
        for layer in range(self.caches.num_layers):
            for group, slot in enumerate((*slots, *scratch)):
                for kind in CACHE_KINDS:
                    yield f"{kind}.{layer}.{group}", self.caches.of_slots(kind, layer, slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbouringCaches:
    """The caches of a graph that takes slots as they lie.

    Attributes:
        caches: Of every slot.
    """

    caches: SlotCaches

    def places(self, slots: Sequence[int]) -> Places:
        """Inputs and caches of a pass over these slots, which count up."""
        for layer in range(self.caches.num_layers):
            for kind in CACHE_KINDS:
                yield f"{kind}.{layer}", self.caches.of_slots(kind, layer, slots[0], len(slots))


class CachedGraph:
    """A loaded graph that appends to caches in place.

    Args:
        path: The ONNX file.
        caches: Caches it appends to, as it takes them.
        num_threads: Threads; None takes every core this process may use.
        max_folded_bytes: Largest constant that ONNX Runtime may compute when it loads the graph; None sets no limit.

    Raises:
        MachineError: ONNX Runtime cannot load the graph.
        UsageError: The file holds another graph, or the number of threads is out of range.
    """

    def __init__(
        self,
        path: Path,
        caches: GroupedCaches | NeighbouringCaches,
        *,
        num_threads: int | None,
        max_folded_bytes: int | None = None,
    ) -> None:
        self._session = load_session(path, num_threads, max_folded_bytes=max_folded_bytes)
        self._caches = caches
        _require_caches(path, self._session, caches)
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
            slots: Slots of the sequences, in the order of the feeds.

        Returns:
            The outputs, in buffers that the next run overwrites.
        """
        binding = self._binding(tuple(slots))
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
        for name, array in self._caches.places(slots):
            place = ("cpu", 0, array.dtype, array.shape, array.ctypes.data)
            binding.bind_input(name, *place)
            binding.bind_output(f"{name}.out", *place)
        return binding


class GraphFamily:
    """The graphs of one model over the same caches, one for each number of groups, each loaded at its first use.

    A *step graph* beside them serves neighbouring slots of one row each faster.

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
        prefix, paths = f"{model}.b", manifest.graphs
        roles = {role: path for role, path in paths.items() if role.startswith(prefix)}
        self._step_path = build_path / paths[f"{model}.step"] if f"{model}.step" in paths else None
        self._step_graph: CachedGraph | None = None
        self._num_steps = 0
        self._most_verified = manifest.shapes.max_draft_tokens + 1
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
            caches = GroupedCaches(caches=self._caches, num_groups=groups)
            self._graphs[groups] = self._load(self._paths[groups], caches)
        return self._graphs[groups]

    def step_graph(self, slots: Sequence[int], row_counts: Sequence[int]) -> CachedGraph | None:
        """The step graph, for a pass that it serves once there were enough of them in a row; prompts do not count.

        Args:
            slots: Slots of the pass.
            row_counts: Rows of each.

        Returns:
            The graph, or None where there is none, the pass is not for it, it would not pay yet, or it cannot be
            loaded, which is logged once: requests are in flight, and the other graphs serve them as well.
        """
        if self._step_path is None:
            return None
        if max(row_counts) > 1:
            if any(1 < count <= self._most_verified for count in row_counts):
                self._num_steps = 0
            return None
        if len(slots) == 1 or max(slots) - min(slots) >= len(slots):
            return None
        self._num_steps += 1
        if self._num_steps > STEPS_BEFORE_LOADING:
            try:
                self.load_step_graph()
            except (MachineError, UsageError) as error:
                logger.warning("plain steps stay slower: %s", error)
                self._step_path = None
        return self._step_graph

    def preload(self, *, steps: bool) -> None:
        """Load every graph, the step graph only with `steps`."""
        for groups in self._paths:
            self.graph(groups)
        if steps:
            self.load_step_graph()

    def load_step_graph(self) -> bool:
        """Load the step graph now.

        Returns:
            Whether there is one.

        Raises:
            MachineError: ONNX Runtime cannot load it.
            UsageError: The file holds another graph.
        """
        if self._step_graph is None and self._step_path is not None:
            self._step_graph = self._load(self._step_path, NeighbouringCaches(caches=self._caches))
        return self._step_graph is not None

    def close(self) -> None:
        """Free every graph."""
        self._graphs.clear()
        self._step_graph, self._num_steps = None, 0

    def _load(self, path: Path, caches: GroupedCaches | NeighbouringCaches) -> CachedGraph:
        return CachedGraph(path, caches, num_threads=self._num_threads, max_folded_bytes=self._max_folded_bytes)


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


def _require_caches(path: Path, session: Any, caches: GroupedCaches | NeighbouringCaches) -> None:
    """Refuse a graph that does not take these caches: binding would fail in the middle of a request."""
    found = {item.name: tuple(item.shape[1:]) for item in session.get_inputs()}
    for name, _ in caches.places([0]):
        if found.get(name) != caches.caches.shape:
            raise UsageError(
                f"`{path}` takes `{name}` as {found.get(name)}, expected {caches.caches.shape}, slots apart",
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
