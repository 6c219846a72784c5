"""The metrics port of a real server, and the dashboard that reads it."""

from __future__ import annotations

import http.client
import re

from peagle_trt.decode.session import LoadedBuild
from peagle_trt.deploy.hosting.families import FAMILIES
from peagle_trt.openai_door.door_metrics import FAMILIES as DOOR_FAMILIES
from tests.support.dashboards import named_metrics
from tests.support.servers import wait_until

from .conftest import LASTING, Served

ASK = {"text_input": "Question: What is 2 + 3?\nAnswer:", "max_tokens": 24, "end_id": -1}


def scrape(served: Served) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", served.server.ports.metrics, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def test_every_family_is_there_with_its_kind(served: Served) -> None:
    served.http.generate(ASK)
    served.settled_metrics()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", scrape(served), re.MULTILINE))
    assert {family.name: kinds.get(family.name) for family in FAMILIES} == {
        family.name: family.kind for family in FAMILIES
    }


def test_every_metric_of_the_dashboard_is_served(served: Served) -> None:
    served.http.generate(ASK)
    of_door = {name for family in DOOR_FAMILIES for name in family.series_names()}
    assert named_metrics() - served.settled_metrics().keys() - of_door == set()


def test_series_name_their_model(served: Served) -> None:
    assert 'peagle_slots{model="peagle",version="1"} ' in scrape(served)


def test_an_answer_moves_the_numbers_it_should(served: Served) -> None:
    before = served.settled_metrics()
    answer = served.http.generate(ASK)
    after = served.settled_metrics()

    def added(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert added("peagle_output_tokens_total") == added("peagle_generated_tokens_total") == 24
    assert added("peagle_input_tokens_total") == answer["num_input_tokens"]
    assert added("peagle_verify_steps_total") == answer["num_verify_steps"]
    assert added("peagle_accepted_draft_tokens_total") == sum(answer["accepted_by_position"])
    assert added("peagle_accepted_by_position_total") == sum(answer["accepted_by_position"])
    assert added("peagle_time_to_first_token_seconds_count") == 1
    assert 0 < added("peagle_time_to_first_token_seconds_sum") < added("peagle_request_seconds_sum")
    assert added("peagle_inter_token_seconds_count") == 1


def test_the_load_shows_while_it_lasts(served: Served, loaded: LoadedBuild) -> None:
    served.settled_metrics()
    stream = served.grpc({**LASTING, "draft_tokens": 3, "stream": True})
    next(iter(stream))
    assert wait_until(lambda: served.metrics()["peagle_running_requests"] == loaded.manifest.shapes.max_batch_size)
    assert wait_until(lambda: served.metrics()["peagle_draft_tokens_in_use"] == 3)
    during = served.metrics()
    stream.cancel()
    shapes = loaded.manifest.shapes
    assert during["peagle_speculation_on"] == 1
    assert during["peagle_cache_used_tokens"] > 0
    assert during["peagle_cache_capacity_tokens"] == shapes.max_batch_size * shapes.max_sequence_length
    assert wait_until(lambda: served.metrics()["peagle_running_requests"] == 0)
    assert served.settled_metrics()["peagle_cache_used_tokens"] == 0


def test_a_clients_name_is_in_the_log(served: Served) -> None:
    served.http.generate({**ASK, "id": "client-7f"})
    assert wait_until(lambda: ":client-7f: length " in served.server.log_path.read_text())
