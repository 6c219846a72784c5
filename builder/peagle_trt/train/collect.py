"""Two long steps in front of training: let the target invent questions, and let it answer all of them."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt.errors import UsageError
from peagle_trt.train.corpus import Question
from peagle_trt.train.features import FeatureWriter, read_index, read_texts
from peagle_trt.train.generate import Answer, Prompt, answer_prompts, nucleus_chooser
from peagle_trt.train.prompting import ChatFormat, invented_question, invitations, make_prompts
from peagle_trt.train.states import Features

if TYPE_CHECKING:
    from peagle_trt.train.target import TorchTarget

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionPlan:
    """How answers are gathered.

    Attributes:
        features: Whether hidden states are stored with the answers.
        num_slots: Sequences a step, at most; long ones share the memory that this many of 600 tokens take.
        max_prompt_tokens: Longer prompts are left out.
        max_new_tokens: Limit of an answer.
        token_budget: Answer tokens after which this worker stops.
        worker: This process's number.
        num_workers: Processes that share the questions; on few cores, one process a core beats one with two threads.
    """

    features: Features = "cached"
    num_slots: int = 64
    max_prompt_tokens: int = 256
    max_new_tokens: int = 224
    token_budget: int = 1_000_000
    worker: int = 0
    num_workers: int = 1


def invent_questions(
    target: TorchTarget, chat: ChatFormat, *, count: int, num_slots: int, seed: int, openings: Sequence[str] = ("",)
) -> list[Question]:
    """Sample user turns from the target at temperature 1.0 and nucleus 0.95; those that make no sense are left out.

    Args:
        target: The model.
        chat: Its tokenizer and template.
        count: Turns to sample.
        num_slots: Sequences a step.
        seed: Of the sampling.
        openings: First words that turns begin with, in turn; see `invitations`.

    Returns:
        The questions that are long enough and ended.
    """
    choose = nucleus_chooser(target, temperature=1.0, top_p=0.95, seed=seed)
    prompts = invitations(chat, count, openings)
    answers = answer_prompts(target, prompts, choose=choose, num_slots=num_slots, capacity=256)
    questions = (invented_question(answer, chat) for answer in answers)
    return [question for question in questions if question is not None]


def collect_features(
    target: TorchTarget, chat: ChatFormat, questions: Sequence[Question], *, folder: Path, plan: CollectionPlan
) -> int:
    """Answer this worker's share of the questions greedily and store the answers; a second call continues.

    Args:
        target: The model.
        chat: Its tokenizer and template.
        questions: All questions, the same in every worker.
        folder: The feature store.
        plan: Sizes and limits.

    Returns:
        Answer tokens stored by this call.
    """
    done = {identifier for shard in read_index(folder) for identifier in shard.identifiers}
    prompts = make_prompts(
        questions, chat, max_prompt_tokens=plan.max_prompt_tokens, max_new_tokens=plan.max_new_tokens
    )
    share = itertools.islice(prompts, plan.worker, None, plan.num_workers)
    capacity, num_slots = _flight_sizes(target, plan)
    answers = answer_prompts(
        target,
        _pending(share, done),
        choose=target.greedy_tokens,
        num_slots=num_slots,
        capacity=capacity,
        keeps_states=plan.features == "cached",
    )
    return _store(answers, FeatureWriter(folder, prefix=f"worker{plan.worker}"), plan)


def lengthen_answers(target: TorchTarget, *, source: Path, folder: Path, plan: CollectionPlan) -> int:
    """Continue this worker's share of a store's answers that their limit cut; a second call continues.

    Long answers repeat themselves, and what predicts a repetition is learned only from answers that are long enough.

    Args:
        target: The model that gave the answers.
        source: The store that holds them, with hidden states or without.
        folder: The store for the whole answers, from their first token on, with the hidden states of all tokens.
        plan: `max_new_tokens` is the limit of a whole answer, the old part counted.

    Returns:
        Answer tokens stored by this call, those of the old parts counted.

    Raises:
        UsageError: Both stores are one.
    """
    if source.resolve() == folder.resolve():
        raise UsageError(
            f"`{folder}` holds the answers that are to become longer",
            hint="name another folder for the longer ones; both may be trained on",
        )
    cut = {answer.prompt.identifier: answer for answer in _cut_answers(source, target.config.eos_token_ids, plan)}
    done = {identifier for shard in read_index(folder) for identifier in shard.identifiers}
    share = itertools.islice(cut.values(), plan.worker, None, plan.num_workers)
    capacity, num_slots = _flight_sizes(target, plan)
    answers = answer_prompts(
        target,
        (cut_answer.continuation for cut_answer in share if cut_answer.prompt.identifier not in done),
        choose=target.greedy_tokens,
        num_slots=num_slots,
        capacity=capacity,
    )
    whole = (replace(answer, prompt=cut[answer.prompt.identifier].prompt) for answer in answers)
    return _store(whole, FeatureWriter(folder, prefix=f"worker{plan.worker}"), plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CutAnswer:
    """What was asked, and the prompt that lets the target go on where it was stopped."""

    prompt: Prompt
    continuation: Prompt


def _cut_answers(folder: Path, eos_token_ids: Sequence[int], plan: CollectionPlan) -> Iterator[_CutAnswer]:
    for shard in read_index(folder):
        for identifier, source, text in zip(shard.identifiers, shard.sources, read_texts(folder, shard), strict=True):
            token_ids = tuple(text.token_ids.tolist())
            num_left = plan.max_new_tokens - (len(token_ids) - text.prompt_length)
            if token_ids[-1] in eos_token_ids or num_left <= 0 or text.prompt_length > plan.max_prompt_tokens:
                continue
            continuation = Prompt(identifier=identifier, source=source, token_ids=token_ids, max_new_tokens=num_left)
            asked = replace(continuation, token_ids=token_ids[: text.prompt_length])
            yield _CutAnswer(prompt=asked, continuation=continuation)


def _flight_sizes(target: TorchTarget, plan: CollectionPlan) -> tuple[int, int]:
    """Tokens a slot, and slots."""
    # Room for both turns of a conversation: first prompt, half an answer, second turn, half an answer.
    capacity = min(plan.max_prompt_tokens + plan.max_new_tokens + 64, target.config.max_positions)
    return capacity, max(1, min(plan.num_slots, plan.num_slots * 600 // capacity))


def _store(answers: Iterator[Answer], writer: FeatureWriter, plan: CollectionPlan) -> int:
    """Write answers until they end or hold the plan's budget of tokens; answer tokens written."""
    num_tokens, started = 0, time.monotonic()
    for count, answer in enumerate(answers, start=1):
        writer.add(answer)
        num_tokens += len(answer.token_ids) - len(answer.prompt.token_ids)
        if count % 32 == 0:
            rate = num_tokens / (time.monotonic() - started)
            logger.info("worker %d: %d answers, %d tokens, %.0f tokens/s", plan.worker, count, num_tokens, rate)
        if num_tokens >= plan.token_budget:
            break
    writer.flush()
    return num_tokens


def write_questions(path: Path, questions: Sequence[Question]) -> None:
    """Store questions as JSON lines."""
    path.write_text("".join(json.dumps(asdict(question)) + "\n" for question in questions), encoding="utf-8")


def read_questions(path: Path) -> list[Question]:
    """Questions from JSON lines, as `write_questions` wrote them."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Question(**{**line, "turns": tuple(line["turns"])}) for line in lines]


def _pending(prompts: Iterator[Prompt], done: set[str]) -> Iterator[Prompt]:
    return (prompt for prompt in prompts if prompt.identifier not in done)
