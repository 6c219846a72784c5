"""Heads of other methods, named as what they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.json_file import Fields
from peagle_trt.spec import TensorSpec

# Words of a class name, the most particular first: a Domino head is a DFlash head with more to it.
_CLASS_WORDS = {
    "dflash2": "DFlash 2",
    "domino": "Domino",
    "dspark": "DSpark",
    "jetspec": "JetSpec",
    "dflash": "DFlash",
    "medusa": "Medusa",
    "hydra": "Hydra",
    "redrafter": "ReDrafter",
    "mtp": "multi-token-prediction (MTP)",
    "eaglellama": "EAGLE-1",
}
_SPECULATORS_TYPES = {
    "eagle": "EAGLE-1",
    "dflash": "DFlash",
    "dflash2": "DFlash 2",
    "dspark": "DSpark",
    "jetspec": "JetSpec",
    "mtp": "multi-token-prediction (MTP)",
    "medusa": "Medusa",
    "hydra": "Hydra",
    "pard2": "PARD-2",
    "independent": "draft model of its own",
}
READ_SPECULATORS_TYPES = ("peagle", "eagle3")
_MEDUSA_TENSORS = re.compile(r"(medusa_heads?\.)?\d+\.\d+\.linear\.weight|medusa_.*")
_PARALLEL_HEADS = "parallel_draft_heads."


def refuse_other_method(folder: Path, fields: Fields, found: Mapping[str, TensorSpec]) -> None:
    """Refuse a head whose method is another one than EAGLE-3 or P-EAGLE.

    Raises:
        CheckpointError: It is one; the message says which.
    """
    method = find_other_method(fields, found)
    if method:
        raise CheckpointError(
            f"`{folder}` is {'an' if method[0] == 'E' else 'a'} {method} head, not an EAGLE-3 or P-EAGLE head",
            hint="use a P-EAGLE head for this target, or train one",
        )


def find_other_method(fields: Fields, found: Mapping[str, TensorSpec]) -> str:
    """What a head is, or "" where nothing speaks against EAGLE-3.

    Args:
        fields: Its config.json.
        found: Its tensors by foreign name.
    """
    named = _from_names(fields)
    if named:
        return named
    if any(name.startswith(_PARALLEL_HEADS) for name in found):
        return "EAGLE-3 with Medusa-style parallel heads (Model-Optimizer)"
    if fields.has("medusa_num_heads") or any(_MEDUSA_TENSORS.fullmatch(name) for name in found):
        return "Medusa"
    return _from_fusion(found)


def _from_names(fields: Fields) -> str:
    speculators = fields.text("speculators_model_type", "")
    if speculators and speculators not in READ_SPECULATORS_TYPES:
        return _SPECULATORS_TYPES.get(speculators, f"`{speculators}`")
    classes = " ".join(fields.texts("architectures")).lower()
    dflash = fields.section("dflash_config")
    words = f"{classes} {dflash.text('projector_type', '')}".lower()
    method = next((method for word, method in _CLASS_WORDS.items() if word in words), "")
    return method or ("DFlash" if dflash.values else "")


def _from_fusion(found: Mapping[str, TensorSpec]) -> str:
    """DFlash and EAGLE-1 have an `fc` too, but no fusion layer that norms its hidden state."""
    names = {name.removeprefix("model.") for name in found}
    if "fc.weight" not in names or any(re.search(r"layer.*\.hidden_norm\.weight", name) for name in names):
        return ""
    if "hidden_norm.weight" in names:
        return "DFlash"
    fc = found.get("fc.weight") or found["model.fc.weight"]
    return "EAGLE-1" if len(fc.shape) == 2 and fc.shape[1] == 2 * fc.shape[0] else ""
