"""Training-time test against sequential drafting: states, masks, losses and gradients of every depth."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from peagle_trt.spec import DrafterConfig
from peagle_trt.train.acceptance import FrozenTables
from peagle_trt.train.batches import supervised_slots
from peagle_trt.train.features import TrainingSequence
from peagle_trt.train.gradients import LossSettings, step_weight
from peagle_trt.train.head import PeagleHead
from peagle_trt.train.loss import distillation_loss
from peagle_trt.train.optimizer import OptimizerSettings
from peagle_trt.train.row_attention import KeysValues
from peagle_trt.train.sampling import DropSettings
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.start import seeded_head
from peagle_trt.train.trainer import Trainer
from peagle_trt.train.unrolled import accumulate_unrolled, unroll, unrolled_plan
from tests.support.drafter_reference import DrafterReference

HIDDEN, DEPTHS = 32, 4
SPELLED = {"input_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"}


@pytest.fixture(params=[1, 2], ids=["one-layer", "two-layers"])
def head(request: pytest.FixtureRequest, config: DrafterConfig) -> PeagleHead:
    plain = msgspec.structs.replace(config, is_parallel=False, mask_token_id=-1, num_layers=request.param)
    return seeded_head(plain, torch.rand(3 * HIDDEN) + 0.5, torch.float32, seed=3)


def reference_of(head: PeagleHead, tables: FrozenTables) -> DrafterReference:
    """The same head in float64, written apart from this room."""
    tensors = {}
    for name, value in head.folded_state().items():
        *parents, last = name.split(".")
        kind = "self_attn." if last[0] in "qkvo" and last.endswith("proj") else "mlp." if last.endswith("proj") else ""
        tensors[".".join([*parents, kind + SPELLED.get(last, last), "weight"])] = value.numpy()
    config = msgspec.to_builtins(head.config) | {
        "num_hidden_layers": head.config.num_layers,
        "model_type": "llama",
        "rope_theta": head.config.rope.theta,
    }
    return DrafterReference(tensors, config, tables.embeddings_VH.numpy(), tables.head_DH.numpy())


def test_every_depth_says_what_sequential_drafting_says(
    head: PeagleHead, tables: FrozenTables, sequences: list[TrainingSequence]
) -> None:
    sequence = sequences[3]
    reference = reference_of(head, tables)
    anchors = np.flatnonzero(supervised_slots(sequence))
    tokens, hidden = sequence.token_ids.tolist(), sequence.auxiliary_NA.float().numpy()
    with torch.no_grad():
        passes = list(unroll(head, tables.embeddings_VH, sequence, anchors, DEPTHS))
        found = [(head.normalise(each.stream_MH) @ tables.head_DH.T).numpy() for each in passes]
    assert [len(each.anchors) for each in passes] == [len(anchors) - depth for depth in range(DEPTHS)]
    for row, anchor in enumerate(anchors.tolist()):
        drafts = tokens[anchor + 2 : anchor + 1 + DEPTHS]
        expected = reference.sequential_logits(tokens[1 : anchor + 2], hidden[: anchor + 1], drafts)
        for depth in range(DEPTHS):
            if row < len(passes[depth].anchors):
                np.testing.assert_allclose(found[depth][row], expected[depth], atol=2e-4, rtol=1e-3)


def test_a_head_that_hands_its_normed_state_on_is_unrolled_so(
    config: DrafterConfig, tables: FrozenTables, sequences: list[TrainingSequence]
) -> None:
    normed = msgspec.structs.replace(config, is_parallel=False, mask_token_id=-1, norm_output=True)
    head, sequence, anchor = seeded_head(normed, torch.ones(3 * HIDDEN), torch.float32, seed=3), sequences[3], 7
    with torch.no_grad():
        head.norm.mul_(1.7)
        passes = list(unroll(head, tables.embeddings_VH, sequence, np.array([anchor]), DEPTHS))
        found = torch.cat([head.normalise(each.stream_MH) for each in passes]) @ tables.head_DH.T
    tokens, hidden = sequence.token_ids.tolist(), sequence.auxiliary_NA[: anchor + 1].float().numpy()
    drafts = tokens[anchor + 2 : anchor + 1 + DEPTHS]
    expected = reference_of(head, tables).sequential_logits(tokens[1 : anchor + 2], hidden, drafts)
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-4, rtol=1e-3)


def test_a_row_sees_its_true_prefix_and_its_own_rollout_alone(
    head: PeagleHead, tables: FrozenTables, sequences: list[TrainingSequence]
) -> None:
    sequence, anchor = sequences[5], 9
    hidden = sequence.auxiliary_NA.clone()
    hidden[anchor + 1 :] += 3.0
    changed = replace(sequence, auxiliary_NA=hidden)
    with torch.no_grad():
        alone = unroll(head, tables.embeddings_VH, sequence, np.array([anchor]), DEPTHS)
        # Other rollouts, and other states of the target after the anchor.
        among = unroll(head, tables.embeddings_VH, changed, np.arange(6, 14), DEPTHS)
        for one, many in zip(alone, among, strict=True):
            torch.testing.assert_close(many.stream_MH[many.anchors == anchor], one.stream_MH, atol=1e-5, rtol=1e-4)


def test_losses_and_gradients_are_those_of_rollouts_run_one_by_one(
    head: PeagleHead, tables: FrozenTables, sequences: list[TrainingSequence]
) -> None:
    chosen, settings = sequences[:3], LossSettings(depth_decay=0.8)
    plans = [unrolled_plan(sequence, DEPTHS) for sequence in chosen]
    weight = step_weight(chosen, plans, settings.depth_decay)
    sums = accumulate_unrolled(head, tables, chosen, settings=settings, total_weight=weight, num_depths=DEPTHS)
    found = gradients(head)
    losses = [rollout_losses(head, tables, sequence, settings.depth_decay) for sequence in chosen]
    expected = torch.cat(losses).sum() / weight
    expected.backward()
    assert sums.loss == pytest.approx(float(expected.detach()), rel=1e-5)
    assert sums.counts.tolist() == [sum(len(s.token_ids) - 6 - depth for s in chosen) for depth in range(DEPTHS)]
    for name, value in gradients(head).items():
        torch.testing.assert_close(found[name], value, atol=2e-5 * float(value.abs().max()), rtol=1e-3, msg=name)


def rollout_losses(head: PeagleHead, tables: FrozenTables, sequence: TrainingSequence, decay: float) -> torch.Tensor:
    """Weighted loss of every row of every rollout, each run over its own prefix with plain causal attention."""
    losses = []
    num_slots = len(sequence.token_ids) - 2
    for anchor in np.flatnonzero(supervised_slots(sequence)).tolist():
        hidden = (sequence.auxiliary_NA[: anchor + 1].float() / head.auxiliary_scale_A) @ head.fc.T
        for depth in range(min(DEPTHS, num_slots - anchor)):
            positions = torch.arange(anchor + depth + 1)
            tokens = sequence.token_ids.long()[1 : anchor + depth + 2]
            stream = head.continue_stream(hidden, tokens, positions, tables.embeddings_VH, causal)
            target = sequence.normed_NH[anchor + depth + 1].float()[None]
            last = head.normalise(stream)[-1:]
            parts = distillation_loss(last, target, torch.zeros(1, dtype=torch.int64), tables.head_DH)
            losses.append(parts.loss_S[0] * decay**depth)
            hidden = torch.cat([hidden, stream[-1:]])
    return torch.stack(losses)


def causal(layer: int, queries: torch.Tensor, own: KeysValues) -> torch.Tensor:
    group = queries.shape[1] // own.keys.shape[1]
    query, key, value = (part.transpose(0, 1)[None] for part in (queries, own.keys, own.values))
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return mixed[0].transpose(0, 1).flatten(1)


def gradients(head: PeagleHead) -> dict[str, torch.Tensor]:
    """The gradients, taken away from the head."""
    found = {name: value.grad for name, value in head.named_parameters() if value.grad is not None}
    for value in head.parameters():
        value.grad = None
    return found


def test_a_long_answer_is_the_same_in_blocks(
    head: PeagleHead, tables: FrozenTables, sequences: list[TrainingSequence], monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence, settings = sequences[11], LossSettings()
    anchors = np.flatnonzero(supervised_slots(sequence))

    def run() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        streams = [each.stream_MH for each in unroll(head, tables.embeddings_VH, sequence, anchors, DEPTHS)]
        accumulate_unrolled(head, tables, [sequence], settings=settings, total_weight=1.0, num_depths=DEPTHS)
        return torch.cat(streams).detach(), gradients(head)

    whole, expected = run()
    monkeypatch.setattr("peagle_trt.train.unrolled.BLOCK_ROWS", 5)
    monkeypatch.setattr("peagle_trt.train.unrolled.KEPT_KEYS", 8)
    blocks, found = run()
    torch.testing.assert_close(blocks, whole, atol=1e-5, rtol=1e-4)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-5 * float(value.abs().max()), rtol=1e-3, msg=name)


def test_a_resumed_run_has_the_losses_of_an_unbroken_one(
    head: PeagleHead, tables: FrozenTables, sequences: list[TrainingSequence], tmp_path: Path
) -> None:
    settings = TrainingSettings(
        drop=DropSettings(num_depths=DEPTHS),
        optimizer=OptimizerSettings(warmup_steps=2, total_steps=6, matrix_rate=0.02),
        tokens_per_step=60,
        depth_decay=0.8,
    )

    def trainer(name: str) -> Trainer:
        return Trainer(copy.deepcopy(head), tables, sequences, settings, tmp_path / name)

    unbroken = trainer("unbroken").run()
    first = trainer("broken").run(max_steps=3)
    second = trainer("broken")
    second.restore()
    assert first + second.run() == unbroken
    assert unbroken[-1] < unbroken[0]


def test_the_rows_of_a_plan_are_those_that_run(head: PeagleHead, sequences: list[TrainingSequence]) -> None:
    plan = unrolled_plan(sequences[2], DEPTHS)
    slots = len(sequences[2].token_ids) - 2
    assert plan.num_context == slots
    assert [int((plan.depths == depth).sum()) for depth in range(1, DEPTHS)] == [
        slots - 4 - d for d in range(1, DEPTHS)
    ]
    assert (plan.positions < slots).all()


def test_a_sequence_with_a_broken_state_is_named(
    head: PeagleHead, tables: FrozenTables, sequences: list[TrainingSequence]
) -> None:
    hidden = sequences[1].auxiliary_NA.clone()
    hidden[8] = float("nan")
    chosen = [sequences[0], replace(sequences[1], auxiliary_NA=hidden)]
    sums = accumulate_unrolled(head, tables, chosen, settings=LossSettings(), total_weight=1.0, num_depths=DEPTHS)
    assert sums.broken_origins == {1}
