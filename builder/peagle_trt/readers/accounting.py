"""Every tensor of a checkpoint is used, or named in a list of what is left out and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from peagle_trt.errors import CheckpointError
from peagle_trt.spec import TensorSpec

_INTEGER_TENSORS = ("d2t",)
_INTEGER_TYPES = ("I64", "I32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignorable:
    """Tensors that a checkpoint may carry and that are not used.

    Attributes:
        pattern: Regular expression for the whole foreign name.
        reason: Why leaving it out changes nothing.
    """

    pattern: str
    reason: str


INVERSE_FREQUENCIES = Ignorable(
    pattern=r".*rotary_emb\.inv_freq", reason="rotary frequencies are computed from the configuration"
)


def account_for(
    source: Path,
    found: Mapping[str, TensorSpec],
    *,
    expected_shapes: Mapping[str, tuple[int, ...]],
    foreign_name: Callable[[str], str],
    ignorable: Sequence[Ignorable] = (INVERSE_FREQUENCIES,),
) -> dict[str, TensorSpec]:
    """Match a checkpoint's tensors with the ones we need, one to one.

    Args:
        source: File or folder, for messages.
        found: Tensors by foreign name.
        expected_shapes: Shapes by our name.
        foreign_name: Turns our name into the checkpoint's.
        ignorable: What may be left out, and why.

    Returns:
        The needed tensors by our name.

    Raises:
        CheckpointError: A tensor is missing, misshapen, of the wrong kind of type, or belongs to nothing.
    """
    used: dict[str, TensorSpec] = {}
    for name, shape in expected_shapes.items():
        spec = found.get(foreign_name(name))
        if spec is None:
            raise _missing(source, found, expected_shapes, foreign_name)
        _check_shape(source, spec, shape)
        _check_type(source, spec, is_integer=name in _INTEGER_TENSORS)
        used[name] = spec
    leftovers = found.keys() - {spec.name for spec in used.values()}
    extra = sorted(name for name in leftovers if not any(re.fullmatch(rule.pattern, name) for rule in ignorable))
    if extra:
        raise CheckpointError(
            f"`{source}` holds {len(extra)} tensor(s) that its configuration has no place for, first `{extra[0]}`",
            hint="configuration and weights belong to different models, or the model has a part that is not supported",
        )
    return used


def _missing(
    source: Path,
    found: Mapping[str, TensorSpec],
    expected_shapes: Mapping[str, tuple[int, ...]],
    foreign_name: Callable[[str], str],
) -> CheckpointError:
    absent = [(foreign_name(name), shape) for name, shape in expected_shapes.items() if foreign_name(name) not in found]
    name, shape = absent[0]
    return CheckpointError(
        f"`{source}` lacks {len(absent)} of {len(expected_shapes)} tensors, first `{name}` {list(shape)}",
        hint="the configuration and the weights belong to different models, or a shard is missing",
    )


def _check_shape(source: Path, spec: TensorSpec, shape: tuple[int, ...]) -> None:
    if spec.shape != shape:
        raise CheckpointError(
            f"`{source}`: tensor `{spec.name}` has the wrong shape: expected {list(shape)}, found {list(spec.shape)}",
            hint="the configuration and the weights belong to different models",
        )


def _check_type(source: Path, spec: TensorSpec, *, is_integer: bool) -> None:
    if (spec.dtype in _INTEGER_TYPES) != is_integer or spec.dtype in ("BOOL", "U8", "I8"):
        expected = "I64 or I32" if is_integer else "a floating type"
        raise CheckpointError(
            f"`{source}`: tensor `{spec.name}` has the wrong type: expected {expected}, found {spec.dtype}",
            hint="use an unquantized checkpoint",
        )
