"""What a training is asked for and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from peagle_trt.spec.drafter import Method
from peagle_trt.train.acceptance import Acceptance
from peagle_trt.train.fitting import MemoryRequest
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.states import Features


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRequest:
    """What to train.

    Attributes:
        target_path: Checkpoint folder or GGUF file.
        questions_path: JSON lines; see `question_files`.
        output_path: Takes the head, and under `work` everything that a resumed run needs.
        method: How the head is to draft.
        start_path: Folder of a head to begin with, or None for the target's last layers.
        num_layers: Layers of the head; None is 2, or as many as the head to begin with has.
        intermediate_size: Width of its feed-forward blocks; None is the target's, or the one of the head to begin with.
        auxiliary_layers: Target layers whose input it reads; None is (2, n//2, n-3), or what the head to begin with
            reads.
        draft_vocab_size: Rows of its lm_head; None covers 98.5 % of the answers, or is the vocabulary of the head to
            begin with.
        mask_token_id: A token of the target that no text holds; None looks for one, unless the head is sequential.
        max_prompt_tokens: Questions that are longer are left out.
        max_new_tokens: Longest answer to train on.
        draft_tokens: K to measure with.
        features: Whether hidden states are stored with the answers or computed for every step, one of `FEATURES`.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        compute_dtype: `float32`, or `bfloat16` where the processor has it; None is `usual_compute_dtype`.
        is_resumed: Continue from the last state.
        memory: How steps are cut.
        settings: The loop's settings; their `partition` is replaced by what `memory` asks for.
    """

    target_path: Path
    questions_path: Path
    output_path: Path
    method: Method = "p-eagle"
    start_path: Path | None = None
    num_layers: int | None = None
    intermediate_size: int | None = None
    auxiliary_layers: tuple[int, ...] | None = None
    draft_vocab_size: int | None = None
    mask_token_id: int | None = None
    max_prompt_tokens: int = 256
    max_new_tokens: int = 224
    draft_tokens: int = 5
    features: Features = "cached"
    device: str = "auto"
    compute_dtype: str | None = None
    is_resumed: bool = False
    memory: MemoryRequest = field(default_factory=MemoryRequest)
    settings: TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReport:
    """What came out.

    Attributes:
        num_answers: Answers trained on.
        num_answer_tokens: Their generated tokens.
        draft_vocab_size: Rows of the head's lm_head.
        mask_token_id: Token of its mask slots; None of a head without any.
        last_loss: Mean loss of the last 20 steps of this call; None when it took none.
        num_steps: Steps of the whole run.
        best_step: Step of the head that was kept.
        decoded_acceptance_length: Its acceptance length in the decode loop, on held-out prompts.
        held_out: Walk over held-out answers.
    """

    num_answers: int
    num_answer_tokens: int
    draft_vocab_size: int
    mask_token_id: int | None
    last_loss: float | None
    num_steps: int
    best_step: int
    decoded_acceptance_length: float
    held_out: Acceptance
