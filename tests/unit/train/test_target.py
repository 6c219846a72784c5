from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from peagle_trt.errors import CheckpointError
from peagle_trt.train.features import FeatureWriter, read_all_sequences, read_index, verify_shards
from peagle_trt.train.generate import Prompt, answer_prompts
from peagle_trt.train.target import TorchTarget, read_torch_target

# Float32 sums in another order than transformers'; hidden states are of magnitude one.
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
    )
    path = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def target(folder: Path) -> TorchTarget:
    return read_torch_target(folder, torch.float32, (1, 2, 3))


def prompts(count: int) -> list[Prompt]:
    generator = np.random.default_rng(2)
    return [
        Prompt(
            identifier=str(place),
            source="test",
            token_ids=tuple(generator.integers(2, 64, 3 + place).tolist()),
            max_new_tokens=9,
        )
        for place in range(count)
    ]


@pytest.mark.parametrize("length", [1, 7, 40])
def test_hidden_states_equal_those_of_transformers(folder: Path, target: TorchTarget, length: int) -> None:
    model = LlamaForCausalLM.from_pretrained(folder)
    token_ids = torch.randint(2, 64, (1, length))
    with torch.inference_mode():
        expected = model(token_ids, output_hidden_states=True).hidden_states
        found = target.run(token_ids, torch.zeros(1, dtype=torch.int64), target.new_cache(1, 64))
    auxiliary = torch.cat([expected[layer] for layer in (1, 2, 3)], dim=-1)
    torch.testing.assert_close(found.auxiliary_BTA, auxiliary, atol=TOLERANCE, rtol=TOLERANCE)
    torch.testing.assert_close(found.normed_BTH, expected[-1], atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("num_slots", [1, 3, 8])
def test_answers_do_not_depend_on_the_number_of_slots(folder: Path, target: TorchTarget, num_slots: int) -> None:
    model = LlamaForCausalLM.from_pretrained(folder)
    asked = prompts(5)
    answers = answer_prompts(target, iter(asked), choose=target.greedy_tokens, num_slots=num_slots, capacity=64)
    found = {answer.prompt.identifier: answer for answer in answers}
    assert len(found) == 5
    for prompt in asked:
        token_ids = torch.tensor([prompt.token_ids])
        expected = model.generate(
            token_ids, attention_mask=torch.ones_like(token_ids), max_new_tokens=9, do_sample=False
        )
        assert found[prompt.identifier].token_ids == tuple(expected[0].tolist())
        assert len(found[prompt.identifier].normed_NH) == expected.shape[1] - 1


def test_features_of_generation_equal_those_of_one_pass(target: TorchTarget) -> None:
    for answer in answer_prompts(target, iter(prompts(4)), choose=target.greedy_tokens, num_slots=2, capacity=64):
        token_ids = torch.tensor([answer.token_ids[:-1]])
        with torch.inference_mode():
            whole = target.run(token_ids, torch.zeros(1, dtype=torch.int64), target.new_cache(1, 64))
        # Stored in float16: ten bits.
        torch.testing.assert_close(answer.auxiliary_NA.float(), whole.auxiliary_BTA[0], atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(answer.normed_NH.float(), whole.normed_BTH[0], atol=2e-3, rtol=2e-3)


def test_follow_up_turns_continue_the_conversation(target: TorchTarget) -> None:
    # The end token is whatever the model says third, so that the answer ends by itself.
    (plain,) = answer_prompts(target, iter(prompts(1)), choose=target.greedy_tokens, num_slots=1, capacity=64)
    assert len(plain.token_ids) > 3
    ending = iter([5, 1, *[7] * 40])
    prompt = Prompt(identifier="0", source="test", token_ids=(3, 4), max_new_tokens=4, follow_ups=((8, 9),))
    first, second = answer_prompts(
        target, iter([prompt]), choose=lambda rows: torch.full((len(rows),), next(ending)), num_slots=1, capacity=64
    )
    assert first.token_ids == (3, 4, 5, 1)
    assert second.prompt.token_ids == (3, 4, 5, 1, 8, 9)
    assert second.prompt.identifier == "0+"


def test_a_store_returns_what_was_written_and_notices_damage(target: TorchTarget, tmp_path: Path) -> None:
    writer = FeatureWriter(tmp_path, answers_per_shard=2)
    answers = list(answer_prompts(target, iter(prompts(5)), choose=target.greedy_tokens, num_slots=2, capacity=64))
    for answer in answers:
        writer.add(answer)
    writer.flush()
    assert len(read_index(tmp_path)) == 3
    for answer, sequence in zip(answers, read_all_sequences(tmp_path), strict=True):
        assert tuple(sequence.token_ids.tolist()) == answer.token_ids
        assert sequence.prompt_length == len(answer.prompt.token_ids)
        torch.testing.assert_close(sequence.auxiliary_NA, answer.auxiliary_NA, atol=0.0, rtol=0.0)
    verify_shards(tmp_path)
    shard = tmp_path / read_index(tmp_path)[1].file
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=shard.name):
        verify_shards(tmp_path)
