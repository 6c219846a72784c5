"""What `inspect` prints for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peagle_trt.cli.inspect_document import Checkpoint
from peagle_trt.readers import DrafterCheckpoint
from peagle_trt.spec import ExpertsConfig, RopeConfig

_MEGABYTE = 1e6


def write_text(found: Checkpoint, document: Mapping[str, Any], *, shows_tensors: bool) -> str:
    """A checkpoint's settings, sizes and findings, a line each.

    Args:
        found: The checkpoint.
        document: What `--json` would print.
        shows_tensors: List every tensor too.
    """
    lines = [
        f"{document['kind']}  {document['path']}",
        f"{document['num_parameters']:,} parameters in {len(found.weights)} tensors",
    ]
    lines += [f"  {name:<22} {_words(getattr(found.config, name))}" for name in found.config.__struct_fields__]
    lines.append("size in MB")
    lines += [f"  {part:<22} {size / _MEGABYTE:,.3g}" for part, size in document["size_bytes_by_part"].items()]
    lines += [f"  {name:<22} not carried, the target's is used" for name in document.get("taken_from_target", ())]
    if shows_tensors:
        lines += _tensor_lines(found)
    lines += _finding_lines(document)
    if "fits" in document:
        lines.append("fits this target" if document["fits"] else f"does not fit this target: {document['pairing']}")
    return "\n".join(lines)


def _tensor_lines(found: Checkpoint) -> list[str]:
    lines = [
        f"  {name:<36} {lazy.spec.dtype:<5} {' x '.join(map(str, lazy.shape)):<16} {lazy.spec.name}"
        for name, lazy in found.weights.items()
    ]
    left_out = found.left_out if isinstance(found, DrafterCheckpoint) else ()
    return lines + [
        f"  {'left out':<36} {item.spec.dtype:<5} {' x '.join(map(str, item.spec.shape)):<16} {item.spec.name}: "
        f"{item.reason}"
        for item in left_out
    ]


def _finding_lines(document: Mapping[str, Any]) -> list[str]:
    lines = []
    for finding in document.get("findings", ()):
        words = [f"{finding['what']}: {finding['found']}"]
        if finding["level"] != "ok":
            words += [f"expected {finding['expected']}", finding["hint"]]
        lines.append(f"{finding['level']:<8} {'; '.join(word for word in words if word)}")
    return lines


def _words(value: object) -> str:
    """A setting for people."""
    if isinstance(value, RopeConfig):
        return _rope_words(value)
    if isinstance(value, ExpertsConfig):
        return f"{value.num_experts} of width {value.intermediate_size}, {value.experts_per_token} a token"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else "not said" if value is None else str(value)


def _rope_words(rope: RopeConfig) -> str:
    """Base and, where a rule stretches it, the rule with what departs from its defaults."""
    usual = RopeConfig()
    apart = [
        f"{name} {_words(getattr(rope, name))}"
        for name in rope.__struct_fields__
        if name not in ("theta", "scaling") and getattr(rope, name) != getattr(usual, name)
    ]
    rule = "" if rope.scaling == "none" else f", {rope.scaling}: {', '.join(apart)}"
    return f"theta {_words(rope.theta)}{rule}"
