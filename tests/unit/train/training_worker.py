"""A small training in a process of its own, to be killed or to share its steps with another; run by test_resume.py."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from peagle_trt.spec import DrafterConfig
from peagle_trt.spec.rope import RopeConfig
from peagle_trt.train.acceptance import freeze_tables
from peagle_trt.train.features import TrainingSequence
from peagle_trt.train.optimizer import OptimizerSettings
from peagle_trt.train.run_state import STATE_NAME
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.start import auxiliary_scale, seeded_head
from peagle_trt.train.trainer import Trainer
from peagle_trt.train.workers import join_workers

HIDDEN, VOCABULARY = 32, 96


def main() -> None:
    """Train into the folder that the command line names; a state there is continued."""
    folder = Path(sys.argv[1])
    config = DrafterConfig(
        dialect="vllm",
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=10000.0),
        max_positions=128,
        target_hidden_size=HIDDEN,
        aux_layer_ids=(1, 2, 3),
        vocab_size=VOCABULARY,
        draft_vocab_size=VOCABULARY,
        mask_token_id=2,
        num_depths=5,
    )
    torch.manual_seed(1)
    embeddings = torch.randn(VOCABULARY, HIDDEN)
    tables = freeze_tables(embeddings, embeddings * 0.3, np.arange(VOCABULARY), torch.float32)
    sequences = [make_sequence(length) for length in range(20, 32)]
    settings = TrainingSettings(
        optimizer=OptimizerSettings(warmup_steps=2, total_steps=24, matrix_rate=0.02),
        tokens_per_step=60,
        # Saves after every step, so that a kill may fall between a step and its state, or into the writing of one.
        save_seconds=0.0,
    )
    with join_workers() as workers:
        head = seeded_head(config, auxiliary_scale(sequences), torch.float32, 4)
        trainer = Trainer(head, tables, sequences, settings, folder, workers=workers, facts=settings.facts())
        if (folder / STATE_NAME).exists():
            trainer.restore()
        trainer.run()
        workers.wait()


def make_sequence(length: int) -> TrainingSequence:
    """Random text and hidden states."""
    generator = torch.Generator().manual_seed(length)
    return TrainingSequence(
        token_ids=torch.randint(3, VOCABULARY, (length,), generator=generator, dtype=torch.int32),
        prompt_length=5,
        auxiliary_NA=torch.randn(length - 1, 3 * HIDDEN, generator=generator).half(),
        normed_NH=torch.randn(length - 1, HIDDEN, generator=generator).half(),
    )


if __name__ == "__main__":
    main()
