"""Everything a user can cause to go wrong, with the exit code that reports it."""

from __future__ import annotations

_MAX_CHARACTERS = 1_600


def presentable(text: str) -> str:
    """A text that quotes what others wrote: escapes for what a terminal might obey, and no novels."""
    if not text.isprintable():
        text = "".join(c if _is_kept(c) else c.encode("unicode_escape").decode() for c in text)
    half = _MAX_CHARACTERS // 2
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:half]} ... {text[-half:]}"


def _is_kept(character: str) -> bool:
    # These surrogates stand for bytes of a file's name; the streams escape them, and JSON keeps them.
    return character.isprintable() or character == "\n" or "\udc80" <= character <= "\udcff"


class PeagleError(Exception):
    """The work failed for a reason that a user can understand and mend.

    Args:
        message: What is wrong, in lower case, values in backticks: file, key, tensor, expected, found.
        hint: What to do about it; one sentence, or empty.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = presentable(message)
        self.hint = presentable(hint)
        super().__init__(self.message)


class UsageError(PeagleError):
    """The command was called in a way that cannot mean anything."""

    exit_code = 2


class MachineError(PeagleError):
    """This machine lacks something: a package, a GPU, space on a disk, a free port."""

    exit_code = 3


class CheckpointError(PeagleError):
    """A checkpoint is damaged, unknown, incomplete, or does not fit its partner."""

    exit_code = 4


class VerificationError(PeagleError):
    """The build is complete, but it disagrees with its reference."""

    exit_code = 5


class RequestError(PeagleError):
    """A generation request asks for something that cannot be honoured."""

    exit_code = 2


class OverloadError(RequestError):
    """A request that could be honoured, but not now: too many others are waiting."""


class PlanError(PeagleError):
    """A build cannot start: its settings contradict each other."""

    exit_code = 2
