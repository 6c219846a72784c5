"""What the head's drafts are worth: acceptance by position on some prompts, and what a step costs beside its passes."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.session import LoadedBuild
from peagle_trt.errors import PeagleError
from peagle_trt.roofline import AcceptanceCurve, curve_from_shares
from peagle_trt.tuning.stopwatch import Clock, TimedEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What requests of a kind are like.

    Attributes:
        acceptance: Shares by position.
        num_steps: Verify steps that they come from.
        context_tokens: Tokens present in the middle of an answer; median over requests.
        loop_seconds: What a step takes beside its passes, for each request in it.
    """

    acceptance: AcceptanceCurve
    num_steps: int
    context_tokens: int
    loop_seconds: float


def sample_traffic(
    loaded: LoadedBuild,
    prompts: Sequence[str],
    *,
    draft_tokens: int,
    max_tokens: int,
    is_chat: bool,
    source: str,
    clock: Clock,
) -> Traffic:
    """Answer prompts one after the other with the largest K: its shares hold those of every smaller one.

    Args:
        loaded: The build.
        prompts: User turns.
        draft_tokens: Largest K of interest.
        max_tokens: Longest answer.
        is_chat: Put prompts into the chat template.
        source: What the acceptance is called.
        clock: Of the passes.

    Raises:
        PeagleError: A step failed, or no draft was verified.
    """
    engine = TimedEngine(loaded.engine, clock)
    accepted, num_steps, contexts = [0] * draft_tokens, 0, []
    num_loop_steps, started = 0, clock()
    for prompt in prompts:
        loop = DecodeLoop(engine, None)
        ask = loaded.chat_request if is_chat else loaded.request
        loop.submit(replace(ask(prompt, max_tokens=max_tokens), draft_tokens=draft_tokens))
        while loop.has_work:
            for chunk in loop.step():
                if chunk.finish_reason == "error":
                    raise PeagleError(f"a decode step failed: {chunk.error}")
                if chunk.metrics is not None:
                    metrics = chunk.metrics
                    num_steps += metrics.num_verify_steps
                    accepted = [sum(pair) for pair in zip(accepted, metrics.accepted_by_position, strict=True)]
                    contexts.append(metrics.num_prompt_tokens + metrics.num_output_tokens // 2)
        num_loop_steps += loop.statistics.num_steps
    if not num_steps:
        raise PeagleError("no draft was verified", hint="give more prompts, or longer answers")
    outside = clock() - started - engine.pass_seconds
    shares = itertools.accumulate((count / num_steps for count in accepted), min)
    return Traffic(
        acceptance=curve_from_shares(tuple(shares), source=source),
        num_steps=num_steps,
        context_tokens=int(statistics.median(contexts)),
        loop_seconds=max(0.0, outside / num_loop_steps),
    )
