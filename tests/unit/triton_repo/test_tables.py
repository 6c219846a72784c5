"""The page about serving names every tensor there is, and every one of TensorRT-LLM's classic ensemble."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle_trt_repo.tensors import ENSEMBLE_INPUTS, ENSEMBLE_OUTPUTS, PEAGLE_INPUTS, PEAGLE_OUTPUTS

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
FIELDS = (*PEAGLE_INPUTS, *ENSEMBLE_INPUTS, *PEAGLE_OUTPUTS, *ENSEMBLE_OUTPUTS)
# Source: tensorrtllm_backend r25.05, `all_models/inflight_batcher_llm/ensemble/config.pbtxt`.
CLASSIC_INPUTS = [
    "text_input",
    "decoder_text_input",
    "max_tokens",
    "num_return_sequences",
    "bad_words",
    "stop_words",
    "exclude_input_in_output",
    "end_id",
    "pad_id",
    "top_k",
    "top_p",
    "temperature",
    "length_penalty",
    "repetition_penalty",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "return_log_probs",
    "return_context_logits",
    "return_generation_logits",
    "return_perf_metrics",
    "beam_width",
    "stream",
    "prompt_embedding_table",
    "prompt_table_extra_id",
    "prompt_vocab_size",
    "embedding_bias_words",
    "embedding_bias_weights",
    "lora_task_id",
    "lora_weights",
    "lora_config",
    "guided_decoding_guide_type",
    "guided_decoding_guide",
]
CLASSIC_OUTPUTS = [
    "text_output",
    "cum_log_probs",
    "output_log_probs",
    "context_logits",
    "generation_logits",
    "batch_index",
    "sequence_index",
    "arrival_time_ns",
    "acceptance_rate",
    "total_accepted_draft_tokens",
    "total_draft_tokens",
]


@pytest.mark.parametrize("name", sorted({field.name for field in FIELDS}))
def test_every_tensor_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", CLASSIC_INPUTS)
def test_every_classic_input_is_read_or_refused(name: str) -> None:
    assert name in {field.name for field in ENSEMBLE_INPUTS}


@pytest.mark.parametrize("name", CLASSIC_OUTPUTS)
def test_every_classic_output_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE
