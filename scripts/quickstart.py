"""Builds a target with its P-EAGLE drafter, serves both with NVIDIA Triton, asks over every door, measures the gain."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle_trt.cli.main import run
from peagle_trt.cli.script import run_script
from peagle_trt.deploy.client import GrpcStream, HttpClient
from peagle_trt.deploy.ports import choose_ports
from peagle_trt.deploy.repository import assemble_repository
from peagle_trt.deploy.server import TritonServer

QUESTION = "A library has 48 new books and lends out half of them. How many new books are left on the shelf?"
SPEED_PROMPTS = (
    QUESTION,
    "A baker makes 12 trays of 9 rolls and sells 80 rolls. How many rolls are left?",
    "A train drives 60 miles an hour for 3 hours, then 40 miles an hour for 2 hours. How far does it get?",
    "Tom reads 15 pages a day. How many pages does he read in 3 weeks?",
)
MAX_TOKENS = 96


@dataclass(frozen=True)
class Measurement:
    """All speed prompts, one after another, one client."""

    num_tokens: int
    seconds: float
    num_verify_steps: int
    num_accepted: int
    token_ids: list[list[int]]

    @property
    def tokens_per_second(self) -> float:
        """Answer tokens a second, prompts included in the time."""
        return self.num_tokens / self.seconds

    @property
    def acceptance_length(self) -> float:
        """Tokens a verify step yields, bonus counted."""
        return 1 + self.num_accepted / self.num_verify_steps if self.num_verify_steps else 1.0


def main() -> int:
    """Runs the steps in order."""
    arguments = _parse(sys.argv[1:])
    name, builds = arguments.target, arguments.builds
    builds.mkdir(parents=True, exist_ok=True)
    with _step(f"build {name}"):
        code = run(["build", "--target", name, "-o", str(builds / name)])
        if code:
            return code
    with _step("assemble the Triton repository"):
        repository = assemble_repository(builds / name, builds / f"{name}-repository")
    server = TritonServer(repository.path, choose_ports(), log_path=builds / f"{name}-tritonserver.log")
    with _step("start tritonserver"):
        server.start()
    try:
        doors = f"http 127.0.0.1:{server.ports.http}, grpc 127.0.0.1:{server.ports.grpc}"
        print(f"    {doors}; the server is the one in {server.installation.origin}")
        _ask(server)
        _measure(HttpClient(server.ports.http), name)
    finally:
        with _step("stop tritonserver"):
            server.stop()
    print(f"\nServe it yourself:  {Path(sys.executable).parent / 'peagle-trt'} serve {builds / name}")
    return 0


def _parse(words: Sequence[str]) -> argparse.Namespace:
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(prog="scripts/quickstart", description=__doc__)
    parser.add_argument(
        "--target", default="smollm2-135m", help="smollm2-135m (default), or tiny: a toy that builds in seconds"
    )
    parser.add_argument(
        "--builds", type=Path, default=root / "builds", help="folder for what is made; default: %(default)s"
    )
    return parser.parse_args(words)


@contextlib.contextmanager
def _step(title: str) -> Iterator[None]:
    print(f"\n==> {title}", flush=True)
    start = time.perf_counter()
    yield
    print(f"    done in {time.perf_counter() - start:.1f} s", flush=True)


def _ask(server: TritonServer) -> None:
    client = HttpClient(server.ports.http)
    payload = {"text_input": QUESTION, "max_tokens": MAX_TOKENS, "apply_chat_template": True}
    print(f"\n==> ask over HTTP, /v2/models/peagle/generate\n    {QUESTION}")
    answer = client.generate(payload)
    print(_indented(answer["text_output"]))
    print(
        f"    {answer['num_output_tokens']} tokens in {answer['num_verify_steps']} verify steps,"
        f" acceptance length {answer['acceptance_length']:.2f}"
    )
    print("\n==> the same over HTTP, /generate_stream: one piece a step, | between pieces")
    pieces = [piece["text_output"] for piece in client.generate_stream(payload)]
    print(_indented("|".join(pieces).replace("\n", " ")))
    print("\n==> the same over a gRPC stream of the classic ensemble")
    with GrpcStream(server.ports.grpc, {**payload, "stream": True}, model="ensemble") as stream:
        text = "".join(piece["text_output"] for piece in stream)
    print(f"    the same text: {'yes' if text == answer['text_output'] else 'NO'}")


def _measure(client: HttpClient, name: str) -> None:
    print(f"\n==> speed: {len(SPEED_PROMPTS)} questions, up to {MAX_TOKENS} tokens each, greedy, one client")
    _run_prompts(client, {"max_tokens": 8})  # The first pass of every shape is slower.
    speculative, plain = _run_prompts(client, {}), _run_prompts(client, {"draft_tokens": 0})
    print(f"    {'':<16}{'tokens':>8}{'seconds':>10}{'tokens/s':>10}{'acceptance length':>20}")
    for title, measured in (("P-EAGLE", speculative), ("plain decoding", plain)):
        numbers = f"{measured.num_tokens:>8}{measured.seconds:>10.2f}{measured.tokens_per_second:>10.1f}"
        print(f"    {title:<16}{numbers}{measured.acceptance_length:>20.2f}")
    ratio = speculative.tokens_per_second / plain.tokens_per_second
    if ratio < 1:
        print("    this target is so small that drafting costs more than it saves")
    same = "yes" if speculative.token_ids == plain.token_ids else "NO"
    print(f"    {ratio:.2f} times the speed of plain decoding, same tokens: {same}")
    print(
        f"    {name}, {len(os.sched_getaffinity(0))} CPU cores, no GPU; other machines and questions give other numbers"
    )


def _run_prompts(client: HttpClient, changes: dict[str, object]) -> Measurement:
    start = time.perf_counter()
    answers: list[dict[str, Any]] = [
        client.generate({"text_input": prompt, "max_tokens": MAX_TOKENS, "apply_chat_template": True, **changes})
        for prompt in SPEED_PROMPTS
    ]
    return Measurement(
        num_tokens=sum(answer["num_output_tokens"] for answer in answers),
        seconds=time.perf_counter() - start,
        num_verify_steps=sum(answer["num_verify_steps"] for answer in answers),
        num_accepted=sum(answer["total_accepted_draft_tokens"] for answer in answers),
        token_ids=[answer["output_ids"] for answer in answers],
    )


def _indented(text: str) -> str:
    return "\n".join(f"    > {line}" for line in text.strip().splitlines())


if __name__ == "__main__":
    sys.exit(run_script(main))
