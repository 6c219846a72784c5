"""Ways to bend a checkpoint on disk, for tests of what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file


def copy_folder(source: Path, destination: Path) -> Path:
    return Path(shutil.copytree(source, destination))


def edit_config(folder: Path, **changes: Any) -> None:
    """Set keys of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def edit_tensors(folder: Path, **changes: np.ndarray | None) -> None:
    """Replace tensors of model.safetensors, `__` standing for a dot; None removes one."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | {name.replace("__", "."): value for name, value in changes.items()}
    save_file({name: value for name, value in tensors.items() if value is not None}, path)


def rename_tensors(folder: Path, old: str, new: str) -> None:
    """Replace a prefix in every tensor's name."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({new + k.removeprefix(old) if k.startswith(old) else k: v for k, v in tensors.items()}, path)


def narrow_tensors(folder: Path, dtype: str = "bfloat16") -> None:
    """Store every floating tensor as a half-width type named as in torch."""
    import torch
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    path = folder / "model.safetensors"
    tensors = {
        name: value.to(getattr(torch, dtype)) if value.is_floating_point() else value
        for name, value in load_torch(path).items()
    }
    save_torch(tensors, path)


def write_raw(path: Path, header: bytes, data: bytes = b"") -> Path:
    """A safetensors file with this very header."""
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def save_byte_tokenizer(folder: Path) -> None:
    """A tokenizer whose tokens are the 256 bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
