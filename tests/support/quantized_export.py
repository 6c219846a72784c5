"""Small checkpoints to be quantized, and folders that were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.synthesize_checkpoint import read_published, shorten, write_drafter, write_target
from tests.support.shrunk_models import shrink


def write_shrunk(folder: Path, model: str) -> None:
    """A published model's target and drafter, two layers of them and small, filled with numbers."""
    published = shrink(shorten(read_published(model), 2))
    write_target(folder / "target", published, is_filled=lambda _: True, seed=0)
    write_drafter(folder / "drafter", published, is_filled=lambda _: True, seed=1)


def edit_document(path: Path, edit: Any) -> None:
    """Change a JSON file in place by a function of its content."""
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def edit_descriptions(folder: Path, algorithm: str | None = None, left_out: list[str] | None = None) -> None:
    """Change both descriptions of a quantized folder alike."""

    def edit_file(document: dict[str, Any]) -> None:
        inner = document["quantization"]
        inner["quant_algo"] = algorithm or inner["quant_algo"]
        inner["exclude_modules"] = inner["exclude_modules"] if left_out is None else left_out

    def edit_config(document: dict[str, Any]) -> None:
        twin = document["quantization_config"]
        twin["quant_algo"] = algorithm or twin["quant_algo"]
        twin["ignore"] = twin["ignore"] if left_out is None else left_out

    edit_document(folder / "hf_quant_config.json", edit_file)
    edit_document(folder / "config.json", edit_config)
