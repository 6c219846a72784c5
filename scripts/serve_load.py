"""What serving costs beside the decode loop alone: throughput, CPU time a streamed response, eight clients against one.

    scripts/serve_load BUILD [--requests 48] [--clients 8] [--turns 3] [-o FILE]

The same greedy questions, 48 tokens each, are answered by the loop in this process with all its slots in use, by a
server with so many clients, and by it with one client; in turns, so that a busy machine is busy for all three.
Answers are streamed over HTTP. The engine has one thread everywhere. Ratios are medians over turns, of wall time
and of CPU time; on a machine whose cores others use only the latter say much. CPU time is that of the server and
its models.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.session import LoadedBuild, open_build
from peagle_trt.deploy.client import HttpClient
from peagle_trt.deploy.hosting.settings import HostSettings
from peagle_trt.deploy.ports import choose_ports
from peagle_trt.deploy.repository import assemble_repository
from peagle_trt.deploy.server import TritonServer
from scripts.process_tree import cpu_seconds

MAX_TOKENS = 48
PROMPT_CHARACTERS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One pass over all questions.

    Attributes:
        num_tokens: Tokens of all answers.
        num_responses: Pieces they came in.
        seconds: Wall time.
        cpu_seconds: CPU time of who answered.
    """

    num_tokens: int
    num_responses: int
    seconds: float
    cpu_seconds: float


def main() -> None:
    """Parse the command line, measure, write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    prompts = [prompt[:PROMPT_CHARACTERS] for prompt in read_prompts("gsm8k", options.requests).prompts]
    with tempfile.TemporaryDirectory(dir=options.build.resolve().parent, prefix=".load-") as folder:
        turns = measure(options.build, prompts, Path(folder), num_clients=options.clients, num_turns=options.turns)
    text = json.dumps(summarise(turns, num_clients=options.clients), indent=1)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n", encoding="utf-8")


def measure(
    build_path: Path, prompts: list[str], folder: Path, *, num_clients: int, num_turns: int
) -> dict[str, list[Turn]]:
    """Turns of the loop alone, of the server with all clients, and with one."""
    repository = assemble_repository(build_path, folder / "repository", settings=HostSettings(num_threads=1)).path
    loaded = open_build(build_path, num_threads=1)
    turns: dict[str, list[Turn]] = {"loop": [], "clients": [], "one_client": []}
    with TritonServer(repository, choose_ports(), log_path=folder / "tritonserver.log") as server:
        # Whoever is asked first pays for what is made once.
        _serve(server, prompts[:num_clients], num_clients)
        _loop(loaded, prompts[:num_clients])
        for _ in range(num_turns):
            turns["loop"].append(_loop(loaded, prompts))
            turns["clients"].append(_serve(server, prompts, num_clients))
            turns["one_client"].append(_serve(server, prompts, 1))
    loaded.engine.close()
    return turns


def summarise(turns: dict[str, list[Turn]], *, num_clients: int) -> dict[str, object]:
    """Medians over turns."""

    def median_ratio(above: str, below: str) -> float:
        rates = [
            (over.num_tokens / over.seconds) / (under.num_tokens / under.seconds)
            for over, under in zip(turns[above], turns[below], strict=True)
        ]
        return round(statistics.median(rates), 3)

    def cpu_ratio(above: str, below: str) -> float:
        rates = [under.cpu_seconds / over.cpu_seconds for over, under in zip(turns[above], turns[below], strict=True)]
        return round(statistics.median(rates), 3)

    serving = [
        1e3 * (served.cpu_seconds - alone.cpu_seconds) / served.num_responses
        for served, alone in zip(turns["clients"], turns["loop"], strict=True)
    ]
    whole = [1e3 * served.cpu_seconds / served.num_responses for served in turns["clients"]]
    return {
        "clients": num_clients,
        "turns": len(turns["loop"]),
        "tokens": turns["loop"][0].num_tokens,
        "responses": turns["clients"][0].num_responses,
        "throughput_over_loop": median_ratio("clients", "loop"),
        "throughput_over_one_client": median_ratio("clients", "one_client"),
        "tokens_a_cpu_second_over_loop": cpu_ratio("clients", "loop"),
        "tokens_a_cpu_second_over_one_client": cpu_ratio("clients", "one_client"),
        "cpu_ms_a_response": round(statistics.median(whole), 3),
        "cpu_ms_a_response_beside_the_loop": round(statistics.median(serving), 3),
        "tokens_per_second": {
            name: [round(turn.num_tokens / turn.seconds, 1) for turn in each] for name, each in turns.items()
        },
        "cpu_seconds": {name: [round(turn.cpu_seconds, 2) for turn in each] for name, each in turns.items()},
    }


def _loop(loaded: LoadedBuild, prompts: list[str]) -> Turn:
    loop = DecodeLoop(loaded.engine, loaded.tokenizer)
    started, cpu_started, num_responses = time.perf_counter(), time.process_time(), 0
    for index, prompt in enumerate(prompts):
        loop.submit(loaded.request(prompt, max_tokens=MAX_TOKENS, request_id=str(index)))
    while loop.has_work:
        num_responses += len(loop.step())
    return Turn(
        num_tokens=loop.statistics.num_output_tokens,
        num_responses=num_responses,
        seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time() - cpu_started,
    )


def _serve(server: TritonServer, prompts: list[str], num_clients: int) -> Turn:
    client = HttpClient(server.ports.http)

    def ask(prompt: str) -> tuple[int, int]:
        pieces = list(client.generate_stream({"text_input": prompt, "max_tokens": MAX_TOKENS}))
        return int(pieces[-1]["num_output_tokens"]), len(pieces)

    started, cpu_started = time.perf_counter(), cpu_seconds(server.pid)
    with ThreadPoolExecutor(num_clients) as pool:
        counts = list(pool.map(ask, prompts))
    return Turn(
        num_tokens=sum(tokens for tokens, _ in counts),
        num_responses=sum(responses for _, responses in counts),
        seconds=time.perf_counter() - started,
        cpu_seconds=cpu_seconds(server.pid) - cpu_started,
    )


if __name__ == "__main__":
    main()
