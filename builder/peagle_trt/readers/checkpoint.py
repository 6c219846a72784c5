"""What the readers hand on: configuration, lazy weights and text side, free of foreign spellings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peagle_trt.readers.tensors import Weights
from peagle_trt.spec import DrafterConfig, TargetConfig, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSource:
    """The text side of a target.

    Attributes:
        path: File it was read from, for messages.
        tokenizer_json: Makes the text of a `tokenizer.json` of the tokenizers library.
        chat_template: Jinja template, or None.
        bos_token: Text of the token that starts a text, or empty.
        eos_token: Text of the token that ends a turn, or empty.
    """

    path: Path
    tokenizer_json: Callable[[], str]
    chat_template: str | None
    bos_token: str
    eos_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCheckpoint:
    """A target that has been checked in full.

    Attributes:
        path: Folder or file.
        config: Normalised; `aux_layer_ids` is empty until it is paired with a drafter.
        weights: Every tensor of `spec.names.target_shapes`, by our names.
        tokenizer: Text side, or None where the checkpoint has none.
    """

    path: Path
    config: TargetConfig
    weights: Weights
    tokenizer: TokenizerSource | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A tensor that a checkpoint carries and nobody reads.

    Attributes:
        spec: The tensor.
        reason: Why leaving it out changes nothing.
    """

    spec: TensorSpec
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterCheckpoint:
    """A head that has been checked in full, though not against a target.

    Attributes:
        path: Folder.
        config: Normalised.
        weights: Every tensor of `spec.names.drafter_shapes`, by our names.
        left_out: What else the folder holds.
    """

    path: Path
    config: DrafterConfig
    weights: Weights
    left_out: tuple[LeftOut, ...] = ()
