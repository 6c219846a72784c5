"""What serving costs beside the decode loop alone: throughput, CPU time a streamed response, eight clients against one.

    scripts/serve_load BUILD [--requests 48] [--clients 8] [--turns 3] [--draft-tokens build|auto|K] [-o FILE]

The same greedy questions, 48 tokens each, are answered by the loop in this process with all its slots in use and with
one, by a server with so many clients, and by it with one client, which asks as many questions as there are clients; in
turns, so that a busy machine is busy for all four.
Answers are streamed over HTTP. The engine has one thread everywhere. Ratios are medians over turns, of wall time
and of CPU time; on a machine whose cores others use only the latter say much. CPU time is that of the server and
its models, with the thread that runs the engine and without; that of the clients, which share the cores, stands beside
it. Tokens a step say how full the steps were.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.cli.script import positive, run_script
from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import DraftTokens
from peagle_trt.decode.session import LoadedBuild, open_build
from peagle_trt.decode.speculation import SpeculationController
from peagle_trt.deploy.client import HttpClient, read_metrics
from peagle_trt.deploy.hosting.settings import HostSettings
from peagle_trt.deploy.ports import choose_ports
from peagle_trt.deploy.repository import assemble_repository
from peagle_trt.deploy.server import TritonServer
from peagle_trt_repo.inputs import AUTO_DRAFT_TOKENS
from scripts.process_tree import thread_seconds

MAX_TOKENS = 48
PROMPT_CHARACTERS = 160
PUBLISHED_SECONDS = 1.5
"""After this the server's metrics hold everything that was answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked.

    Attributes:
        prompts: The questions.
        num_clients: Clients that ask at a time, and requests that the full loop has in flight.
        draft_tokens: K; None for the build's.
    """

    prompts: tuple[str, ...]
    num_clients: int
    draft_tokens: DraftTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One pass over all questions.

    Attributes:
        num_tokens: Tokens of all answers.
        num_responses: Pieces they came in.
        num_steps: Steps of the loop.
        seconds: Wall time.
        cpu_seconds: CPU time of who answered.
        serving_seconds: That of all threads but the one that runs the engine.
        client_seconds: CPU time of who asked, where that is another process.
    """

    num_tokens: int
    num_responses: int
    num_steps: int
    seconds: float
    cpu_seconds: float
    serving_seconds: float = 0.0
    client_seconds: float = 0.0


def main() -> None:
    """Parse the command line, measure, write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--requests", type=positive, default=48, help="questions a turn")
    parser.add_argument("--clients", type=positive, default=8, help="that ask at once")
    parser.add_argument("--turns", type=positive, default=3, help="of each kind of run")
    parser.add_argument(
        "--draft-tokens", type=_draft_tokens, default=None, help="K, auto, or build for the build's own"
    )
    parser.add_argument("-o", "--output", type=Path, help="JSON file for every figure")
    options = parser.parse_args()
    prompts = [prompt[:PROMPT_CHARACTERS] for prompt in read_prompts("gsm8k", options.requests).prompts]
    with tempfile.TemporaryDirectory(dir=options.build.resolve().parent, prefix=".load-") as folder:
        load = Load(prompts=tuple(prompts), num_clients=options.clients, draft_tokens=options.draft_tokens)
        turns = measure(options.build, load, Path(folder), num_turns=options.turns)
    text = json.dumps(summarise(turns, num_clients=options.clients), indent=1)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n", encoding="utf-8")


def measure(build_path: Path, load: Load, folder: Path, *, num_turns: int) -> dict[str, list[Turn]]:
    """Turns of the loop alone, full and with one answer at a time, of the server with all clients, and with one."""
    repository = assemble_repository(build_path, folder / "repository", settings=HostSettings(num_threads=1)).path
    loaded = open_build(build_path, num_threads=1)
    # As in a server, what one turn teaches about costs and acceptance serves the next.
    controller = SpeculationController(loaded.engine.shapes.max_draft_tokens)
    turns: dict[str, list[Turn]] = {"loop": [], "clients": [], "loop_one": [], "one_client": []}
    with TritonServer(repository, choose_ports(), log_path=folder / "tritonserver.log") as server:
        # Whoever is asked first pays for what is made once.
        few = replace(load, prompts=load.prompts[: load.num_clients])
        _serve(server, few, load.num_clients)
        _loop(loaded, few, load.num_clients, controller)
        for _ in range(num_turns):
            turns["loop"].append(_loop(loaded, load, load.num_clients, controller))
            turns["clients"].append(_serve(server, load, load.num_clients))
            turns["loop_one"].append(_loop(loaded, few, 1, controller))
            turns["one_client"].append(_serve(server, few, 1))
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
        rates = [
            (over.num_tokens / over.cpu_seconds) / (under.num_tokens / under.cpu_seconds)
            for over, under in zip(turns[above], turns[below], strict=True)
        ]
        return round(statistics.median(rates), 3)

    beside = [
        1e3 * (served.cpu_seconds - alone.cpu_seconds) / served.num_responses
        for served, alone in zip(turns["clients"], turns["loop"], strict=True)
    ]
    serving = [1e3 * served.serving_seconds / served.num_responses for served in turns["clients"]]
    whole = [1e3 * served.cpu_seconds / served.num_responses for served in turns["clients"]]
    asking = [1e3 * served.client_seconds / served.num_responses for served in turns["clients"]]
    return {
        "clients": num_clients,
        "turns": len(turns["loop"]),
        "tokens": turns["loop"][0].num_tokens,
        "responses": turns["clients"][0].num_responses,
        "throughput_over_loop": median_ratio("clients", "loop"),
        "throughput_over_one_client": median_ratio("clients", "one_client"),
        "loop_over_loop_of_one": median_ratio("loop", "loop_one"),
        "tokens_a_cpu_second_over_loop": cpu_ratio("clients", "loop"),
        "tokens_a_cpu_second_over_one_client": cpu_ratio("clients", "one_client"),
        "cpu_ms_a_response": round(statistics.median(whole), 3),
        "cpu_ms_a_response_beside_the_loop": round(statistics.median(beside), 3),
        "serving_cpu_ms_a_response": round(statistics.median(serving), 3),
        "client_cpu_ms_a_response": round(statistics.median(asking), 3),
        "tokens_a_step": {
            name: round(statistics.median(turn.num_tokens / turn.num_steps for turn in each), 2)
            for name, each in turns.items()
        },
        "tokens_per_second": {
            name: [round(turn.num_tokens / turn.seconds, 1) for turn in each] for name, each in turns.items()
        },
        "cpu_seconds": {name: [round(turn.cpu_seconds, 2) for turn in each] for name, each in turns.items()},
    }


def _loop(loaded: LoadedBuild, load: Load, num_in_flight: int, controller: SpeculationController) -> Turn:
    loop = DecodeLoop(loaded.engine, loaded.tokenizer, controller=controller)
    started, cpu_started, num_responses = time.perf_counter(), time.process_time(), 0
    waiting = [
        replace(loaded.request(prompt, max_tokens=MAX_TOKENS, request_id=str(index)), draft_tokens=load.draft_tokens)
        for index, prompt in enumerate(load.prompts)
    ]
    num_running = 0
    while waiting or loop.has_work:
        while waiting and num_running < num_in_flight:
            loop.submit(waiting.pop(0))
            num_running += 1
        chunks = loop.step()
        num_responses += len(chunks)
        num_running -= sum(chunk.finish_reason is not None for chunk in chunks)
    return Turn(
        num_tokens=loop.statistics.num_output_tokens,
        num_responses=num_responses,
        num_steps=loop.statistics.num_steps,
        seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time() - cpu_started,
    )


def _serve(server: TritonServer, load: Load, num_clients: int) -> Turn:
    client = HttpClient(server.ports.http)
    chosen = AUTO_DRAFT_TOKENS if load.draft_tokens == "auto" else load.draft_tokens
    drafts = {} if chosen is None else {"draft_tokens": chosen}

    def ask(prompt: str) -> tuple[int, int]:
        pieces = list(client.generate_stream({"text_input": prompt, "max_tokens": MAX_TOKENS, **drafts}))
        return int(pieces[-1]["num_output_tokens"]), len(pieces)

    steps_before = _num_steps(server)
    threads_before = thread_seconds(server.pid)
    started, asking_started = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(num_clients) as pool:
        counts = list(pool.map(ask, load.prompts))
    seconds, asking = time.perf_counter() - started, time.process_time() - asking_started
    taken = [total - threads_before.get(thread, 0.0) for thread, total in thread_seconds(server.pid).items()]
    return Turn(
        num_tokens=sum(tokens for tokens, _ in counts),
        num_responses=sum(responses for _, responses in counts),
        num_steps=_num_steps(server) - steps_before,
        seconds=seconds,
        cpu_seconds=sum(taken),
        serving_seconds=sum(taken) - max(taken),
        client_seconds=asking,
    )


def _num_steps(server: TritonServer) -> int:
    """Steps that the server's loop has done; what is published a moment later counts too."""
    time.sleep(PUBLISHED_SECONDS)
    return int(read_metrics(server.ports.metrics)["peagle_engine_steps_total"])


def _draft_tokens(text: str) -> DraftTokens:
    if text in ("build", "auto"):
        return None if text == "build" else "auto"
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"`{text}` is no number of drafts; expected build, auto, or 0 and more")
    return int(text)


if __name__ == "__main__":
    sys.exit(run_script(main))
