"""Cuts what a step asks for into dense passes of B sequences by S rows, as compiled engines take them.

A pass covers neighbouring slots, whose caches lie one after the other; a slot between them that has nothing to do is
*idle*: it writes into the margin at the end of its cache, where nothing is ever read, and its result is dropped. A
sequence with fewer rows than S is padded at the end: what the padding writes lies past the sequence and is overwritten
by its next rows before anything reads it. So a prompt's rows, which are many, never share a pass with steps.

Letters: B sequences, S rows of the target, L rows with logits, R rows carried over to the drafter, K drafted slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt.engine.protocol import DraftRows, TargetRows
from peagle_trt.spec import GraphShapes

PROMPT_CHUNK_ROWS = 512
"""Rows of a prompt that one pass reads at most."""
MAX_LOGIT_ROWS = 32
"""Rows of a prompt's chunk whose logits one pass gives at most: at 201,088 ids each takes 0.8 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassMember:
    """A run of one entry's rows in a pass.

    Attributes:
        entry: Place of the entry in the call.
        row: Place of its sequence in the pass.
        count: Rows, from the first of the pass on; the others are padding.
        num_logit_rows: How many of the last of them need logits; these come first among the L.
    """

    entry: int
    row: int
    count: int
    num_logit_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPass:
    """One pass of the target.

    Attributes:
        first_slot: Slot of the first sequence; the others follow it.
        members: What of the call it carries; sequences without one are idle.
        token_ids: [B, S] int32.
        start_positions: [B] int32.
        key_lengths: [B] int32.
        logit_rows: [B, L] int32.
        needs_logits: Whether anybody reads the logits, or only their argmax.
    """

    first_slot: int
    members: tuple[PassMember, ...]
    token_ids: NDArray[np.int32]
    start_positions: NDArray[np.int32]
    key_lengths: NDArray[np.int32]
    logit_rows: NDArray[np.int32]
    needs_logits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterPass:
    """One pass of the drafter; the hidden states of a member are those of its entry, from row `first_row` on.

    Attributes:
        first_slot: Slot of the first sequence; the others follow it.
        members: What of the call it carries; sequences without one are idle.
        first_row: Row of the entry that the pass begins with; above 0 only for the chunks of a long prompt.
        next_token_ids: [B, R] int32.
        num_accepted: [B] int32.
        start_positions: [B] int32.
        key_lengths: [B] int32.
        draft_tokens: K.
    """

    first_slot: int
    members: tuple[PassMember, ...]
    first_row: int
    next_token_ids: NDArray[np.int32]
    num_accepted: NDArray[np.int32]
    start_positions: NDArray[np.int32]
    key_lengths: NDArray[np.int32]
    draft_tokens: int


def plan_target(rows: Sequence[TargetRows], shapes: GraphShapes) -> list[TargetPass]:
    """Passes that read every entry: steps together first, then each prompt's chunks.

    Raises:
        ValueError: A slot appears twice or does not exist, or rows run past the cache.
    """
    _check_slots([item.slot for item in rows], shapes)
    limit = shapes.max_draft_tokens + 1
    short = [index for index, item in enumerate(rows) if len(item.token_ids) <= limit]
    passes = [_target_steps(rows, short, shapes)] if short else []
    for index, item in enumerate(rows):
        if len(item.token_ids) > limit:
            passes += _target_chunks(index, item)
    _check_ends(passes, shapes)
    return passes


def plan_drafter(rows: Sequence[DraftRows], draft_tokens: int, shapes: GraphShapes) -> list[DrafterPass]:
    """Passes that draft for every entry: steps together first, then each prompt's chunks.

    Raises:
        ValueError: A slot appears twice or does not exist, rows run past the cache, or K is out of range.
    """
    if not 1 <= draft_tokens <= shapes.max_draft_tokens:
        raise ValueError(f"draft_tokens is {draft_tokens}; expected 1..{shapes.max_draft_tokens}")
    _check_slots([item.slot for item in rows], shapes)
    limit = shapes.max_draft_tokens + 1
    short = [index for index, item in enumerate(rows) if len(item.next_token_ids) <= limit]
    passes = [_drafter_steps(rows, short, draft_tokens, shapes)] if short else []
    for index, item in enumerate(rows):
        if len(item.next_token_ids) > limit:
            passes += _drafter_chunks(index, item, draft_tokens)
    _check_ends(passes, shapes)
    return passes


def batch_buckets(max_batch_size: int) -> list[int]:
    """Numbers of sequences that passes have: a captured launch serves one of them."""
    return sorted({*(2**exponent for exponent in range(max_batch_size.bit_length())), max_batch_size})


def row_buckets(shapes: GraphShapes) -> list[int]:
    """Numbers of rows that a step's passes have: one token, the usual K and its bonus, the largest K and its bonus."""
    return sorted({1, shapes.draft_tokens + 1, shapes.max_draft_tokens + 1})


def _target_steps(rows: Sequence[TargetRows], chosen: Sequence[int], shapes: GraphShapes) -> TargetPass:
    first_slot, batch = _slot_range([rows[index].slot for index in chosen], shapes)
    width = _at_least(row_buckets(shapes), max(len(rows[index].token_ids) for index in chosen))
    num_logits = _at_least([1, width], max(rows[index].num_logit_rows for index in chosen))
    token_ids, logit_rows = np.zeros((batch, width), np.int32), np.zeros((batch, num_logits), np.int32)
    starts = np.full(batch, shapes.cache_capacity - width, np.int32)
    lengths = np.full(batch, width, np.int32)
    members = []
    for index in chosen:
        item = rows[index]
        row, count, wanted = item.slot - first_slot, len(item.token_ids), item.num_logit_rows
        token_ids[row, :count] = item.token_ids
        starts[row], lengths[row] = item.start_position, item.start_position + width
        logit_rows[row, :wanted] = np.arange(count - wanted, count)
        members.append(PassMember(entry=index, row=row, count=count, num_logit_rows=wanted))
    return TargetPass(
        first_slot=first_slot,
        members=tuple(members),
        token_ids=token_ids,
        start_positions=starts,
        key_lengths=lengths,
        logit_rows=logit_rows,
        needs_logits=any(rows[index].needs_logits and rows[index].num_logit_rows for index in chosen),
    )


def _target_chunks(index: int, item: TargetRows) -> Iterator[TargetPass]:
    for first, stop in _chunk_bounds(len(item.token_ids), item.num_logit_rows):
        wanted = max(0, stop - max(first, len(item.token_ids) - item.num_logit_rows))
        # A pass gives at least one row of logits, wanted or not: an empty dimension is a risk, a row costs nothing.
        logit_rows = np.arange(stop - first - max(wanted, 1), stop - first, dtype=np.int32)
        yield TargetPass(
            first_slot=item.slot,
            members=(PassMember(entry=index, row=0, count=stop - first, num_logit_rows=wanted),),
            token_ids=np.ascontiguousarray(item.token_ids[None, first:stop], np.int32),
            start_positions=np.array([item.start_position + first], np.int32),
            key_lengths=np.array([item.start_position + stop], np.int32),
            logit_rows=logit_rows[None],
            needs_logits=item.needs_logits and wanted > 0,
        )


def _chunk_bounds(count: int, num_logit_rows: int) -> Iterator[tuple[int, int]]:
    """First row and end of every chunk; none is too long, or wants too many logits."""
    first, first_wanted = 0, count - num_logit_rows
    while first < count:
        stop = min(first + PROMPT_CHUNK_ROWS, count, max(first, first_wanted) + MAX_LOGIT_ROWS)
        yield first, stop
        first = stop


def _drafter_steps(
    rows: Sequence[DraftRows], chosen: Sequence[int], draft_tokens: int, shapes: GraphShapes
) -> DrafterPass:
    first_slot, batch = _slot_range([rows[index].slot for index in chosen], shapes)
    carried = _at_least(row_buckets(shapes), max(len(rows[index].next_token_ids) for index in chosen))
    width = carried + draft_tokens - 1
    next_token_ids, accepted = np.zeros((batch, carried), np.int32), np.zeros(batch, np.int32)
    starts = np.full(batch, shapes.cache_capacity - width, np.int32)
    lengths = np.full(batch, width, np.int32)
    members = []
    for index in chosen:
        item = rows[index]
        row, count = item.slot - first_slot, len(item.next_token_ids)
        next_token_ids[row, :count], accepted[row] = item.next_token_ids, item.num_accepted
        starts[row], lengths[row] = item.start_position, item.start_position + width
        members.append(PassMember(entry=index, row=row, count=count))
    return DrafterPass(
        first_slot=first_slot,
        members=tuple(members),
        first_row=0,
        next_token_ids=next_token_ids,
        num_accepted=accepted,
        start_positions=starts,
        key_lengths=lengths,
        draft_tokens=draft_tokens,
    )


def _drafter_chunks(index: int, item: DraftRows, draft_tokens: int) -> Iterator[DrafterPass]:
    """Chunks of a prompt; drafts of all but the last are of no use, and one slot is the least a pass can fill."""
    count = item.num_accepted + 1
    for first in range(0, count, PROMPT_CHUNK_ROWS):
        stop = min(first + PROMPT_CHUNK_ROWS, count)
        slots = draft_tokens if stop == count else 1
        start = item.start_position + first
        yield DrafterPass(
            first_slot=item.slot,
            members=(PassMember(entry=index, row=0, count=stop - first),),
            first_row=first,
            next_token_ids=np.ascontiguousarray(item.next_token_ids[None, first:stop], np.int32),
            num_accepted=np.array([stop - first - 1], np.int32),
            start_positions=np.array([start], np.int32),
            key_lengths=np.array([start + stop - first + slots - 1], np.int32),
            draft_tokens=slots,
        )


def _slot_range(slots: Sequence[int], shapes: GraphShapes) -> tuple[int, int]:
    """First slot and number of neighbouring slots that hold all of `slots`, as few as the buckets allow."""
    batch = _at_least(batch_buckets(shapes.max_batch_size), max(slots) - min(slots) + 1)
    return min(min(slots), shapes.max_batch_size - batch), batch


def _at_least(buckets: Sequence[int], size: int) -> int:
    return min(bucket for bucket in buckets if bucket >= size)


def _check_slots(slots: Sequence[int], shapes: GraphShapes) -> None:
    if not slots or len(set(slots)) != len(slots) or not all(0 <= s < shapes.max_batch_size for s in slots):
        raise ValueError(f"slots are {slots}; expected different ones of 0..{shapes.max_batch_size - 1}")


def _check_ends(passes: Sequence[TargetPass] | Sequence[DrafterPass], shapes: GraphShapes) -> None:
    """Refuse a pass that would write outside a cache, padding included."""
    for each in passes:
        for member in each.members:
            end = int(each.key_lengths[member.row])
            if end > shapes.cache_capacity:
                slot = each.first_slot + member.row
                raise ValueError(f"rows of slot {slot} end at {end}; the cache holds {shapes.cache_capacity}")
