"""What `inspect --json` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TypeAlias

import msgspec

from peagle_trt.readers import DrafterCheckpoint, Finding, TargetCheckpoint
from peagle_trt.spec import TensorSpec

Checkpoint: TypeAlias = TargetCheckpoint | DrafterCheckpoint

_TABLES = {"embed_tokens": "embeddings", "lm_head": "output layer", "d2t": "vocabulary map"}


def describe(found: Checkpoint, findings: Sequence[Finding]) -> dict[str, object]:
    """A checkpoint, with where every tensor goes, sizes by part and what was found about it."""
    document: dict[str, object] = {
        "kind": "drafter" if isinstance(found, DrafterCheckpoint) else "target",
        "path": found.path,
        "num_parameters": sum(math.prod(lazy.shape) for lazy in found.weights.values()),
        "config": msgspec.to_builtins(found.config),
        "size_bytes_by_part": _sizes(found),
        "tensors": [_tensor(name, lazy.spec, lazy.shape) for name, lazy in found.weights.items()],
    }
    if isinstance(found, DrafterCheckpoint):
        document["left_out"] = [
            _tensor("", item.spec, item.spec.shape) | {"reason": item.reason} for item in found.left_out
        ]
        document["taken_from_target"] = _missing(found)
        document["findings"] = [asdict(finding) for finding in findings]
    return document


def _tensor(name: str, spec: TensorSpec, shape: tuple[int, ...]) -> dict[str, object]:
    return {"name": name, "stored_name": spec.name, "type": spec.dtype, "shape": list(shape)}


def _sizes(found: Checkpoint) -> dict[str, int]:
    """Bytes on disk of each part, largest first."""
    sizes: dict[str, int] = {}
    for name, lazy in found.weights.items():
        layer = ".".join(name.split(".")[:2]) if name.startswith("layers.") else ""
        part = _TABLES.get(name, layer.replace("layers.", "layer ") if layer else "fusion and norms")
        sizes[part] = sizes.get(part, 0) + _stored_bytes(lazy.spec)
    if isinstance(found, DrafterCheckpoint) and found.left_out:
        sizes["left out"] = sum(_stored_bytes(item.spec) for item in found.left_out)
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _stored_bytes(spec: TensorSpec) -> int:
    return spec.location.length_bytes if spec.location else 0


def _missing(found: DrafterCheckpoint) -> list[str]:
    """Tensors that a head does without."""
    config = found.config
    carried = {"embed_tokens": config.has_own_embeddings, "lm_head": config.has_own_lm_head}
    return [name for name, is_carried in carried.items() if not is_carried]
