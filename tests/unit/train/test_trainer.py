from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from peagle_trt.errors import CheckpointError
from peagle_trt.spec import DrafterConfig, TargetConfig
from peagle_trt.spec.rope import RopeConfig
from peagle_trt.train.acceptance import FrozenTables, draft_everywhere, measure_acceptance
from peagle_trt.train.batches import batch_orders
from peagle_trt.train.checkpoint import read_head, write_head
from peagle_trt.train.features import TrainingSequence
from peagle_trt.train.optimizer import OptimizerSettings
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.start import auxiliary_scale, seeded_head
from peagle_trt.train.trainer import Trainer

SETTINGS = TrainingSettings(
    optimizer=OptimizerSettings(warmup_steps=2, total_steps=12, matrix_rate=0.02), tokens_per_step=60
)


@pytest.fixture
def target(config: DrafterConfig) -> TargetConfig:
    return TargetConfig(
        architecture="LlamaForCausalLM",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=48,
        num_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=10000.0),
        max_positions=128,
        bos_token_id=1,
        eos_token_ids=(1,),
    )


def new_trainer(
    config: DrafterConfig,
    tables: FrozenTables,
    sequences: list[TrainingSequence],
    folder: Path,
    settings: TrainingSettings = SETTINGS,
) -> Trainer:
    head = seeded_head(config, auxiliary_scale(sequences), torch.float32, seed=4)
    return Trainer(head, tables, sequences, settings, folder)


def test_a_resumed_run_has_the_losses_of_an_unbroken_one(
    config: DrafterConfig, tables: FrozenTables, sequences: list[TrainingSequence], tmp_path: Path
) -> None:
    unbroken = new_trainer(config, tables, sequences, tmp_path / "unbroken").run()
    first = new_trainer(config, tables, sequences, tmp_path / "broken").run(max_steps=5)
    second = new_trainer(config, tables, sequences, tmp_path / "broken")
    second.restore()
    assert first + second.run() == unbroken
    assert len(unbroken) == SETTINGS.optimizer.total_steps


def test_a_state_saved_between_two_steps_continues_with_the_next_batch(
    config: DrafterConfig, tables: FrozenTables, sequences: list[TrainingSequence], tmp_path: Path
) -> None:
    unbroken = new_trainer(config, tables, sequences, tmp_path / "unbroken").run()
    saving = replace(SETTINGS, save_seconds=0.0)
    states: list[bytes] = []
    first = new_trainer(config, tables, sequences, tmp_path / "broken", saving)
    first.run(lambda _: states.append((tmp_path / "broken/state.pt").read_bytes()) or {}, max_steps=4)
    # The state that was written after the third step, while the loop went on.
    (tmp_path / "broken/state.pt").write_bytes(states[2])
    second = new_trainer(config, tables, sequences, tmp_path / "broken")
    second.restore()
    assert second.run() == unbroken[3:]


def test_training_lowers_the_loss_and_writes_metrics(
    config: DrafterConfig, tables: FrozenTables, sequences: list[TrainingSequence], tmp_path: Path
) -> None:
    losses = new_trainer(config, tables, sequences, tmp_path).run()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0]
    assert [line["loss"] for line in lines] == losses


def test_a_checkpoint_reads_back_as_bfloat16_of_what_was_written(
    config: DrafterConfig, target: TargetConfig, sequences: list[TrainingSequence], tmp_path: Path
) -> None:
    head = seeded_head(config, auxiliary_scale(sequences), torch.float32, seed=4)
    write_head(tmp_path, head, np.arange(config.vocab_size), target, head.folded_state())
    loaded, draft_to_target = read_head(tmp_path, torch.float32)
    assert loaded.config == config
    assert draft_to_target.tolist() == list(range(config.vocab_size))
    for name, value in head.folded_state().items():
        torch.testing.assert_close(loaded.folded_state()[name], value.bfloat16().float(), atol=0.0, rtol=0.0)


def test_a_missing_tensor_is_named(
    config: DrafterConfig, target: TargetConfig, sequences: list[TrainingSequence], tmp_path: Path
) -> None:
    head = seeded_head(config, auxiliary_scale(sequences), torch.float32, seed=4)
    state = head.folded_state()
    del state["layers.1.up_proj"]
    write_head(tmp_path, head, np.arange(config.vocab_size), target, state)
    with pytest.raises(CheckpointError, match=r"layers.1.mlp.up_proj.weight"):
        read_head(tmp_path, torch.float32)


def test_an_exact_walk_accepts_what_the_drafter_gets_right(
    config: DrafterConfig, tables: FrozenTables, sequences: list[TrainingSequence]
) -> None:
    head = seeded_head(config, auxiliary_scale(sequences), torch.float32, seed=4)
    sequence = sequences[0]
    walked = measure_acceptance(head, tables, [sequence], draft_tokens=3)
    # Untrained: one token a step, and the first token of the answer comes from the prompt's own pass.
    assert walked.num_tokens == len(sequence.token_ids) - sequence.prompt_length - 1
    drafts = draft_everywhere(head, tables, sequence, 3)
    flattering = sequence.token_ids.clone()
    anchor = sequence.prompt_length - 1
    flattering[anchor + 2 : anchor + 5] = torch.from_numpy(drafts[0]).int()
    better = measure_acceptance(
        head,
        tables,
        [
            TrainingSequence(
                token_ids=flattering,
                prompt_length=sequence.prompt_length,
                auxiliary_NA=sequence.auxiliary_NA,
                normed_NH=sequence.normed_NH,
            )
        ],
        draft_tokens=3,
    )
    assert better.accepted_by_position[2] >= 1
    assert better.num_tokens == walked.num_tokens
    assert better.num_steps < walked.num_steps


def test_sequences_that_do_not_fill_a_step_are_one_together() -> None:
    assert [sorted(step) for step in batch_orders([5, 6, 7], tokens_per_step=100, seed=0, epoch=0)] == [[0, 1, 2]]
    assert list(batch_orders([], tokens_per_step=100, seed=0, epoch=0)) == []
