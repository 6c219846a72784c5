"""The target's graph, of one sequence and batched, against transformers: every architecture and rotary rule read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle_trt.engine.protocol import TargetRows
from peagle_trt.errors import CheckpointError
from peagle_trt.graph.attention import check_head_dims
from peagle_trt.readers import read_drafter, read_target
from peagle_trt.verify.tolerances import TOLERANCES
from tests.support.batched import open_batched_pair
from tests.support.models import VOCABULARY, open_pair, save_drafter, save_target

TOLERANCE = TOLERANCES["fp32"].logits
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama-tied-biased": (
        "LlamaForCausalLM",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "llama-heads-wider-than-hidden": ("LlamaForCausalLM", {"head_dim": 32}),
    "llama-one-key-value-head": ("LlamaForCausalLM", {"num_key_value_heads": 1}),
    "llama-linear": ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "llama-llama3": ("LlamaForCausalLM", {"rope_scaling": LLAMA3}),
    "llama-yarn": ("LlamaForCausalLM", {"rope_scaling": YARN}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {"rope_theta": 1e6}),
    "qwen3-yarn": ("Qwen3ForCausalLM", {"rope_scaling": YARN | {"attention_factor": 1.2}}),
    "qwen2-windowed": ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3}),
    "qwen3-moe": ("Qwen3MoeForCausalLM", {}),
    "qwen3-moe-shares-as-they-are": ("Qwen3MoeForCausalLM", {"norm_topk_prob": False, "seed": 3}),
    "gpt-oss": ("GptOssForCausalLM", {}),
    "gpt-oss-one-key-value-head": ("GptOssForCausalLM", {"num_key_value_heads": 1, "seed": 5}),
}


OPENERS: dict[str, Callable[..., Any]] = {"sequence by sequence": open_pair, "batched": open_batched_pair}


@pytest.fixture(scope="module", params=[(how, case) for how in OPENERS for case in CASES], ids="-".join)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    how, case = request.param
    folder = tmp_path_factory.mktemp(case)
    architecture, settings = CASES[case]
    model = save_target(folder / "target", architecture, **settings)
    save_drafter(folder / "drafter")
    built = OPENERS[how](folder / "target", folder / "drafter", folder / "build", max_sequence_length=800)
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


def test_a_context_longer_than_the_cache_is_refused(tmp_path: Path) -> None:
    save_target(tmp_path / "target", num_hidden_layers=6)
    save_drafter(tmp_path / "drafter")
    engine = open_pair(tmp_path / "target", tmp_path / "drafter", tmp_path / "build", max_sequence_length=16).engine
    with pytest.raises(ValueError, match="the cache holds 48"):
        engine.run_target([_rows(0, _tokens(49), 0, 1)])


def test_a_head_width_that_the_kernel_cannot_take_is_refused(tmp_path: Path) -> None:
    save_target(tmp_path / "target", head_dim=8)
    save_drafter(tmp_path / "drafter")
    with pytest.raises(CheckpointError, match="the target's head_dim 8 is not a multiple of 16"):
        check_head_dims(read_target(tmp_path / "target").config, read_drafter(tmp_path / "drafter").config)
