"""Every pass that is planned fits a profile, and steps fit those of steps."""

from __future__ import annotations

import itertools

import pytest

from peagle_trt.engine.batched_pass import MAX_LOGIT_ROWS, PROMPT_CHUNK_ROWS, batch_buckets, row_buckets
from peagle_trt.engine.tensorrt.profiles import PROMPT, drafter_profiles, target_profiles
from peagle_trt.spec import EngineProfile, GraphShapes

SHAPES = [
    GraphShapes(
        draft_tokens=draft_tokens,
        max_draft_tokens=16,
        max_batch_size=batch,
        max_sequence_length=2048,
        cache_capacity=2080,
    )
    for draft_tokens, batch in itertools.product((1, 5, 16), (1, 2, 6, 64))
]


def chosen(profiles: tuple[EngineProfile, ...], **sizes: int) -> str:
    fitting = (p for p in profiles if all(low <= sizes[name] <= high for name, (low, _, high) in p.dims.items()))
    return next(fitting).name


@pytest.mark.parametrize("shapes", SHAPES, ids=lambda each: f"K{each.draft_tokens}-B{each.max_batch_size}")
def test_steps_fit_the_profiles_of_steps(shapes: GraphShapes) -> None:
    for batch, rows in itertools.product(batch_buckets(shapes.max_batch_size), row_buckets(shapes)):
        names = {chosen(target_profiles(shapes), B=batch, S=rows, L=logits) for logits in (1, rows)}
        names |= {chosen(drafter_profiles(shapes), B=batch, R=rows, K=slots) for slots in (1, 5, 16)}
        assert names == {"step.b1" if batch == 1 else f"step.b{shapes.max_batch_size}"}


@pytest.mark.parametrize("shapes", SHAPES, ids=lambda each: f"K{each.draft_tokens}-B{each.max_batch_size}")
def test_chunks_of_a_prompt_fit_theirs(shapes: GraphShapes) -> None:
    for rows in (18, 100, PROMPT_CHUNK_ROWS):
        assert chosen(target_profiles(shapes), B=1, S=rows, L=1) == PROMPT
        assert chosen(target_profiles(shapes), B=1, S=rows, L=MAX_LOGIT_ROWS) == PROMPT
        assert chosen(drafter_profiles(shapes), B=1, R=rows, K=16) == PROMPT


def test_a_short_cache_has_no_longer_chunks_than_it_holds() -> None:
    shapes = GraphShapes(
        draft_tokens=1, max_draft_tokens=16, max_batch_size=2, max_sequence_length=16, cache_capacity=48
    )
    longest = max(profile.dims["S"][2] for profile in target_profiles(shapes))
    assert shapes.max_sequence_length < longest < shapes.cache_capacity
    carried, slots = (max(profile.dims[name][2] for profile in drafter_profiles(shapes)) for name in ("R", "K"))
    assert carried + slots - 1 < shapes.cache_capacity
