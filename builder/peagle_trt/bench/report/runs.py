"""Runs as they are read back: a run folder, or a document that `peagle-trt --json bench` printed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from peagle_trt.bench.run_folder import CELLS_NAME, RESULT_NAME, SETTINGS_NAME
from peagle_trt.errors import UsageError

_HINT = "give a folder of `bench -o`, or a file with what `peagle-trt --json bench` printed"


# What was measured lies far within these; an axis beyond them could not be drawn.
_Count = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=10**15)]
_Figure = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
# Of two rounds, older documents hold a middle half that reaches below nought.
_Bound = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]


class Spans(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles in milliseconds."""

    p50: _Figure
    p90: _Figure
    p99: _Figure


class ContextRow(msgspec.Struct, frozen=True, kw_only=True):
    """What steps yield from some number of tokens on."""

    from_tokens: _Count
    num_steps: _Count
    tokens_a_step: _Figure


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A method's figures, as `summary.Result` wrote them; what older documents lack is None."""

    method: str
    draft_tokens: _Count
    concurrency: _Positive
    tokens_per_second: _Figure
    is_adaptive: bool = False
    prompts: str = ""
    acceptance_length: _Figure | None = None
    acceptance_by_position: tuple[_Figure, ...] = ()
    acceptance_by_context: tuple[ContextRow, ...] = ()
    tokens_per_second_per_user: _Figure | None = None
    tokens_per_cpu_second: _Figure | None = None
    first_token_ms: Spans | None = None
    inter_token_ms: Spans | None = None
    speedup: _Figure | None = None
    speedup_low: _Bound | None = None
    speedup_high: _Bound | None = None
    speedup_interval: tuple[_Figure, _Figure] | None = None
    speedup_cpu: _Figure | None = None
    speedup_cpu_interval: tuple[_Figure, _Figure] | None = None
    num_rounds: _Count = 0
    num_output_tokens: _Count = 0
    num_failed: _Count = 0
    failures: dict[str, _Count] = {}
    energy_joules_per_token: dict[str, _Figure] = {}
    is_equal_to_baseline: _Figure | None = None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The speed-up's interval, or the middle half of its ratios where there is none."""
        if self.speedup_interval is not None:
            return self.speedup_interval
        if self.speedup_low is None or self.speedup_high is None:
            return None
        return self.speedup_low, self.speedup_high

    @property
    def title(self) -> str:
        """What it is called in a legend."""
        if self.method == "none":
            return "plain"
        if self.is_adaptive:
            return f"{self.method} K auto"
        return f"{self.method} K={self.draft_tokens}" if self.draft_tokens else self.method


class _Device(msgspec.Struct, frozen=True):
    name: str = "?"


class _Machine(msgspec.Struct, frozen=True):
    """Of a machine what the page takes apart; the rest is shown as it is."""

    packages: dict[str, str | None] | None = None
    gpus: tuple[_Device, ...] | None = None


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    results: tuple[Measured, ...]
    settings: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    sources: dict[str, Any] = {}
    energy_absent: str | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        name: Of its folder or file.
        results: Figures of every method on every set of prompts.
        settings: Of the call.
        machine: Where it ran.
        sources: What ran.
        energy_absent: Why there is no energy, or None.
    """

    name: str
    results: tuple[Measured, ...]
    settings: dict[str, Any]
    machine: dict[str, Any]
    sources: dict[str, Any]
    energy_absent: str | None

    @property
    def prompt_sets(self) -> list[str]:
        """Names of the sets of prompts."""
        return list(dict.fromkeys(result.prompts for result in self.results))


def require_apart(page_path: Path, paths: Sequence[Path]) -> None:
    """Refuse a page that would take the place of what it is made of.

    Raises:
        UsageError: It is one of the documents, or a file of one of the run folders.
    """
    own = [path / name for path in paths for name in (RESULT_NAME, SETTINGS_NAME, CELLS_NAME)]
    if page_path.resolve() in {path.resolve() for path in (*paths, *own)}:
        raise UsageError(
            f"`{page_path}` belongs to a run, and the page would replace it", hint="name another file with -o"
        )


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read runs, each under a name of its own.

    Raises:
        UsageError: One is none, or was interrupted.
    """
    runs: list[Run] = []
    for path in paths:
        # A file's name need not be UTF-8, which the page is.
        name = os.fsencode(path.resolve().name).decode("utf-8", "backslashreplace").removesuffix(".json")
        same = sum(run.name.partition(" #")[0] == name for run in runs)
        runs.append(_read(path, f"{name} #{same + 1}" if same else name))
    return runs


def _read(path: Path, name: str) -> Run:
    file = path / RESULT_NAME if path.is_dir() else path
    if path.is_dir() and not file.is_file() and (path / SETTINGS_NAME).is_file():
        raise UsageError(f"`{path}` was interrupted", hint="call `bench` as before with -o, and it goes on")
    try:
        document = msgspec.json.decode(file.read_bytes(), type=_Document)
        msgspec.convert(document.machine, _Machine)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"`{path}` is no run of `bench`: {error}", hint=_HINT) from error
    if not document.results:
        raise UsageError(f"`{path}` holds no results", hint=_HINT)
    prompts = str(document.settings.get("prompts", ""))
    return Run(
        name=name,
        results=tuple(
            each if each.prompts else msgspec.structs.replace(each, prompts=prompts) for each in document.results
        ),
        settings=document.settings,
        machine=document.machine,
        sources=document.sources,
        energy_absent=document.energy_absent,
    )
