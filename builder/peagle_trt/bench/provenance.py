"""Where a measurement comes from: the machine, the versions, and the commit of the sources that ran."""

from __future__ import annotations

import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

import peagle_trt
from peagle_trt.machine import probe_machine

_GIT_SECONDS = 10
_FOLDER_IN_SOURCES = Path("builder") / "peagle_trt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What ran.

    Attributes:
        version: Of peagle-trt.
        commit: Of the checkout that it ran from; None where it was installed as a package.
        is_changed: The checkout held changes that were not committed; None without one.
    """

    version: str
    commit: str | None
    is_changed: bool | None


def find_sources() -> Sources:
    """Look at the files that are running."""
    folder = Path(peagle_trt.__file__).resolve().parent
    top = _git(folder, "rev-parse", "--show-toplevel")
    # A package may lie inside somebody else's repository, in a virtual environment for example.
    if top is None or folder != Path(top).resolve() / _FOLDER_IN_SOURCES:
        return Sources(version=peagle_trt.__version__, commit=None, is_changed=None)
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return Sources(
        version=peagle_trt.__version__,
        commit=_git(folder, "rev-parse", "HEAD"),
        is_changed=None if changes is None else bool(changes),
    )


def machine_document() -> dict[str, object]:
    """The machine, as documents hold it."""
    return asdict(probe_machine())


def _git(folder: Path, *words: str) -> str | None:
    command = ["git", "-C", str(folder), *words]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return finished.stdout.strip()
