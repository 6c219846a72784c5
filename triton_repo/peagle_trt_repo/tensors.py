"""The tensors of the served models, and how the ensemble joins them: the one source that every other file reads.

Names, types and shapes are those of TensorRT-LLM's classic ensemble wherever both mean the same, so that its clients
work unchanged; what is ours alone stands under `OWN_INPUTS` and `OWN_OUTPUTS`.

Source: tensorrtllm_backend r25.05, `inflight_batcher_llm`; `return_num_*_tokens` and `num_*_tokens` came later;
`min_length` and `random_seed` are the names before r25.05.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DataType = Literal["BOOL", "FP16", "FP32", "INT32", "UINT64", "STRING"]


@dataclass(frozen=True, slots=True)
class TensorField:
    """A tensor of a served model.

    Attributes:
        name: Name on the wire.
        data_type: Triton's name of the element type.
        dims: Shape without the batch dimension; -1 varies.
        is_optional: A request may leave it out; inputs only.
    """

    name: str
    data_type: DataType
    dims: tuple[int, ...] = (1,)
    is_optional: bool = True


# A prompt and `max_tokens` are required all the same: the models check that themselves. The server would only count the
# tensors, so that an optional one hides a missing required one, and an ensemble would then answer nothing at all.
PROMPT_INPUTS = (TensorField("text_input", "STRING"), TensorField("input_ids", "INT32", (-1,)))

SETTING_INPUTS = (
    TensorField("max_tokens", "INT32"),
    TensorField("stream", "BOOL"),
    TensorField("temperature", "FP32"),
    TensorField("top_k", "INT32"),
    TensorField("top_p", "FP32"),
    TensorField("repetition_penalty", "FP32"),
    TensorField("frequency_penalty", "FP32"),
    TensorField("presence_penalty", "FP32"),
    TensorField("min_tokens", "INT32"),
    TensorField("min_length", "INT32"),
    TensorField("seed", "UINT64"),
    TensorField("random_seed", "UINT64"),
    TensorField("end_id", "INT32", (-1,)),
    TensorField("pad_id", "INT32"),
    TensorField("stop_words", "STRING", (-1,)),
    TensorField("bad_words", "STRING", (-1,)),
    TensorField("embedding_bias_words", "STRING", (-1,)),
    TensorField("embedding_bias_weights", "FP32", (-1,)),
    TensorField("exclude_input_in_output", "BOOL"),
    TensorField("return_num_input_tokens", "BOOL"),
    TensorField("return_num_output_tokens", "BOOL"),
    TensorField("return_perf_metrics", "BOOL"),
    TensorField("return_log_probs", "BOOL"),
    TensorField("num_return_sequences", "INT32"),
    TensorField("guided_decoding_guide_type", "STRING"),
    TensorField("guided_decoding_guide", "STRING"),
)

REFUSED_INPUTS = (
    TensorField("beam_width", "INT32"),
    TensorField("length_penalty", "FP32"),
    TensorField("decoder_text_input", "STRING"),
    TensorField("return_context_logits", "BOOL"),
    TensorField("return_generation_logits", "BOOL"),
    TensorField("prompt_embedding_table", "FP16", (-1, -1)),
    TensorField("prompt_table_extra_id", "UINT64"),
    TensorField("prompt_vocab_size", "INT32"),
    TensorField("lora_task_id", "UINT64"),
    TensorField("lora_weights", "FP16", (-1, -1)),
    TensorField("lora_config", "INT32", (-1, 3)),
)
"""Declared so that a client reads why it is refused; the harmless values are in `HARMLESS_VALUES`."""

HARMLESS_VALUES: dict[str, tuple[bytes | float, ...]] = {
    "beam_width": (0, 1),
    "length_penalty": (0, 1),
    "decoder_text_input": (b"",),
    "return_context_logits": (0,),
    "return_generation_logits": (0,),
    "prompt_table_extra_id": (0,),
    "prompt_vocab_size": (0,),
    "lora_task_id": (0,),
}
"""Values that ask for nothing; clients in the wild send them as fillers."""

REFUSAL_ADVICE = {
    "beam_width": "a verify step follows one continuation; `num_return_sequences` samples several",
    "length_penalty": "it ranks beams, and there are none",
    "decoder_text_input": "the target has no encoder",
}
"""What to do about a refused input, beyond leaving it out."""

OTHER_NAMES = {
    "request_output_len": "max_tokens",
    "streaming": "stream",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "len_penalty": "length_penalty",
    "stop_words_list": "stop_words",
    "bad_words_list": "bad_words",
    "embedding_bias": "embedding_bias_words",
    "num_draft_tokens": "draft_tokens",
    "sampling_param_max_tokens": "max_tokens",
    "sampling_param_stop": "stop_words",
    "return_cumulative_logprob": "return_log_probs",
    "sampling_param_exclude_input_from_output": "exclude_input_in_output",
    "sampling_param_temperature": "temperature",
    "sampling_param_top_k": "top_k",
    "sampling_param_top_p": "top_p",
    "sampling_param_frequency_penalty": "frequency_penalty",
    "sampling_param_presence_penalty": "presence_penalty",
    "sampling_param_seed": "seed",
    "sampling_param_best_of": "num_return_sequences",
}
"""Names of TensorRT-LLM's other served models for what this one reads. Source: tensorrtllm_backend r25.05,
`tensorrt_llm` and `tensorrt_llm_bls`; TensorRT-LLM's `llmapi`."""

_OWN_DRAFTS = "the drafts are the drafter's own, and `draft_tokens` says how many"
_NO_ENCODER = "the target has no encoder; the prompt goes into `text_input` or `input_ids`"
_NO_IMAGES = "the target reads text alone"
_NO_BEAMS = "there are no beams; `num_return_sequences` samples several answers"
_FIXED_TOP_P = "`top_p` stays the same for the whole answer"
_NO_RETENTION = "what stays in the cache is decided by its use alone"

NO_COUNTERPARTS = {
    "input_lengths": "the length is that of `input_ids`; leave it out",
    "stop": "`stop_words` end an answer, and a closed connection ends a request",
    "draft_input_ids": _OWN_DRAFTS,
    "draft_logits": _OWN_DRAFTS,
    "draft_acceptance_threshold": _OWN_DRAFTS,
    "use_draft_logits": _OWN_DRAFTS,
    "lookahead_window_size": _OWN_DRAFTS,
    "lookahead_ngram_size": _OWN_DRAFTS,
    "lookahead_verification_set_size": _OWN_DRAFTS,
    "encoder_input_features": _NO_ENCODER,
    "encoder_output_lengths": _NO_ENCODER,
    "decoder_input_ids": _NO_ENCODER,
    "decoder_input_lengths": _NO_ENCODER,
    "cross_attention_mask": _NO_ENCODER,
    "skip_cross_attn_blocks": _NO_ENCODER,
    "image_input": _NO_IMAGES,
    "image_bytes_input": _NO_IMAGES,
    "image_url_input": _NO_IMAGES,
    "video_bytes_input": _NO_IMAGES,
    "mrope_rotary_cos_sin": _NO_IMAGES,
    "mrope_position_deltas": _NO_IMAGES,
    "prompt_table_extra_ids": "there are no prompt tables; leave it out",
    "early_stopping": _NO_BEAMS,
    "beam_search_diversity_rate": _NO_BEAMS,
    "runtime_top_p_min": _FIXED_TOP_P,
    "runtime_top_p_decay": _FIXED_TOP_P,
    "runtime_top_p_reset_ids": _FIXED_TOP_P,
    "context_phase_params": "prompt and answer are computed in one place",
    "retention_token_range_starts": _NO_RETENTION,
    "retention_token_range_ends": _NO_RETENTION,
    "retention_token_range_priorities": _NO_RETENTION,
    "retention_token_range_durations_ms": _NO_RETENTION,
    "retention_decode_priority": _NO_RETENTION,
    "retention_decode_duration_ms": _NO_RETENTION,
}
"""Inputs of `tensorrt_llm` and `tensorrt_llm_bls` that nothing here stands for, and why: the nearest name of ours, as
`input_ids` for `draft_input_ids`, would mislead. Source: TensorRT-LLM, `triton_backend/all_models`."""

OWN_INPUTS = (
    # K; 0 decodes without speculation, -1 lets the decode loop choose at every step.
    TensorField("draft_tokens", "INT32"),
    # Copies from the text may take the place of drafts.
    TensorField("prompt_lookup", "BOOL"),
    TensorField("apply_chat_template", "BOOL"),
    # Beside the end tokens; neither is part of the answer.
    TensorField("stop_token_ids", "INT32", (-1,)),
    # Likeliest tokens in every place; raises `return_log_probs`.
    TensorField("num_top_log_probs", "INT32"),
    # Tokens, and what is added to the logits of each; beside the biases by words.
    TensorField("logit_bias_ids", "INT32", (-1,)),
    TensorField("logit_bias_values", "FP32", (-1,)),
    # Tokens after which a grammar holds; until they stand in the answer it may be anything.
    TensorField("guided_decoding_start_ids", "INT32", (-1,)),
    # The lowest goes first, 0 by default. Triton does not show the priority of its own protocol to a model.
    TensorField("priority", "INT32"),
)

RETURN_TEXT_BYTES = TensorField("return_text_bytes", "BOOL")
"""Asks for the output `text_bytes`; the ensemble's preprocessing raises it."""

ANSWER_OUTPUTS = (
    TensorField("text_output", "STRING", (-1,)),
    # Of several answers one after the other; `sequence_length` says where each ends.
    TensorField("output_ids", "INT32", (-1,)),
    TensorField("sequence_length", "INT32", (-1,)),
)

SEQUENCE_INDEX = TensorField("sequence_index", "INT32")
"""Whose piece it is, in a stream of several answers."""

LOG_PROB_OUTPUTS = (
    TensorField("cum_log_probs", "FP32", (-1,)),
    TensorField("output_log_probs", "FP32", (-1, -1)),
)

TOP_LOG_PROB_OUTPUTS = (
    TensorField("top_token_ids", "INT32", (-1, -1)),
    TensorField("top_log_probs", "FP32", (-1, -1)),
)

METRIC_OUTPUTS = (
    TensorField("num_input_tokens", "INT32"),
    TensorField("num_output_tokens", "INT32"),
    TensorField("total_draft_tokens", "INT32"),
    TensorField("total_accepted_draft_tokens", "INT32"),
    TensorField("acceptance_rate", "FP32"),
)

OWN_OUTPUTS = (
    TensorField("acceptance_length", "FP32"),
    TensorField("num_verify_steps", "INT32"),
    TensorField("accepted_by_position", "INT32", (-1,)),
    # Of the accepted drafts those that were copied from the text.
    TensorField("total_looked_up_tokens", "INT32"),
    TensorField("finish_reason", "STRING", (-1,)),
)

TEXT_BYTES = TensorField("text_bytes", "INT32", (-1,))
"""Length of the text in bytes: a stop word may end inside the last token, which the ids alone cannot say."""

PEAGLE_INPUTS = (*PROMPT_INPUTS, *SETTING_INPUTS, *OWN_INPUTS, RETURN_TEXT_BYTES, *REFUSED_INPUTS)
PASSED_OUTPUTS = (SEQUENCE_INDEX, *LOG_PROB_OUTPUTS, *TOP_LOG_PROB_OUTPUTS, *METRIC_OUTPUTS, *OWN_OUTPUTS)
PEAGLE_OUTPUTS = (*ANSWER_OUTPUTS, TEXT_BYTES, *PASSED_OUTPUTS)

PREPROCESSING_INPUTS = (
    TensorField("QUERY", "STRING"),
    TensorField("REQUEST_OUTPUT_LEN", "INT32"),
    TensorField("APPLY_CHAT_TEMPLATE", "BOOL"),
)
PREPROCESSING_OUTPUTS = (
    TensorField("INPUT_ID", "INT32", (-1,)),
    TensorField("REQUEST_INPUT_LEN", "INT32"),
    TensorField("REQUEST_OUTPUT_LEN", "INT32"),
    TensorField("RETURN_TEXT_BYTES", "BOOL"),
)

POSTPROCESSING_INPUTS = (
    TensorField("TOKENS_BATCH", "INT32", (-1,), is_optional=False),
    TensorField("SEQUENCE_LENGTH", "INT32", (-1,), is_optional=False),
    TensorField("TEXT_BYTES", "INT32", (-1,)),
)
POSTPROCESSING_OUTPUTS = (TensorField("OUTPUT", "STRING", (-1,)),)

ENSEMBLE_INPUTS = (
    PROMPT_INPUTS[0],
    *SETTING_INPUTS,
    *OWN_INPUTS,
    *REFUSED_INPUTS,
)
ENSEMBLE_OUTPUTS = (ANSWER_OUTPUTS[0], *PASSED_OUTPUTS)


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One member of the ensemble.

    Attributes:
        model_name: The member.
        inputs: Its input to the ensemble's tensor that feeds it.
        outputs: Its output to the ensemble's tensor that it writes; names that start with `_` stay inside.
    """

    model_name: str
    inputs: dict[str, str]
    outputs: dict[str, str]


def ensemble_steps() -> tuple[EnsembleStep, ...]:
    """Text to ids, ids to ids, ids to text; everything else passes through the engine model.

    A branch around the decoupled engine would be refused at load: "receives inputs originated from different
    decoupled models".
    """
    passed_inputs = (*SETTING_INPUTS, *OWN_INPUTS, *REFUSED_INPUTS)
    engine_inputs = {field.name: field.name for field in passed_inputs if field.name != "apply_chat_template"}
    engine_inputs |= {
        "input_ids": "_INPUT_ID",
        "max_tokens": "_REQUEST_OUTPUT_LEN",
        "return_text_bytes": "_RETURN_TEXT_BYTES",
    }
    engine_outputs = {field.name: field.name for field in PASSED_OUTPUTS}
    engine_outputs |= {
        "output_ids": "_TOKENS_BATCH",
        "sequence_length": "_SEQUENCE_LENGTH",
        "text_bytes": "_TEXT_BYTES",
    }
    return (
        EnsembleStep(
            "preprocessing",
            {
                "QUERY": "text_input",
                "REQUEST_OUTPUT_LEN": "max_tokens",
                "APPLY_CHAT_TEMPLATE": "apply_chat_template",
            },
            {
                "INPUT_ID": "_INPUT_ID",
                "REQUEST_OUTPUT_LEN": "_REQUEST_OUTPUT_LEN",
                "RETURN_TEXT_BYTES": "_RETURN_TEXT_BYTES",
            },
        ),
        EnsembleStep("peagle", engine_inputs, engine_outputs),
        EnsembleStep(
            "postprocessing",
            {"TOKENS_BATCH": "_TOKENS_BATCH", "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH", "TEXT_BYTES": "_TEXT_BYTES"},
            {"OUTPUT": "text_output"},
        ),
    )
