"""What a user asked `build` for, resolved and checked before the first long step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MIN_DRAFT_TOKENS = 1
MAX_DRAFT_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSpec:
    """One build.

    Attributes:
        name: Name of the target, as the manifest and the served models report it.
        target_path: Folder or file of the target's checkpoint.
        drafter_path: Folder of the drafter's checkpoint.
        tokenizer_path: Folder or file the tokenizer is read from.
        output_path: Folder to write; must not exist, or be an earlier build.
        draft_tokens: K, drafted slots a step.
        precision: Name of a recipe in quant/.
        backend: Name of a backend in engine/registry.py.
        max_batch_size: Sequences that may share a step.
        max_sequence_length: Prompt and answer together, in tokens.
        target_source: Where the target comes from, as a person would cite it; no local path.
        drafter_source: Where the drafter comes from.
        compute_capabilities: GPUs to compile for, such as ("120",); empty leaves the choice to the backend.
        scales_path: File of the target's calibrated scales, or None.
        drafter_scales_path: The same of the drafter.
        keep_above: Largest relative error that rounding may make of a matrix; those above stay as they were. None
            leaves nothing out.
        mask_token_id: Token of the drafter's masked slots where its checkpoint does not say, or None.
    """

    name: str
    target_path: Path
    drafter_path: Path
    tokenizer_path: Path
    output_path: Path
    draft_tokens: int = 5
    precision: str = "fp32"
    backend: str = "onnxruntime"
    max_batch_size: int = 8
    max_sequence_length: int = 2048
    target_source: str = ""
    drafter_source: str = ""
    mask_token_id: int | None = None
    compute_capabilities: tuple[str, ...] = ()
    scales_path: Path | None = None
    drafter_scales_path: Path | None = None
    keep_above: float | None = None
