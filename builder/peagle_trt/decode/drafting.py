"""Drafts for the answers in flight: what the drafter reads now, what it reads later, and who shares its passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from peagle_trt.decode.acceptance import NO_DRAFTS, Drafts, propose, propose_candidates
from peagle_trt.decode.confidence import slot_confidence
from peagle_trt.decode.guide import GuideBars
from peagle_trt.decode.guided_drafts import drawn_with, guided_drafts, likeliest
from peagle_trt.decode.loop_statistics import LoopStatistics
from peagle_trt.decode.sequence import Sequence
from peagle_trt.decode.speculation import DraftWish, SpeculationController
from peagle_trt.engine.protocol import DraftOutput, DraftRows, Engine, TargetOutput, TargetRows
from peagle_trt.engine.sequential import draft_in_turn

DRAFTER_CHUNK_ROWS = 64
"""Rows of a prompt that come together before the drafter reads them: short passes cost nearly as much as long ones."""
MAX_UNREAD_BYTES = 8 << 20
"""Hidden states a request keeps for its drafter while speculation is off: 1,200 rows of SmolLM2, 240 of gpt-oss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What the target has just read of a sequence.

    Attributes:
        sequence: Whose.
        rows: The rows.
        output: What it said about them.
        num_accepted: The last row that stands.
        is_prompt: Whether they are part of its prompt.
    """

    sequence: Sequence
    rows: TargetRows
    output: TargetOutput
    num_accepted: int
    is_prompt: bool


class Drafting:
    """Advances the drafter behind the target, step by step.

    Args:
        engine: Target and drafter.
        controller: Chooses K where a request leaves that open.
        statistics: Where passes are counted.
        clock: Seconds, for what passes cost.
    """

    def __init__(
        self,
        engine: Engine,
        controller: SpeculationController,
        statistics: LoopStatistics,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._controller = controller
        self._statistics = statistics
        self._clock = clock

    def advance(self, reads: list[Read]) -> None:
        """Let the drafter read what the target read: at once where drafts are wanted, later where that may be never."""
        prompts = [read for read in reads if read.sequence.is_prefilling and read.sequence.draft_tokens]
        for read in prompts:
            self._read_later(read, read.sequence)
        for read in reads:
            if read.is_prompt and self._is_for_others(read.sequence):
                read.sequence.postpone_drafter(read.output.hidden, read.num_accepted + 1)
        wishing = [read for read in reads if not read.sequence.is_prefilling and self._wants_drafts(read.sequence)]
        if not wishing:
            return
        num_running = sum(not read.sequence.is_prefilling for read in reads)
        other_rows = sum(read.num_accepted + 1 for read in prompts)
        counts = self._controller.choose(
            [self._wish(read.sequence) for read in wishing], num_sequences=num_running, other_rows=other_rows
        )
        together: list[DraftRows] = []
        by_slot = {read.sequence.slot: read.sequence for read in wishing}
        for read, count in zip(wishing, counts, strict=True):
            if read.sequence.is_scheduled:
                count = min(count, self._engine.shapes.default_drafts(num_running))
            # A fixed K stays what it is to the end of an answer: engines may be tuned for it.
            is_fixed = read.sequence.rates is None and not read.sequence.is_scheduled
            read.sequence.planned_drafts = read.sequence.draft_tokens if is_fixed else count
            if count == 0:
                self._read_later(read, read.sequence)
                continue
            rows = _rows_to_draft(read)
            if len(rows.next_token_ids) > self._engine.shapes.max_draft_tokens + 1:
                # A pass is as wide as its longest member: who has much to read goes alone.
                self._draft([rows], by_slot)
            else:
                together.append(rows)
        if together:
            self._draft_together(together, by_slot)
        self._cut([read.sequence for read in wishing], num_sequences=num_running, other_rows=other_rows)

    def _cut(self, sequences: list[Sequence], *, num_sequences: int, other_rows: int) -> None:
        """Leave out the drafts that their own drafter believes in too little for what their rows cost."""
        sure = [each for each in sequences if each.confidence_K is not None]
        chances = [
            each.rates.calibration.chances(each.confidence_K)
            for each in sure
            if each.rates is not None and each.confidence_K is not None
        ]
        if not chances:
            return
        uncut = sum(len(each.drafts.token_ids) for each in sequences if each.confidence_K is None)
        base_rows = num_sequences + other_rows + uncut
        counts = self._controller.cut(chances, num_sequences=num_sequences, base_rows=base_rows)
        for each, count in zip(sure, counts, strict=True):
            each.drafts = each.drafts.first(count)

    def _read_later(self, read: Read, sequence: Sequence) -> None:
        """Put the drafter's reading off, unless enough has come together for a pass without drafts."""
        waits_long = sequence.planned_drafts == 0 if sequence.is_scheduled else self._is_off(sequence)
        num_rows = sequence.num_unread + read.num_accepted + 1
        row_bytes = 4 * read.output.hidden.shape[1]
        if num_rows < DRAFTER_CHUNK_ROWS or (waits_long and num_rows * row_bytes <= MAX_UNREAD_BYTES):
            sequence.postpone_drafter(read.output.hidden, read.num_accepted + 1)
            return
        # Drafts are of no use here; one slot is the least a pass can fill.
        self._engine.run_drafter([_rows_to_draft(read)], 1)
        self._statistics.num_drafter_passes += 1

    def _is_off(self, sequence: Sequence) -> bool:
        return sequence.rates is not None and self._controller.is_off

    def _draft_together(self, rows: list[DraftRows], by_slot: dict[int, Sequence]) -> None:
        width = max(len(item.next_token_ids) for item in rows)
        width += max(by_slot[item.slot].planned_drafts for item in rows) - 1
        started_at = self._clock()
        self._draft(rows, by_slot)
        self._controller.add_drafter_pass(
            num_sequences=len(rows), num_rows=len(rows) * width, seconds=self._clock() - started_at
        )

    def _draft(self, rows: list[DraftRows], by_slot: dict[int, Sequence]) -> None:
        if not self._engine.drafter.is_parallel:
            self._draft_in_turn(rows, [by_slot[item.slot] for item in rows])
            return
        draft_tokens = max(by_slot[item.slot].planned_drafts for item in rows)
        output = self._engine.run_drafter(rows, draft_tokens)
        self._statistics.num_drafter_passes += 1
        for index, item in enumerate(rows):
            sequence = by_slot[item.slot]
            drafts = self._drafts_of(sequence, output, index).first(sequence.planned_drafts)
            found = slot_confidence(output, index)[: len(drafts.token_ids)] if self._can_cut(sequence) else None
            sequence.take_drafts(drafts, confidence_K=found)

    def _draft_in_turn(self, rows: list[DraftRows], sequences: list[Sequence]) -> None:
        """With a plain EAGLE-3 head: a pass for each draft, continued from the draft that was chosen."""
        chosen: dict[int, Drafts] = {}

        def choose(place: int, output: DraftOutput, index: int) -> int:
            draft = self._drafts_of(sequences[place], output, index)
            if not draft.token_ids:
                # Its grammar has no place for another draft; the pass is shared, and what it makes of this one is lost.
                return int(output.token_ids[index, 0])
            chosen[place] = chosen[place].then(draft) if place in chosen else draft
            return draft.token_ids[0]

        counts = [min(sequence.planned_drafts, sequence.useful_drafts) for sequence in sequences]
        self._statistics.num_drafter_passes += draft_in_turn(self._engine, rows, counts, choose)
        for place, sequence in enumerate(sequences):
            sequence.take_drafts(chosen.get(place, NO_DRAFTS), counts[place])

    def _drafts_of(self, sequence: Sequence, output: DraftOutput, index: int) -> Drafts:
        settings = sequence.request.sampling
        if sequence.guide is not None:
            return self._guided_drafts_of(sequence, sequence.guide, output, index)
        if not sequence.request.samples_drafts or settings.temperature == 0.0:
            return Drafts(token_ids=tuple(output.token_ids[index].tolist()))
        vocab_size = self._engine.target.vocab_size
        if output.candidates is not None:
            return propose_candidates(output.candidates, index, vocab_size, settings.temperature, sequence.generator)
        assert output.logits is not None, "an engine gives candidates or logits"
        return propose(
            output.logits[index], self._engine.draft_to_target, vocab_size, settings.temperature, sequence.generator
        )

    def _guided_drafts_of(self, sequence: Sequence, guide: GuideBars, output: DraftOutput, index: int) -> Drafts:
        temperature = sequence.request.sampling.temperature
        is_drawn = sequence.request.samples_drafts and temperature > 0.0
        return guided_drafts(
            guide,
            output,
            index,
            self._engine.draft_to_target,
            max_drafts=sequence.planned_drafts,
            vocab_size=self._engine.target.vocab_size,
            choose=drawn_with(temperature, sequence.generator) if is_drawn else likeliest,
        )

    def _is_for_others(self, sequence: Sequence) -> bool:
        """Whether its prompt is read, and its drafter reads none of it, but that of another answer to it will."""
        has_read = not sequence.is_prefilling and not self._wants_drafts(sequence)
        return has_read and sequence.draft_tokens > 0 and sequence.request.prompt_group is not None

    def _can_cut(self, sequence: Sequence) -> bool:
        """Whether K follows what pays and the drafter's probabilities say what a draft is worth.

        A grammar chooses other drafts than the likeliest; the slots of a sequential head depend on the drafts before.
        """
        return sequence.rates is not None and sequence.guide is None and self._engine.drafter.is_parallel

    def _wish(self, sequence: Sequence) -> DraftWish:
        return DraftWish(
            max_drafts=sequence.useful_drafts,
            rates=sequence.rates,
            num_unread=sequence.num_unread,
            can_cut=self._can_cut(sequence),
        )

    def _wants_drafts(self, sequence: Sequence) -> bool:
        return sequence.finish_reason is None and sequence.useful_drafts > 0


def _rows_to_draft(read: Read) -> DraftRows:
    return read.sequence.rows_to_draft(
        read.output.hidden, start_position=read.rows.start_position, num_accepted=read.num_accepted
    )
