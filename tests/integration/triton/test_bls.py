"""The model `tensorrt_llm_bls` on a real server."""

from __future__ import annotations

import itertools
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from peagle_trt.decode.session import LoadedBuild
from peagle_trt.deploy.client import HttpClient
from peagle_trt.deploy.ports import choose_ports
from peagle_trt.deploy.server import TritonServer
from peagle_trt.errors import RequestError
from tests.support.servers import wait_until

from .conftest import LASTING, Served

BLS = "tensorrt_llm_bls"
PROMPT = "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\nAnswer:"
ASK = {"text_input": PROMPT, "max_tokens": 48}
LONG = {**ASK, "max_tokens": 600, "end_id": -1, "draft_tokens": 0}


def test_it_answers_as_the_engine_does(served: Served) -> None:
    direct, answer = served.http.generate(ASK), served.http.generate(ASK, model=BLS)
    assert answer["text_output"] == direct["text_output"]
    assert answer["num_output_tokens"] == direct["num_output_tokens"]
    assert answer["finish_reason"] == direct["finish_reason"]


def test_the_pieces_of_a_stream_are_the_answer(served: Served) -> None:
    whole = served.http.generate(ASK)["text_output"]
    pieces = [piece["text_output"] for piece in served.http.generate_stream(ASK, model=BLS)]
    assert len(pieces) > 1
    assert "".join(pieces) == whole
    with served.grpc({**ASK, "stream": True}, BLS) as stream:
        sent = list(stream)
    assert "".join(piece.get("text_output") or "" for piece in sent) == whole
    assert [piece["is_final"] for piece in sent] == [False] * (len(sent) - 1) + [True]


def test_many_clients_at_once_get_the_answers_they_get_alone(served: Served) -> None:
    payloads = [{**ASK, "text_input": PROMPT.replace("3", str(number)), "max_tokens": 24} for number in range(12)]
    alone = [served.http.generate(payload)["text_output"] for payload in payloads]
    with ThreadPoolExecutor(12) as pool:
        together = pool.map(lambda payload: served.http.generate(payload, model=BLS)["text_output"], payloads)
        assert list(together) == alone


@pytest.mark.parametrize("is_streaming", [False, True])
def test_a_client_that_leaves_stops_the_engine(served: Served, loaded: LoadedBuild, is_streaming: bool) -> None:
    before = served.settled_metrics()["peagle_cancelled_requests_total"]
    stream = served.grpc({**LASTING, "stream": is_streaming}, BLS)
    if is_streaming:
        next(iter(stream))
    assert wait_until(lambda: served.metrics()["peagle_running_requests"] == loaded.manifest.shapes.max_batch_size)
    stream.cancel()
    assert wait_until(
        lambda: served.metrics()["peagle_cancelled_requests_total"] == before + LASTING["num_return_sequences"]
    )
    assert served.http.generate(ASK, model=BLS)["text_output"]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"text_input": "", "max_tokens": 4}, "`text_input` is empty"),
        ({**ASK, "temperature": -1.0}, "`temperature` is `-1`"),
        ({**ASK, "temprature": 1.0}, "did you mean `temperature`"),
    ],
)
def test_a_refusal_of_a_member_is_the_answer(served: Served, payload: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        served.http.generate(payload, model=BLS)


def test_accumulated_pieces_repeat_what_came_before(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository, tmp_path / "copy")
    config = tmp_path / "copy" / BLS / "config.pbtxt"
    key = 'key: "accumulate_tokens"\n  value {\n    string_value: '
    assert f'{key}"false"' in config.read_text()
    config.write_text(config.read_text().replace(f'{key}"false"', f'{key}"true"'))
    with TritonServer(tmp_path / "copy", choose_ports(), log_path=tmp_path / "log") as server:
        client = HttpClient(server.ports.http)
        whole = client.generate(ASK)["text_output"]
        texts = [piece["text_output"] for piece in client.generate_stream(ASK, model=BLS)]
    assert texts[-1] == whole
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))


MODELS = pytest.mark.parametrize("model", ["peagle", "ensemble", BLS])
MORE_THAN_SLOTS = {**LONG, "max_tokens": 450, "num_return_sequences": 16, "temperature": 1.0, "timeout": 300_000}


@MODELS
def test_more_answers_than_slots_end_with_their_time_however_many_began(served: Served, model: str) -> None:
    answer = served.http.generate(MORE_THAN_SLOTS, model=model)
    assert answer["finish_reason"] == ["deadline"] * 16
    assert answer["text_output"][0]
    assert answer["text_output"][15] == ""


@MODELS
def test_so_do_they_in_a_stream(served: Served, model: str) -> None:
    pieces = served.http.generate_stream(MORE_THAN_SLOTS, model=model)
    ends = [piece["sequence_index"] for piece in pieces if piece.get("finish_reason") == "deadline"]
    assert sorted(ends) == list(range(16))
