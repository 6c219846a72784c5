"""From a head that has been read to a folder in another dialect."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint, check_pair
from peagle_trt.spec import DrafterConfig
from peagle_trt.writers.folder import require_free_name, write_folder
from peagle_trt.writers.registry import WRITERS
from peagle_trt.writers.spelled import refuse_quantized_head


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedHead:
    """A head that was written.

    Attributes:
        path: Its folder.
        size_bytes: Bytes of its weights.
        num_tensors: Its tensors.
        notes: What its reader must know, a sentence each.
    """

    path: Path
    size_bytes: int
    num_tensors: int
    notes: tuple[str, ...]


def convert_head(
    drafter: DrafterCheckpoint, target: TargetCheckpoint | None, dialect: str, output_path: Path
) -> ConvertedHead:
    """Write a head in another dialect, without loss.

    Args:
        drafter: The head.
        target: Its target; needed where the dialect wants tensors that the head has from it.
        dialect: A name of `WRITERS`.
        output_path: Folder to make.

    Raises:
        CheckpointError: Head and target do not fit, the head is quantized, or the dialect cannot hold the head.
        UsageError: The target is needed and not given, or the folder is in use.
        MachineError: The folder cannot be written.
    """
    path = require_free_name(output_path)
    refuse_quantized_head(drafter)
    if target is None:
        _check_alone(drafter.config)
    else:
        check_pair(target, drafter)
    head = WRITERS[dialect](drafter, target)
    size_bytes = write_folder(head, drafter.path, path)
    return ConvertedHead(path=output_path, size_bytes=size_bytes, num_tensors=len(head.tensors), notes=head.notes)


def _check_alone(config: DrafterConfig) -> None:
    """What can be judged without a target: a head of no use to anybody is not written."""
    if config.is_parallel and config.mask_token_id >= config.vocab_size:
        raise CheckpointError(
            f"the head's mask token {config.mask_token_id} is outside its vocabulary of {config.vocab_size}",
            hint="its trainer knows the right one",
        )
    if sorted(set(config.aux_layer_ids)) != list(config.aux_layer_ids):
        raise CheckpointError(
            f"the head's auxiliary layers {list(config.aux_layer_ids)} are not distinct and ascending"
        )
