"""Every tensor of a checkpoint is used, or named in a list of what is left out and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from peagle_trt.errors import CheckpointError
from peagle_trt.spec import TensorSpec

_INTEGER_TENSORS = ("d2t",)
INTEGER_TYPES = ("I64", "I32")
# Types whose tensors hold no numbers by themselves. Everything else is a plain floating type, or one of GGUF's.
_CODE_TYPES = ("BOOL", "U8", "I8", "U16", "I16", "U32", "U64", "F8_E4M3", "F8_E5M2", "F8_E8M0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTensor:
    """What a tensor of a checkpoint must be.

    Attributes:
        shapes: Shapes it may have, the first one for messages.
        types: Types it may have, as safetensors spells them; empty for any that holds plain numbers.
    """

    shapes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...] = ()


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
    expected = {
        foreign_name(name): ExpectedTensor(shapes=(shape,), types=INTEGER_TYPES if name in _INTEGER_TENSORS else ())
        for name, shape in expected_shapes.items()
    }
    used = account_for_tensors(source, found, expected, ignorable)
    return {name: used[foreign_name(name)] for name in expected_shapes}


def account_for_tensors(
    source: Path,
    found: Mapping[str, TensorSpec],
    expected: Mapping[str, ExpectedTensor],
    ignorable: Sequence[Ignorable],
) -> dict[str, TensorSpec]:
    """Match a checkpoint's tensors with the ones we need, all by foreign name.

    Returns:
        The needed tensors.

    Raises:
        CheckpointError: A tensor is missing, misshapen, of the wrong kind of type, or belongs to nothing.
    """
    used: dict[str, TensorSpec] = {}
    for name, wanted in expected.items():
        spec = found.get(name)
        if spec is None:
            raise _missing(source, found, expected)
        _check_shape(source, spec, wanted)
        _check_type(source, spec, wanted)
        used[name] = spec
    leftovers = found.keys() - used.keys()
    extra = sorted(name for name in leftovers if not any(re.fullmatch(rule.pattern, name) for rule in ignorable))
    if extra:
        raise CheckpointError(
            f"`{source}` holds {len(extra)} tensor(s) that its configuration has no place for, first `{extra[0]}`",
            hint="configuration and weights belong to different models, or the model has a part that is not supported",
        )
    return used


def _missing(source: Path, found: Mapping[str, TensorSpec], expected: Mapping[str, ExpectedTensor]) -> CheckpointError:
    absent = [(name, wanted.shapes[0]) for name, wanted in expected.items() if name not in found]
    name, shape = absent[0]
    return CheckpointError(
        f"`{source}` lacks {len(absent)} of {len(expected)} tensors, first `{name}` {list(shape)}",
        hint="the configuration and the weights belong to different models, or a shard is missing",
    )


def _check_shape(source: Path, spec: TensorSpec, wanted: ExpectedTensor) -> None:
    if spec.shape not in wanted.shapes:
        expected = " or ".join(str(list(shape)) for shape in wanted.shapes)
        raise CheckpointError(
            f"`{source}`: tensor `{spec.name}` has the wrong shape: expected {expected}, found {list(spec.shape)}",
            hint="the configuration and the weights belong to different models",
        )


def _check_type(source: Path, spec: TensorSpec, wanted: ExpectedTensor) -> None:
    fits = spec.dtype in wanted.types if wanted.types else spec.dtype not in (*INTEGER_TYPES, *_CODE_TYPES)
    if not fits:
        expected = " or ".join(wanted.types) or "a floating type"
        raise CheckpointError(
            f"`{source}`: tensor `{spec.name}` has the wrong type: expected {expected}, found {spec.dtype}",
            hint="use the checkpoint in F32, F16 or BF16"
            if spec.dtype in _CODE_TYPES
            else "the configuration and the weights belong to different models",
        )
