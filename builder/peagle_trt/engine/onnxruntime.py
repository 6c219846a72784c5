"""Runs a build's graphs in ONNX Runtime on the CPU, appending to the caches in place.

Letters: T rows of all groups, G groups of a graph, R rows carried over, K drafted slots, L rows with logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from peagle_trt.engine.draft_vocabulary import read_draft_to_target
from peagle_trt.engine.ort_graph import CachedGraph, GraphFamily
from peagle_trt.engine.protocol import DraftOutput, DraftRows, DraftStep, TargetOutput, TargetRows, host_rows
from peagle_trt.engine.sequential_onnxruntime import run_first_pass, run_next_pass
from peagle_trt.quant import find_recipe
from peagle_trt.spec import EngineManifest


class OnnxRuntimeEngine:
    """Target and drafter of one build. See `engine.protocol.SequentialEngine`.

    A pass takes the smallest graph with a group for every sequence; groups left over work on a scratch cache that no
    sequence owns. A graph is loaded when a pass first needs it, or by `preload`. Plain steps of neighbouring slots go
    to a graph of their own once there were enough of them (see `GraphFamily.step_graph`).

    Args:
        build_path: Folder of the build.
        manifest: Its manifest.
        num_threads: Threads; None takes every core this process may use.
    """

    def __init__(self, build_path: Path, manifest: EngineManifest, *, num_threads: int | None = None) -> None:
        self.target = manifest.target
        self.drafter = manifest.drafter
        self.shapes = manifest.shapes
        # Graphs over integers append a row that nobody reads; see `GroupedAttention`.
        self._rows_more = int(find_recipe(manifest.precision).rounds_to_integers)
        self._targets = GraphFamily(build_path, manifest, "target", manifest.target, num_threads)
        self._drafters = GraphFamily(build_path, manifest, "drafter", manifest.drafter, num_threads)
        self.draft_to_target = read_draft_to_target(build_path)

    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        """Read rows of different slots in one pass.

        Args:
            rows: One entry a slot; together at most `max_batch_size`.

        Returns:
            One output an entry, in the order of `rows`.

        Raises:
            ValueError: A slot appears twice or does not exist, or rows run past the cache.
        """
        self._check([(item.slot, item.start_position + len(item.token_ids) + self._rows_more) for item in rows])
        counts = [len(item.token_ids) for item in rows]
        steps = self._targets.step_graph([item.slot for item in rows], counts)
        if steps is not None:
            return self._run_steps(steps, rows)
        groups = self._targets.smallest(len(rows))
        padding = groups - len(rows)
        ends_G = np.array([item.start_position + len(item.token_ids) for item in rows] + [1] * padding, np.int32)
        stops = np.cumsum(counts).tolist()
        logit_rows = [np.arange(stop - item.num_logit_rows, stop) for item, stop in zip(rows, stops, strict=True)]
        feeds: dict[str, NDArray[np.generic]] = {
            "token_ids": np.concatenate([item.token_ids for item in rows]),
            "key_lengths": ends_G,
            "logit_rows": np.concatenate(logit_rows),
        }
        if groups > 1:
            feeds["row_counts"] = np.array(counts + [1] * padding, np.int64)
        outputs = self._target_outputs(feeds)
        found = self._targets.graph(groups).run(feeds, outputs, slots=[item.slot for item in rows])
        return _by_sequence(rows, stops, found["logits"], found["hidden"])

    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        """Draft for different slots in one drafter forward.

        Args:
            rows: One entry a slot; together at most `max_batch_size`.
            draft_tokens: K, 1..`max_draft_tokens`; 1 with a sequential head.

        Returns:
            Drafts in the order of `rows`.

        Raises:
            ValueError: A slot appears twice or does not exist, rows run past the cache, or K is out of range.
        """
        if not 1 <= draft_tokens <= self.shapes.max_draft_tokens:
            raise ValueError(f"draft_tokens is {draft_tokens}; expected 1..{self.shapes.max_draft_tokens}")
        if not self.drafter.is_parallel:
            if draft_tokens != 1:
                raise ValueError(f"draft_tokens is {draft_tokens}; a pass of an EAGLE-3 head drafts 1")
            self._check([(item.slot, item.start_position + item.num_accepted + 1) for item in rows])
            return run_first_pass(self._drafters, self.drafter, rows)
        width = max(len(item.next_token_ids) for item in rows) + draft_tokens - 1
        self._check([(item.slot, item.start_position + width) for item in rows])
        groups = self._drafters.smallest(len(rows))
        feeds = self._draft_feeds(rows, groups, draft_tokens)
        outputs = {
            "draft_token_ids": (np.int32, (groups, draft_tokens)),
            "draft_logits": (np.float32, (groups, draft_tokens, self.drafter.draft_vocab_size)),
        }
        found = self._drafters.graph(groups).run(feeds, outputs, slots=[item.slot for item in rows])
        count = len(rows)
        return DraftOutput(token_ids=found["draft_token_ids"][:count], logits=found["draft_logits"][:count])

    def step_drafter(self, rows: Sequence[DraftStep]) -> DraftOutput:
        """Draft one more token for different slots, with a sequential head.

        Args:
            rows: One entry a slot; together at most `max_batch_size`.

        Returns:
            Drafts in the order of `rows`.

        Raises:
            ValueError: The head is parallel, a slot appears twice or does not exist, or rows run past the cache.
        """
        if self.drafter.is_parallel:
            raise ValueError("a P-EAGLE head drafts all tokens in one pass")
        self._check([(item.slot, item.position + 1) for item in rows])
        return run_next_pass(self._drafters, self.drafter, rows)

    def copy_rows(self, source_slot: int, target_slot: int, num_rows: int) -> None:
        """See `engine.protocol.CopyingEngine`.

        Raises:
            ValueError: A slot does not exist, both are the same, or rows run past the cache.
        """
        self._check([(source_slot, num_rows), (target_slot, num_rows)])
        for family in (self._targets, self._drafters):
            family.copy_rows(source_slot, target_slot, num_rows)

    def preload(self, *, plain_steps: bool = True) -> None:
        """Load every graph now, so that no request waits for one; the step graph only with `plain_steps`."""
        for family in (self._targets, self._drafters):
            family.preload(steps=plain_steps)

    def preload_steps(self) -> bool:
        """See `engine.protocol.SteppingEngine`."""
        return self._targets.load_step_graph()

    def close(self) -> None:
        """Free every graph; safe to call twice, and a later pass loads again what it needs."""
        for family in (self._targets, self._drafters):
            family.close()

    def _run_steps(self, graph: CachedGraph, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        """One row of each of several neighbouring slots."""
        order = sorted(range(len(rows)), key=lambda index: rows[index].slot)
        by_slot = [rows[index] for index in order]
        feeds: dict[str, NDArray[np.generic]] = {
            "token_ids": np.concatenate([item.token_ids for item in by_slot]),
            "key_lengths": np.array([item.start_position + 1 for item in by_slot], np.int32),
            "logit_rows": np.flatnonzero([item.num_logit_rows for item in by_slot]),
        }
        found = graph.run(feeds, self._target_outputs(feeds), slots=[item.slot for item in by_slot])
        outputs = _by_sequence(by_slot, range(1, len(rows) + 1), found["logits"], found["hidden"])
        return [output for _, output in sorted(zip(order, outputs, strict=True), key=lambda pair: pair[0])]

    def _target_outputs(self, feeds: Mapping[str, NDArray[np.generic]]) -> dict[str, tuple[DTypeLike, tuple[int, ...]]]:
        width = len(self.target.aux_layer_ids) * self.target.hidden_size
        return {
            "logits": (np.float32, (len(feeds["logit_rows"]), self.target.vocab_size)),
            "hidden": (np.float32, (len(feeds["token_ids"]), width)),
        }

    def _draft_feeds(self, rows: Sequence[DraftRows], groups: int, draft_tokens: int) -> dict[str, NDArray[np.generic]]:
        num_rows = max(len(item.next_token_ids) for item in rows)
        next_token_ids = np.zeros((groups, num_rows), np.int32)
        hidden = np.zeros((groups, num_rows, rows[0].hidden.shape[1]), np.float32)
        num_accepted, starts = np.zeros(groups, np.int32), np.zeros(groups, np.int32)
        for index, item in enumerate(rows):
            count = len(item.next_token_ids)
            next_token_ids[index, :count], hidden[index, :count] = item.next_token_ids, host_rows(item.hidden)
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
            raise ValueError(f"slots are {slots}; expected different ones of 0..{self.shapes.max_batch_size - 1}")
        for slot, end in ends:
            if end > self.shapes.cache_capacity:
                raise ValueError(f"rows of slot {slot} end at {end}; the cache holds {self.shapes.cache_capacity}")


def _by_sequence(
    rows: Sequence[TargetRows],
    stops: Sequence[int],
    logits_LV: NDArray[np.float32],
    hidden_T: NDArray[np.float32],
) -> list[TargetOutput]:
    outputs, first = [], 0
    for item, stop in zip(rows, stops, strict=True):
        logits = logits_LV[first : first + item.num_logit_rows]
        outputs.append(TargetOutput(logits=logits, hidden=hidden_T[stop - len(item.token_ids) : stop]))
        first += item.num_logit_rows
    return outputs
