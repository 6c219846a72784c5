from __future__ import annotations

import numpy as np
import torch

from peagle_trt.spec import DrafterConfig
from peagle_trt.train.batches import pack_rows
from peagle_trt.train.features import TrainingSequence
from peagle_trt.train.head import HeadRows, PeagleHead
from peagle_trt.train.row_attention import SequenceRows
from peagle_trt.train.sampling import DropSettings, full_rows, sample_rows
from peagle_trt.train.start import seeded_head

HIDDEN = 32


def causal_rollout(
    head: PeagleHead, sequence: TrainingSequence, anchor: int, depth: int, table: torch.Tensor
) -> torch.Tensor:
    """The slots that inference would run for one step: context, bonus slot, mask slots, plain causal attention."""
    num_rows = anchor + depth + 1
    is_mask = torch.arange(num_rows) > anchor
    tokens = torch.full((num_rows,), head.config.mask_token_id)
    tokens[: anchor + 1] = sequence.token_ids[1 : anchor + 2].long()
    hidden = torch.zeros(num_rows, 3 * HIDDEN)
    hidden[: anchor + 1] = sequence.auxiliary_NA[: anchor + 1].float()
    none = np.zeros(0, np.int64)
    rows = HeadRows(
        token_ids_R=tokens,
        auxiliary_RA=hidden,
        is_mask_R=is_mask,
        positions_R=torch.arange(num_rows),
        layouts=[SequenceRows(num_context=num_rows, anchors=none, depths=none)],
    )
    return head(rows, table)


def test_training_rows_equal_a_causal_rollout(
    config: DrafterConfig, sequences: list[TrainingSequence], generator: np.random.Generator
) -> None:
    head = seeded_head(config, torch.rand(3 * HIDDEN) + 0.5, torch.float32, seed=3)
    table = torch.randn(config.vocab_size, config.hidden_size)
    chosen = sequences[:3]
    plans = [
        sample_rows(len(s.token_ids) - 2, np.arange(len(s.token_ids) - 2) >= 4, DropSettings(num_depths=5), generator)
        for s in chosen
    ]
    with torch.no_grad():
        packed = head(pack_rows(chosen, plans, config.mask_token_id).rows, table)
        start = 0
        for sequence, plan in zip(chosen, plans, strict=True):
            for row in range(0, len(plan.depths), 3):
                expected = causal_rollout(head, sequence, int(plan.anchors[row]), int(plan.depths[row]), table)[-1]
                torch.testing.assert_close(packed[start + row], expected, atol=2e-5, rtol=1e-4)
            start += len(plan.depths)


def test_the_fold_removes_the_training_scale(config: DrafterConfig, sequences: list[TrainingSequence]) -> None:
    head = seeded_head(config, torch.rand(3 * HIDDEN) * 9 + 0.5, torch.float32, seed=3)
    plain = PeagleHead(config, torch.ones(3 * HIDDEN))
    plain.load_folded_state(head.folded_state())
    table = torch.randn(config.vocab_size, config.hidden_size)
    rows = pack_rows(sequences[:1], [full_rows(18, np.arange(5, 18), 3)], config.mask_token_id).rows
    with torch.no_grad():
        torch.testing.assert_close(plain(rows, table), head(rows, table), atol=2e-5, rtol=1e-4)


def test_a_mask_row_ignores_the_hidden_state_at_its_place(
    config: DrafterConfig, sequences: list[TrainingSequence]
) -> None:
    head = seeded_head(config, torch.ones(3 * HIDDEN), torch.float32, seed=3)
    table = torch.randn(config.vocab_size, config.hidden_size)
    rows = pack_rows(sequences[:1], [full_rows(18, np.array([6]), 4)], config.mask_token_id).rows
    other = HeadRows(
        token_ids_R=rows.token_ids_R,
        auxiliary_RA=torch.where(rows.is_mask_R[:, None], 123.0, rows.auxiliary_RA),
        is_mask_R=rows.is_mask_R,
        positions_R=rows.positions_R,
        layouts=rows.layouts,
    )
    with torch.no_grad():
        torch.testing.assert_close(head(other, table), head(rows, table), atol=0.0, rtol=0.0)
