"""The targets that take a P-EAGLE head, registered in place of TensorRT-LLM's own classes.

A registered class of a foreign module is also how worker processes come to import this one: TensorRT-LLM hands them the
registered classes (1.2: `_torch_model_class_mapping` of the executor's `worker_main`), or since 1.4 the names of their
modules.

Source: TensorRT-LLM `_torch/models/modeling_utils.py` (`register_auto_model`: the last one wins); pull request 18284
    for how workers learn of foreign modules.
"""

from __future__ import annotations

from typing import Any

from tensorrt_llm._torch.models.modeling_gpt_oss import GptOssForCausalLM
from tensorrt_llm._torch.models.modeling_llama import LlamaForCausalLM
from tensorrt_llm._torch.models.modeling_qwen3 import Qwen3ForCausalLM
from tensorrt_llm._torch.models.modeling_qwen3_moe import Qwen3MoeForCausalLM
from tensorrt_llm._torch.models.modeling_utils import register_auto_model

from peagle_trt.trtllm.adapters.arguments import check_arguments
from peagle_trt.trtllm.adapters.parts import follow_steps, peagle_parts

check_arguments()
follow_steps()


@register_auto_model("GptOssForCausalLM")
class PEagleGptOssForCausalLM(GptOssForCausalLM):
    """gpt-oss; without a P-EAGLE head it is what it was."""

    def __init__(self, model_config: Any) -> None:
        with peagle_parts(model_config):
            super().__init__(model_config)


@register_auto_model("Qwen3MoeForCausalLM")
class PEagleQwen3MoeForCausalLM(Qwen3MoeForCausalLM):
    """Qwen3 with experts; without a P-EAGLE head it is what it was."""

    def __init__(self, model_config: Any) -> None:
        with peagle_parts(model_config):
            super().__init__(model_config)


@register_auto_model("Qwen3ForCausalLM")
class PEagleQwen3ForCausalLM(Qwen3ForCausalLM):
    """Qwen3; without a P-EAGLE head it is what it was."""

    def __init__(self, model_config: Any) -> None:
        with peagle_parts(model_config):
            super().__init__(model_config)


@register_auto_model("LlamaForCausalLM")
class PEagleLlamaForCausalLM(LlamaForCausalLM):
    """Llama; without a P-EAGLE head it is what it was."""

    def __init__(self, model_config: Any) -> None:
        with peagle_parts(model_config):
            super().__init__(model_config)
