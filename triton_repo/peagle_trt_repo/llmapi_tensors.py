"""The tensors of NVIDIA's `llmapi` model, which ours answers under the same names.

Source: TensorRT-LLM `triton_backend/all_models/llmapi/tensorrt_llm/config.pbtxt`. Its `cumulative_logprob` and figures
of the cache are left out: the P-EAGLE worker has no log probabilities, and the others are the server's own.
"""

from __future__ import annotations

from peagle_trt_repo.tensors import OTHER_NAMES, TensorField

LLMAPI_INPUTS = (
    TensorField("text_input", "STRING", (-1,), is_optional=False),
    TensorField("streaming", "BOOL"),
    TensorField("sampling_param_best_of", "INT32"),
    TensorField("sampling_param_temperature", "FP32"),
    TensorField("sampling_param_top_k", "INT32"),
    TensorField("sampling_param_top_p", "FP32"),
    TensorField("sampling_param_frequency_penalty", "FP32"),
    TensorField("sampling_param_presence_penalty", "FP32"),
    TensorField("sampling_param_max_tokens", "INT32"),
    TensorField("sampling_param_stop", "STRING", (-1,)),
    TensorField("sampling_param_seed", "UINT64"),
    TensorField("sampling_param_exclude_input_from_output", "BOOL"),
    TensorField("return_finish_reason", "BOOL"),
    TensorField("return_stop_reason", "BOOL"),
)
LLMAPI_OUTPUTS = (
    TensorField("text_output", "STRING", (-1,)),
    TensorField("finish_reason", "STRING", (-1,)),
    TensorField("stop_reason", "STRING", (-1,)),
    # Ours: what the classic door counts with.
    TensorField("num_input_tokens", "INT32"),
    TensorField("num_output_tokens", "INT32"),
)

LLMAPI_NAMES = {
    ours: theirs for theirs, ours in OTHER_NAMES.items() if theirs in {field.name for field in LLMAPI_INPUTS}
}
"""Names of the classic ensemble for what this model reads."""
