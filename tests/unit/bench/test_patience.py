"""Servers that hang, drip, break off, refuse and die: every request ends, and what was measured stays."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from peagle_trt.bench.cells import Method
from peagle_trt.bench.measure import Schedule, run_rounds, summarise
from peagle_trt.bench.patience import MAX_FAILURES_IN_A_ROW
from peagle_trt.bench.prompt_sets import PromptSet
from peagle_trt.bench.run_folder import CELLS_NAME, RESULT_NAME
from peagle_trt.bench.served import ServedClient, open_served
from peagle_trt.cli.bench_text import write_table
from peagle_trt.cli.main import run
from peagle_trt.deploy.client import GrpcStream
from peagle_trt.errors import PeagleError

PLAIN = Method(name="none", draft_tokens=0, concurrency=1)
FAST = Method(name="p-eagle", draft_tokens=3, concurrency=1)
LAST = {"output_ids": [6], "num_verify_steps": 1, "accepted_by_position": [1, 0, 0], "finish_reason": "length"}
TRITON = [{"output_ids": 5}, LAST]
DOOR = [{"choices": [{"text": "x"}]}, {"choices": [], "usage": {"completion_tokens": 2}}]


class Faulty(BaseHTTPRequestHandler):
    """Answers as a server should, but for the prompts that name a fault."""

    def do_GET(self) -> None:
        self._send(json.dumps({"parameters": {}, "data": [{"id": "m"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body.get("text_input") or body.get("prompt")
        server: Any = self.server
        server.num_asked += 1
        if server.num_asked > server.lives:
            # Ends as if its process had gone; from now on everybody is sent away so.
            return
        is_door = self.path.startswith("/v1")
        lines = [b"data: " + json.dumps(each).encode() + b"\n\n" for each in (DOOR if is_door else TRITON)]
        getattr(self, f"_{prompt}", self._well)([*lines, b"data: [DONE]\n\n"] if is_door else lines)

    def _well(self, lines: list[bytes]) -> None:
        self._send(b"".join(lines))

    def _busy(self, lines: list[bytes]) -> None:
        self._send(json.dumps({"error": {"message": "busy"}}).encode(), status=503)

    def _hang(self, lines: list[bytes]) -> None:
        self.server.is_over.wait(20)  # type: ignore[attr-defined]

    def _drip(self, lines: list[bytes]) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.server.is_over.wait(0.05):  # type: ignore[attr-defined]
            self.wfile.write(b":")

    def _break(self, lines: list[bytes]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(lines[0])

    def _send(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Says nothing of clients that go away: that is what is tested."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    found: Any = Server(("127.0.0.1", 0), Faulty)
    found.num_asked, found.lives, found.is_over = 0, 10**6, threading.Event()
    found.url = f"http://127.0.0.1:{found.server_address[1]}"
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.is_over.set()
    found.shutdown()
    thread.join()
    found.server_close()


def client_of(server: Any, path: str = "", timeout_seconds: float = 20.0) -> ServedClient:
    return open_served(server.url + path, is_chat=False, ends=True, timeout_seconds=timeout_seconds)


def schedule(*prompts: str, methods: tuple[Method, ...] = (PLAIN, FAST), warm_up: int = 0) -> Schedule:
    sets = (PromptSet(name="a", prompts=prompts),)
    return Schedule(prompt_sets=sets, methods=methods, max_tokens=4, warm_up=warm_up)


@pytest.mark.parametrize("path", ["", "/v1"])
@pytest.mark.parametrize(
    ("fault", "timeout_seconds", "reason"),
    [
        ("hang", 0.3, "no whole answer within 0.3 s"),
        ("drip", 0.3, "no whole answer within 0.3 s"),
        ("break", 20.0, "the server broke an answer off"),
        ("busy", 20.0, "busy"),
    ],
)
def test_a_fault_ends_its_request_only(server: Any, path: str, fault: str, timeout_seconds: float, reason: str) -> None:
    started = time.monotonic()
    bad, good = client_of(server, path, timeout_seconds).answer([fault, "well"], FAST, 4)
    assert bad.failure is not None and reason in bad.failure
    assert (good.failure, good.num_output_tokens) == (None, 2)
    assert time.monotonic() - started < 15


@pytest.fixture
def mute() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize("url", ["http://127.0.0.1:{}", "http://127.0.0.1:{}/v1", "grpc://127.0.0.1:{}"])
def test_a_server_that_says_nothing_is_not_waited_for(mute: int, url: str) -> None:
    started = time.monotonic()
    with pytest.raises(PeagleError, match="no server answers"):
        open_served(url.format(mute), is_chat=False, ends=True, timeout_seconds=0.5)
    assert time.monotonic() - started < 15


def test_a_stream_over_grpc_ends_in_time(mute: int) -> None:
    started = time.monotonic()
    with (
        GrpcStream(mute, {"text_input": "a", "stream": True}, limit_seconds=0.5) as stream,
        pytest.raises(PeagleError, match="no piece came"),
    ):
        list(stream)
    assert time.monotonic() - started < 15


def test_failures_are_counted_by_reason_and_their_rounds_give_no_ratio(server: Any) -> None:
    lines: list[str] = []
    plan = schedule("well", "busy", "break", "well", "break")
    cells = [cell for cells in run_rounds(client_of(server), plan, report=lines.append) for cell in cells]
    plain, fast = summarise(cells, plan.methods, baseline="none", is_greedy=True)
    assert (fast.num_failed, sorted(fast.failures.values()), fast.num_output_tokens) == (3, [1, 2], 4)
    assert fast.is_equal_to_baseline == 1.0 and fast.speedup is not None and fast.speedup_low is None
    assert "; 2 requests failed: the server failed" in lines[1]
    assert "3 requests failed (a, p-eagle K=3, 1 in flight): " in write_table([plain, fast])


def test_a_method_whose_requests_all_fail_has_no_figures(server: Any) -> None:
    plan = schedule("busy", "busy", methods=(FAST,))
    cells = [cell for cells in run_rounds(client_of(server), plan) for cell in cells]
    (result,) = summarise(cells, plan.methods, baseline="none", is_greedy=True)
    assert (result.tokens_per_second, result.time_to_first_token_ms, result.num_failed) == (0.0, None, 2)
    assert "2 requests failed" in write_table([result])


def test_a_server_that_fails_from_the_start_is_not_measured(server: Any) -> None:
    with pytest.raises(PeagleError, match="a request before the measurement failed: the server failed"):
        list(run_rounds(client_of(server), schedule("busy", warm_up=1)))


def test_a_server_that_only_fails_ends_the_run(server: Any) -> None:
    with pytest.raises(PeagleError, match=f"{MAX_FAILURES_IN_A_ROW} requests failed one after the other"):
        list(run_rounds(client_of(server), schedule(*["busy"] * 10)))
    assert server.num_asked == MAX_FAILURES_IN_A_ROW


def test_an_answer_between_failures_keeps_the_run_going(server: Any) -> None:
    rounds = list(run_rounds(client_of(server), schedule(*["busy", "busy", "well"] * 3)))
    assert len(rounds) == 9


def test_a_run_whose_server_dies_keeps_its_rounds_and_goes_on_with_the_next(
    server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"well {number}"}) + "\n" for number in range(6)))
    words = ["bench", "--url", server.url, "--prompts", str(prompts), "--no-chat", "--timeout", "5", "-k", "3"]
    words += ["--warm-up", "0", "-o", str(tmp_path / "run")]
    server.lives = 5
    assert run(words) == 1
    assert "requests failed one after the other" in capsys.readouterr().err
    assert len((tmp_path / "run" / CELLS_NAME).read_text().splitlines()) >= 4
    server.lives = 10**6
    assert run(words) == 0
    document = json.loads((tmp_path / "run" / RESULT_NAME).read_text())
    assert [(each["num_rounds"], each["num_failed"]) for each in document["results"]] == [(6, 0), (6, 0)]
    # Of the two rounds that the first server answered as a whole nothing was asked again.
    assert server.num_asked == 5 + 5 + 2 * 4


def test_a_limit_without_a_server_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", str(tmp_path), "--timeout", "5"]) == 2
    assert "--timeout is of requests to a server" in capsys.readouterr().err
