"""The weights of a head on their way to another dialect: bytes as they lie, and what a head has from its target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import UsageError
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint, draft_to_target_ids
from peagle_trt.readers.rows import load_rows
from peagle_trt.readers.safetensors_file import ELEMENT_BYTES, map_bytes
from peagle_trt.spec import TensorSpec
from peagle_trt.writers.spelled import SpelledTensor

_PIECE_BYTES = 1 << 22
_PIECE_ROWS = 1024

Rename = Callable[[str], str]


def own_tensors(drafter: DrafterCheckpoint, rename: Rename, *, without: Collection[str] = ()) -> list[SpelledTensor]:
    """Every tensor a head carries, its bytes unchanged.

    Args:
        drafter: The head.
        rename: Turns our name into the dialect's.
        without: Our names of tensors to leave out.
    """
    return [
        _stored(lazy.spec, rename(name), (1, 1, *lazy.shape) if name == "mask_hidden" else lazy.shape)
        for name, lazy in drafter.weights.items()
        if name not in without
    ]


def output_layer(drafter: DrafterCheckpoint, target: TargetCheckpoint | None, name: str) -> SpelledTensor:
    """The rows of the target's output layer that a head without one of its own proposes from.

    Raises:
        UsageError: The target is not given.
    """
    given = _require(target, "`lm_head`")
    table = given.weights["embed_tokens" if given.config.is_tied else "lm_head"].spec
    return _rows_of(table, draft_to_target_ids(drafter), name)


def embedding_table(target: TargetCheckpoint | None, name: str) -> SpelledTensor:
    """The target's embedding table, for a head without one of its own.

    Raises:
        UsageError: The target is not given.
    """
    table = _require(target, "`embed_tokens`").weights["embed_tokens"].spec
    return _rows_of(table, np.arange(table.shape[0], dtype=np.int64), name)


def inverse_map(drafter: DrafterCheckpoint, name: str = "t2d") -> list[SpelledTensor]:
    """Which tokens of the target a reduced vocabulary keeps, [V] bool; trainers read it beside `d2t`."""
    config = drafter.config
    if not config.has_vocabulary_map:
        return []

    def pieces() -> Iterator[NDArray[np.uint8]]:
        kept = np.zeros(config.vocab_size, np.uint8)
        kept[draft_to_target_ids(drafter)] = 1
        yield kept

    return [SpelledTensor(name=name, dtype="BOOL", shape=(config.vocab_size,), pieces=pieces)]


def zero_output_biases(drafter: DrafterCheckpoint, rename: Rename) -> list[SpelledTensor]:
    """Biases of 0 for attention outputs, for dialects whose one flag means queries, keys, values and outputs."""
    config, dtype = drafter.config, float_type(drafter)
    if not config.has_attention_bias or config.has_output_bias:
        return []
    length = config.hidden_size * ELEMENT_BYTES[dtype]
    return [
        SpelledTensor(
            name=rename(f"layers.{layer}.o_bias"),
            dtype=dtype,
            shape=(config.hidden_size,),
            pieces=lambda: iter((np.zeros(length, np.uint8),)),
        )
        for layer in range(config.num_layers)
    ]


def float_type(drafter: DrafterCheckpoint) -> str:
    """Element type of a head's matrices, as safetensors spells it."""
    return drafter.weights["fc"].spec.dtype


def _require(target: TargetCheckpoint | None, tensor: str) -> TargetCheckpoint:
    if target is None:
        raise UsageError(
            f"the head has no {tensor} of its own, and the dialect needs one written out",
            hint="give the target whose it shares with --target",
        )
    return target


def _stored(spec: TensorSpec, name: str, shape: tuple[int, ...]) -> SpelledTensor:
    def pieces() -> Iterator[NDArray[np.uint8]]:
        whole = spec.location
        assert whole is not None, "a head's tensors lie in its files"
        # A map of its own for each piece: pages of a whole table that stay mapped would count as memory in use.
        for start in range(0, whole.length_bytes, _PIECE_BYTES):
            length = min(_PIECE_BYTES, whole.length_bytes - start)
            place = replace(whole, offset_bytes=whole.offset_bytes + start, length_bytes=length)
            yield map_bytes(replace(spec, location=place))

    return SpelledTensor(name=name, dtype=spec.dtype, shape=shape, pieces=pieces)


def _rows_of(table: TensorSpec, rows: NDArray[np.int64], name: str) -> SpelledTensor:
    """Rows of a target's table: as they lie, or in float32 where they lie in a block format of GGUF."""
    is_plain = table.dtype in ELEMENT_BYTES

    def pieces() -> Iterator[NDArray[np.uint8]]:
        raw = map_bytes(table).reshape(table.shape[0], -1)
        for start in range(0, len(rows), _PIECE_ROWS):
            some = rows[start : start + _PIECE_ROWS]
            yield (raw[some] if is_plain else load_rows(table, some.tolist()).view(np.uint8)).reshape(-1)

    dtype = table.dtype if is_plain else "F32"
    return SpelledTensor(name=name, dtype=dtype, shape=(len(rows), *table.shape[1:]), pieces=pieces)
