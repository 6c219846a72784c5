"""A step without prompts can be captured once and replayed: no shape and no branch depends on a value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from peagle_trt.readers import TargetCheckpoint, read_drafter
from peagle_trt.trtllm.runtime.attention import attend_block_plainly, attend_piece
from peagle_trt.trtllm.runtime.drafting import Drafting, PromptPiece, VerifiedStep
from peagle_trt.trtllm.runtime.head import ServedHead

NUM_DRAFTS, REQUESTS = 3, 3


def make_drafting(folder: Path) -> Drafting:
    head = read_drafter(folder / "drafter")
    weights = {name: torch.from_numpy(head.weights.load(name)) for name in head.weights}
    return Drafting(ServedHead(head.config, weights), num_slots=5, capacity=48)


def make_inputs(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = REQUESTS * (NUM_DRAFTS + 1)
    return [
        torch.randint(0, 300, (rows,), generator=generator),
        torch.randn(rows, 192, generator=generator),
        torch.randint(0, 300, (REQUESTS, NUM_DRAFTS + 1), generator=generator),
        torch.randint(1, NUM_DRAFTS + 2, (REQUESTS,), generator=generator),
        torch.randperm(5, generator=generator)[:REQUESTS],
        torch.randint(0, 20, (REQUESTS,), generator=generator),
    ]


def draft(drafting: Drafting, inputs: list[torch.Tensor]) -> torch.Tensor:
    ids, hidden, accepted, counts, slots, first = inputs
    return drafting.draft(
        VerifiedStep(
            pieces=(),
            input_ids_T=ids,
            auxiliary_TA=hidden,
            accepted_BJ=accepted,
            num_accepted_B=counts,
            slots_G=slots,
            first_positions_G=first,
        )
    )


def test_no_value_is_asked_for(small_pair: tuple[TargetCheckpoint, Path]) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        drafting = make_drafting(small_pair[1])
        inputs = [mode.from_tensor(each) for each in make_inputs(0)]
        # A tensor without values: anything that needed one would raise.
        assert draft(drafting, inputs).shape == (REQUESTS, NUM_DRAFTS)


def test_a_captured_step_replays_with_other_values(small_pair: tuple[TargetCheckpoint, Path]) -> None:
    captured, eager = make_drafting(small_pair[1]), make_drafting(small_pair[1])
    step: Any = make_fx(lambda *inputs: draft(captured, list(inputs)))(*make_inputs(0))
    for cache in (captured.cache.keys, captured.cache.values):
        cache.zero_()
    for seed in range(1, 12):
        inputs = make_inputs(seed)
        assert torch.equal(step(*inputs), draft(eager, inputs))
    assert torch.equal(captured.cache.keys, eager.cache.keys)


def test_warm_up_with_positions_past_the_cache_stays_inside(small_pair: tuple[TargetCheckpoint, Path]) -> None:
    drafting = make_drafting(small_pair[1])
    inputs = make_inputs(0)
    inputs[-1] = torch.tensor([48, 1000, 47])
    assert draft(drafting, inputs).shape == (REQUESTS, NUM_DRAFTS)


def test_a_piece_attends_as_a_block_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle_trt.trtllm.runtime.attention.QUERY_BLOCK", 4)
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(10, 4, 8, generator=generator)
    keys, values = torch.randn(2, 2, 20, 2, 8, generator=generator)
    piece = attend_piece(queries, keys[1], values[1], 6)
    block = attend_block_plainly(queries[None], keys, values, torch.tensor([1]), torch.arange(6, 16)[None])
    torch.testing.assert_close(piece, block[0])


def test_a_step_may_hold_prompts_alone(small_pair: tuple[TargetCheckpoint, Path]) -> None:
    drafting = make_drafting(small_pair[1])
    drafts = drafting.draft(
        VerifiedStep(
            pieces=(PromptPiece(slot=2, start=0, length=5), PromptPiece(slot=0, start=0, length=1)),
            input_ids_T=torch.arange(6),
            auxiliary_TA=torch.randn(6, 192),
            accepted_BJ=torch.zeros(2, NUM_DRAFTS + 1, dtype=torch.int32),
            num_accepted_B=torch.ones(2, dtype=torch.int32),
            slots_G=torch.zeros(0, dtype=torch.int64),
            first_positions_G=torch.zeros(0, dtype=torch.int64),
        )
    )
    assert drafts.shape == (2, NUM_DRAFTS)
