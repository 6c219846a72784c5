"""What the door counts of requests that pass it."""

from __future__ import annotations

import pytest

from peagle_trt.openai_door.door_metrics import DoorMetrics

CHAT = "/v1/chat/completions"
JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> DoorMetrics:
    return DoorMetrics(clock)


def test_a_stream_has_a_first_byte_and_a_time_between_tokens(metrics: DoorMetrics, clock: Clock) -> None:
    passage = metrics.begin(CHAT)
    clock.now += 0.2
    passage.see({"type": "http.response.start", "status": 200, "headers": EVENTS})
    clock.now += 0.9
    passage.end(num_tokens=10)
    text = metrics.text()
    assert f'peagle_door_time_to_first_byte_seconds_sum{{route="{CHAT}"}} 0.2\n' in text
    assert "peagle_door_inter_token_seconds_sum 0.1\n" in text
    assert "peagle_door_output_tokens_total 10\n" in text
    assert f'peagle_door_requests_total{{route="{CHAT}",status="200"}} 1\n' in text


def test_a_whole_answer_says_nothing_about_the_time_between_tokens(metrics: DoorMetrics) -> None:
    passage = metrics.begin(CHAT)
    passage.see({"type": "http.response.start", "status": 200, "headers": JSON})
    passage.end(num_tokens=10)
    assert "peagle_door_inter_token_seconds_count 0\n" in metrics.text()


def test_requests_in_flight_go_up_and_down(metrics: DoorMetrics) -> None:
    passage = metrics.begin(CHAT)
    assert "peagle_door_requests_in_flight 1\n" in metrics.text()
    passage.end(num_tokens=0)
    assert "peagle_door_requests_in_flight 0\n" in metrics.text()
    assert 'status="499"' in metrics.text()


def test_paths_that_clients_make_up_are_one_series(metrics: DoorMetrics) -> None:
    for path in ("/a", "/b", "/v1/models/x", "/v1/models/y"):
        metrics.begin(path).end(num_tokens=0)
    assert 'peagle_door_requests_total{route="other",status="499"} 2\n' in metrics.text()
    assert 'peagle_door_requests_total{route="/v1/models",status="499"} 2\n' in metrics.text()
