"""The Engine protocol over dense passes: whoever runs them, what goes into a pass and comes out of it is the same.

Letters: B sequences, S rows of the target, L rows with logits, V vocabulary, A auxiliary states, H hidden size,
R rows carried over to the drafter, K drafted slots, M candidates of a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from peagle_trt.engine.batched_pass import DrafterPass, PassMember, TargetPass, plan_drafter, plan_target
from peagle_trt.engine.draft_vocabulary import read_draft_to_target
from peagle_trt.engine.protocol import (
    DraftCandidates,
    DraftOutput,
    DraftRows,
    HiddenRows,
    TargetOutput,
    TargetRows,
    host_rows,
)
from peagle_trt.spec import EngineManifest


class HiddenBlock(Protocol):
    """Auxiliary hidden states of one pass, [B, S, A*H]."""

    def rows(self, row: int, count: int) -> HiddenRows:
        """The first `count` rows of a sequence."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetResult:
    """What a pass of the target gave.

    Attributes:
        logits: [B, L, V] float32; None where the pass does not need them.
        greedy_token_ids: [B, L] int32.
        hidden: Auxiliary hidden states.
    """

    logits: NDArray[np.float32] | None
    greedy_token_ids: NDArray[np.int32]
    hidden: HiddenBlock


class PassRunner(Protocol):
    """Runs dense passes over the caches of every slot. Results are valid until the next call of `begin`."""

    def begin(self) -> None:
        """A new step of the target begins: what earlier passes left may be overwritten."""
        ...

    def run_target(self, each: TargetPass) -> TargetResult:
        """Run one pass of the target."""
        ...

    def run_drafter(self, each: DrafterPass, hidden: Sequence[HiddenRows]) -> DraftCandidates:
        """Run one pass of the drafter; `hidden` holds every member's rows, in the order of the members.

        Returns:
            [B, K, M] each.
        """
        ...

    def copy_rows(self, source_slot: int, target_slot: int, num_rows: int) -> None:
        """Copy the first rows of a slot's caches, both models', over those of another."""
        ...

    def preload(self) -> None:
        """Load whatever is loaded at first use."""
        ...

    def close(self) -> None:
        """Free what is loaded; safe to call twice."""
        ...


class BatchedEngine:
    """Target and drafter of one build, run in dense passes. See `engine.protocol.Engine`.

    Args:
        build_path: Folder of the build.
        manifest: Its manifest.
        runner: Runs the passes.
    """

    def __init__(self, build_path: Path, manifest: EngineManifest, runner: PassRunner) -> None:
        self.target = manifest.target
        self.drafter = manifest.drafter
        self.shapes = manifest.shapes
        self.draft_to_target = read_draft_to_target(build_path)
        self._runner = runner

    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        """Read rows of different slots: steps share a pass, a prompt has its own.

        Args:
            rows: One entry a slot; together at most `max_batch_size`.

        Returns:
            One output an entry, in the order of `rows`.

        Raises:
            ValueError: A slot appears twice or does not exist, or rows run past the cache.
        """
        passes = plan_target(rows, self.shapes)
        self._runner.begin()
        parts: list[list[TargetOutput]] = [[] for _ in rows]
        for each in passes:
            result = self._runner.run_target(each)
            for member in each.members:
                parts[member.entry].append(self._output(member, result, needs_logits=rows[member.entry].needs_logits))
        return [_join(outputs) for outputs in parts]

    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        """Draft for different slots: steps share a forward, a prompt has its own.

        Args:
            rows: One entry a slot; together at most `max_batch_size`.
            draft_tokens: K, 1..`max_draft_tokens`.

        Returns:
            Drafts in the order of `rows`.

        Raises:
            ValueError: A slot appears twice or does not exist, rows run past the cache, or K is out of range.
        """
        num_candidates = min(MAX_CANDIDATES, self.drafter.draft_vocab_size)
        token_ids = np.zeros((len(rows), draft_tokens, num_candidates), np.int32)
        probabilities = np.zeros(token_ids.shape, np.float32)
        for each in plan_drafter(rows, draft_tokens, self.shapes):
            hidden = [_hidden_of(rows[member.entry], each.first_row, member.count) for member in each.members]
            found = self._runner.run_drafter(each, hidden)
            # The last chunk of a prompt comes last, and it alone drafts all K.
            for member in each.members:
                token_ids[member.entry, : each.draft_tokens] = found.token_ids[member.row]
                probabilities[member.entry, : each.draft_tokens] = found.probabilities[member.row]
        candidates = DraftCandidates(token_ids=token_ids, probabilities=probabilities)
        return DraftOutput(token_ids=np.ascontiguousarray(token_ids[:, :, 0]), candidates=candidates)

    def copy_rows(self, source_slot: int, target_slot: int, num_rows: int) -> None:
        """See `engine.protocol.CopyingEngine`.

        Raises:
            ValueError: A slot does not exist, both are the same, or rows run past the cache.
        """
        slots = range(self.shapes.max_batch_size)
        if source_slot == target_slot or source_slot not in slots or target_slot not in slots:
            raise ValueError(f"slots are {source_slot} and {target_slot}; expected different ones of 0..{slots[-1]}")
        if num_rows > self.shapes.cache_capacity:
            raise ValueError(f"{num_rows} rows are to be copied; the cache holds {self.shapes.cache_capacity}")
        # A cache with sinks begins a row later; where there are none, one row more does no harm.
        self._runner.copy_rows(source_slot, target_slot, num_rows + 1)

    def preload(self, *, plain_steps: bool = True) -> None:
        """Load both engines now, so that no request waits for one; they serve all steps."""
        self._runner.preload()

    def close(self) -> None:
        """Free both engines; safe to call twice, and a later pass loads again what it needs."""
        self._runner.close()

    def _output(self, member: PassMember, result: TargetResult, *, needs_logits: bool) -> TargetOutput:
        wanted = member.num_logit_rows
        logits = np.zeros((0, self.target.vocab_size), np.float32)
        if needs_logits and wanted:
            assert result.logits is not None, "the pass was planned with logits"
            logits = result.logits[member.row, :wanted]
        return TargetOutput(
            logits=logits,
            hidden=result.hidden.rows(member.row, member.count),
            greedy_token_ids=result.greedy_token_ids[member.row, :wanted],
        )


MAX_CANDIDATES = 16
"""M, if the draft vocabulary is as large."""


def _join(parts: Sequence[TargetOutput]) -> TargetOutput:
    """One entry's answer, from those of its chunks."""
    if len(parts) == 1:
        return parts[0]
    return TargetOutput(
        logits=np.concatenate([part.logits for part in parts]),
        hidden=np.concatenate([host_rows(part.hidden) for part in parts]),
        greedy_token_ids=np.concatenate([_greedy(part) for part in parts]),
    )


def _greedy(part: TargetOutput) -> NDArray[np.int32]:
    assert part.greedy_token_ids is not None
    return part.greedy_token_ids


def _hidden_of(item: DraftRows, first_row: int, count: int) -> HiddenRows:
    """Rows of one chunk; the whole of them stays where it is."""
    if first_row == 0 and count == item.hidden.shape[0]:
        return item.hidden
    return host_rows(item.hidden)[first_row : first_row + count]
