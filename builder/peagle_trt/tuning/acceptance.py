"""What the head's drafts are worth: acceptance by position on some prompts, and what a step costs beside its passes."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationRequest, RequestMetrics
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
        output_tokens: Tokens of an answer, on average.
        prompt_seconds: What the target takes to read a prompt, on average.
        drafter_prompt_seconds: What the drafter takes to read it too, where there are drafts.
    """

    acceptance: AcceptanceCurve
    num_steps: int
    context_tokens: int
    loop_seconds: float
    output_tokens: float
    prompt_seconds: float
    drafter_prompt_seconds: float


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
    loaded.engine.preload()
    ask = loaded.chat_request if is_chat else loaded.request
    requests = [replace(ask(prompt, max_tokens=max_tokens), draft_tokens=draft_tokens) for prompt in prompts]
    # The first answer meets memory that was never touched; it is given twice, and counted once.
    samples = [_sample(loaded, request, clock) for request in (requests[0], *requests)][1:]
    num_steps = sum(sample.metrics.num_verify_steps for sample in samples)
    if not num_steps:
        raise PeagleError("no draft was verified", hint="give more prompts, or longer answers")
    accepted = [sum(counts) for counts in zip(*(each.metrics.accepted_by_position for each in samples), strict=True)]
    shares = itertools.accumulate((count / num_steps for count in accepted), min)
    loop_seconds = sum(each.loop_seconds for each in samples) / sum(each.num_loop_steps for each in samples)
    lengths = [each.metrics.num_prompt_tokens + each.metrics.num_output_tokens // 2 for each in samples]
    return Traffic(
        acceptance=curve_from_shares(tuple(shares), source=source),
        num_steps=num_steps,
        context_tokens=int(statistics.median(lengths)),
        loop_seconds=max(0.0, loop_seconds),
        output_tokens=statistics.fmean(each.metrics.num_output_tokens for each in samples),
        prompt_seconds=statistics.fmean(each.prompt_seconds for each in samples),
        drafter_prompt_seconds=max(0.0, statistics.fmean(each.first_drafts_seconds for each in samples)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """One answer, taken apart.

    Attributes:
        metrics: Its metrics.
        loop_seconds: Time outside passes.
        num_loop_steps: Steps it took, its prompt's included.
        prompt_seconds: Time until the first token of the same prompt without drafts.
        first_drafts_seconds: What drafts add to that: the drafter's reading of the prompt, and its first drafts.
    """

    metrics: RequestMetrics
    loop_seconds: float
    num_loop_steps: int
    prompt_seconds: float
    first_drafts_seconds: float


def _sample(loaded: LoadedBuild, request: GenerationRequest, clock: Clock) -> _Sample:
    plain = _run(loaded, replace(request, draft_tokens=0, max_tokens=1), clock)
    full = _run(loaded, request, clock)
    return _Sample(
        metrics=full.metrics,
        loop_seconds=full.seconds - full.pass_seconds,
        num_loop_steps=full.num_steps,
        prompt_seconds=plain.first_seconds,
        first_drafts_seconds=full.first_seconds - plain.first_seconds,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timing:
    metrics: RequestMetrics
    first_seconds: float
    seconds: float
    pass_seconds: float
    num_steps: int


def _run(loaded: LoadedBuild, request: GenerationRequest, clock: Clock) -> _Timing:
    engine = TimedEngine(loaded.engine, clock)
    loop = DecodeLoop(engine, None)
    started, first = clock(), None
    loop.submit(request)
    metrics = None
    while loop.has_work:
        for chunk in loop.step():
            if chunk.finish_reason == "error":
                raise PeagleError(f"a decode step failed: {chunk.error}")
            first = first if first is not None else clock()
            metrics = chunk.metrics
    ended = clock()
    assert metrics is not None and first is not None, "an answer has a last chunk"
    return _Timing(
        metrics=metrics,
        first_seconds=first - started,
        seconds=ended - started,
        pass_seconds=engine.pass_seconds,
        num_steps=loop.statistics.num_steps,
    )
