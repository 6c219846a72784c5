"""The rows of a pass, against the plugin's numpy reference, over thousands of verify steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from peagle_trt.decode.acceptance import Drafts, verify_greedily
from peagle_trt.trtllm.runtime.geometry import accept, expand_rows, next_input_tokens
from peagle_trt_plugins.reference import expand_slots

NUM_SCHEDULES = 3000


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_of_the_plugin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(NUM_SCHEDULES // 3):
        batch, num_drafts = int(rng.integers(1, 5)), int(rng.integers(1, 17))
        tokens = rng.integers(0, 50, (batch, num_drafts + 1)).astype(np.int32)
        accepted = rng.integers(0, num_drafts + 1, batch).astype(np.int32)
        starts = rng.integers(0, 1000, batch).astype(np.int32)
        hidden = rng.standard_normal((batch, num_drafts + 1, 2)).astype(np.float32)
        mask = np.array([7.0, -7.0], np.float32)
        expected = expand_slots(tokens, accepted, starts, np.full(num_drafts, 99, np.int32))
        rows = expand_rows(
            torch.from_numpy(tokens),
            torch.from_numpy(accepted + 1),
            torch.from_numpy(hidden),
            torch.from_numpy(starts),
            mask_token_id=99,
            fused_mask_H=torch.from_numpy(mask),
        )
        assert rows.token_ids_GW.shape == (batch, 2 * num_drafts) == expected.token_ids_BW.shape
        used = expected.is_real_BW | expected.is_mask_BW
        np.testing.assert_array_equal(rows.token_ids_GW.numpy()[used], expected.token_ids_BW[used])
        np.testing.assert_array_equal(rows.positions_GW.numpy()[used], expected.positions_BW[used])
        np.testing.assert_array_equal(rows.sample_rows_GK.numpy(), expected.sample_rows_BK)
        real = expected.is_real_BW[:, : num_drafts + 1]
        np.testing.assert_array_equal(rows.hidden_GWH.numpy()[:, : num_drafts + 1][real], hidden[real])
        assert (rows.hidden_GWH.numpy()[expected.is_mask_BW] == mask).all()


def test_what_was_rejected_never_arrives() -> None:
    hidden = torch.full((1, 4, 2), torch.nan)
    hidden[:, :2] = 1.0
    rows = expand_rows(
        torch.zeros(1, 4, dtype=torch.int32),
        torch.tensor([2]),
        hidden,
        torch.tensor([5]),
        mask_token_id=9,
        fused_mask_H=torch.zeros(2),
    )
    assert not rows.hidden_GWH.isnan().any()


@pytest.mark.parametrize("seed", range(3))
def test_acceptance_is_that_of_the_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(NUM_SCHEDULES // 3):
        batch, num_drafts = int(rng.integers(1, 5)), int(rng.integers(1, 17))
        chosen = rng.integers(0, 3, (batch, num_drafts + 1)).astype(np.int32)
        drafts = np.where(rng.random((batch, num_drafts)) < 0.8, chosen[:, :-1], 2).astype(np.int32)
        counts = accept(torch.from_numpy(chosen), torch.from_numpy(drafts))
        following = next_input_tokens(torch.from_numpy(chosen), counts, torch.from_numpy(drafts))
        for row in range(batch):
            tokens, _ = verify_greedily(
                chosen[row].tolist(), Drafts(token_ids=tuple(drafts[row])), is_end=lambda _: False
            )
            assert counts[row] == len(tokens)
            assert following[row].tolist() == [tokens[-1], *drafts[row].tolist()]
