"""What `plan` is asked about: sizes of a catalog pair, or of two checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt import catalog
from peagle_trt.errors import UsageError
from peagle_trt.roofline import Geometry, Pair, WeightFormats, drafter_geometry, find_pair, has_pair, target_geometry

if TYPE_CHECKING:
    from peagle_trt.readers import TargetCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is planned for.

    Attributes:
        name: For messages.
        target: Sizes of the target.
        drafter: Sizes of the drafter.
        formats: What the checkpoints are stored in.
        published: The catalog's data, or None for checkpoints given by path.
    """

    name: str
    target: Geometry
    drafter: Geometry
    formats: WeightFormats
    published: Pair | None


def find_model(target: str, drafter: str | None, mask_token_id: int | None) -> Model:
    """What a command line's words mean.

    Args:
        target: Catalog name, or path of a checkpoint.
        drafter: Path of the head, for a target given by path.
        mask_token_id: Token of the masked slots where the head's checkpoint does not say.

    Raises:
        UsageError: They mean nothing.
        CheckpointError: A checkpoint given by path is none, or the two do not fit.
    """
    if not Path(target).exists():
        entry = catalog.find_entry(target)
        if drafter is not None:
            raise UsageError("--drafter is for a target given by path", hint=f"leave it out: `{entry.name}` has one")
        assert has_pair(entry.name), "a test holds catalog and pairs together"
        pair = find_pair(entry.name)
        return Model(
            name=entry.name,
            target=pair.target,
            drafter=pair.drafter,
            formats=pair.formats,
            published=pair,
        )
    if drafter is None:
        raise UsageError(f"`{target}` is a path; its head is missing", hint="give it with --drafter")
    return _read_model(Path(target), Path(drafter), mask_token_id)


def _read_model(target_path: Path, drafter_path: Path, mask_token_id: int | None) -> Model:
    from peagle_trt.readers import check_pair, read_drafter, read_target

    target = read_target(target_path)
    drafter = read_drafter(drafter_path, num_target_layers=target.config.num_layers, mask_token_id=mask_token_id)
    check_pair(target, drafter)
    return Model(
        name=target_path.name,
        target=target_geometry(target.config),
        drafter=drafter_geometry(drafter.config),
        formats=WeightFormats(
            attention="bf16",
            feed_forward="mxfp4" if _has_packed_experts(target) else "bf16",
            head="bf16",
            drafter="bf16",
            drafter_head="bf16",
        ),
        published=None,
    )


def _has_packed_experts(target: TargetCheckpoint) -> bool:
    from peagle_trt.readers.tensors import PackedTensor

    return any(isinstance(tensor, PackedTensor) for tensor in target.weights.values())
