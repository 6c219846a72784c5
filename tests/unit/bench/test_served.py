"""Served builds as clients, over servers of a few lines: what is asked for, and what is made of the answers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from peagle_trt.bench.cells import Method
from peagle_trt.bench.clients import Sampling
from peagle_trt.bench.openai_client import OpenAiClient
from peagle_trt.bench.served import TritonClient, open_served
from peagle_trt.cli.main import run
from peagle_trt.errors import PeagleError, UsageError

METHOD = Method(name="p-eagle", draft_tokens=3, concurrency=2)


class Door(BaseHTTPRequestHandler):
    """Says what the test wrote into the server, and keeps what it was asked."""

    def do_GET(self) -> None:
        self._say(json.dumps(self.server.told).encode())  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body, self.headers.get("Authorization")))  # type: ignore[attr-defined]
        self._say(self.server.answer)  # type: ignore[attr-defined]

    def _say(self, body: bytes) -> None:
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.send_header("Content-Length", str(len(body) + self.server.claims_more))  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    found: Any = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    found.asked, found.answer, found.told, found.status, found.claims_more = [], b"", {}, 200, 0
    found.url = f"http://127.0.0.1:{found.server_address[1]}"
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def events(*documents: object) -> bytes:
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in documents)


RUBBISH = (
    b"data: {\n\n",
    b"data: []\n\n",
    b"data: \xff\n\n",
    b"data: " + b"[" * 100_000 + b"\n\n",
    events({"choices": 7, "usage": 7, "output_ids": "x"}),
    events({"choices": [[]], "output_ids": [{}]}),
    events({"choices": [{"delta": {"content": ["x"]}}], "num_verify_steps": 0.5}),
    events({"usage": {"completion_tokens": -1}, "accepted_by_position": {}, "num_verify_steps": 1}),
    events({"usage": {"completion_tokens": "many"}}),
    events({"usage": {}}),
    events({"error": ["x"]}),
)


@pytest.mark.parametrize("answer", RUBBISH)
@pytest.mark.parametrize("path", ["", "/v1"])
def test_a_stream_of_rubbish_is_an_error_of_the_server(server: Any, answer: bytes, path: str) -> None:
    server.told, server.answer = {"data": [{"id": "m"}], "parameters": 7}, answer
    client = open_served(server.url + path, is_chat=True, ends=True)
    (found,) = client.answer(["a"], METHOD, 9)
    assert found.failure is not None and re.search(r"server|broke off|'x'", found.failure)


@pytest.mark.parametrize("told", [{"data": [7]}, {"data": {"id": 1}}, {"data": [{}]}, {"data": "x"}, {}, [], "x"])
def test_a_list_of_models_that_is_none_is_refused(server: Any, told: object) -> None:
    server.told = told
    with pytest.raises(PeagleError, match="the server"):
        open_served(server.url + "/v1", is_chat=True, ends=True)


def test_a_list_of_models_that_breaks_off_is_refused(server: Any) -> None:
    server.claims_more = 50
    for path in ("", "/v1"):
        with pytest.raises(PeagleError, match=r"broke|is no Triton"):
            open_served(server.url + path, is_chat=True, ends=True)


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://a b:80", "http://a\x01b:80/v1", f"http://{'a' * 70}.b:80", "http://..:80/v1"]
)
def test_a_host_that_is_no_name_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="names no host"):
        open_served(url, is_chat=True, ends=True)


def test_triton_tells_the_method_of_its_head(server: Any) -> None:
    parameters = {"method": "eagle3", "max_draft_tokens": "7", "target": "tiny"}
    server.told = {"parameters": {name: {"string_value": text} for name, text in parameters.items()}}
    client = open_served(server.url, is_chat=False, ends=True)
    assert isinstance(client, TritonClient)
    assert (client.served.method, client.max_adaptive_drafts, client.served.name) == ("eagle3", 7, "tiny")


@pytest.mark.parametrize("prompt_lookup", [False, True])
def test_prompt_lookup_is_said_either_way_where_the_server_takes_it(server: Any, prompt_lookup: bool) -> None:
    server.told = {"input": [{"name": "max_tokens"}, {"name": "prompt_lookup"}]}
    server.answer = events({"output_ids": 5, "num_verify_steps": 0, "accepted_by_position": 0})
    client = open_served(server.url, is_chat=False, ends=True, prompt_lookup=prompt_lookup)
    assert client.served.takes_prompt_lookup
    client.answer(["a"], METHOD, 9)
    server.told = {"data": [{"id": "m", "owned_by": "peagle-trt"}]}
    server.answer = events({"choices": [], "usage": {"completion_tokens": 1}}) + b"data: [DONE]\n\n"
    open_served(f"{server.url}/v1", is_chat=False, ends=True, prompt_lookup=prompt_lookup).answer(["a"], METHOD, 9)
    assert [body["prompt_lookup"] for _, body, _ in server.asked] == [prompt_lookup] * 2


@pytest.mark.parametrize("told", [{}, {"input": [{"name": "max_tokens"}]}, {"input": "x"}, {"input": [7]}])
def test_a_server_without_prompt_lookup_is_not_asked_for_it(server: Any, told: dict[str, object]) -> None:
    server.told = told
    server.answer = events({"output_ids": 5, "num_verify_steps": 0, "accepted_by_position": 0})
    client = open_served(server.url, is_chat=False, ends=True, prompt_lookup=True)
    assert not client.served.takes_prompt_lookup
    client.answer(["a"], METHOD, 9)
    ((_, body, _),) = server.asked
    assert "prompt_lookup" not in body


@pytest.mark.parametrize(
    ("path", "told"), [("", {"parameters": {}}), ("/v1", {"data": [{"id": "m", "owned_by": "vllm"}]})]
)
def test_a_measurement_of_prompt_lookup_is_refused_where_the_server_has_none(
    server: Any, capsys: pytest.CaptureFixture[str], path: str, told: dict[str, object]
) -> None:
    server.told = told
    assert run(["bench", "--url", server.url + path, "--prompt-lookup", "--num-prompts", "1"]) == 2
    assert f"the server at `{server.url}{path}` takes no `prompt_lookup`" in capsys.readouterr().err
    assert server.asked == []


def test_an_older_repository_tells_nothing_and_that_shows(server: Any) -> None:
    server.told = {"parameters": {}}
    assert open_served(server.url, is_chat=False, ends=True).served.method is None


def test_pieces_of_triton_become_an_answer(server: Any) -> None:
    server.answer = events(
        {"output_ids": 5},
        {"output_ids": [6, 7]},
        {"output_ids": [], "num_verify_steps": 2, "accepted_by_position": [1, 0, 0], "finish_reason": "stop"},
    )
    client = open_served(server.url, is_chat=True, ends=False, sampling=Sampling(temperature=0.5, seed=7))
    first, second = client.answer(["a", "b"], METHOD, 9)
    assert first.token_ids == second.token_ids == (5, 6, 7)
    assert (first.piece_tokens, first.num_verify_steps, first.accepted_by_position) == ((1, 2), 2, (1, 0, 0))
    asked = {body["text_input"]: body for _, body, _ in server.asked}
    assert (asked["a"]["seed"], asked["b"]["seed"], asked["a"]["temperature"]) == (7, 8, 0.5)
    assert (asked["a"]["draft_tokens"], asked["a"]["end_id"], asked["a"]["apply_chat_template"]) == (3, -1, True)


def test_a_chat_is_asked_for_and_counted(server: Any) -> None:
    server.told = {"data": [{"id": "smollm2", "owned_by": "peagle-trt"}]}
    server.answer = events(
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "one"}}]},
        {"choices": [{"delta": {"content": " two"}}]},
        {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}},
    )
    server.answer += b"data: [DONE]\n\n"
    client = open_served(f"{server.url}/v1", is_chat=True, ends=False, api_key="secret")
    assert isinstance(client, OpenAiClient)
    (answer,) = client.answer(["a"], METHOD, 9)
    assert (answer.num_output_tokens, answer.num_prompt_tokens, len(answer.piece_seconds)) == (3, 4, 2)
    ((path, body, key),) = server.asked
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    assert (body["model"], body["draft_tokens"], body["ignore_eos"], body["temperature"]) == ("smollm2", 3, True, 0.0)
    assert body["messages"] == [{"role": "user", "content": "a"}]


def test_a_server_of_others_is_asked_for_nothing_of_ours(server: Any) -> None:
    server.told = {"data": [{"id": "m", "owned_by": "vllm"}]}
    server.answer = events({"choices": [{"text": "x"}]}, {"choices": [], "usage": {"completion_tokens": 1}})
    server.answer += b"data: [DONE]\n\n"
    client = open_served(f"{server.url}/v1/", is_chat=False, ends=True)
    assert (client.served.takes_draft_tokens, client.served.takes_prompt_lookup) == (False, False)
    client.answer(["a"], METHOD, 9)
    ((path, body, key),) = server.asked
    assert (path, key, body["prompt"]) == ("/v1/completions", None, "a")
    assert {"draft_tokens", "prompt_lookup"}.isdisjoint(body)


def test_a_refusal_is_told(server: Any) -> None:
    server.told = {"data": [{"id": "m"}]}
    server.answer = events({"error": {"message": "no such key"}})
    client = open_served(f"{server.url}/v1", is_chat=True, ends=True)
    (answer,) = client.answer(["a"], METHOD, 9)
    assert answer.failure == "the server answered 200: no such key"


def test_a_server_that_goes_away_is_told(server: Any) -> None:
    server.told = {"parameters": {}}
    client = open_served(server.url, is_chat=True, ends=True)
    server.shutdown()
    server.server_close()
    (answer,) = client.answer(["a"], METHOD, 9)
    assert answer.failure is not None and "no server answers" in answer.failure


def test_an_answer_that_is_cut_short_is_told(server: Any) -> None:
    server.told = {"parameters": {}}
    triton = open_served(server.url, is_chat=True, ends=True)
    server.told = {"data": [{"id": "m"}]}
    door = open_served(f"{server.url}/v1", is_chat=True, ends=True)
    server.answer, server.claims_more = events({"output_ids": 5}), 100
    for client in (triton, door):
        (answer,) = client.answer(["a"], METHOD, 9)
        assert answer.failure is not None and "broke an answer off" in answer.failure


def test_a_door_that_counts_no_tokens_is_told(server: Any) -> None:
    server.told = {"data": [{"id": "m"}]}
    server.answer = events({"choices": [{"text": "x"}]}) + b"data: [DONE]\n\n"
    (answer,) = open_served(f"{server.url}/v1", is_chat=True, ends=True).answer(["a"], METHOD, 9)
    assert answer.failure is not None and "told no usage" in answer.failure


@pytest.mark.parametrize("told", [{"data": []}, {"data": None}])
def test_a_server_without_a_model_is_refused(server: Any, told: dict[str, object]) -> None:
    server.told = told
    with pytest.raises(PeagleError, match="serves no model"):
        open_served(f"{server.url}/v1", is_chat=True, ends=True)


def test_what_speaks_otherwise_is_no_triton_and_no_door(server: Any) -> None:
    server.told = None
    with pytest.raises(PeagleError, match="no Triton server"):
        open_served(server.url, is_chat=True, ends=True)
    with pytest.raises(PeagleError, match="no JSON object"):
        open_served(f"{server.url}/v1", is_chat=True, ends=True)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nowhere", "names no host and port"),
        ("http://host:port", "names no host and port"),
        ("https://h:1", "expected http:// or grpc://"),
        ("http://h:1/v2", "has a path"),
        ("grpc://h:1/v1", "expected http:// or grpc://"),
    ],
)
def test_another_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_served(url, is_chat=True, ends=True)
