"""EAGLE-3 and P-EAGLE heads: configuration and weights in any known dialect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.accounting import (
    INTEGER_TYPES,
    INVERSE_FREQUENCIES,
    ExpectedTensor,
    Ignorable,
    account_for_tensors,
)
from peagle_trt.readers.checkpoint import DrafterCheckpoint, LeftOut
from peagle_trt.readers.dialects import Dialect, find_dialect
from peagle_trt.readers.head_config import read_head_config
from peagle_trt.readers.head_methods import find_other_method, refuse_other_method
from peagle_trt.readers.json_file import read_object
from peagle_trt.readers.quantized import SCALES_LEFT_OUT, Quantization, read_quantization
from peagle_trt.readers.safetensors_file import lazy_tensor
from peagle_trt.readers.shards import read_folder_tensors
from peagle_trt.readers.tensors import Weights
from peagle_trt.readers.weight_plan import Part, matrix_part, plain_part
from peagle_trt.spec import DrafterConfig, TensorSpec
from peagle_trt.spec.names import drafter_shapes

_IGNORABLE = (
    INVERSE_FREQUENCIES,
    Ignorable(pattern=r"t2d", reason="the inverse of d2t; only training reads it"),
    Ignorable(pattern=r"verifier_(lm_head|norm)\.weight", reason="the target's, kept for training"),
)


def read_drafter(
    path: Path, *, num_target_layers: int | None = None, mask_token_id: int | None = None
) -> DrafterCheckpoint:
    """Read a P-EAGLE head and check it in full; no tensor is loaded.

    Args:
        path: Folder with config.json and safetensors.
        num_target_layers: Layers of the target, to find the default of a head that does not name its
            auxiliary layers.
        mask_token_id: Token of a masked slot, for a head whose configuration does not say.

    Raises:
        CheckpointError: It is no P-EAGLE head, or it is damaged, incomplete or not supported.
    """
    head = read_head(path, num_target_layers=num_target_layers, mask_token_id=mask_token_id)
    if not head.config.is_parallel:
        raise CheckpointError(
            f"`{path}` lacks `mask_hidden`: it is a plain EAGLE-3 head, which drafts one token a pass",
            hint="use a P-EAGLE head, or train one; `build`, `inspect` and `convert` take plain heads too",
        )
    return head


def read_head(
    path: Path, *, num_target_layers: int | None = None, mask_token_id: int | None = None
) -> DrafterCheckpoint:
    """Read a head that may also be a plain EAGLE-3 one; arguments and checks are those of `read_drafter`.

    Raises:
        CheckpointError: It is neither, or it is damaged, incomplete or not supported.
    """
    if not path.is_dir():
        raise CheckpointError(f"`{path}` is not a folder", hint="give the folder that holds the head's config.json")
    fields = read_object(path / "config.json")
    found = _flatten_mask(read_folder_tensors(path))
    refuse_other_method(path, fields, found)
    dialect = find_dialect(path, fields, found)
    config = read_head_config(fields, found, dialect, num_target_layers=num_target_layers, mask_token_id=mask_token_id)
    quantization = read_quantization(path, fields)
    ignorable = _IGNORABLE if quantization is None else _IGNORABLE + SCALES_LEFT_OUT
    parts = _plan(config, dialect, found, quantization)
    expected = {name: wanted for part in parts.values() for name, wanted in part.expected.items()}
    used = account_for_tensors(path, found, expected, ignorable)
    weights = Weights({name: part.build(used) for name, part in parts.items()})
    return DrafterCheckpoint(path=path, config=config, weights=weights, left_out=_left_out(found, used, ignorable))


def is_drafter(path: Path) -> bool:
    """Whether a folder looks like a head of some method rather than a target.

    Raises:
        CheckpointError: The folder's weights are absent or damaged.
    """
    if not path.is_dir():
        return False
    found = read_folder_tensors(path)
    if any(name.removeprefix("model.") == "fc.weight" for name in found):
        return True
    return (path / "config.json").exists() and bool(find_other_method(read_object(path / "config.json"), found))


def _plan(
    config: DrafterConfig, dialect: Dialect, found: Mapping[str, TensorSpec], quantization: Quantization | None
) -> dict[str, Part]:
    return {
        name: _plan_tensor(name, dialect.foreign_name(name), shape, found, quantization)
        for name, shape in drafter_shapes(config).items()
    }


def _plan_tensor(
    name: str, foreign: str, shape: tuple[int, ...], found: Mapping[str, TensorSpec], quantization: Quantization | None
) -> Part:
    if name == "d2t":
        expected = {foreign: ExpectedTensor(shapes=(shape,), types=INTEGER_TYPES)}
        return Part(expected=expected, build=lambda specs: lazy_tensor(specs[foreign]))
    if name in ("fc", "lm_head") or name.endswith("_proj"):
        return matrix_part(foreign.removesuffix(".weight"), shape, found, quantization)
    return plain_part(foreign, shape)


def _flatten_mask(found: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    # Heads store it as [1, 1, A*Ht] or [1, A*Ht]; the leading axes carry nothing.
    result = dict(found)
    mask = found.get("mask_hidden")
    if mask is not None and len(mask.shape) > 1 and all(size == 1 for size in mask.shape[:-1]):
        result["mask_hidden"] = replace(mask, shape=mask.shape[-1:])
    return result


def _left_out(
    found: Mapping[str, TensorSpec], used: Mapping[str, TensorSpec], ignorable: Sequence[Ignorable]
) -> tuple[LeftOut, ...]:
    taken = {spec.name for spec in used.values()}
    rest = [spec for name, spec in found.items() if name not in taken]
    reasons = {spec.name: next(r.reason for r in ignorable if re.fullmatch(r.pattern, spec.name)) for spec in rest}
    return tuple(LeftOut(spec=spec, reason=reasons[spec.name]) for spec in rest)
