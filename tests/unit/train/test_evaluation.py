from __future__ import annotations

import numpy as np
import pytest
import torch

from peagle_trt import catalog
from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.prompt_lookup import LookupExperience
from peagle_trt.decode.request import GenerationRequest
from peagle_trt.train.acceptance import draft_everywhere, freeze_tables, measure_acceptance, walk
from peagle_trt.train.checkpoint import read_head
from peagle_trt.train.evaluation import TorchEngine, acceptance_metrics, decode_prompts
from peagle_trt.train.features import TrainingSequence
from peagle_trt.train.generate import Prompt, answer_prompts
from peagle_trt.train.prompting import read_chat_format
from peagle_trt.train.target import TorchTarget, read_torch_target

DRAFTS, NEW_TOKENS = 5, 40
QUESTIONS = ("Tom has 4 apples and buys 9 more. How many?", "A box holds 12 eggs. How many eggs in 3 boxes?", "Why?")


@pytest.fixture(scope="module")
def target() -> TorchTarget:
    head = read_head(catalog.drafter_path(catalog.find_entry("tiny")), torch.float32)[0]
    return read_torch_target(catalog.target_path(catalog.find_entry("tiny")), torch.float32, head.config.aux_layer_ids)


@pytest.fixture(scope="module")
def engine(target: TorchTarget) -> TorchEngine:
    head, draft_to_target = read_head(catalog.drafter_path(catalog.find_entry("tiny")), torch.float32)
    tables = freeze_tables(target.embeddings_VH, target.head_VH, draft_to_target, torch.float32)
    return TorchEngine(target, head, tables, draft_tokens=DRAFTS, num_slots=2, max_length=128)


@pytest.fixture(scope="module")
def prompts() -> list[tuple[int, ...]]:
    chat = read_chat_format(catalog.target_path(catalog.find_entry("tiny")), 1)
    return [chat.conversation_ids(question) for question in QUESTIONS]


def answer(target: TorchTarget, prompt: tuple[int, ...]) -> TrainingSequence:
    """What the target says on its own, one token a step."""
    asked = Prompt(identifier="0", source="test", token_ids=prompt, max_new_tokens=NEW_TOKENS)
    (found,) = answer_prompts(target, iter([asked]), choose=target.greedy_tokens, num_slots=1, capacity=128)
    return TrainingSequence(
        token_ids=torch.tensor(found.token_ids, dtype=torch.int32),
        prompt_length=len(prompt),
        auxiliary_NA=found.auxiliary_NA,
        normed_NH=found.normed_NH,
    )


@pytest.mark.parametrize("prompt_lookup", [False, True])
@pytest.mark.parametrize("place", range(len(QUESTIONS)))
def test_the_decode_loop_takes_the_steps_and_tokens_that_the_walk_counts(
    target: TorchTarget, engine: TorchEngine, prompts: list[tuple[int, ...]], place: int, prompt_lookup: bool
) -> None:
    sequence = answer(target, prompts[place])
    drafts_SK = draft_everywhere(engine._head, engine._tables, sequence, DRAFTS)
    walked = walk(sequence, drafts_SK, LookupExperience() if prompt_lookup else None)
    if not prompt_lookup:
        assert measure_acceptance(engine._head, engine._tables, [sequence], draft_tokens=DRAFTS) == walked
    loop = DecodeLoop(engine, None)
    num_new = len(sequence.token_ids) - len(prompts[place])
    loop.submit(
        GenerationRequest(request_id="0", prompt_ids=prompts[place], max_tokens=num_new, prompt_lookup=prompt_lookup)
    )
    token_ids: list[int] = []
    while loop.has_work:
        token_ids += [token for chunk in loop.step() for token in chunk.token_ids]
    assert token_ids == sequence.token_ids[len(prompts[place]) :].tolist()
    # One of the loop's steps reads the prompt.
    assert loop.statistics.num_steps - 1 == walked.num_steps
    assert walked.length > 1.3, "a head that drafts nothing would prove nothing"


def test_prompts_in_flight_together_are_answered_as_alone(engine: TorchEngine, prompts: list[tuple[int, ...]]) -> None:
    together = decode_prompts(engine, prompts, max_new_tokens=NEW_TOKENS, end_ids=(1,))
    alone = [decode_prompts(engine, [prompt], max_new_tokens=NEW_TOKENS, end_ids=(1,))[0] for prompt in prompts]
    assert [a.accepted_by_position for a in together] == [a.accepted_by_position for a in alone]
    assert [a.num_verify_steps for a in together] == [a.num_verify_steps for a in alone]
    found = acceptance_metrics(together, DRAFTS)
    steps = sum(a.num_verify_steps for a in together)
    assert found["acceptance_length"] == pytest.approx(1 + sum(a.num_accepted_tokens for a in together) / steps)
    assert np.diff(found["acceptance_by_position"]).max() <= 0
