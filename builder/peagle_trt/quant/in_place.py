"""Weights that stay where the checkpoint has them: a build holds hard links of its shards and an index into them.

Nothing that the checkpoint stores is stored again. What a build computes, such as the masked slots' fused state, goes
into a small safetensors file beside the index. ONNX Runtime takes external data from a hard link in the model's folder,
but neither through a symbolic link nor from outside (measured with 1.32), so shards are linked into that folder; a
build therefore stays whole when the checkpoint's folder is deleted.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.files import replacing, require_free_space, shares_file_system, try_link, write_text
from peagle_trt.readers.packed import MXFP4_BLOCK, unpack_stack
from peagle_trt.readers.safetensors_file import load_tensor
from peagle_trt.readers.tensors import LazyTensor, PackedTensor, Weights
from peagle_trt.spec import TensorLocation, TensorSpec

logger = logging.getLogger(__name__)

REFERABLE_TYPES = ("F32", "F16", "BF16", "I64", "I32", "U8")
"""Types that a graph may point at; each is an element type of ONNX with the same bytes."""

BLOCKS, SCALES = ".blocks", ".scales"
"""Behind the name of a stack of matrices in MXFP4: its codes and its scales, as the checkpoint has them."""

_EXPERT_PROJECTIONS = {"experts_gate_up_proj": ("gate", "up"), "experts_down_proj": ("down",)}
_AGAIN = "the build is damaged; build it again"


class Reference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a tensor lies.

    Attributes:
        file: Name of a file beside the index.
        dtype: As safetensors spells it.
        shape: Dimensions, outermost first.
        offset_bytes: First byte.
        length_bytes: Bytes.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    length_bytes: int


def referable(weights: Weights, names: Iterable[str]) -> dict[str, TensorSpec]:
    """The places of a checkpoint's tensors, by our names.

    Args:
        weights: The checkpoint's.
        names: Those that are wanted.

    Raises:
        CheckpointError: One does not lie in a safetensors file as numbers that a graph can read.
    """
    places: dict[str, TensorSpec] = {}
    for name in names:
        places |= {place: _require_referable(place, spec) for place, spec in _pieces(name, weights[name]).items()}
    return places


def expert_matrix(expert: int, projection: str) -> str:
    """Name, within a layer, of an expert's matrix that the checkpoint stores as a tensor of its own."""
    return f"experts.{expert}.{projection}_proj"


def load_experts(stored: Mapping[str, TensorSpec], name: str) -> NDArray[np.float32] | None:
    """A stack of all experts' matrices, put together from what a build refers to; None where it refers to none.

    Args:
        stored: What a build stores.
        name: Name of the stack, `layers.{i}.experts_gate_up_proj` or `layers.{i}.experts_down_proj`.

    Raises:
        CheckpointError: A scale is no number.
    """
    if f"{name}{BLOCKS}" in stored:
        packed = PackedTensor(form="mxfp4", codes=stored[f"{name}{BLOCKS}"], scales=stored[f"{name}{SCALES}"])
        *shape, blocks = packed.scales.shape
        return unpack_stack(packed, (*shape, blocks * MXFP4_BLOCK))
    prefix, _, stem = name.rpartition(".")
    projections = _EXPERT_PROJECTIONS.get(stem, ())
    matrices: list[NDArray[np.generic]] = []
    while projections and f"{prefix}.{expert_matrix(len(matrices), projections[0])}" in stored:
        parts = [load_tensor(stored[f"{prefix}.{expert_matrix(len(matrices), each)}"]) for each in projections]
        # Rows of gate and up take turns.
        matrices.append(np.stack(parts, axis=1).reshape(-1, parts[0].shape[1]))
    return np.stack(matrices).astype(np.float32, copy=False) if matrices else None


def index_path(path: Path) -> Path:
    """The index that belongs to a file of stored weights."""
    return path.with_suffix(".weights.json")


def link_shards(references: Mapping[str, TensorSpec], path: Path) -> None:
    """Link the files that hold `references` beside `path`, and write the index.

    A shard that cannot be linked is copied, which is told on stderr.

    Args:
        references: Tensors where the checkpoint has them, by our names.
        path: File of stored weights; links are named after it, `target.model-00001-of-00002.safetensors`.

    Raises:
        MachineError: A shard can be neither linked nor copied.
    """
    links = {shard: _link_name(path, shard) for shard in shards(references)}
    for shard, name in links.items():
        _link_or_copy(shard, path.with_name(name))
    index = {name: _refer(spec, links) for name, spec in references.items()}
    write_text(index_path(path), msgspec.json.encode(index).decode() + "\n")


def read_index(path: Path) -> dict[str, TensorSpec]:
    """Tensors that an index points at; nothing where there is no index.

    Args:
        path: File of stored weights.

    Raises:
        CheckpointError: The index is damaged, or points past the end of a file or at none.
    """
    index = index_path(path)
    if not index.exists():
        return {}
    try:
        entries = msgspec.json.decode(index.read_bytes(), type=dict[str, Reference])
    except (msgspec.MsgspecError, OSError) as error:
        raise CheckpointError(f"`{index}` cannot be read: {error}", hint=_AGAIN) from error
    sizes = {file: _size_of(index.with_name(file)) for file in {entry.file for entry in entries.values()}}
    for name, entry in entries.items():
        if entry.offset_bytes + entry.length_bytes > sizes[entry.file]:
            raise CheckpointError(
                f"`{index}` puts `{name}` past the end of `{entry.file}`, which has {sizes[entry.file]:,} bytes",
                hint=_AGAIN,
            )
    return {name: _locate(name, entry, index.parent) for name, entry in entries.items()}


def shards(references: Mapping[str, TensorSpec]) -> list[Path]:
    """Files that hold `references`, in order of their names."""
    return sorted({spec.location.path for spec in references.values() if spec.location is not None})


def bytes_to_copy(references: Mapping[str, TensorSpec], folder: Path) -> int:
    """Bytes of the shards that no link can bring into a folder, because they lie on another file system."""
    return sum(shard.stat().st_size for shard in shards(references) if not shares_file_system(shard, folder))


def _pieces(name: str, tensor: LazyTensor) -> dict[str, TensorSpec]:
    """What the checkpoint stores for one of our tensors, by the names it is referred to by."""
    if tensor.packed is not None and tensor.packed.form == "mxfp4":
        return {f"{name}{BLOCKS}": tensor.packed.codes, f"{name}{SCALES}": tensor.packed.scales}
    prefix, _, stem = name.rpartition(".")
    if tensor.parts and stem in _EXPERT_PROJECTIONS:
        projections = _EXPERT_PROJECTIONS[stem]
        experts = range(len(tensor.parts) // len(projections))
        keys = ((expert, projection) for expert in experts for projection in projections)
        return {f"{prefix}.{expert_matrix(*key)}": part.spec for key, part in zip(keys, tensor.parts, strict=True)}
    return {name: tensor.spec}


def _require_referable(name: str, spec: TensorSpec) -> TensorSpec:
    location = spec.location
    if location is None or location.path.suffix != ".safetensors" or spec.dtype not in REFERABLE_TYPES:
        where = f"`{location.path}`" if location else "the checkpoint"
        how = "in another layout" if location is None and spec.dtype in REFERABLE_TYPES else f"as {spec.dtype}"
        raise CheckpointError(
            f"{where} stores `{spec.name}` {how}, which a graph cannot read in place",
            hint=f"precision `native` reads safetensors of {', '.join(REFERABLE_TYPES)}; use `fp32`",
        )
    return replace(spec, name=name)


def _link_name(path: Path, shard: Path) -> str:
    return f"{path.stem}.{shard.name}"


def _link_or_copy(shard: Path, destination: Path) -> None:
    # A hub's cache holds symbolic links; a hard link of one of those would be another symbolic link.
    source = shard.resolve()
    if try_link(source, destination):
        return
    size_bytes = source.stat().st_size
    require_free_space(destination.parent, size_bytes)
    logger.warning("`%s` cannot be linked into `%s`; copying %s bytes", source, destination.parent, f"{size_bytes:,}")
    with source.open("rb") as file, replacing(destination) as copy:
        shutil.copyfileobj(file, copy, 1 << 22)


def _refer(spec: TensorSpec, links: Mapping[Path, str]) -> Reference:
    location = spec.location
    assert location is not None, "what can be referred to lies in a file"
    return Reference(
        file=links[location.path],
        dtype=spec.dtype,
        shape=spec.shape,
        offset_bytes=location.offset_bytes,
        length_bytes=location.length_bytes,
    )


def _locate(name: str, entry: Reference, folder: Path) -> TensorSpec:
    location = TensorLocation(
        path=folder / entry.file, offset_bytes=entry.offset_bytes, length_bytes=entry.length_bytes
    )
    return TensorSpec(name=name, dtype=entry.dtype, shape=entry.shape, location=location)


def _size_of(path: Path) -> int:
    if not path.is_file():
        raise CheckpointError(f"`{path}` does not exist", hint=_AGAIN)
    return path.stat().st_size
