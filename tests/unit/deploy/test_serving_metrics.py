"""What is counted of answers, and when it goes to the server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peagle_trt.decode.load import LoopLoad
from peagle_trt.decode.loop_statistics import LoopStatistics
from peagle_trt.decode.request import GenerationChunk, RequestMetrics
from peagle_trt.deploy.hosting.families import FAMILIES
from peagle_trt.deploy.hosting.serving_metrics import PUBLICATION_SECONDS, LoopReading, ServingMetrics

from .conftest import Published

METRICS = RequestMetrics(
    num_prompt_tokens=2,
    num_output_tokens=6,
    num_verify_steps=2,
    num_draft_tokens=10,
    num_accepted_tokens=3,
    accepted_by_position=(2, 1, 0),
    num_drafter_passes=2,
    num_looked_up_tokens=1,
    time_to_first_token_seconds=0.1,
    total_seconds=0.6,
)
LOAD = LoopLoad(
    num_waiting=3,
    num_running=2,
    num_drafting=2,
    num_planned_drafts=7,
    num_cached_tokens=40,
    num_slots=8,
    cache_tokens=800,
)
DONE = GenerationChunk(request_id="r", token_ids=(), text="", finish_reason="stop", metrics=METRICS)


class Serving:
    """Metrics whose clock and loop a test moves."""

    def __init__(self) -> None:
        self.now, self.load, self.statistics = 0.0, LOAD, LoopStatistics()
        self.published = Published()
        self.metrics = ServingMetrics(self.read, self.published, clock=lambda: self.now)

    def read(self) -> LoopReading:
        return LoopReading(self.statistics, self.load)

    def publish(self) -> Published:
        self.published.sent.clear()
        self.now += PUBLICATION_SECONDS
        self.metrics.publish()
        return self.published


@pytest.fixture
def serving() -> Serving:
    return Serving()


def test_a_total_is_published_as_what_was_added(serving: Serving) -> None:
    serving.metrics.count_answer(DONE)
    assert serving.publish().of("peagle_output_tokens_total") == [6]
    assert serving.publish().of("peagle_output_tokens_total") == []
    serving.metrics.count_answer(DONE)
    assert serving.publish().of("peagle_output_tokens_total") == [6]


def test_the_loops_own_counters_are_published_as_they_grow(serving: Serving) -> None:
    serving.statistics.num_steps = 3
    assert serving.publish().of("peagle_engine_steps_total") == [3]
    serving.statistics.num_steps = 8
    assert serving.publish().of("peagle_engine_steps_total") == [5]


def test_acceptance_is_counted_at_every_position_that_accepted(serving: Serving) -> None:
    serving.metrics.count_answer(DONE)
    sent = [entry for entry in serving.publish().sent if entry[1] == "peagle_accepted_by_position_total"]
    assert [(labels, value) for _, _, labels, value in sent] == [((("position", "1"),), 2), ((("position", "2"),), 1)]


def test_copies_that_were_accepted_are_counted(serving: Serving) -> None:
    serving.metrics.count_answer(DONE)
    assert serving.publish().of("peagle_looked_up_tokens_total") == [1]


def test_an_answers_times_are_observed_once(serving: Serving) -> None:
    serving.metrics.count_answer(DONE)
    published = serving.publish()
    assert published.of("peagle_time_to_first_token_seconds") == [0.1]
    assert published.of("peagle_inter_token_seconds") == [pytest.approx(0.5 / 5)]
    assert published.of("peagle_request_seconds") == [0.6]
    assert [entry for entry in serving.publish().sent if entry[0] == "observe"] == []


def test_one_token_has_no_time_between_tokens(serving: Serving) -> None:
    serving.metrics.count_answer(replace(DONE, metrics=replace(METRICS, num_output_tokens=1)))
    assert serving.publish().of("peagle_inter_token_seconds") == []


def test_the_load_is_published_when_it_changes(serving: Serving) -> None:
    published = serving.publish()
    assert (published.of("peagle_running_requests"), published.of("peagle_waiting_requests")) == ([2], [3])
    assert (published.of("peagle_cache_used_tokens"), published.of("peagle_cache_capacity_tokens")) == ([40], [800])
    assert published.of("peagle_draft_tokens_in_use") == [3.5]
    serving.load = replace(LOAD, num_drafting=0, num_planned_drafts=0)
    assert {name: value for _, name, _, value in serving.publish().sent} == {
        "peagle_speculation_on": 0.0,
        "peagle_draft_tokens_in_use": 0.0,
    }


def test_two_publications_keep_their_distance(serving: Serving) -> None:
    serving.publish()
    serving.metrics.count_answer(DONE)
    serving.published.sent.clear()
    serving.metrics.publish()
    assert serving.published.sent == []


@pytest.mark.parametrize(
    ("chunk", "cancelled", "failed"),
    [
        (replace(DONE, finish_reason="cancelled"), [1], []),
        (replace(DONE, finish_reason="error", error="no"), [], [1]),
        # A request that the engine refused was never its own.
        (replace(DONE, finish_reason="error", error="no", metrics=None), [], []),
    ],
)
def test_what_ends_an_answer_is_counted_apart(
    serving: Serving, chunk: GenerationChunk, cancelled: list[int], failed: list[int]
) -> None:
    serving.metrics.count_answer(chunk)
    published = serving.publish()
    assert published.of("peagle_cancelled_requests_total") == cancelled
    assert published.of("peagle_failed_requests_total") == failed


def test_everything_published_is_declared(serving: Serving) -> None:
    serving.metrics.count_answer(DONE)
    serving.statistics = LoopStatistics(num_steps=1, num_drafter_passes=1, num_output_tokens=1, num_reused_tokens=1)
    serving.metrics.count_answer(replace(DONE, finish_reason="error"))
    serving.metrics.count_answer(replace(DONE, finish_reason="cancelled"))
    assert {name for _, name, _, _ in serving.publish().sent} == {family.name for family in FAMILIES}
