"""What a build promised for the head it wrote: kept in the head's config.json, where every worker process sees it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from peagle_trt.errors import CheckpointError, PlanError
from peagle_trt.spec.build import MAX_DRAFT_TOKENS

SECTION = "peagle_trt"
"""Key of config.json; TensorRT-LLM ignores keys it does not know."""
LARGEST_LIMIT = 1 << 24
"""Requests, or tokens: more is a slip of somebody's editor, and a memory error an hour later."""


class ServedSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a build.

    Attributes:
        draft_tokens: Largest K.
        max_batch_size: Requests in flight.
        max_sequence_length: Prompt and answer together, in tokens.
    """

    draft_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_DRAFT_TOKENS)]
    max_batch_size: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_LIMIT)]
    max_sequence_length: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_LIMIT)]

    @property
    def longest_sequence(self) -> int:
        """Tokens that a request may have; TensorRT-LLM's warm-up makes up some that are longer than any real one.

        Source: TensorRT-LLM `_torch/pyexecutor/py_executor_creator.py`: with drafts and the overlap scheduler its
            engine takes 1 + K, then K - 1, then K tokens more than `max_seq_len`.
        """
        return self.max_sequence_length + 3 * self.draft_tokens

    @property
    def capacity(self) -> int:
        """Positions that the drafter's cache holds: a pass may start at the last token and is 2K rows wide."""
        return self.longest_sequence + 2 * self.draft_tokens


def read_served_settings(head_path: Path) -> ServedSettings:
    """The limits of a head that `build --backend trtllm` wrote.

    Raises:
        CheckpointError: It has none, or they are damaged.
    """
    document = read_config(head_path)
    if SECTION not in document:
        raise CheckpointError(
            f"`{head_path / 'config.json'}` has no `{SECTION}`: the head was not written by a build for TensorRT-LLM",
            hint="run `peagle-trt build --backend trtllm`; the worker needs to know its limits before it takes memory",
        )
    try:
        return msgspec.convert(document[SECTION], ServedSettings)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"`{head_path / 'config.json'}`: `{SECTION}`: {error}", hint="build it again with this release"
        ) from error


def is_served_head(head_path: Path) -> bool:
    """Whether a folder holds a head that is ours to serve: a P-EAGLE one, or one that a build wrote its limits into.

    Raises:
        CheckpointError: Its config.json is damaged, so nobody can say.
    """
    if not (head_path / "config.json").exists():
        return False
    document = read_config(head_path)
    return bool(document.get("parallel_drafting")) or SECTION in document


def read_config(head_path: Path) -> Mapping[str, object]:
    """A head's config.json.

    Raises:
        CheckpointError: It is absent, or no JSON object.
    """
    path = head_path / "config.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read `{path}`: {error}", hint="name a head's folder") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"`{path}` is no JSON object", hint="build it again")
    return document


def require_draft_tokens(settings: ServedSettings, draft_tokens: int | None) -> None:
    """Refuse a K that the drafter's cache has no room for.

    Raises:
        PlanError: It is not set, or lies outside 1..K of the build.
    """
    if draft_tokens is None or not 1 <= draft_tokens <= settings.draft_tokens:
        raise PlanError(
            f"`speculative_config.max_draft_len` is {draft_tokens}; the build was made for 1..{settings.draft_tokens}",
            hint=f"set `max_draft_len: {settings.draft_tokens}`, or build again with another -k",
        )
