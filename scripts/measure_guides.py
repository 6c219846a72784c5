"""How many drafts a grammar costs, and what its masks cost: guided answers with masked and with unmasked drafts.

    python scripts/measure_guides.py BUILD [--num-prompts N] [--max-tokens N] [-k K]

The same questions are answered four times: freely; following a schema without drafts; following it with drafts masked
slot by slot, as the decode loop does; and following it with the drafts that the head proposes by itself. The target's
rows are masked in all three. One JSON document on stdout; counts and shares depend on nothing but the build, times are
CPU time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.cli.script import positive, run_script
from peagle_trt.decode import drafting
from peagle_trt.decode.acceptance import Drafts
from peagle_trt.decode.guidance import GuideCompiler, GuideSettings, TokenGuide
from peagle_trt.decode.session import Generation, LoadedBuild, generate, open_build
from peagle_trt.engine.protocol import DraftOutput

SCHEMA = {
    "type": "object",
    "properties": {
        "steps": {"type": "array", "items": {"type": "string", "maxLength": 60}, "minItems": 1, "maxItems": 3},
        "answer": {"type": "integer", "minimum": 0, "maximum": 99_999},
        "unit": {"enum": ["dollars", "apples", "hours", "other"]},
    },
    "required": ["steps", "answer", "unit"],
    "additionalProperties": False,
}
NUM_MASKS = 300


def main() -> None:
    """Parse the command line, measure, print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--num-prompts", type=positive, default=16)
    parser.add_argument("--max-tokens", type=positive, default=160)
    parser.add_argument("-k", "--draft-tokens", type=positive, default=5)
    options = parser.parse_args()
    build = open_build(options.build, num_threads=1)
    guides = GuideCompiler(build.tokenizer, build.manifest.target.vocab_size, build.manifest.target.eos_token_ids)
    started = time.process_time()
    guide = guides.compile(GuideSettings(kind="json_schema", text=json.dumps(SCHEMA)), field="SCHEMA")
    seconds = time.process_time() - started
    count = options.draft_tokens
    free = answers(build, options, count, None)
    plain = answers(build, options, 0, guide)
    masked = answers(build, options, count, guide)
    with drafts_of_the_head_alone():
        unmasked = answers(build, options, count, guide)
    document = {
        "target": build.manifest.name,
        "draft_tokens": count,
        "num_prompts": options.num_prompts,
        "free": acceptance(free, count),
        "guided, masked drafts": acceptance(masked, count),
        "guided, unmasked drafts": acceptance(unmasked, count),
        "drafts_change_nothing": [a.token_ids for a in plain] == [a.token_ids for a in masked],
        "whole_json": sum(is_json(answer.text) for answer in masked),
        "first_compilation_ms": round(1e3 * seconds, 1),
        "mask_us": mask_microseconds(guide, masked),
    }
    print(json.dumps(document, indent=1))


def answers(
    build: LoadedBuild, options: argparse.Namespace, draft_tokens: int, guide: TokenGuide | None
) -> list[Generation]:
    """One answer at a time, so that nothing but the request decides its drafts."""
    found = []
    for prompt in read_prompts("gsm8k", options.num_prompts).prompts:
        turn = f"{prompt}\nAnswer as JSON with the keys steps, answer and unit."
        ask = build.chat_request if build.tokenizer.has_chat_template else build.request
        request = replace(ask(turn, max_tokens=options.max_tokens), draft_tokens=draft_tokens, guide=guide)
        found += generate(build, [request])
    return found


@contextmanager
def drafts_of_the_head_alone() -> Iterator[None]:
    """Drafts as they would be without a word from the grammar."""

    def propose(guide: object, output: DraftOutput, index: int, _: object, *, max_drafts: int, **rest: Any) -> Drafts:
        del guide, rest
        return Drafts(token_ids=tuple(output.token_ids[index, :max_drafts].tolist()))

    with mock.patch.object(drafting, "guided_drafts", propose):
        yield


def acceptance(found: list[Generation], draft_tokens: int) -> dict[str, object]:
    """Acceptance length, and of the drafts at each position that were judged the share that stood."""
    steps = sum(answer.metrics.num_verify_steps for answer in found)
    kept = np.sum([answer.metrics.accepted_by_position for answer in found], axis=0)
    judged = [steps, *kept[: draft_tokens - 1]]
    return {
        "acceptance_length": round(1 + float(kept.sum()) / steps, 3),
        "accepted_of_judged": [round(float(k / max(1, j)), 3) for k, j in zip(kept, judged, strict=True)],
        "tokens": sum(answer.metrics.num_output_tokens for answer in found),
        "verify_steps": steps,
    }


def is_json(text: str) -> bool:
    """Whether an answer was whole when it ended."""
    try:
        return set(json.loads(text)) == set(SCHEMA["required"])
    except ValueError:
        return False


def mask_microseconds(guide: TokenGuide, found: list[Generation]) -> float:
    """CPU time of a mask and the step over its token, in the middle of three turns over the same answers."""
    turns = []
    for _ in range(3):
        count, started = 0, time.process_time()
        for answer in found:
            walk = guide.start()
            for token_id in answer.token_ids[:NUM_MASKS]:
                walk.allowed()
                walk.take(token_id)
                count += 1
        turns.append((time.process_time() - started) / max(1, count))
    return round(1e6 * sorted(turns)[1], 1)


if __name__ == "__main__":
    sys.exit(run_script(main))
