"""The tensors of a checkpoint folder, whether it is one safetensors file or many behind an index."""

from __future__ import annotations

from pathlib import Path

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.json_file import read_object
from peagle_trt.readers.safetensors_file import read_header
from peagle_trt.spec import TensorSpec

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_MAX_FILE_NAME_BYTES = 255  # What file systems take.


def read_folder_tensors(folder: Path) -> dict[str, TensorSpec]:
    """Describe every tensor of a folder by its foreign name.

    Raises:
        CheckpointError: There are no weights, a shard is missing or damaged, or the index and the shards disagree.
    """
    if (folder / INDEX_FILE).exists():
        return _read_shards(folder)
    if (folder / SINGLE_FILE).exists():
        return read_header(folder / SINGLE_FILE)
    if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
        raise CheckpointError(
            f"`{folder}` holds pickled PyTorch weights, which can run code when read",
            hint="convert them to safetensors first",
        )
    raise CheckpointError(
        f"`{folder}` holds neither `{SINGLE_FILE}` nor `{INDEX_FILE}`", hint="give the folder that holds the checkpoint"
    )


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files that `read_folder_tensors` reads, for hashing."""
    names = (SINGLE_FILE, INDEX_FILE)
    return tuple(sorted({*folder.glob("model*.safetensors"), *(folder / n for n in names if (folder / n).exists())}))


def _read_shards(folder: Path) -> dict[str, TensorSpec]:
    index_path = folder / INDEX_FILE
    weight_map = read_object(index_path).section("weight_map")
    tensors: dict[str, TensorSpec] = {}
    for file_name in sorted({weight_map.text(name) for name in weight_map.values}):
        if not _is_file_name(file_name):
            raise CheckpointError(
                f"`{index_path}` points outside its folder, or to no file: `{file_name}`", hint="fetch the file again"
            )
        if not (folder / file_name).exists():
            raise CheckpointError(f"`{folder}` lacks the shard `{file_name}`", hint="finish the download")
        for name, spec in read_header(folder / file_name).items():
            if weight_map.values.get(name) != file_name:
                claim = weight_map.values.get(name, "no shard")
                raise CheckpointError(f"`{index_path}` puts tensor `{name}` into `{claim}`, but `{file_name}` holds it")
            tensors[name] = spec
    absent = sorted(weight_map.values.keys() - tensors.keys())
    if absent:
        raise CheckpointError(
            f"`{index_path}` names tensor `{absent[0]}`, but `{weight_map.text(absent[0])}` does not hold it",
            hint="the shards belong to another index; fetch the checkpoint again",
        )
    return tensors


def _is_file_name(text: str) -> bool:
    is_plain = text.isprintable() and len(text.encode()) <= _MAX_FILE_NAME_BYTES and "\\" not in text
    return is_plain and text not in ("", "..") and Path(text).name == text
