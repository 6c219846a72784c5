"""What was looked at in a head and its target, and what it says about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from peagle_trt.errors import CheckpointError

Level = Literal["ok", "note", "warning", "refused"]
"""`note`: worth knowing. `warning`: works, and will probably draft badly. `refused`: cannot work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: What it means for the pair.
        what: What was looked at.
        found: What is there.
        expected: What would be right.
        hint: What to do about it; empty where nothing is to be done.
    """

    level: Level
    what: str
    found: str
    expected: str
    hint: str = ""

    def error(self) -> CheckpointError:
        """The error for a finding that cannot be lived with; the caller raises it."""
        return CheckpointError(
            f"the drafter's {self.what} does not fit: expected {self.expected}, found {self.found}", hint=self.hint
        )


def judged(
    is_right: bool, what: str, *, found: object, expected: str, hint: str = "", otherwise: Level = "refused"
) -> Finding:
    """A finding that is `ok` where `is_right`, and `otherwise` with the hint where it is not."""
    level: Level = "ok" if is_right else otherwise
    return Finding(level=level, what=what, found=str(found), expected=expected, hint="" if is_right else hint)


def listed(numbers: Sequence[int]) -> str:
    """Numbers for people."""
    return ", ".join(map(str, numbers))
