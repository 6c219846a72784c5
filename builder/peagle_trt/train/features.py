"""Shards of answers, with or without their hidden states: written once by generation, read at random by training."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.files import naming_os_errors, replacing, sha256_of

if TYPE_CHECKING:
    from torch import Tensor

    from peagle_trt.train.generate import Answer

logger = logging.getLogger(__name__)

INDEX_NAME = "index.jsonl"
MOST_TOKENS = 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One line of the index: a file, its hash and what it holds."""

    file: str
    sha256: str
    identifiers: tuple[str, ...]
    sources: tuple[str, ...]
    num_tokens: int
    num_answer_tokens: int
    has_states: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerText:
    """One answer without hidden states.

    Attributes:
        token_ids: Prompt and answer, [L] int32.
        prompt_length: Tokens that were given rather than generated.
    """

    token_ids: Tensor
    prompt_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence(AnswerText):
    """One answer as a step reads it; out of a store, views into a memory-mapped shard.

    Attributes:
        auxiliary_NA: [L-1, A]; float16 out of a store, float32 from the target.
        normed_NH: [L-1, H]; likewise.
    """

    auxiliary_NA: Tensor
    normed_NH: Tensor


class FeatureWriter:
    """Appends answers to a folder, a shard at a time; an interrupted run loses at most one shard.

    A shard ends after `answers_per_shard` answers, or earlier once it holds `MOST_TOKENS` tokens.
    """

    def __init__(self, folder: Path, *, prefix: str = "shard", answers_per_shard: int = 64) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._prefix, self._answers_per_shard = folder, prefix, answers_per_shard
        self._pending: list[Answer] = []
        self._num_shards = sum(shard.file.startswith(prefix) for shard in read_index(folder))

    def add(self, answer: Answer) -> None:
        """Keep an answer; writes a shard when enough have gathered."""
        self._pending.append(answer)
        num_tokens = sum(len(pending.token_ids) for pending in self._pending)
        if len(self._pending) >= self._answers_per_shard or num_tokens >= MOST_TOKENS:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered, file first and index line last."""
        import torch
        from safetensors.torch import save

        if not self._pending:
            return
        answers, self._pending = self._pending, []
        lengths = [len(answer.token_ids) for answer in answers]
        path = self._folder / f"{self._prefix}-{self._num_shards:05d}.safetensors"
        tensors = {
            "token_ids": torch.tensor([token for answer in answers for token in answer.token_ids], dtype=torch.int32),
            "lengths": torch.tensor(lengths, dtype=torch.int32),
            "prompt_lengths": torch.tensor([len(answer.prompt.token_ids) for answer in answers], dtype=torch.int32),
        }
        has_states = answers[0].has_states
        if has_states:
            tensors["auxiliary"] = torch.cat([answer.auxiliary_NA for answer in answers])
            tensors["normed"] = torch.cat([answer.normed_NH for answer in answers])
        with replacing(path) as file:
            file.write(save(tensors))
        shard = Shard(
            file=path.name,
            sha256=sha256_of(path),
            identifiers=tuple(answer.prompt.identifier for answer in answers),
            sources=tuple(answer.prompt.source for answer in answers),
            num_tokens=sum(lengths),
            num_answer_tokens=sum(lengths) - int(tensors["prompt_lengths"].sum()),
            has_states=has_states,
        )
        _append_to_index(self._folder / INDEX_NAME, json.dumps(asdict(shard)))
        self._num_shards += 1


def read_index(folder: Path) -> tuple[Shard, ...]:
    """The shards that are complete; empty when there are none yet."""
    path = folder / INDEX_NAME
    if not path.exists():
        return ()
    shards = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            # A kill while the line was written; the answers of its shard are asked for again.
            logger.warning("line %d of %s is cut; its shard is left out", number, path)
            continue
        lists = {name: tuple(entry[name]) for name in ("identifiers", "sources")}
        shards.append(Shard(**{**entry, **lists}))
    return tuple(shards)


def read_sequences(folder: Path, shard: Shard) -> Iterator[TrainingSequence]:
    """The answers of one shard, memory-mapped.

    Raises:
        CheckpointError: The shard's file is missing.
    """
    tensors = _read_shard(folder, shard)
    start = 0
    for text in read_texts(folder, shard):
        features = slice(start, start + len(text.token_ids) - 1)
        yield TrainingSequence(
            token_ids=text.token_ids,
            prompt_length=text.prompt_length,
            auxiliary_NA=tensors["auxiliary"][features],
            normed_NH=tensors["normed"][features],
        )
        start = features.stop


def read_texts(folder: Path, shard: Shard) -> Iterator[AnswerText]:
    """The answers of one shard without hidden states, which it may hold or not.

    Raises:
        CheckpointError: The shard's file is missing.
    """
    tensors = _read_shard(folder, shard)
    start = 0
    for length, prompt_length in zip(tensors["lengths"].tolist(), tensors["prompt_lengths"].tolist(), strict=True):
        yield AnswerText(token_ids=tensors["token_ids"][start : start + length], prompt_length=prompt_length)
        start += length


def read_all_sequences(folder: Path) -> list[TrainingSequence]:
    """Every answer of a store, in the order of the index.

    Raises:
        UsageError: Some hold no hidden states.
    """
    refuse_bare_answers(folder)
    return [sequence for shard in read_index(folder) for sequence in read_sequences(folder, shard)]


def read_all_texts(folder: Path) -> list[AnswerText]:
    """Every answer of a store, in the order of the index, without hidden states."""
    return [text for shard in read_index(folder) for text in read_texts(folder, shard)]


def refuse_bare_answers(folder: Path) -> None:
    """Refuse a store with answers that hold no hidden states.

    Raises:
        UsageError: There is one.
    """
    for shard in read_index(folder):
        if not shard.has_states:
            raise UsageError(
                f"the answers in `{folder}` are stored without hidden states, first in `{shard.file}`",
                hint="train with --features computed, or into another folder",
            )


def verify_shards(folder: Path) -> None:
    """Compare every shard with the hash in the index.

    Raises:
        CheckpointError: A file differs from what was written.
    """
    for shard in read_index(folder):
        found = sha256_of(folder / shard.file)
        if found != shard.sha256:
            raise CheckpointError(f"shard `{shard.file}` has sha256 `{found}`, the index says `{shard.sha256}`")


def _read_shard(folder: Path, shard: Shard) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    path = folder / shard.file
    if not path.exists():
        raise CheckpointError(f"shard `{shard.file}` is in the index but not in `{folder}`")
    return load_file(path)


def _append_to_index(path: Path, line: str) -> None:
    with naming_os_errors(path), path.open("ab+") as index:
        index.seek(0, os.SEEK_END)
        if index.tell():
            # A line that a kill cut short must not swallow the next one.
            index.seek(-1, os.SEEK_END)
            line = line if index.read() == b"\n" else f"\n{line}"
        index.write(f"{line}\n".encode())
