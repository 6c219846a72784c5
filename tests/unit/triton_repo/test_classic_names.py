"""Every input of TensorRT-LLM's three classic models is honoured, harmless or refused by name; none is forgotten."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from peagle_trt_repo.inputs import read_fields
from peagle_trt_repo.outputs import shaped
from peagle_trt_repo.request_parameters import refuse_unknown_parameters
from peagle_trt_repo.tensors import ENSEMBLE_INPUTS, OTHER_NAMES, PEAGLE_INPUTS, REFUSED_INPUTS
from peagle_trt_repo.values import InvalidRequestError
from tests.unit.triton_repo.test_tables import CLASSIC_INPUTS

# Source: TensorRT-LLM `triton_backend/all_models/inflight_batcher_llm`, `tensorrt_llm` and `tensorrt_llm_bls`.
CORE_INPUTS = [
    "input_ids",
    "encoder_input_features",
    "encoder_output_lengths",
    "input_lengths",
    "request_output_len",
    "num_return_sequences",
    "draft_input_ids",
    "decoder_input_ids",
    "decoder_input_lengths",
    "draft_logits",
    "draft_acceptance_threshold",
    "end_id",
    "pad_id",
    "stop_words_list",
    "bad_words_list",
    "embedding_bias",
    "beam_width",
    "temperature",
    "runtime_top_k",
    "runtime_top_p",
    "runtime_top_p_min",
    "runtime_top_p_decay",
    "runtime_top_p_reset_ids",
    "len_penalty",
    "early_stopping",
    "repetition_penalty",
    "min_tokens",
    "min_length",
    "beam_search_diversity_rate",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "random_seed",
    "return_log_probs",
    "return_context_logits",
    "return_generation_logits",
    "return_perf_metrics",
    "return_num_input_tokens",
    "return_num_output_tokens",
    "exclude_input_in_output",
    "stop",
    "streaming",
    "prompt_embedding_table",
    "prompt_table_extra_ids",
    "prompt_vocab_size",
    "cross_attention_mask",
    "mrope_rotary_cos_sin",
    "mrope_position_deltas",
    "lora_task_id",
    "lora_weights",
    "lora_config",
    "context_phase_params",
    "skip_cross_attn_blocks",
    "retention_token_range_starts",
    "retention_token_range_ends",
    "retention_token_range_priorities",
    "retention_token_range_durations_ms",
    "retention_decode_priority",
    "retention_decode_duration_ms",
    "guided_decoding_guide_type",
    "guided_decoding_guide",
    "lookahead_window_size",
    "lookahead_ngram_size",
    "lookahead_verification_set_size",
]
BLS_INPUTS = [
    "image_input",
    "image_bytes_input",
    "image_url_input",
    "video_bytes_input",
    "num_draft_tokens",
    "use_draft_logits",
]
CLASSIC_NAMES = sorted({*CLASSIC_INPUTS, *CORE_INPUTS, *BLS_INPUTS})

TYPES = {field.name: field.data_type for field in PEAGLE_INPUTS}
REFUSED = {field.name for field in REFUSED_INPUTS}
LEAST: dict[str, object] = {"text_input": b"a", "max_tokens": 2}
# Nothing is padded, and the figures come with every answer.
HARMLESS = {"pad_id", "return_num_input_tokens", "return_num_output_tokens", "return_perf_metrics"}
VALUES: dict[str, object] = {
    "text_input": b"b",
    "stop_words": b"x",
    "bad_words": b"x",
    "embedding_bias_words": b"x",
    "guided_decoding_guide_type": b"json",
    "guided_decoding_guide": b"a+",
    "decoder_text_input": b"x",
    "temperature": 0.5,
    "top_p": 0.5,
}
COMPANIONS: dict[str, dict[str, object]] = {
    "embedding_bias_words": {"embedding_bias_weights": 3},
    "embedding_bias_weights": {"embedding_bias_words": b"x"},
    "guided_decoding_guide": {"guided_decoding_guide_type": b"regex"},
    # In the place of the text, and not beside it.
    "input_ids": {"text_input": b""},
}


def arrays(sent: dict[str, object]) -> dict[str, NDArray[np.generic]]:
    """Scalars of a JSON body, as the server hands them on."""
    return {name: shaped([value], TYPES[name]) for name, value in sent.items()}


@pytest.mark.parametrize("name", CLASSIC_NAMES)
def test_no_classic_input_is_taken_and_forgotten(name: str) -> None:
    if name not in TYPES:
        with pytest.raises(InvalidRequestError, match=f"`{name}` is no input of this model; "):
            refuse_unknown_parameters({name: 1})
        return
    sent = arrays({**LEAST, **COMPANIONS.get(name, {}), name: VALUES.get(name, 3)})
    try:
        fields = read_fields(sent)
    except InvalidRequestError as error:
        assert f"`{name}`" in str(error)
        assert name in REFUSED
        return
    assert name not in REFUSED
    assert (fields == read_fields(arrays(LEAST))) == (name in HARMLESS)


def test_the_way_to_ours_leads_to_an_input_of_the_ensemble() -> None:
    assert set(OTHER_NAMES.values()) <= {field.name for field in ENSEMBLE_INPUTS}
    assert not set(OTHER_NAMES) & set(TYPES)
