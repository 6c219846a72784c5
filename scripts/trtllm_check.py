"""Compares a build for TensorRT-LLM with and without drafts, on the GPU it is made for."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROMPTS = (
    "Write a function that returns the n-th Fibonacci number, with a short explanation.",
    "Explain to a child why the sky is blue.",
    "List the planets of the solar system with one fact each.",
    "Question: A train leaves at 9:40 and arrives at 13:05. How long does it travel? Answer:",
    "Translate to French: The weather was fine, so we walked along the river.",
    "def quicksort(values):",
    "The three branches of government are",
    "Summarise the plot of Hamlet in five sentences.",
)
SPECULATION, SETTINGS = "speculative_config", "config-{release}.yaml"


def run_mode(build_path: Path, *, drafts: bool, num_prompts: int, max_tokens: int, concurrency: int) -> dict[str, Any]:
    """Greedy answers with or without drafts, and how long they took.

    Args:
        build_path: The build.
        drafts: Whether its head drafts.
        num_prompts: Prompts to answer.
        max_tokens: Tokens of each answer.
        concurrency: Answers at once.
    """
    from peagle_trt.trtllm.plugin import install
    from peagle_trt.trtllm.releases.support import require_release

    arguments = read_arguments(build_path, require_release(), drafts=drafts)
    install()
    from tensorrt_llm import LLM, SamplingParams

    prompts = [PROMPTS[index % len(PROMPTS)] for index in range(num_prompts)]
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    started_at = time.perf_counter()
    llm = LLM(**arguments)
    loaded_at = time.perf_counter()
    try:
        # The first answers pay for kernels that are compiled and chosen late.
        llm.generate_async(prompts[0], sampling).result()
        begun_at = time.perf_counter()
        results = [
            result
            for first in range(0, len(prompts), concurrency)
            for result in wait_for(llm, prompts[first : first + concurrency], sampling)
        ]
        seconds = time.perf_counter() - begun_at
    finally:
        llm.shutdown()
    tokens = [list(result.outputs[0].token_ids) for result in results]
    return {
        "drafts": drafts,
        "tokens": tokens,
        "tokens_per_second": sum(map(len, tokens)) / seconds,
        "acceptance_length": mean([getattr(result, "avg_decoded_tokens_per_iter", None) for result in results]),
        "load_seconds": loaded_at - started_at,
    }


def wait_for(llm: Any, prompts: Sequence[str], sampling: Any) -> list[Any]:
    """Answers of prompts that are asked at once."""
    running = [llm.generate_async(prompt, sampling) for prompt in prompts]
    return [each.result() for each in running]


def read_arguments(build_path: Path, release: str, *, drafts: bool) -> dict[str, Any]:
    """Arguments of `LLM` from the build's settings for a release, paths made whole.

    Raises:
        PlanError: The folder is no such build, or its settings are damaged.
    """
    import msgspec

    from peagle_trt.errors import PlanError

    path = build_path / SETTINGS.format(release=release)
    try:
        arguments = msgspec.yaml.decode(path.read_bytes(), type=dict[str, Any])
        speculation = msgspec.convert(arguments.pop(SPECULATION, None), dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        hint = "give the folder that `peagle-trt build --backend trtllm` wrote"
        raise PlanError(f"cannot read `{path}`: {error}", hint=hint) from error
    if drafts:
        paths = {key: str(build_path / value) for key, value in speculation.items() if "speculative_model" in key}
        arguments[SPECULATION] = speculation | paths
    return {"model": str(build_path / "target"), "backend": "pytorch", **arguments}


def compare(plain: dict[str, Any], drafted: dict[str, Any]) -> dict[str, Any]:
    """What the two runs say together.

    A first difference may be a tie: verification reads K+1 rows at once, whose sums are rounded in another order than
    those of single rows. So what counts is how many answers are the same, and how long the others stay the same.
    """
    pairs = list(zip(plain["tokens"], drafted["tokens"], strict=True))
    same = [first_difference(*pair) for pair in pairs]
    return {
        "num_answers": len(pairs),
        "num_equal": sum(place is None for place in same),
        "first_differences": [place for place in same if place is not None],
        "acceptance_length": drafted["acceptance_length"],
        "tokens_per_second": {"plain": plain["tokens_per_second"], "drafted": drafted["tokens_per_second"]},
        "speedup": drafted["tokens_per_second"] / plain["tokens_per_second"],
        "load_seconds": {"plain": plain["load_seconds"], "drafted": drafted["load_seconds"]},
    }


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Place of the first token that differs; None where there is none."""
    if list(left) == list(right):
        return None
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(left), len(right)))


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of what is there."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def run_apart(arguments: argparse.Namespace, *, drafts: bool) -> dict[str, Any]:
    """One mode in a process of its own, which gives all of the GPU's memory back."""
    mode = "drafted" if drafts else "plain"
    print(f"{mode} ...", file=sys.stderr)
    command = [sys.executable, __file__, *sys.argv[1:], "--mode", mode]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if finished.returncode:
        sys.exit(finished.returncode)
    document: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return document


def whole_number(text: str) -> int:
    """A number from 1 on: none of these would measure anything at 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not in the range x>=1")
    return number


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--num-prompts", type=whole_number, default=32)
    parser.add_argument("--max-tokens", type=whole_number, default=256)
    parser.add_argument("--concurrency", type=whole_number, default=1)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--mode", choices=("plain", "drafted"), help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main() -> int:
    """Run both modes and compare."""
    arguments = parse()
    if importlib.util.find_spec("msgspec") is None:
        print(f"error: {sys.executable} has no `msgspec`\nhint: pip install peagle-trt", file=sys.stderr)
        return 3
    from peagle_trt.errors import PeagleError

    options = {name: getattr(arguments, name) for name in ("num_prompts", "max_tokens", "concurrency")}
    try:
        if arguments.mode:
            print(json.dumps(run_mode(arguments.build.resolve(), drafts=arguments.mode == "drafted", **options)))
            return 0
        document = compare(run_apart(arguments, drafts=False), run_apart(arguments, drafts=True))
    except PeagleError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    text = json.dumps(document | options, indent=2)
    if arguments.output:
        arguments.output.write_text(text + "\n")
    print(text)
    return 0 if document["num_equal"] == document["num_answers"] else 1


if __name__ == "__main__":
    sys.exit(main())
