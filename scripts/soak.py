"""Sends a server of its own thousands of mixed requests and looks for what builds up: memory, slots, wrong answers.

    scripts/soak BUILD [--requests 5000] [--clients 8] [--seed 0] [-o FILE]

Of the requests 20 % are left by their clients and 5 % are malformed; the rest is greedy or sampled, whole or
streamed, to all three models that take text. Ends with exit code 1 and the reasons unless: every request got the
kind of answer it should, every greedy answer is that of its prompt alone in this process, memory at the end is
within 5 % of that after the first fifth, no slot, cache row or shared memory is left in use.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.cli.script import positive, run_script
from peagle_trt.decode.session import LoadedBuild, generate, open_build
from peagle_trt.deploy import shared_memory
from peagle_trt.deploy.client import HttpClient, read_metrics
from peagle_trt.deploy.hosting.settings import HostSettings
from peagle_trt.deploy.ports import choose_ports
from peagle_trt.deploy.repository import assemble_repository
from peagle_trt.deploy.server import TritonServer
from peagle_trt.errors import PeagleError, RequestError
from scripts.process_tree import memory_bytes
from scripts.traffic import Ask, make_traffic

WARM_SHARE = 0.2
MAX_GROWTH = 1.05
SETTLE_SECONDS = 30.0
NUM_SAMPLES = 20


def main() -> int:
    """Parse the command line, soak, write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--requests", type=positive, default=5000)
    parser.add_argument("--clients", type=positive, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    asks = make_traffic(read_prompts("gsm8k", 64).prompts, options.requests, options.seed)
    with tempfile.TemporaryDirectory(dir=options.build.resolve().parent, prefix=".soak-") as folder:
        report = soak(options.build, asks, Path(folder), num_clients=options.clients)
    text = json.dumps(report, indent=1)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n", encoding="utf-8")
    return 1 if report["faults"] else 0


def soak(build_path: Path, asks: list[Ask], folder: Path, *, num_clients: int) -> dict[str, object]:
    """Sends everything and says what was wrong."""
    expected = _ask_alone(build_path, asks)
    repository = assemble_repository(build_path, folder / "repository", settings=HostSettings(num_threads=1)).path
    started = time.monotonic()
    with TritonServer(repository, choose_ports(), log_path=folder / "tritonserver.log") as server:
        faults, memory = _send(server, asks, expected, num_clients)
        metrics = _settled(server.ports.metrics)
        shared_bytes = sum(region.stat().st_size for region in shared_memory.regions(server.shared_memory_prefix))
        server.require_alive()
        prefix = server.shared_memory_prefix
    faults += _leaks(memory, metrics)
    faults += [f"shared memory `{region.name}` is left" for region in shared_memory.regions(prefix)]
    return {
        "requests": len(asks),
        "kinds": dict(Counter(ask.kind for ask in asks)),
        "seconds": round(time.monotonic() - started, 1),
        "memory_mib": [round(value / 2**20, 1) for value in memory],
        "memory_growth": round(_growth(memory), 4),
        "shared_memory_mib": round(shared_bytes / 2**20, 1),
        "ended": metrics["peagle_requests_total"],
        "cancelled": metrics["peagle_cancelled_requests_total"],
        "num_faults": len(faults),
        "faults": faults[:20],
    }


def _ask_alone(build_path: Path, asks: list[Ask]) -> dict[str, str]:
    """Greedy answers, each made alone in this process."""
    loaded = open_build(build_path, num_threads=1)
    try:
        return {_key(ask): _alone(loaded, ask) for ask in {_key(ask): ask for ask in asks}.values() if _is_greedy(ask)}
    finally:
        loaded.engine.close()


def _alone(loaded: LoadedBuild, ask: Ask) -> str:
    request = loaded.request(str(ask.payload["text_input"]), max_tokens=int(str(ask.payload["max_tokens"])))
    return generate(loaded, [request])[0].text


def _is_greedy(ask: Ask) -> bool:
    return ask.kind == "greedy"


def _key(ask: Ask) -> str:
    return json.dumps(ask.payload)


def _send(
    server: TritonServer, asks: list[Ask], expected: dict[str, str], num_clients: int
) -> tuple[list[str], list[int]]:
    """Sends in portions, and after each one looks at the memory.

    Returns:
        What went wrong; memory after every portion.
    """
    client = HttpClient(server.ports.http)
    size = max(1, len(asks) // NUM_SAMPLES)
    faults: list[str] = []
    memory: list[int] = []
    with ThreadPoolExecutor(num_clients) as pool:
        for start in range(0, len(asks), size):
            results = pool.map(lambda ask: _ask(client, ask, expected), asks[start : start + size])
            faults += [fault for fault in results if fault]
            memory.append(memory_bytes(server.pid))
            server.require_alive()
    return faults, memory


def _ask(client: HttpClient, ask: Ask, expected: dict[str, str]) -> str:
    """One request; what was wrong with its answer, or nothing."""
    try:
        text = _answer(client, ask)
    except RequestError as error:
        return "" if ask.kind == "malformed" else f"request {ask.number} was refused: {error}"
    except (PeagleError, OSError) as error:
        return f"request {ask.number} ({ask.kind}, {ask.model}) failed: {error}"
    if ask.kind == "malformed":
        return f"request {ask.number} is malformed and was answered: {ask.payload}"
    if _is_greedy(ask) and text != expected[_key(ask)]:
        return f"request {ask.number} to {ask.model} got `{text}`, alone it gets `{expected[_key(ask)]}`"
    return ""


def _answer(client: HttpClient, ask: Ask) -> str:
    if not ask.is_streaming:
        return str(client.generate(ask.payload, model=ask.model)["text_output"])
    text = ""
    pieces = client.generate_stream(ask.payload, model=ask.model)
    for number, piece in enumerate(pieces, start=1):
        text += piece["text_output"]
        if number == ask.num_pieces:
            pieces.close()
            break
    return text


def _settled(metrics_port: int) -> dict[str, float]:
    """Metrics once nothing runs any more, or after a while."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        metrics = read_metrics(metrics_port)
        if not metrics["peagle_running_requests"] + metrics["peagle_waiting_requests"]:
            break
        time.sleep(0.5)
    return read_metrics(metrics_port)


def _leaks(memory: list[int], metrics: dict[str, float]) -> list[str]:
    faults = []
    if _growth(memory) > MAX_GROWTH:
        faults.append(f"memory grew {_growth(memory):.3f} times after the first {WARM_SHARE:.0%} of the requests")
    for name in ("peagle_running_requests", "peagle_waiting_requests", "peagle_cache_used_tokens"):
        if metrics[name]:
            faults.append(f"`{name}` is {metrics[name]:g} when nothing runs")
    return faults


def _growth(memory: list[int]) -> float:
    """Memory at the end over that after the first fifth; the larger of two neighbours, for each moment is a sample."""
    warm = int(WARM_SHARE * len(memory))
    return max(memory[-2:]) / max(memory[warm : warm + 2])


if __name__ == "__main__":
    sys.exit(run_script(main))
