"""Steps of the whole decode loop on this CPU, for every K and number of requests: passes, acceptance and all else.

    python -m scripts.measure_loop BUILD -o scripts/roofline/cpu_loop.json [--threads N] [--turns N]

Requests begin with the first tokens of a GSM8K question and never end. Steps are timed once every request has its first
token; a combination is measured once a turn, over a plain step of one request in the same turn, in CPU time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.cli.script import positive, run_script
from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationRequest
from peagle_trt.decode.session import LoadedBuild, open_build

DRAFT_TOKENS = (0, 1, 2, 3, 5, 7)
CONCURRENCY = (1, 2, 4, 8)
PROMPT_TOKENS = 48
MAX_TOKENS = 512
STEPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Steps of one combination in one turn.

    Attributes:
        step_seconds: Median CPU time of a step.
        tokens_a_step: Tokens that a step yielded for a request, on average.
    """

    step_seconds: float
    tokens_a_step: float


def main() -> None:
    """Parse the command line, measure, write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--turns", type=positive, default=3)
    options = parser.parse_args()
    build = open_build(options.build, num_threads=options.threads)
    prompts = read_prompts("gsm8k", max(CONCURRENCY)).prompts
    turns = [measure_turn(build, prompts) for _ in range(options.turns)]
    document = {
        "target": build.manifest.name,
        "threads": options.threads,
        "turns": options.turns,
        "context_tokens": PROMPT_TOKENS + STEPS,
        "steps": [summarise(name, turns) for name in turns[0]],
    }
    options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def measure_turn(build: LoadedBuild, prompts: tuple[str, ...]) -> dict[tuple[int, int], Timing]:
    """Every combination of K and number of requests, once."""
    return {
        (draft_tokens, count): measure(build, prompts[:count], draft_tokens)
        for draft_tokens in DRAFT_TOKENS
        for count in CONCURRENCY
    }


def measure(build: LoadedBuild, prompts: tuple[str, ...], draft_tokens: int) -> Timing:
    """Time `STEPS` steps of a loop in which every request decodes."""
    loop = DecodeLoop(build.engine, None)
    for index, prompt in enumerate(prompts):
        loop.submit(request_for(build, prompt, draft_tokens, str(index)))
    waiting = {str(index) for index in range(len(prompts))}
    while waiting:
        waiting -= {chunk.request_id for chunk in loop.step() if chunk.token_ids}
    times, tokens = [], 0
    for _ in range(STEPS):
        started = time.process_time()
        chunks = loop.step()
        times.append(time.process_time() - started)
        tokens += sum(len(chunk.token_ids) for chunk in chunks)
    return Timing(step_seconds=statistics.median(times), tokens_a_step=tokens / STEPS / len(prompts))


def request_for(build: LoadedBuild, prompt: str, draft_tokens: int, request_id: str) -> GenerationRequest:
    """A request of `PROMPT_TOKENS` tokens that no token ends."""
    request = build.request(prompt, max_tokens=MAX_TOKENS, request_id=request_id)
    return replace(request, prompt_ids=request.prompt_ids[:PROMPT_TOKENS], draft_tokens=draft_tokens, end_ids=())


def summarise(name: tuple[int, int], turns: list[dict[tuple[int, int], Timing]]) -> dict[str, object]:
    """Medians over turns, and over the plain step of one request within a turn."""
    draft_tokens, count = name
    return {
        "draft_tokens": draft_tokens,
        "concurrency": count,
        "cpu_ms": round(1e3 * statistics.median(turn[name].step_seconds for turn in turns), 3),
        "ratio": round(statistics.median(turn[name].step_seconds / turn[0, 1].step_seconds for turn in turns), 4),
        "tokens_a_step": round(statistics.mean(turn[name].tokens_a_step for turn in turns), 3),
    }


if __name__ == "__main__":
    sys.exit(run_script(main))
