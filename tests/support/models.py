"""Small random checkpoints on disk and engines over them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from peagle_trt import __version__
from peagle_trt.engine.registry import open_engine
from peagle_trt.graph import build_graphs
from peagle_trt.quant import BUILD_RECIPES, store_drafter, store_target
from peagle_trt.readers import read_head, read_target
from peagle_trt.readers.checkpoint import DrafterCheckpoint, TargetCheckpoint
from peagle_trt.spec import ARTIFACT_FORMAT, BuildSpec, EngineManifest, TokenizerFiles
from tests.support.heads import head_tensors, write_folder

STORING = {
    precision: (partial(store_target, precision), partial(store_drafter, precision)) for precision in BUILD_RECIPES
}
HIDDEN, HEADS, KEY_VALUE_HEADS, HEAD_DIM, FEED_FORWARD, VOCABULARY = 64, 4, 2, 16, 96, 300
EXPERTS: dict[str, dict[str, Any]] = {
    # A window shorter than the prompts, heads wider than the hidden state, a limit that is reached.
    "GptOssForCausalLM": {
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "sliding_window": 7,
        "head_dim": 32,
        "swiglu_limit": 1.5,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 5000.0,
            "factor": 8.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 32,
        },
        "tie_word_embeddings": False,
    },
    "Qwen3MoeForCausalLM": {
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
}
"""Settings of architectures with experts, over those of the dense ones."""


def save_target(folder: Path, architecture: str = "LlamaForCausalLM", *, seed: int = 0, **settings: Any) -> Any:
    """A random transformers model, saved and returned."""
    import torch
    import transformers

    defaults: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": 6,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attn_implementation": "eager",
    } | EXPERTS.get(architecture, {})
    config_class = getattr(transformers, architecture.replace("ForCausalLM", "Config"))
    config = config_class(**(defaults | settings))
    torch.manual_seed(seed)
    model = getattr(transformers, architecture)(config).eval()
    if architecture in EXPERTS:
        # The default, `grouped_mm`, knows no float64.
        model.set_experts_implementation("eager")
    with torch.no_grad():
        # Fresh biases are 0 and fresh norms 1; either would hide a weight that is never read.
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return model


def save_drafter(
    folder: Path, *, seed: int = 1, target_hidden_size: int = HIDDEN, **settings: Any
) -> dict[str, np.ndarray]:
    """A random two-layer head in our dialect, saved; its tensors by name.

    `carries` lists what it holds beside the usual: embed_tokens, lm_head, o_bias. A `mask_token_id` of None makes a
    plain EAGLE-3 head, `model_type="qwen3"` norms of queries and keys.
    """
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "draft_vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "target_hidden_size": target_hidden_size,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": 1024,
        "attention_bias": False,
        "mlp_bias": False,
        "mask_token_id": 299,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5], "use_aux_hidden_state": True},
        "carries": (),
    } | settings
    tensors = head_tensors(config, seed)
    write_folder(folder, config | {"parallel_drafting": config["mask_token_id"] is not None}, tensors)
    return tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPair:
    """A target and a drafter with their engine."""

    target: TargetCheckpoint
    drafter: DrafterCheckpoint
    engine: Any


def open_pair(
    target_path: Path, drafter_path: Path, build_path: Path, *, precision: str = "fp32", **limits: int
) -> BuiltPair:
    """Write weights and graphs for two checkpoints and load them, without the pipeline around it."""
    target, drafter = read_target(target_path), read_head(drafter_path)
    config = msgspec.structs.replace(target.config, aux_layer_ids=drafter.config.aux_layer_ids)
    engine_path = build_path / "engine"
    engine_path.mkdir(parents=True)
    store_target, store_drafter = STORING[precision]
    stored_target = store_target(target, engine_path / "target.safetensors")
    stored_drafter = store_drafter(drafter, target, engine_path / "drafter.safetensors")
    spec = BuildSpec(
        name="random",
        target_path=target_path,
        drafter_path=drafter_path,
        tokenizer_path=target_path,
        output_path=build_path,
        **({"max_batch_size": 8, "max_sequence_length": 256} | limits),
    )
    shapes, graphs = build_graphs(spec, config, drafter.config, stored_target, stored_drafter, engine_path)
    manifest = EngineManifest(
        format=ARTIFACT_FORMAT,
        peagle_trt_version=__version__,
        name="random",
        backend="onnxruntime",
        precision=precision,
        target=config,
        drafter=drafter.config,
        shapes=shapes,
        tokenizer=TokenizerFiles(tokenizer="", chat_template=None),
        graphs={role: f"engine/{name}" for role, name in graphs.items()},
        files=(),
        sources={},
    )
    return BuiltPair(target=target, drafter=drafter, engine=open_engine(build_path, manifest, num_threads=2))
