"""Clients that send nonsense, too much, too often or too slowly: an answer names the fault, and the door stays."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle_trt.deploy.ports import choose_ports
from peagle_trt.deploy.server import TritonServer
from peagle_trt.openai_door.app import make_app
from peagle_trt.openai_door.fields import HARMLESS_FIELDS, REFUSED_FIELDS, ChatFields, CompletionFields
from peagle_trt.openai_door.listener import DoorListener, bind
from peagle_trt.openai_door.opening import describe
from peagle_trt.openai_door.settings import DoorSettings

from .conftest import Door

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "2 + 3?"}], "max_tokens": 2}
LONG: dict[str, Any] = {**ASK, "max_tokens": 400, "ignore_eos": True, "draft_tokens": 0}
NUM_CASES = 300

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["user", "text", "function", "auto", "tiny", "<|endoftext|>"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "function", "name"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def bodies(kind: type[Any], whole: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Good requests with some fields spoilt; half keep what is required."""
    names = st.sampled_from(sorted({*kind.__struct_fields__, *HARMLESS_FIELDS, *REFUSED_FIELDS, "nonsense"}))
    changes = st.dictionaries(names, VALUES | st.integers(-2, 40) | st.floats(0, 2), max_size=4)
    return changes.map(lambda changed: {**whole, **changed}) | changes


def check(response: httpx.Response) -> None:
    if response.status_code == 504:
        # A client may give its request less time than the way to the engine takes.
        assert response.json()["error"]["code"] == "deadline_exceeded"
        return
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        fault = response.json()["error"]
        assert fault["message"]
        assert fault["type"] == "invalid_request_error"


@pytest.fixture(scope="module")
def http(door: Door) -> Any:
    with httpx.Client(base_url=door.address, timeout=30) as client:
        yield client


@settings(max_examples=NUM_CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=bodies(ChatFields, ASK))
def test_no_chat_body_is_a_fault_of_ours(http: httpx.Client, body: dict[str, Any]) -> None:
    check(http.post("/v1/chat/completions", json=body))


@settings(max_examples=NUM_CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=bodies(CompletionFields, {"model": "tiny", "prompt": "2 + 3", "max_tokens": 2}))
def test_no_completion_body_is_a_fault_of_ours(http: httpx.Client, body: dict[str, Any]) -> None:
    check(http.post("/v1/completions", json=body))


@settings(max_examples=NUM_CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=st.binary(max_size=60) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_bytes_are_a_fault_of_ours(http: httpx.Client, body: bytes) -> None:
    response = http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


BROKEN = {
    "not UTF-8": b'{"model": "tiny", "messages": [{"role": "user", "content": "\xff"}]}',
    "half a surrogate": b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
    "not a number": b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
    "endless": b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "temperature": 1e999}',
    "deep": b'{"model": "tiny", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a huge number": b'{"model": "tiny", "prompt": "a", "messages": [], "seed": ' + b"9" * 5000 + b"}",
    "nothing": b"",
    "a list": b"[]",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_body_is_refused(http: httpx.Client, name: str) -> None:
    response = http.post("/v1/chat/completions", content=BROKEN[name], headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_prompt_of_ten_megabytes_is_too_large(http: httpx.Client) -> None:
    body = {**ASK, "messages": [{"role": "user", "content": "a" * 10_000_000}]}
    response = http.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


def test_a_prompt_of_two_megabytes_stalls_nobody(http: httpx.Client, door: Door) -> None:
    body = {**ASK, "messages": [{"role": "user", "content": "many words " * 200_000}]}
    slow = threading.Thread(target=lambda: httpx.post(f"{door.address}/v1/chat/completions", json=body, timeout=60))
    slow.start()
    assert http.get("/health").status_code == 200
    slow.join()
    response = http.post("/v1/chat/completions", json=body, timeout=60)
    assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/completions", 405), ("POST", "/v1/nothing", 404)])
def test_an_address_that_is_none_is_an_error_in_openais_form(
    http: httpx.Client, method: str, path: str, status: int
) -> None:
    response = http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_another_kind_of_body_is_refused(http: httpx.Client) -> None:
    assert http.post("/v1/completions", data={"model": "tiny"}).status_code == 415


def test_without_the_key_only_health_answers(open_door: Callable[[DoorSettings], Door]) -> None:
    door = open_door(DoorSettings(port=choose_ports().http, api_keys=("secret", "other")))
    assert httpx.get(f"{door.address}/health").status_code == 200
    for key in ("wrong", "secre"):
        with pytest.raises(openai.AuthenticationError):
            door.client(key).models.list()
    assert [door.client(key).models.list().data[0].id for key in ("secret", "other")] == ["tiny", "tiny"]


def test_who_asks_too_often_is_told_when_to_come_back(open_door: Callable[[DoorSettings], Door]) -> None:
    door = open_door(DoorSettings(port=choose_ports().http, requests_per_minute=2))
    statuses = [httpx.get(f"{door.address}/v1/models") for _ in range(3)]
    assert [response.status_code for response in statuses] == [200, 200, 429]
    assert 1 <= int(statuses[-1].headers["retry-after"]) <= 30


def test_more_answers_than_the_limit_are_refused_and_room_comes_back(open_door: Callable[[DoorSettings], Door]) -> None:
    door = open_door(DoorSettings(port=choose_ports().http, max_concurrent_answers=1))
    client = door.client()
    stream = client.chat.completions.create(**ASK | {"max_tokens": 400}, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**ASK)
    assert caught.value.response.headers["retry-after"] == "1"
    stream.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        time.sleep(0.1)
        if httpx.post(f"{door.address}/v1/chat/completions", json=ASK).status_code == 200:
            return
    pytest.fail("no room came back")


def test_a_reader_that_stops_reading_is_given_up(
    server: TritonServer, tiny_build: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slow = DoorSettings(port=choose_ports().http, max_concurrent_answers=16, write_timeout_seconds=0.5)
    served = describe(tiny_build, grpc_port=server.ports.grpc, is_alive=lambda: True)
    listener = bind(slow)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    body = json.dumps({**LONG, "n": 16, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with DoorListener(make_app(served, slow), slow, listener), socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        reader.connect(("127.0.0.1", slow.port))
        reader.sendall(head.encode() + body)
        deadline = time.monotonic() + 60
        while "reads too slowly" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.1)
        answer = httpx.post(f"http://127.0.0.1:{slow.port}/v1/chat/completions", json=ASK, timeout=30)
    assert "reads too slowly" in caplog.text
    assert answer.status_code == 200


def test_a_client_that_never_sends_its_body_is_answered(open_door: Callable[[DoorSettings], Door]) -> None:
    door = open_door(DoorSettings(port=choose_ports().http, body_timeout_seconds=0.3))
    with socket.create_connection(("127.0.0.1", door.settings.port), timeout=10) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert client.recv(100).startswith(b"HTTP/1.1 408")


def test_with_a_certificate_the_door_speaks_https(open_door: Callable[[DoorSettings], Door], tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key)]
    subprocess.run([*command, "-out", str(certificate), *subject], check=True, capture_output=True)
    door = open_door(DoorSettings(port=choose_ports().http, certificate_path=certificate, key_path=key))
    answer = httpx.get(
        f"https://127.0.0.1:{door.settings.port}/v1/models", verify=ssl.create_default_context(cafile=certificate)
    )
    assert answer.status_code == 200


def test_health_and_answers_tell_of_a_server_that_is_gone(server: TritonServer, tiny_build: Path) -> None:
    gone = DoorSettings(port=choose_ports().http)
    served = describe(tiny_build, grpc_port=choose_ports().grpc, is_alive=lambda: True)
    with DoorListener(make_app(served, gone), gone, bind(gone)):
        address = f"http://127.0.0.1:{gone.port}"
        assert httpx.get(f"{address}/health", timeout=20).status_code == 503
        answer = httpx.post(f"{address}/v1/chat/completions", json=ASK, timeout=20)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_unavailable")
