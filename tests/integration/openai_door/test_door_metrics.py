"""`/metrics` of an open door."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from peagle_trt.deploy.ports import choose_ports
from peagle_trt.openai_door.door_metrics import FAMILIES
from peagle_trt.openai_door.settings import DoorSettings

from .conftest import Door

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "2 + 3?"}], "max_tokens": 6, "stream": True}


def test_a_stream_is_counted_with_its_tokens_and_times(open_door: Callable[[DoorSettings], Door]) -> None:
    door = open_door(DoorSettings(port=choose_ports().http))
    whole = httpx.post(f"{door.address}/v1/chat/completions", json={**ASK, "ignore_eos": True}, timeout=30)
    assert whole.text.rstrip().endswith("data: [DONE]")
    text = httpx.get(f"{door.address}/metrics").text
    assert 'peagle_door_requests_total{route="/v1/chat/completions",status="200"} 1\n' in text
    assert "peagle_door_output_tokens_total 6\n" in text
    assert "peagle_door_inter_token_seconds_count 1\n" in text
    # The request that asks for the metrics.
    assert "peagle_door_requests_in_flight 1\n" in text
    assert all(f"# TYPE {family.name} {family.kind}\n" in text for family in FAMILIES)


def test_metrics_are_for_those_who_have_a_key(open_door: Callable[[DoorSettings], Door]) -> None:
    door = open_door(DoorSettings(port=choose_ports().http, api_keys=("secret",)))
    assert httpx.get(f"{door.address}/metrics").status_code == 401
    assert httpx.get(f"{door.address}/metrics", headers={"authorization": "Bearer secret"}).status_code == 200
