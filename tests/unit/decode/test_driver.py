"""The engine's thread: many callers, one loop, no caller able to harm another."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from peagle_trt.decode.driver import EngineThread
from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationChunk, GenerationRequest
from peagle_trt.errors import RequestError
from tests.support.markov_engine import MarkovEngine

WAIT_SECONDS = 60.0


class Collector:
    """Gathers one request's chunks."""

    def __init__(self) -> None:
        self.chunks: list[GenerationChunk] = []
        self.done = threading.Event()

    def __call__(self, chunk: GenerationChunk) -> None:
        assert not self.done.is_set(), "nothing comes after the last chunk"
        self.chunks.append(chunk)
        if chunk.finish_reason is not None:
            self.done.set()

    def wait(self) -> list[GenerationChunk]:
        assert self.done.wait(WAIT_SECONDS)
        return self.chunks


def request(name: str, max_tokens: int = 20) -> GenerationRequest:
    return GenerationRequest(request_id=name, prompt_ids=(1, 2), max_tokens=max_tokens)


@pytest.fixture
def thread() -> EngineThread:
    thread = EngineThread(DecodeLoop(MarkovEngine(max_sequence_length=4096), None))
    thread.start()
    return thread


def test_callers_on_many_threads_all_get_their_answer(thread: EngineThread) -> None:
    collectors = {str(number): Collector() for number in range(40)}
    callers = [
        threading.Thread(target=thread.submit, args=(request(name), collector))
        for name, collector in collectors.items()
    ]
    for caller in callers:
        caller.start()
    answers = {tuple(token for chunk in item.wait() for token in chunk.token_ids) for item in collectors.values()}
    assert len(answers) == 1
    thread.close()


def test_a_refusal_arrives_as_an_error_chunk(thread: EngineThread) -> None:
    collector = Collector()
    thread.submit(GenerationRequest(request_id="x", prompt_ids=(), max_tokens=3), collector)
    (chunk,) = collector.wait()
    assert (chunk.finish_reason, chunk.error) == ("error", "the prompt is empty")
    thread.close()


def test_cancelling_ends_a_long_answer(thread: EngineThread) -> None:
    collector = Collector()
    thread.submit(request("x", max_tokens=4000), collector)
    thread.cancel("x")
    assert collector.wait()[-1].finish_reason == "cancelled"
    thread.close()


class BrokenGuide:
    """A grammar whose library fails at the start of the answer."""

    def start(self) -> None:
        raise RuntimeError("no state left")


def test_a_request_that_cannot_begin_ends_alone(thread: EngineThread) -> None:
    broken, innocent = Collector(), Collector()
    thread.submit(request("innocent", max_tokens=400), innocent)
    thread.submit(replace(request("broken"), guide=BrokenGuide()), broken)  # type: ignore[arg-type]
    assert (broken.wait()[-1].finish_reason, "no state left" in broken.chunks[-1].error) == ("error", True)
    assert innocent.wait()[-1].finish_reason == "length"
    after = Collector()
    thread.submit(request("after"), after)
    assert after.wait()[-1].finish_reason == "length"
    thread.close()


def test_a_callback_that_raises_harms_nobody_else(thread: EngineThread) -> None:
    def broken(_: GenerationChunk) -> None:
        raise RuntimeError("a caller's fault")

    collector = Collector()
    thread.submit(request("bad"), broken)
    thread.submit(request("good"), collector)
    assert collector.wait()[-1].finish_reason == "length"
    thread.close()


def test_closing_cancels_what_is_in_flight_and_refuses_what_follows(thread: EngineThread) -> None:
    collector = Collector()
    thread.submit(request("x", max_tokens=4000), collector)
    thread.close()
    assert collector.wait()[-1].finish_reason == "cancelled"
    with pytest.raises(RequestError, match="shutting down"):
        thread.submit(request("y"), Collector())


def test_a_step_gives_clients_whose_answers_ended_a_moment_to_ask_again(
    thread: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(thread._changed, "wait_for", lambda is_there, seconds: waits.append(seconds), raising=False)
    alone = Collector()
    thread.submit(request("alone"), alone)
    alone.wait()
    # Nobody else has a next step that could wait.
    assert waits == []
    long, short = Collector(), Collector()
    thread.submit(request("long", max_tokens=400), long)
    thread.submit(request("short", max_tokens=1), short)
    long.wait()
    thread.close()
    assert len(waits) == 1
    assert 0 < waits[0] < 1


def test_requests_that_come_together_to_an_idle_engine_begin_together(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = DecodeLoop(MarkovEngine(max_batch_size=4), None)
    thread = EngineThread(loop)
    collectors = [Collector() for _ in range(3)]
    idle = thread._changed.wait

    def wait(seconds: float | None = None) -> bool:
        """A moment in which another one comes, as long as there is another."""
        if seconds is None:
            return idle()
        if loop.statistics.num_requests + len(thread._inbox) < len(collectors):
            number = len(thread._inbox)
            thread.submit(request(str(number), max_tokens=1), collectors[number])
        return True

    monkeypatch.setattr(thread._changed, "wait", wait, raising=False)
    thread.submit(request("0", max_tokens=1), collectors[0])
    thread.start()
    for collector in collectors:
        collector.wait()
    thread.close()
    assert loop.statistics.num_steps == 1
