"""Shards of a checkpoint: cut by size, written a piece at a time, and what is finished told by a journal.

A shard appears under its name only when it is whole; the journal then holds its SHA-256. A run that was killed goes on
with the first shard that is missing or differs, and ends with the bytes of a run that was not.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from peagle_trt.files import replacing, sha256_of, write_text
from peagle_trt.readers.shards import INDEX_FILE, SINGLE_FILE
from peagle_trt.writers.quantized.jobs import Job, Largest, Output

MAX_SHARD_BYTES = 2 << 30
JOURNAL = "journal.json"
_ALIGNMENT_BYTES = 8


class Journal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done of a plan.

    Attributes:
        plan: Hash of everything that decides the bytes.
        largest: What the survey found; empty before it is through.
        shards: File name -> SHA-256 of the shards that are whole.
    """

    plan: str
    largest: dict[str, float] = {}
    shards: dict[str, str] = {}


def read_journal(folder: Path, plan: str) -> Journal:
    """What an earlier run did of the same plan; nothing where it did none, or of another."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        journal = msgspec.json.decode((folder / JOURNAL).read_bytes(), type=Journal)
        if journal.plan == plan:
            return journal
    return Journal(plan=plan)


def write_journal(folder: Path, journal: Journal) -> None:
    """Put the journal beside the shards.

    Raises:
        MachineError: It cannot be written.
    """
    write_text(folder / JOURNAL, msgspec.json.encode(journal).decode())


def cut_shards(jobs: Sequence[Job], max_bytes: int = MAX_SHARD_BYTES) -> dict[str, tuple[Job, ...]]:
    """File names with the jobs that fill them, in order; one file is called as a checkpoint of one file is."""
    shards: list[list[Job]] = [[]]
    size_bytes = 0
    for job in jobs:
        if size_bytes + job.length_bytes > max_bytes and shards[-1]:
            shards.append([])
            size_bytes = 0
        shards[-1].append(job)
        size_bytes += job.length_bytes
    if len(shards) == 1:
        return {SINGLE_FILE: tuple(shards[0])}
    count = len(shards)
    return {f"model-{number:05}-of-{count:05}.safetensors": tuple(each) for number, each in enumerate(shards, 1)}


def is_finished(path: Path, journal: Journal) -> bool:
    """Whether a shard is there with the bytes that the journal tells of."""
    digest = journal.shards.get(path.name)
    return digest is not None and path.is_file() and sha256_of(path) == digest


def write_shard(path: Path, jobs: Sequence[Job], largest: Largest) -> None:
    """Write one shard.

    Raises:
        CheckpointError: A source turns out to be damaged.
        MachineError: The disk is full, or the folder cannot be written.
    """
    with replacing(path) as file:
        write_jobs(file, jobs, largest)


def write_jobs(file: BinaryIO, jobs: Sequence[Job], largest: Largest) -> None:
    """Write a safetensors file; tensors of a job grow side by side, each at its own place."""
    outputs = [output for job in jobs for output in job.outputs]
    header = _header(outputs)
    file.write(header)
    start = len(header)
    for job in jobs:
        ends = []
        for output in job.outputs:
            ends.append(start)
            start += output.length_bytes
        for index, piece in job.pieces(largest):
            file.seek(ends[index])
            ends[index] += file.write(piece.data)
        assert ends[-1] == start, f"{job.outputs[-1].name} ends at {ends[-1]}, not {start}"


def write_index(folder: Path, shards: dict[str, tuple[Job, ...]]) -> None:
    """Write the index of several shards; a single one needs none.

    Raises:
        MachineError: It cannot be written.
    """
    if len(shards) == 1:
        return
    weight_map = {output.name: name for name, jobs in shards.items() for job in jobs for output in job.outputs}
    total = sum(job.length_bytes for jobs in shards.values() for job in jobs)
    document = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_text(folder / INDEX_FILE, json.dumps(document, indent=2) + "\n")


def _header(outputs: Sequence[Output]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for output in outputs:
        begin, end = end, end + output.length_bytes
        entries[output.name] = {"dtype": output.dtype, "shape": list(output.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    # Spaces after the object are part of the header by the format's rule; they align the buffer.
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text
