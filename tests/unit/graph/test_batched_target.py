"""The batched target against transformers, for every architecture and rotary rule that is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from peagle_trt.engine.protocol import TargetRows
from peagle_trt.verify.tolerances import TOLERANCES
from tests.support.batched import open_batched_pair
from tests.support.models import VOCABULARY, save_drafter, save_target
from tests.unit.graph.test_target_graph import CASES

TOLERANCE = TOLERANCES["fp32"].logits


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    architecture, settings = CASES[request.param]
    model = save_target(folder / "target", architecture, **settings)
    save_drafter(folder / "drafter")
    built = open_batched_pair(folder / "target", folder / "drafter", folder / "build", max_sequence_length=800)
    return model, built.engine


@pytest.mark.parametrize("length", [1, 7, 700])
def test_logits_and_hidden_states_equal_transformers(pair: tuple[Any, Any], length: int) -> None:
    model, engine = pair
    token_ids = _tokens(length)
    logits, hidden = _reference(model, token_ids)
    (found,) = engine.run_target([_rows(0, token_ids, 0, length)])
    np.testing.assert_allclose(found.logits, logits, atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(found.hidden, hidden, atol=TOLERANCE, rtol=TOLERANCE)


def test_decoding_with_the_cache_equals_one_long_prompt(pair: tuple[Any, Any]) -> None:
    model, engine = pair
    token_ids = _tokens(60)
    expected, _ = _reference(model, token_ids)
    position, found = 0, []
    for count in (20, 1, 1, 6, 13, 1, 8, 10):
        (output,) = engine.run_target([_rows(3, token_ids[position : position + count], position, count)])
        found.append(output.logits.copy())
        position += count
    np.testing.assert_allclose(np.concatenate(found), expected, atol=TOLERANCE, rtol=0)


def test_a_rejected_tail_is_overwritten(pair: tuple[Any, Any]) -> None:
    model, engine = pair
    token_ids = _tokens(30)
    expected, _ = _reference(model, token_ids)
    engine.run_target([_rows(0, token_ids[:20], 0, 0)])
    engine.run_target([_rows(0, np.roll(token_ids, 7)[20:27], 20, 7)])
    (found,) = engine.run_target([_rows(0, token_ids[20:], 20, 10)])
    np.testing.assert_allclose(found.logits, expected[20:], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("slots", [[0, 1], [5, 2, 7], [0, 1, 2, 3, 4, 5, 6, 7]])
def test_sequences_of_mixed_lengths_do_not_see_each_other(pair: tuple[Any, Any], slots: list[int]) -> None:
    model, engine = pair
    prompts = [_tokens(5 + 9 * slot, seed=slot) for slot in slots]
    references = [_reference(model, prompt)[0] for prompt in prompts]
    # Joined at different depths: even slots have read all but their last three tokens before.
    starts = [len(prompt) - 3 if slot % 2 == 0 else 0 for slot, prompt in zip(slots, prompts, strict=True)]
    for slot, prompt, start in zip(slots, prompts, starts, strict=True):
        if start:
            engine.run_target([_rows(slot, prompt[:start], 0, 0)])
    rows = [_rows(slot, prompt[start:], start, 2) for slot, prompt, start in zip(slots, prompts, starts, strict=True)]
    for output, reference in zip(engine.run_target(rows), references, strict=True):
        np.testing.assert_allclose(output.logits, reference[-2:], atol=TOLERANCE, rtol=0)


def _tokens(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, VOCABULARY - 1, length).astype(np.int32)


def _rows(slot: int, token_ids: np.ndarray, start: int, num_logit_rows: int) -> TargetRows:
    return TargetRows(slot=slot, token_ids=token_ids, start_position=start, num_logit_rows=num_logit_rows)


def _reference(model: Any, token_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with torch.no_grad():
        output = model(torch.from_numpy(token_ids).long()[None], output_hidden_states=True)
    hidden = torch.cat([output.hidden_states[layer][0] for layer in (1, 3, 5)], dim=-1)
    return output.logits[0].numpy(), hidden.numpy()
