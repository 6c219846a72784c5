"""Signals wait while TensorRT compiles, and are not lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from peagle_trt.engine.tensorrt.interruption import holding_signals


@pytest.fixture(autouse=True)
def heeded_interrupt() -> Iterator[None]:
    # A process that was started in the background ignores SIGINT.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def test_a_signal_waits_for_the_end() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), holding_signals() as held:
        signal.raise_signal(signal.SIGINT)
        reached = True
    assert reached
    assert held.first == signal.SIGINT


def test_handlers_are_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with holding_signals() as held:
        assert signal.getsignal(signal.SIGTERM) == held.hold
    assert signal.getsignal(signal.SIGTERM) == before


def test_another_thread_holds_nothing() -> None:
    found = []

    def work() -> None:
        with holding_signals() as held:
            found.append(held.first)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [None]
