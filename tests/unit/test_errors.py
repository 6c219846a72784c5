"""What errors do with words of others."""

from __future__ import annotations

from peagle_trt.errors import CheckpointError


def test_a_message_holds_nothing_that_a_terminal_obeys() -> None:
    error = CheckpointError("tensor `\x1b[31m\ud800é`", hint="two\nlines\r")
    assert (error.message, error.hint) == (r"tensor `\x1b[31m\ud800é`", "two\nlines\\r")


def test_a_message_keeps_the_bytes_of_a_name() -> None:
    assert CheckpointError("no file `\udcff`").message == "no file `\udcff`"


def test_a_message_keeps_its_two_ends() -> None:
    message = CheckpointError(f"begin {'x' * 1_000_000} end").message
    assert message.startswith("begin x")
    assert message.endswith("x end")
    assert len(message) < 2000
