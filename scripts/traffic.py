"""Requests as a busy server gets them, the same for the same seed: long, short, sampled, left, malformed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["greedy", "sampled", "left", "malformed"]

SHARE_LEFT = 0.20
SHARE_MALFORMED = 0.05
SHARE_SAMPLED = 0.35
MODELS = ("peagle", "peagle", "peagle", "tensorrt_llm_bls", "ensemble")
STOPPABLE_MODELS = ("peagle", "peagle", "tensorrt_llm_bls")
"""An ensemble goes on for a client that has left."""
MAX_TOKENS = (1, 2, 7, 16, 33, 64)
NUM_GREEDY = 48
"""Different greedy questions: each is also asked alone, which takes as long as the rest."""

MALFORMED: tuple[dict[str, object], ...] = (
    {"text_input": "", "max_tokens": 4},
    {"text_input": "a"},
    {"text_input": "a", "max_tokens": 0},
    {"text_input": "a", "max_tokens": 4, "temperature": -1.0},
    {"text_input": "a", "max_tokens": 4, "top_p": 2.0},
    {"text_input": "a", "max_tokens": 4, "beam_width": 4},
    {"text_input": "a", "max_tokens": 4, "temprature": 1.0},
    {"text_input": "a", "max_tokens": 4, "draft_tokens": 99},
    {"text_input": "word " * 4000, "max_tokens": 4},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request.

    Attributes:
        number: Its place.
        kind: What is to become of it.
        model: Model it goes to.
        payload: Its inputs.
        is_streaming: Answered piece by piece.
        num_pieces: Pieces after which the client leaves.
    """

    number: int
    kind: Kind
    model: str
    payload: dict[str, object]
    is_streaming: bool
    num_pieces: int = 0


def make_traffic(prompts: Sequence[str], count: int, seed: int) -> list[Ask]:
    """So many requests.

    Args:
        prompts: Texts to cut prompts from.
        count: Requests.
        seed: Of everything that is drawn.
    """
    draw = random.Random(seed)
    greedy = [_payload(draw, prompts) for _ in range(NUM_GREEDY)]
    return [_ask(draw, number, prompts, greedy) for number in range(count)]


def _ask(draw: random.Random, number: int, prompts: Sequence[str], greedy: list[dict[str, object]]) -> Ask:
    chance = draw.random()
    model = draw.choice(MODELS)
    if chance < SHARE_MALFORMED:
        return Ask(number=number, kind="malformed", model=model, payload=draw.choice(MALFORMED), is_streaming=False)
    if chance < SHARE_MALFORMED + SHARE_LEFT:
        payload = _payload(draw, prompts) | {"max_tokens": 400, "end_id": -1}
        return Ask(
            number=number,
            kind="left",
            model=draw.choice(STOPPABLE_MODELS),
            payload=payload,
            is_streaming=True,
            num_pieces=draw.randint(1, 6),
        )
    is_streaming = draw.random() < 0.5
    if chance < SHARE_MALFORMED + SHARE_LEFT + SHARE_SAMPLED:
        payload = _payload(draw, prompts) | {
            "temperature": round(draw.uniform(0.3, 1.3), 2),
            "top_k": draw.choice((0, 5, 40)),
            "top_p": draw.choice((1.0, 0.9)),
            "seed": draw.randrange(2**31),
        }
        return Ask(number=number, kind="sampled", model=model, payload=payload, is_streaming=is_streaming)
    return Ask(number=number, kind="greedy", model=model, payload=draw.choice(greedy), is_streaming=is_streaming)


def _payload(draw: random.Random, prompts: Sequence[str]) -> dict[str, object]:
    text = draw.choice(prompts)
    return {"text_input": text[: draw.randint(8, len(text))], "max_tokens": draw.choice(MAX_TOKENS)}
