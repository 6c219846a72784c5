"""What builds of one pair in several precisions cost on this CPU: the times of docs/integers.md.

    python scripts/compare_precisions.py BUILD [BUILD ...] [--prompts SET,...] [--num-prompts N] [--max-tokens N]

The first build is what others are compared with. Builds answer every prompt in turns, plainly and with drafts, on one
thread; time is the process's CPU time, so that a busy machine matters little. What they lose is told by
`peagle-trt bench BUILD --against REFERENCE`. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.cli.script import positive, run_script
from peagle_trt.decode.session import Generation, LoadedBuild, generate, open_build


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a build has done so far; times are milliseconds a token, one entry a prompt."""

    plain_ms: list[float] = field(default_factory=list)
    drafted_ms: list[float] = field(default_factory=list)
    num_steps: int = 0
    num_accepted: int = 0
    num_equal: int = 0
    num_as_first: int = 0


def main() -> None:
    """Parse the command line, measure in turns, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", type=Path, nargs="+")
    parser.add_argument("--prompts", default="humaneval,gsm8k,mt-bench")
    parser.add_argument("--num-prompts", type=positive, default=5)
    parser.add_argument("--max-tokens", type=positive, default=64)
    parser.add_argument("-k", "--draft-tokens", type=positive, default=5)
    options = parser.parse_args()
    builds = {path: open_build(path, num_threads=1) for path in options.builds}
    tallies = {path: Tally() for path in builds}
    prompts = [
        prompt for name in options.prompts.split(",") for prompt in read_prompts(name, options.num_prompts).prompts
    ]
    for build in builds.values():
        answer(build, prompts[0], options.draft_tokens, 8)
    for prompt in prompts:
        first: tuple[int, ...] | None = None
        for path, build in builds.items():
            found = compare(tallies[path], build, prompt, options)
            first = found if first is None else first
            tallies[path].num_as_first += found == first
    report(tallies)


def compare(tally: Tally, build: LoadedBuild, prompt: str, options: argparse.Namespace) -> tuple[int, ...]:
    """Answer one prompt plainly and with drafts; returns the plain answer."""
    plain, plain_ms = answer(build, prompt, 0, options.max_tokens)
    drafted, drafted_ms = answer(build, prompt, options.draft_tokens, options.max_tokens)
    tally.plain_ms.append(plain_ms)
    tally.drafted_ms.append(drafted_ms)
    tally.num_steps += drafted.metrics.num_verify_steps
    tally.num_accepted += drafted.metrics.num_accepted_tokens
    tally.num_equal += plain.token_ids == drafted.token_ids
    return plain.token_ids


def answer(build: LoadedBuild, prompt: str, draft_tokens: int, max_tokens: int) -> tuple[Generation, float]:
    """An answer and its CPU time in milliseconds a token, the prompt's included."""
    request = replace(build.chat_request(prompt, max_tokens=max_tokens), draft_tokens=draft_tokens)
    started = time.process_time()
    (found,) = generate(build, [request])
    return found, 1000 * (time.process_time() - started) / max(1, len(found.token_ids))


def report(tallies: dict[Path, Tally]) -> None:
    """Print the table."""
    print(
        "| build | MB | plain, ms a token | with drafts | speed-up | acceptance length | own answers equal "
        "| plain, times the first's | with drafts, times the first's plain | answers as the first's |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    base = next(iter(tallies.values()))
    for path, tally in tallies.items():
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e6
        count = len(tally.plain_ms)
        cells = (
            path.name,
            f"{size:.0f}",
            f"{statistics.median(tally.plain_ms):.1f}",
            f"{statistics.median(tally.drafted_ms):.1f}",
            f"{ratio(tally.plain_ms, tally.drafted_ms):.2f}",
            f"{1 + tally.num_accepted / max(1, tally.num_steps):.2f}",
            f"{tally.num_equal} of {count}",
            f"{ratio(base.plain_ms, tally.plain_ms):.2f}",
            f"{ratio(base.plain_ms, tally.drafted_ms):.2f}",
            f"{tally.num_as_first} of {count}",
        )
        print(f"| {' | '.join(cells)} |")


def ratio(slow: list[float], fast: list[float]) -> float:
    """Median over prompts of one time over another."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


if __name__ == "__main__":
    sys.exit(run_script(main))
