"""How a step's rows are cut into dense passes, seen by a cache that remembers what was written where."""

from __future__ import annotations

import numpy as np
import pytest

from peagle_trt.engine.batched_pass import (
    MAX_LOGIT_ROWS,
    PROMPT_CHUNK_ROWS,
    TargetPass,
    batch_buckets,
    plan_drafter,
    plan_target,
    row_buckets,
)
from peagle_trt.engine.protocol import DraftRows, TargetRows
from peagle_trt.spec import GraphShapes

MARGIN = 32
SHAPES = GraphShapes(
    draft_tokens=5, max_draft_tokens=16, max_batch_size=6, max_sequence_length=1500, cache_capacity=1500 + MARGIN
)


def rows(slot: int, count: int, *, start: int = 0, logits: int = 1) -> TargetRows:
    ids = np.arange(1000 * slot + start, 1000 * slot + start + count, dtype=np.int32)
    return TargetRows(slot=slot, token_ids=ids, start_position=start, num_logit_rows=logits)


def drafts(slot: int, count: int, *, start: int = 0, accepted: int | None = None) -> DraftRows:
    hidden = np.zeros((count, 4), np.float32)
    accepted = count - 1 if accepted is None else accepted
    ids = np.arange(count, dtype=np.int32)
    return DraftRows(slot=slot, next_token_ids=ids, hidden=hidden, num_accepted=accepted, start_position=start)


class RememberingCaches:
    """What each slot's cache holds, and whether every real row sees its own sequence and nothing else."""

    def __init__(self) -> None:
        self.tokens = np.full((SHAPES.max_batch_size, SHAPES.cache_capacity), -1, np.int64)

    def run(self, each: TargetPass, histories: dict[int, list[int]]) -> None:
        width = each.token_ids.shape[1]
        for row, start in enumerate(each.start_positions.tolist()):
            slot = each.first_slot + row
            assert each.key_lengths[row] - width == start or row not in {m.row for m in each.members}
            self.tokens[slot, start : start + width] = each.token_ids[row]
        for member in each.members:
            slot, start = each.first_slot + member.row, int(each.start_positions[member.row])
            seen = self.tokens[slot, : start + member.count].tolist()
            assert seen == histories[slot][: start + member.count]


@pytest.mark.parametrize("seed", range(5))
def test_every_row_sees_its_own_sequence_through_steps_prompts_and_rejections(seed: int) -> None:
    rng, caches = np.random.default_rng(seed), RememberingCaches()
    histories: dict[int, list[int]] = {}
    for _ in range(60):
        chosen = rng.permutation(SHAPES.max_batch_size)[: rng.integers(1, SHAPES.max_batch_size + 1)].tolist()
        entries = []
        for slot in chosen:
            history = histories.setdefault(slot, [])
            kept = len(history) if not history else len(history) - int(rng.integers(0, min(6, len(history))))
            del history[kept:]
            count = int(rng.choice([1, 2, 6, 17, 40, 700]))
            if kept + count >= SHAPES.max_sequence_length:
                history.clear()
                kept, count = 0, 3
            history += rng.integers(0, 10_000, count).tolist()
            ids = np.array(history[kept:], np.int32)
            entries.append(TargetRows(slot=slot, token_ids=ids, start_position=kept, num_logit_rows=1))
        for each in plan_target(entries, SHAPES):
            caches.run(each, histories)


def test_an_idle_slot_writes_where_no_sequence_ever_reads() -> None:
    (each,) = plan_target([rows(0, 6), rows(3, 2)], SHAPES)
    idle = [row for row in range(len(each.token_ids)) if row not in {member.row for member in each.members}]
    assert [each.start_positions[row] >= SHAPES.max_sequence_length for row in idle] == [True] * len(idle) != []
    (widest,) = plan_drafter([drafts(0, 17), drafts(3, 2)], 16, SHAPES)
    assert widest.start_positions[1] == SHAPES.max_sequence_length


def test_a_single_sequence_takes_a_pass_of_one() -> None:
    (each,) = plan_target([rows(4, 3)], SHAPES)
    assert (each.first_slot, each.token_ids.shape) == (4, (1, 6))


@pytest.mark.parametrize(
    ("slots", "expected"), [((0, 5), (0, 6)), ((4, 5), (4, 2)), ((3, 5), (2, 4)), ((1, 2), (1, 2))]
)
def test_a_pass_covers_as_few_slots_as_its_buckets_allow(slots: tuple[int, int], expected: tuple[int, int]) -> None:
    (each,) = plan_target([rows(slot, 2) for slot in slots], SHAPES)
    assert (each.first_slot, len(each.token_ids)) == expected


def test_buckets_end_with_the_limits() -> None:
    assert batch_buckets(6) == [1, 2, 4, 6]
    assert row_buckets(SHAPES) == [1, 6, 17]


def test_a_long_prompt_is_read_in_chunks_of_its_own() -> None:
    passes = plan_target([rows(1, 1200), rows(2, 6, start=40)], SHAPES)
    assert [each.token_ids.shape for each in passes] == [(1, 6), (1, 512), (1, 512), (1, 176)]
    assert [each.start_positions.tolist() for each in passes[1:]] == [[0], [512], [1024]]
    assert [each.members[0].num_logit_rows for each in passes[1:]] == [0, 0, 1]


@pytest.mark.parametrize("wanted", [0, 1, 31, 32, 33, 700, 1200])
def test_chunks_give_every_wanted_row_once_and_never_too_many(wanted: int) -> None:
    passes = plan_target([rows(0, 1200, logits=wanted)], SHAPES)
    found = [
        int(each.start_positions[0]) + row
        for each in passes
        for row in each.logit_rows[0, : each.members[0].num_logit_rows].tolist()
    ]
    assert found == list(range(1200 - wanted, 1200))
    assert max(each.token_ids.shape[1] for each in passes) <= PROMPT_CHUNK_ROWS
    assert max(each.logit_rows.shape[1] for each in passes) <= MAX_LOGIT_ROWS


def test_logits_of_the_last_rows_come_first() -> None:
    (each,) = plan_target([rows(0, 6, logits=6), rows(1, 4, logits=2)], SHAPES)
    assert each.logit_rows.tolist() == [[0, 1, 2, 3, 4, 5], [2, 3, 0, 0, 0, 0]]


def test_logits_stay_where_nobody_reads_them() -> None:
    quiet = TargetRows(slot=0, token_ids=np.zeros(3, np.int32), start_position=0, num_logit_rows=3, needs_logits=False)
    assert [each.needs_logits for each in plan_target([quiet], SHAPES)] == [False]
    assert [each.needs_logits for each in plan_target([quiet, rows(1, 3)], SHAPES)] == [True]
    assert [each.needs_logits for each in plan_target([rows(1, 3, logits=0)], SHAPES)] == [False]


def test_the_last_chunk_of_a_prompt_drafts_all() -> None:
    passes = plan_drafter([drafts(2, 1030)], 5, SHAPES)
    assert [(each.next_token_ids.shape[1], each.draft_tokens) for each in passes] == [(512, 1), (512, 1), (6, 5)]
    assert [each.start_positions.tolist() for each in passes] == [[0], [512], [1024]]
    assert [each.key_lengths.tolist() for each in passes] == [[512], [1024], [1024 + 6 + 4]]


def test_a_step_at_the_very_end_fits() -> None:
    last = SHAPES.max_sequence_length - 1
    plan_target([rows(0, 1, start=last)], SHAPES)
    plan_drafter([drafts(0, 17, start=last, accepted=0)], 16, SHAPES)


def test_rows_past_the_cache_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rows of slot 0 end at 1533; the cache holds 1532"):
        plan_target([rows(0, 1, start=SHAPES.cache_capacity)], SHAPES)


@pytest.mark.parametrize("slots", [(0, 0), (6,), (-1,), ()])
def test_slots_that_are_twice_or_nowhere_are_refused(slots: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="slots are"):
        plan_target([rows(slot, 1) for slot in slots], SHAPES)
    with pytest.raises(ValueError, match="slots are"):
        plan_drafter([drafts(slot, 1) for slot in slots], 1, SHAPES)


@pytest.mark.parametrize("draft_tokens", [0, 17])
def test_more_slots_than_the_build_drafts_are_refused(draft_tokens: int) -> None:
    with pytest.raises(ValueError, match=f"draft_tokens is {draft_tokens}; expected 1..16"):
        plan_drafter([drafts(0, 1)], draft_tokens, SHAPES)
