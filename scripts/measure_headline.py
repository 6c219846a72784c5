"""The three figures that speculation is judged by: P-EAGLE over plain decoding at one client and at several, and over
EAGLE-3, each at its best K.

Plain decoding and every K of both heads take turns on the same prompts, round by round; `auto` among the K lets the
decode loop choose, step by step. The best K is chosen by what was measured, which favours the luckiest of many: so
every draw of the bootstrap behind an interval chooses it anew.
An interrupted call goes on where it stopped; on a machine that others use only the figures in CPU time mean anything.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from peagle_trt.bench.baseline import open_baseline
from peagle_trt.bench.cells import Cell, Method
from peagle_trt.bench.clients import InProcessClient, Sampling
from peagle_trt.bench.measure import Result, Schedule
from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.bench.run_folder import open_run_folder
from peagle_trt.bench.spread import BOOTSTRAP_SEED, MIN_PAIRS, NUM_RESAMPLES
from peagle_trt.build_folder import MANIFEST_NAME
from peagle_trt.cli.bench_options import Measuring
from peagle_trt.cli.bench_run import measure_into
from peagle_trt.cli.bench_text import write_table
from peagle_trt.cli.script import positive, positives, run_script
from peagle_trt.decode.session import open_build
from peagle_trt.files import sha256_of, write_text

PLAIN, OURS, OTHERS = "none", "p-eagle", "eagle3"
AUTO = 0
"""Stands in a list of K for the decode loop's own choice."""
CLOCKS: dict[str, Callable[[Cell], float]] = {
    "seconds": lambda cell: cell.seconds,
    "cpu_seconds": lambda cell: cell.cpu_seconds or 0.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One figure.

    Attributes:
        ours: Method that is judged.
        over: What it is judged by.
        concurrency: Requests in flight.
        draft_tokens: Its best K; the largest where the loop chose.
        over_draft_tokens: The other's best K; 0 for plain decoding.
        is_adaptive: The best is what the loop chose, step by step.
        is_over_adaptive: The same of the other.
        ratio: Tokens a second over the other's.
        interval: 95 % of it, or None of fewer than five rounds.
        ratio_cpu: The same in CPU time, at the K that are best in it.
        interval_cpu: 95 % of it.
        num_rounds: Rounds.
        num_equal: Answers of all K that are plain decoding's, token for token.
        num_answers: Answers.
    """

    ours: str
    over: str
    concurrency: int
    draft_tokens: int
    over_draft_tokens: int
    is_adaptive: bool
    is_over_adaptive: bool
    ratio: float
    interval: tuple[float, float] | None
    ratio_cpu: float
    interval_cpu: tuple[float, float] | None
    num_rounds: int
    num_equal: int
    num_answers: int


def main() -> None:
    """Measure what is left, then write `headline.json` and print the tables."""
    arguments = _arguments()
    documents, bars = measure(arguments)
    document = {"bars": [asdict(bar) for bar in bars], "runs": documents}
    text = json.dumps(document, indent=1, default=_plain)
    write_text(arguments.output / "headline.json", text + "\n")
    print(headline_table(bars))


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, object]], list[Bar]]:
    """Documents of the runs, and the bars.

    Raises:
        PeagleError: A build cannot be opened or compared, or the folder holds another run.
    """
    loaded = open_build(arguments.build, num_threads=arguments.threads)
    loaded.engine.preload()
    other = None
    if arguments.baseline_build is not None:
        other = open_baseline(arguments.baseline_build, OTHERS, loaded, num_threads=arguments.threads)
        other.engine.preload()
    client = InProcessClient(
        loaded,
        is_chat=loaded.tokenizer.has_chat_template,
        ends=True,
        baseline=other,
        prompt_lookup=arguments.prompt_lookup,
    )
    prompt_set = read_prompts(arguments.prompts, arguments.num_prompts)
    client.require_fit(prompt_set, arguments.max_tokens)
    names = (OURS,) if other is None else (OURS, OTHERS)
    documents, bars = [], []
    for concurrency in arguments.concurrency:
        schedule = Schedule(
            prompt_sets=(prompt_set,),
            methods=methods_of(names, arguments.draft_tokens, concurrency, client.max_adaptive_drafts),
            max_tokens=arguments.max_tokens,
            repeats=arguments.repeats,
            # A batch thins out towards a round's end; two prompts for each in flight keep it full for longer.
            round_prompts=concurrency if concurrency == 1 else 2 * concurrency,
        )
        path = arguments.output / f"{concurrency}-in-flight"
        document, results, cells = _measure(client, schedule, path, arguments)
        documents.append(document)
        bars += [bar(cells, OURS, PLAIN, concurrency)]
        bars += [bar(cells, OURS, OTHERS, concurrency)] if other is not None else []
        _say(write_table(results))
    return documents, bars


def methods_of(
    names: Sequence[str], draft_tokens: Sequence[int], concurrency: int, max_adaptive_drafts: int
) -> tuple[Method, ...]:
    """Plain decoding, and every K of every head.

    Args:
        names: Heads.
        draft_tokens: K; `AUTO` for the loop's own choice.
        concurrency: Requests in flight.
        max_adaptive_drafts: Largest K that the loop may choose.
    """
    plain = Method(name=PLAIN, draft_tokens=0, concurrency=concurrency)
    return (
        plain,
        *(
            Method(
                name=name,
                draft_tokens=max_adaptive_drafts if count == AUTO else count,
                concurrency=concurrency,
                is_adaptive=count == AUTO,
            )
            for name in names
            for count in draft_tokens
        ),
    )


def bar(cells: Sequence[Cell], ours: str, over: str, concurrency: int) -> Bar:
    """One figure from the cells of a run.

    Args:
        cells: Of whole rounds, all of one number in flight.
        ours: Method that is judged.
        over: What it is judged by.
        concurrency: Requests in flight.
    """
    rounds = _by_round(cells)
    found = {clock: _ratio(rounds, ours, over, seconds) for clock, seconds in CLOCKS.items()}
    ratio, best, best_over = found["seconds"]
    equal = [
        answer.digest == plain.digest
        for cells_of in rounds
        for method, cell in cells_of.items()
        if method.name in (ours, over) and method.name != PLAIN
        for answer, plain in zip(cell.answers, _plain_cell(cells_of).answers, strict=True)
    ]
    return Bar(
        ours=ours,
        over=over,
        concurrency=concurrency,
        draft_tokens=best.draft_tokens,
        over_draft_tokens=best_over.draft_tokens,
        is_adaptive=best.is_adaptive,
        is_over_adaptive=best_over.is_adaptive,
        ratio=ratio,
        interval=_interval(rounds, ours, over, CLOCKS["seconds"]),
        ratio_cpu=found["cpu_seconds"][0],
        interval_cpu=_interval(rounds, ours, over, CLOCKS["cpu_seconds"]),
        num_rounds=len(rounds),
        num_equal=sum(equal),
        num_answers=len(equal),
    )


def headline_table(bars: Sequence[Bar]) -> str:
    """The bars as a table of Markdown."""
    lines = [
        "| in flight | over | K | its K | speed-up, by the clock [95 %] | in CPU time [95 %] | rounds | same answers |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.concurrency} | {'plain decoding' if each.over == PLAIN else each.over} | "
        f"{_choice(each.draft_tokens, each.is_adaptive)} | {_choice(each.over_draft_tokens, each.is_over_adaptive)} | "
        f"{_spread(each.ratio, each.interval)} | "
        f"{_spread(each.ratio_cpu, each.interval_cpu)} | {each.num_rounds} | {each.num_equal} of {each.num_answers} |"
        for each in bars
    ]
    return "\n".join(lines)


def _choice(draft_tokens: int, is_adaptive: bool) -> str:
    if is_adaptive:
        return f"auto, 0..{draft_tokens}"
    return str(draft_tokens or "-")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path, help="a build with a P-EAGLE head")
    parser.add_argument("--baseline-build", type=Path, help="a build of the same target with an EAGLE-3 head")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the runs; the same call goes on")
    parser.add_argument("--prompts", default="humaneval")
    parser.add_argument("--num-prompts", type=positive, default=48)
    parser.add_argument("--max-tokens", type=positive, default=128)
    parser.add_argument("--concurrency", type=positives, default=(1, 8), help="requests in flight, a list")
    parser.add_argument(
        "-k", "--draft-tokens", type=_draft_tokens, default=tuple(range(1, 8)), help="K or auto, a list"
    )
    parser.add_argument("--repeats", type=positive, default=2)
    parser.add_argument("--threads", type=positive, help="by default every core")
    parser.add_argument(
        "--prompt-lookup", action="store_true", help="let copies from the text take the place of drafts, for both heads"
    )
    return parser.parse_args()


def _draft_tokens(text: str) -> tuple[int, ...]:
    try:
        parts = [AUTO if part == "auto" else positive(part) for part in text.split(",")]
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, nor `auto`") from error
    return tuple(dict.fromkeys(parts))


def _measure(
    client: InProcessClient, schedule: Schedule, path: Path, arguments: argparse.Namespace
) -> tuple[dict[str, object], list[Result], list[Cell]]:
    measuring = Measuring(
        categories=(),
        repeats=schedule.repeats,
        round_prompts=schedule.round_prompts,
        warm_up=schedule.warm_up,
        sampling=Sampling(),
        prompt_lookup=arguments.prompt_lookup,
        run_path=path,
        api_key=None,
        timeout_seconds=None,
    )
    settings = {
        "build": arguments.build,
        "manifest_sha256": sha256_of(arguments.build / MANIFEST_NAME),
        "baseline_build": arguments.baseline_build,
        "baseline_manifest_sha256": sha256_of(arguments.baseline_build / MANIFEST_NAME)
        if arguments.baseline_build
        else None,
        "prompts": arguments.prompts,
        "num_prompts": len(schedule.prompt_sets[0].prompts),
        "max_tokens": arguments.max_tokens,
        "threads": arguments.threads,
    }
    document, results = measure_into(client, schedule, measuring, settings, baseline=PLAIN, method=OURS, report=_say)
    identity = json.loads((path / "settings.json").read_text())
    with open_run_folder(path, identity, cells_a_round=len(schedule.methods)) as run:
        return document, results, list(run.cells)


def _by_round(cells: Sequence[Cell]) -> list[dict[Method, Cell]]:
    rounds: dict[int, dict[Method, Cell]] = {}
    for cell in cells:
        rounds.setdefault(cell.round, {})[cell.method] = cell
    return list(rounds.values())


def _plain_cell(cells: dict[Method, Cell]) -> Cell:
    return next(cell for method, cell in cells.items() if method.name == PLAIN)


def _ratio(
    rounds: Sequence[dict[Method, Cell]], ours: str, over: str, seconds: Callable[[Cell], float]
) -> tuple[float, Method, Method]:
    """Tokens a second of the best K of one over the best K of the other, and both."""
    rates = {
        method: sum(each[method].num_tokens for each in rounds) / sum(seconds(each[method]) for each in rounds)
        for method in rounds[0]
    }
    best, other = (
        max((method for method in rates if method.name == name), key=lambda method: rates[method])
        for name in (ours, over)
    )
    return rates[best] / rates[other], best, other


def _interval(
    rounds: Sequence[dict[Method, Cell]], ours: str, over: str, seconds: Callable[[Cell], float]
) -> tuple[float, float] | None:
    """95 % by the percentile bootstrap over rounds; every draw chooses its best K."""
    if len(rounds) < MIN_PAIRS:
        return None
    source = random.Random(BOOTSTRAP_SEED)
    ratios = sorted(_ratio(source.choices(rounds, k=len(rounds)), ours, over, seconds)[0] for _ in range(NUM_RESAMPLES))
    cut = round(0.025 * NUM_RESAMPLES)
    return ratios[cut], ratios[-cut - 1]


def _spread(ratio: float, interval: tuple[float, float] | None) -> str:
    return f"{ratio:.2f}" + (f" [{interval[0]:.2f}-{interval[1]:.2f}]" if interval else "")


def _plain(value: object) -> object:
    return str(value)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(run_script(main))
