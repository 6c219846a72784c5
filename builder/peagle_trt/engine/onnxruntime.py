"""Runs a build's graphs in ONNX Runtime on the CPU, appending to the caches in place.

Letters: T rows of all sequences, G groups of a graph, R rows carried over, K drafted slots, L rows with logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from peagle_trt.engine.ort_graph import CachedGraph, SlotCaches
from peagle_trt.engine.protocol import DraftOutput, DraftRows, TargetOutput, TargetRows
from peagle_trt.spec import EngineManifest


class OnnxRuntimeEngine:
    """Target and drafter of one build. See `engine.protocol.Engine`.

    A graph of one group serves a lone sequence, with a binding for every slot. The graph of `max_batch_size` groups
    serves several: slot s is always its group s, so caches are bound once; a slot that takes no part carries one
    row of padding past its end, where nobody reads before writing.

    Args:
        build_path: Folder of the build.
        manifest: Its manifest.
        num_threads: Threads; None takes every core this process may use.
    """

    def __init__(self, build_path: Path, manifest: EngineManifest, *, num_threads: int | None = None) -> None:
        self.target = manifest.target
        self.drafter = manifest.drafter
        self.shapes = manifest.shapes
        slots, capacity = manifest.shapes.max_batch_size, manifest.shapes.cache_capacity
        target, drafter = manifest.target, manifest.drafter
        target_caches = SlotCaches(slots, target.num_layers, target.num_key_value_heads, capacity, target.head_dim)
        drafter_caches = SlotCaches(slots, drafter.num_layers, drafter.num_key_value_heads, capacity, drafter.head_dim)

        def load(role: str, groups: int, caches: SlotCaches) -> CachedGraph:
            path = build_path / manifest.graphs[f"{role}.b{groups}"]
            return CachedGraph(path, caches, num_groups=groups, num_threads=num_threads)

        buckets = manifest.shapes.batch_buckets
        self._targets = {groups: load("target", groups, target_caches) for groups in buckets}
        self._drafters = {groups: load("drafter", groups, drafter_caches) for groups in buckets}
        self._target_ends = np.zeros(slots, np.int32)
        self._drafter_ends = np.zeros(slots, np.int32)
        self.draft_to_target = self._read_draft_to_target(build_path)

    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        """Read rows of different slots in one pass.

        Args:
            rows: One entry a slot, in any order; together at most `max_batch_size`.

        Returns:
            One output an entry, in the order of `rows`.

        Raises:
            ValueError: A slot appears twice or does not exist, or rows run past the cache.
        """
        self._check([(item.slot, item.start_position + len(item.token_ids)) for item in rows])
        for item in rows:
            self._target_ends[item.slot] = item.start_position + len(item.token_ids)
        if len(rows) == 1:
            return self._run_target_rows(self._targets[1], list(rows), np.array([len(rows[0].token_ids)]), rows[0].slot)
        ordered = sorted(rows, key=lambda item: item.slot)
        counts = np.ones(self.shapes.max_batch_size, np.int64)
        counts[[item.slot for item in ordered]] = [len(item.token_ids) for item in ordered]
        outputs = self._run_target_rows(self._targets[self.shapes.max_batch_size], ordered, counts, None)
        by_slot = {item.slot: output for item, output in zip(ordered, outputs, strict=True)}
        return [by_slot[item.slot] for item in rows]

    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        """Draft for different slots in one drafter forward.

        Args:
            rows: One entry a slot, in any order; together at most `max_batch_size`.
            draft_tokens: K, 1..`max_draft_tokens`.

        Returns:
            Drafts in the order of `rows`.

        Raises:
            ValueError: A slot appears twice or does not exist, rows run past the cache, or K is out of range.
        """
        if not 1 <= draft_tokens <= self.shapes.max_draft_tokens:
            raise ValueError(f"draft_tokens is {draft_tokens}; expected 1..{self.shapes.max_draft_tokens}")
        self._check([(item.slot, item.start_position + item.num_accepted + draft_tokens) for item in rows])
        for item in rows:
            self._drafter_ends[item.slot] = item.start_position + item.num_accepted + 1
        groups = 1 if len(rows) == 1 else self.shapes.max_batch_size
        indices = [0] if groups == 1 else [item.slot for item in rows]
        feeds = self._draft_feeds(rows, indices, groups, draft_tokens)
        outputs = {
            "draft_token_ids": (np.int32, (groups, draft_tokens)),
            "draft_logits": (np.float32, (groups, draft_tokens, self.drafter.draft_vocab_size)),
        }
        found = self._drafters[groups].run(feeds, outputs, slot=rows[0].slot if groups == 1 else None)
        return DraftOutput(token_ids=found["draft_token_ids"][indices], logits=found["draft_logits"][indices])

    def close(self) -> None:
        """Free sessions and caches; safe to call twice."""
        self._targets, self._drafters = {}, {}

    def _run_target_rows(
        self, graph: CachedGraph, rows: list[TargetRows], counts_G: NDArray[np.int64], slot: int | None
    ) -> list[TargetOutput]:
        ends_G = self._target_ends.copy() if slot is None else self._target_ends[[slot]]
        starts_G = np.concatenate([[0], np.cumsum(counts_G)])
        token_ids = np.zeros(starts_G[-1], np.int32)
        logit_rows: list[NDArray[np.int64]] = []
        padding = np.ones(len(counts_G), bool)
        for item in rows:
            group = 0 if slot is not None else item.slot
            start, stop = starts_G[group], starts_G[group + 1]
            token_ids[start:stop] = item.token_ids
            logit_rows.append(np.arange(stop - item.num_logit_rows, stop, dtype=np.int64))
            padding[group] = False
        feeds = {
            "token_ids": token_ids,
            "key_lengths": (ends_G + padding).astype(np.int32),
            "logit_rows": np.concatenate(logit_rows),
        }
        if len(counts_G) > 1:
            feeds["row_counts"] = counts_G
        hidden_width = len(self.target.aux_layer_ids) * self.target.hidden_size
        shapes = {
            "logits": (np.float32, (len(feeds["logit_rows"]), self.target.vocab_size)),
            "hidden": (np.float32, (len(token_ids), hidden_width)),
        }
        found = graph.run(feeds, shapes, slot=slot)
        outputs, first = [], 0
        for item in rows:
            group = 0 if slot is not None else item.slot
            logits = found["logits"][first : first + item.num_logit_rows]
            hidden = found["hidden"][starts_G[group] : starts_G[group + 1]]
            outputs.append(TargetOutput(logits=logits, hidden=hidden))
            first += item.num_logit_rows
        return outputs

    def _draft_feeds(
        self, rows: Sequence[DraftRows], indices: list[int], groups: int, draft_tokens: int
    ) -> dict[str, NDArray[np.generic]]:
        num_rows = max(len(item.next_token_ids) for item in rows)
        next_token_ids = np.zeros((groups, num_rows), np.int32)
        hidden = np.zeros((groups, num_rows, rows[0].hidden.shape[1]), np.float32)
        num_accepted = np.zeros(groups, np.int32)
        starts = self._drafter_ends.copy() if groups > 1 else np.zeros(1, np.int32)
        for index, item in zip(indices, rows, strict=True):
            count = len(item.next_token_ids)
            next_token_ids[index, :count], hidden[index, :count] = item.next_token_ids, item.hidden
            num_accepted[index], starts[index] = item.num_accepted, item.start_position
        width = num_rows + draft_tokens - 1
        feeds: dict[str, NDArray[np.generic]] = {
            "next_token_ids": next_token_ids,
            "hidden": hidden,
            "num_accepted": num_accepted,
            "start_positions": starts,
            "mask_token_ids": np.full(draft_tokens, self.drafter.mask_token_id, np.int32),
            "key_lengths": starts + np.int32(width),
        }
        if groups > 1:
            feeds["row_counts"] = np.full(groups, width, np.int64)
        return feeds

    def _check(self, ends: list[tuple[int, int]]) -> None:
        """Refuse a pass that would write outside a cache; `ends` holds slot and position past the last row."""
        slots = [slot for slot, _ in ends]
        if not slots or len(set(slots)) != len(slots) or not all(0 <= s < self.shapes.max_batch_size for s in slots):
            raise ValueError(f"slots are {slots}; expected 1..{self.shapes.max_batch_size} different ones")
        for slot, end in ends:
            if end > self.shapes.cache_capacity:
                raise ValueError(f"rows of slot {slot} end at {end}; the cache holds {self.shapes.cache_capacity}")

    def _read_draft_to_target(self, build_path: Path) -> NDArray[np.int64]:
        from peagle_trt.quant.store import open_stored, read_stored

        return read_stored(open_stored(build_path / "engine" / "drafter.safetensors")["draft_to_target"]).astype(np.int64)
