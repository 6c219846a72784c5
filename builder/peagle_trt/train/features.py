"""Shards of answers with their hidden states: written once by generation, read at random by training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt.errors import CheckpointError
from peagle_trt.files import sha256_of

if TYPE_CHECKING:
    from torch import Tensor

    from peagle_trt.train.generate import Answer

INDEX_NAME = "index.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One line of the index: a file, its hash and what it holds."""

    file: str
    sha256: str
    identifiers: tuple[str, ...]
    sources: tuple[str, ...]
    num_tokens: int
    num_answer_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One answer as training reads it; views into a memory-mapped shard.

    Attributes:
        token_ids: Prompt and answer, [L] int32.
        prompt_length: Tokens that were given rather than generated.
        auxiliary_NA: [L-1, A] float16.
        normed_NH: [L-1, H] float16.
    """

    token_ids: Tensor
    prompt_length: int
    auxiliary_NA: Tensor
    normed_NH: Tensor


class FeatureWriter:
    """Appends answers to a folder, a shard at a time; an interrupted run loses at most one shard."""

    def __init__(self, folder: Path, *, prefix: str = "shard", answers_per_shard: int = 64) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._prefix, self._answers_per_shard = folder, prefix, answers_per_shard
        self._pending: list[Answer] = []
        self._num_shards = sum(shard.file.startswith(prefix) for shard in read_index(folder))

    def add(self, answer: Answer) -> None:
        """Keep an answer; writes a shard when enough have gathered."""
        self._pending.append(answer)
        if len(self._pending) >= self._answers_per_shard:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered, file first and index line last."""
        import torch
        from safetensors.torch import save_file

        if not self._pending:
            return
        answers, self._pending = self._pending, []
        lengths = [len(answer.token_ids) for answer in answers]
        path = self._folder / f"{self._prefix}-{self._num_shards:05d}.safetensors"
        tensors = {
            "token_ids": torch.tensor([token for answer in answers for token in answer.token_ids], dtype=torch.int32),
            "lengths": torch.tensor(lengths, dtype=torch.int32),
            "prompt_lengths": torch.tensor([len(answer.prompt.token_ids) for answer in answers], dtype=torch.int32),
            "auxiliary": torch.cat([answer.auxiliary_NA for answer in answers]),
            "normed": torch.cat([answer.normed_NH for answer in answers]),
        }
        staging = path.with_suffix(".part")
        save_file(tensors, staging)
        staging.rename(path)
        shard = Shard(
            file=path.name,
            sha256=sha256_of(path),
            identifiers=tuple(answer.prompt.identifier for answer in answers),
            sources=tuple(answer.prompt.source for answer in answers),
            num_tokens=sum(lengths),
            num_answer_tokens=sum(lengths) - int(tensors["prompt_lengths"].sum()),
        )
        with (self._folder / INDEX_NAME).open("a") as index:
            index.write(json.dumps(asdict(shard)) + "\n")
        self._num_shards += 1


def read_index(folder: Path) -> tuple[Shard, ...]:
    """The shards that are complete; empty when there are none yet."""
    path = folder / INDEX_NAME
    if not path.exists():
        return ()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return tuple(
        Shard(**{**line, "identifiers": tuple(line["identifiers"]), "sources": tuple(line["sources"])})
        for line in lines
    )


def read_sequences(folder: Path, shard: Shard) -> Iterator[TrainingSequence]:
    """The answers of one shard, memory-mapped.

    Raises:
        CheckpointError: The shard's file is missing.
    """
    from safetensors.torch import load_file

    path = folder / shard.file
    if not path.exists():
        raise CheckpointError(f"shard `{shard.file}` is in the index but not in `{folder}`")
    tensors = load_file(path)
    token_start, feature_start = 0, 0
    for length, prompt_length in zip(tensors["lengths"].tolist(), tensors["prompt_lengths"].tolist(), strict=True):
        features = slice(feature_start, feature_start + length - 1)
        yield TrainingSequence(
            token_ids=tensors["token_ids"][token_start : token_start + length],
            prompt_length=prompt_length,
            auxiliary_NA=tensors["auxiliary"][features],
            normed_NH=tensors["normed"][features],
        )
        token_start, feature_start = token_start + length, feature_start + length - 1


def read_all_sequences(folder: Path) -> list[TrainingSequence]:
    """Every answer of a store, in the order of the index."""
    return [sequence for shard in read_index(folder) for sequence in read_sequences(folder, shard)]


def verify_shards(folder: Path) -> None:
    """Compare every shard with the hash in the index.

    Raises:
        CheckpointError: A file differs from what was written.
    """
    for shard in read_index(folder):
        found = sha256_of(folder / shard.file)
        if found != shard.sha256:
            raise CheckpointError(f"shard `{shard.file}` has sha256 `{found}`, the index says `{shard.sha256}`")
