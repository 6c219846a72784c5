"""Runs the graphs of the TensorRT backends in ONNX Runtime: what is compiled there is proved here, on any machine.

Its attention reads whole caches, so it is a way to check a build and not one to serve it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from peagle_trt.engine.batched_engine import TargetResult
from peagle_trt.engine.batched_pass import DrafterPass, TargetPass
from peagle_trt.engine.ort_graph import folding_limit, load_session
from peagle_trt.engine.protocol import DraftCandidates, HiddenRows, host_rows
from peagle_trt.graph.batched import first_key_row
from peagle_trt.spec import DrafterConfig, EngineManifest, TargetConfig

_ELEMENTS: dict[str, DTypeLike] = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


@dataclass(frozen=True, slots=True)
class HostBlock:
    """Hidden states [B, S, A*H] in this process's memory."""

    hidden_BSA: NDArray[Any]

    def rows(self, row: int, count: int) -> NDArray[np.float32]:
        """The first `count` rows of a sequence."""
        return self.hidden_BSA[row, :count].astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSource:
    """A graph and where its weights lie.

    Attributes:
        model: The serialized model.
        weights_path: Folder of the files that it points into.
    """

    model: bytes
    weights_path: Path


class DenseGraph:
    """One batched graph with the caches of every slot, which passes update in place.

    Args:
        source: The graph.
        num_slots: Slots.
        first_key_row: What row 0 of every key cache holds from the start, [D], or None for nothing.
        num_threads: Threads; None takes every core this process may use.
        max_folded_bytes: Largest constant that ONNX Runtime may compute when it loads the graph; None sets no limit.
    """

    def __init__(
        self,
        source: GraphSource,
        *,
        num_slots: int,
        first_key_row: NDArray[np.float32] | None,
        num_threads: int | None,
        max_folded_bytes: int | None,
    ) -> None:
        self._session = load_session(
            source.model, num_threads, max_folded_bytes=max_folded_bytes, weights_path=source.weights_path
        )
        self._caches: dict[str, NDArray[Any]] = {}
        self.elements: dict[str, DTypeLike] = {}
        for port in self._session.get_inputs():
            self.elements[port.name] = _ELEMENTS.get(port.type, np.int32)
            if port.name.startswith(("key.", "value.")):
                self._caches[port.name] = np.zeros((num_slots, *port.shape[1:]), self.elements[port.name])
            if port.name.startswith("key.") and first_key_row is not None:
                self._caches[port.name][:, :, 0] = first_key_row

    def copy_rows(self, source_slot: int, target_slot: int, num_rows: int) -> None:
        """Copy the first rows of a slot's caches over those of another."""
        for cache in self._caches.values():
            cache[target_slot, :, :num_rows] = cache[source_slot, :, :num_rows]

    def run(
        self, feeds: Mapping[str, NDArray[Any]], outputs: Mapping[str, DTypeLike], *, first_slot: int, batch: int
    ) -> dict[str, NDArray[Any]]:
        """Run over the caches of `batch` slots from `first_slot` on.

        Args:
            feeds: Inputs except the caches.
            outputs: Names and types of the wanted outputs.
            first_slot: First slot.
            batch: B.
        """
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name, cache in self._caches.items():
            part = cache[first_slot : first_slot + batch]
            place = ("cpu", 0, part.dtype, part.shape, part.ctypes.data)
            binding.bind_input(name, *place)
            binding.bind_output(f"{name}.out", *place)
        for name in outputs:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        # Outputs come in the order of their binding, the caches first.
        found = binding.get_outputs()[len(self._caches) :]
        return {name: value.numpy() for name, value in zip(outputs, found, strict=True)}


class OnnxRuntimePasses:
    """Runs passes on the CPU. See `engine.batched_engine.PassRunner`.

    Args:
        target: Makes the target's graph.
        drafter: Makes the drafter's graph.
        manifest: Manifest of the build that the graphs belong to.
        num_threads: Threads; None takes every core this process may use.
    """

    def __init__(
        self,
        target: Callable[[], GraphSource],
        drafter: Callable[[], GraphSource],
        manifest: EngineManifest,
        *,
        num_threads: int | None = None,
    ) -> None:
        self._sources = {"target": target, "drafter": drafter}
        self._configs: dict[str, TargetConfig | DrafterConfig] = {
            "target": manifest.target,
            "drafter": manifest.drafter,
        }
        self._manifest = manifest
        self._num_threads = num_threads
        self._graphs: dict[str, DenseGraph] = {}

    def begin(self) -> None:
        """Nothing is kept between passes."""

    def run_target(self, each: TargetPass) -> TargetResult:
        """Run one pass of the target."""
        feeds = {
            "token_ids": each.token_ids,
            "start_positions": each.start_positions,
            "key_lengths": each.key_lengths,
            "logit_rows": each.logit_rows,
        }
        outputs = {"logits": np.float32, "hidden": np.float32, "greedy_token_ids": np.int32}
        found = self._graph("target").run(feeds, outputs, first_slot=each.first_slot, batch=len(each.token_ids))
        return TargetResult(
            logits=found["logits"] if each.needs_logits else None,
            greedy_token_ids=found["greedy_token_ids"],
            hidden=HostBlock(found["hidden"]),
        )

    def run_drafter(self, each: DrafterPass, hidden: Sequence[HiddenRows]) -> DraftCandidates:
        """Run one pass of the drafter."""
        graph = self._graph("drafter")
        batch, carried = each.next_token_ids.shape
        hidden_BRA = np.zeros((batch, carried, hidden[0].shape[1]), graph.elements["hidden"])
        for member, rows in zip(each.members, hidden, strict=True):
            hidden_BRA[member.row, : member.count] = host_rows(rows)
        feeds = {
            "next_token_ids": each.next_token_ids,
            "hidden": hidden_BRA,
            "num_accepted": each.num_accepted,
            "start_positions": each.start_positions,
            "key_lengths": each.key_lengths,
            "mask_token_ids": np.full(each.draft_tokens, self._manifest.drafter.mask_token_id, np.int32),
        }
        outputs = {"candidate_ids": np.int32, "probabilities": np.float32}
        found = graph.run(feeds, outputs, first_slot=each.first_slot, batch=batch)
        return DraftCandidates(token_ids=found["candidate_ids"], probabilities=found["probabilities"])

    def copy_rows(self, source_slot: int, target_slot: int, num_rows: int) -> None:
        """Copy the first rows of a slot's caches, both models', over those of another."""
        for role in self._sources:
            self._graph(role).copy_rows(source_slot, target_slot, num_rows)

    def preload(self) -> None:
        """Load both graphs."""
        for role in self._sources:
            self._graph(role)

    def close(self) -> None:
        """Free both graphs and their caches."""
        self._graphs.clear()

    def _graph(self, role: str) -> DenseGraph:
        if role not in self._graphs:
            self._graphs[role] = DenseGraph(
                self._sources[role](),
                num_slots=self._manifest.shapes.max_batch_size,
                first_key_row=first_key_row(self._configs[role]),
                num_threads=self._num_threads,
                max_folded_bytes=folding_limit(self._manifest),
            )
        return self._graphs[role]
