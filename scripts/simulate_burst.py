"""What a burst of requests to an idle engine takes, on a simulated machine, under three ways to read its prompts.

    scripts/simulate_burst [--requests 8] [--prompt-tokens 120] [--answer-tokens 64] [-k 3] [--pass-ms 18.6]
                           [--row-ms 1] [--drafter-ms 2] [--bursts 2]

The decode loop itself runs, over the tests' engine of known distributions, whose clock a pass moves by a fixed time and
some for each row. A burst begins when the one before has been answered, and then the loop knows what passes cost. Ways
differ in when answers that came together hold up each other's prompts: never; once they have eight tokens, which is how
the loop does it; from their first token on.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from dataclasses import dataclass
from unittest import mock

import numpy as np

from peagle_trt.cli.script import positive, positives, run_script
from peagle_trt.decode import sequence
from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationRequest
from tests.support.markov_engine import VOCABULARY
from tests.support.timed_engine import TimedEngine

WAYS = {"prompts first": math.inf, "as it is": sequence.YOUNG_TOKENS, "beside answers": 0}
"""Tokens of an answer during which it holds up no prompt that came with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """What one burst took.

    Attributes:
        total_ms: Until every answer has ended.
        first_token_ms: Median time to a first token.
        num_reading_steps: Steps until every answer has begun.
    """

    total_ms: float
    first_token_ms: float
    num_reading_steps: int


def main() -> None:
    """Simulate every way, without drafts and with every K, and print a table."""
    options = parse_options()
    print("| K | burst | way | all answered, ms | over the last way | first token, median ms | steps until all began |")
    print("|---|---|---|---|---|---|---|")
    for draft_tokens in (0, *options.draft_tokens):
        found = {way: simulate(options, draft_tokens, limit) for way, limit in WAYS.items()}
        for number in range(options.bursts):
            last = found["beside answers"][number].total_ms
            for way, bursts in found.items():
                burst = bursts[number]
                print(
                    f"| {draft_tokens} | {number + 1} | {way} | {burst.total_ms:.0f} | {burst.total_ms / last:.2f} "
                    f"| {burst.first_token_ms:.0f} | {burst.num_reading_steps} |"
                )


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=positive, default=8, help="of a burst")
    parser.add_argument("--prompt-tokens", type=positive, default=120)
    parser.add_argument("--answer-tokens", type=positive, default=64)
    parser.add_argument("-k", "--draft-tokens", type=positives, default=(3,), help="K, a list, beside plain decoding")
    parser.add_argument("--pass-ms", type=_milliseconds, default=18.6, help="of a target pass, whatever it reads")
    parser.add_argument("--row-ms", type=_milliseconds, default=1.0, help="of each of its rows")
    parser.add_argument("--drafter-ms", type=_milliseconds, default=2.0, help="of a drafter pass")
    parser.add_argument("--bursts", type=positive, default=2)
    return parser.parse_args()


def simulate(options: argparse.Namespace, draft_tokens: int, young_tokens: float) -> list[Burst]:
    """Bursts, one after another, of one loop.

    Args:
        options: Of the command line.
        draft_tokens: K; 0 decodes without speculation.
        young_tokens: Tokens of an answer during which it holds up no prompt that came with it.
    """
    length = options.prompt_tokens + options.answer_tokens
    engine = TimedEngine(max_sequence_length=length + 1, max_batch_size=options.requests)
    engine.pass_seconds, engine.row_seconds = options.pass_ms / 1e3, options.row_ms / 1e3
    engine.drafter_seconds = options.drafter_ms / 1e3
    loop = DecodeLoop(engine, None, clock=engine.clock)
    source = np.random.default_rng(0)
    bursts = []
    with mock.patch.object(sequence, "YOUNG_TOKENS", young_tokens):
        for number in range(options.bursts):
            for index in range(options.requests):
                prompt = source.integers(0, VOCABULARY, options.prompt_tokens).tolist()
                loop.submit(
                    GenerationRequest(
                        request_id=f"{number}-{index}",
                        prompt_ids=tuple(prompt),
                        max_tokens=options.answer_tokens,
                        draft_tokens=draft_tokens,
                    )
                )
            bursts.append(_answer(loop, engine))
    return bursts


def _answer(loop: DecodeLoop, engine: TimedEngine) -> Burst:
    started, firsts, num_steps, num_reading_steps = engine.now, dict[str, float](), 0, 0
    while loop.has_work:
        chunks = loop.step()
        num_steps += 1
        for chunk in chunks:
            if chunk.request_id not in firsts:
                firsts[chunk.request_id] = engine.now - started
                num_reading_steps = num_steps
    return Burst(
        total_ms=1e3 * (engine.now - started),
        first_token_ms=1e3 * statistics.median(firsts.values()),
        num_reading_steps=num_reading_steps,
    )


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"`{text}` is no time of 0 or more")
    return value


if __name__ == "__main__":
    sys.exit(run_script(main))
