"""The door for targets: a folder in Hugging Face's layout, or a GGUF file."""

from __future__ import annotations

from pathlib import Path

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.checkpoint import TargetCheckpoint, TokenizerSource
from peagle_trt.readers.gguf_file import read_gguf_target
from peagle_trt.readers.huggingface import find_tokenizer, read_huggingface_target
from peagle_trt.readers.quantized import HF_QUANT_CONFIG
from peagle_trt.readers.shards import weight_files

_TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    HF_QUANT_CONFIG,
)


def read_target(path: Path) -> TargetCheckpoint:
    """Read a target and check it in full; no tensor is loaded.

    Args:
        path: Folder with config.json and safetensors, or a `.gguf` file.

    Raises:
        CheckpointError: There is nothing, or it is damaged, incomplete or not supported.
    """
    if not path.exists():
        raise CheckpointError(
            f"`{path}` does not exist", hint="give a checkpoint's folder or GGUF file, or a catalog name"
        )
    if path.is_dir():
        return read_huggingface_target(path)
    if path.suffix == ".gguf":
        return read_gguf_target(path)
    raise CheckpointError(f"`{path}` is neither a folder nor a `.gguf` file")


def read_tokenizer(path: Path) -> TokenizerSource:
    """Read the text side alone, from a folder or a file.

    Raises:
        CheckpointError: There is none.
    """
    source = read_gguf_target(path).tokenizer if path.suffix == ".gguf" else find_tokenizer(path)
    if source is None:
        raise CheckpointError(
            f"`{path}` has no `tokenizer.json`",
            hint="save the tokenizer beside the weights in the tokenizers library's format",
        )
    return source


def checkpoint_files(path: Path) -> tuple[Path, ...]:
    """Every file of a target or head that a build depends on, for hashing."""
    if path.is_file():
        return (path,)
    texts = (path / name for name in _TEXT_FILES)
    return (*(text for text in texts if text.exists()), *weight_files(path))
