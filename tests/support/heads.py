"""Random heads on disk, in this project's spelling and in those of others.

The spellings are written from their descriptions, apart from the readers and writers that are tested with them.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]


def head_tensors(config: dict[str, Any], seed: int) -> Tensors:
    """Every tensor of a head, each from its own stream of numbers, so that a flag more leaves the others as they are.

    Args:
        config: Its config.json, and under `carries` what else it holds: embed_tokens, lm_head, o_bias.
        seed: Of all streams.
    """
    return {
        name: _values(name, shape, seed) for name, shape in _shapes(config).items() if name not in ("d2t", "t2d")
    } | _vocabulary(config, seed)


def _values(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    normal = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)
    if name.endswith("norm.weight") or name.startswith("fc_norm."):
        return (1.0 + 0.2 * normal).astype(np.float32)
    return (normal * (0.9 if name == "mask_hidden" else 0.15)).astype(np.float32)


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, states = config["hidden_size"], num_states(config)
    fused = states * config["target_hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, fused), "norm.weight": (hidden,)}
    if config.get("mask_token_id") is not None:
        shapes["mask_hidden"] = (1, 1, fused)
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (fused,)
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{index}.weight": (config["target_hidden_size"],) for index in range(states)}
    if "embed_tokens" in config["carries"]:
        shapes["embed_tokens.weight"] = (config["vocab_size"], hidden)
    if "lm_head" in config["carries"]:
        shapes["lm_head.weight"] = (config["draft_vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in _layer_shapes(config, layer).items()}
    return shapes


def _layer_shapes(config: dict[str, Any], layer: int) -> dict[str, tuple[int, ...]]:
    hidden, feed_forward, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    width = hidden if layer else 2 * hidden
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"], "v": config["num_key_value_heads"]}
    norms = ["input_layernorm", "post_attention_layernorm", *([] if layer else ["hidden_norm"])]
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (hidden,) for name in norms}
    shapes |= {f"self_attn.{name}_proj.weight": (count * dim, width) for name, count in heads.items()}
    shapes["self_attn.o_proj.weight"] = (hidden, heads["q"] * dim)
    shapes |= {f"mlp.{name}_proj.weight": (feed_forward, hidden) for name in ("gate", "up")}
    shapes["mlp.down_proj.weight"] = (hidden, feed_forward)
    if config["attention_bias"]:
        shapes |= {f"self_attn.{name}_proj.bias": (count * dim,) for name, count in heads.items()}
    if "o_bias" in config["carries"]:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if config["mlp_bias"]:
        shapes |= {f"mlp.{name}_proj.bias": (feed_forward,) for name in ("gate", "up")}
        shapes["mlp.down_proj.bias"] = (hidden,)
    if config["model_type"] == "qwen3":
        shapes |= {f"self_attn.{name}_norm.weight": (dim,) for name in "qk"}
    return shapes


def num_states(config: dict[str, Any]) -> int:
    """Auxiliary states that `fc` reads."""
    return len((config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids") or (0, 0, 0))


def _vocabulary(config: dict[str, Any], seed: int) -> Tensors:
    draft, whole = config["draft_vocab_size"], config["vocab_size"]
    if draft >= whole:
        return {}
    kept = np.sort(np.random.default_rng(seed).choice(whole, draft, replace=False))
    return {"d2t": (kept - np.arange(draft)).astype(np.int64)}


def write_folder(folder: Path, config: dict[str, Any], tensors: Tensors) -> None:
    """config.json and model.safetensors."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "carries"}))
    save_file(tensors, folder / "model.safetensors")


def respell(folder: Path, dialect: str, **changes: Any) -> None:
    """Turn a head in this project's spelling into another's, in place; `changes` are keys of its config.json on top."""
    from safetensors.numpy import load_file

    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    config, tensors = _RESPELLERS[dialect](config, tensors)
    write_folder(folder, {k: v for k, v in (config | changes).items() if v is not None}, tensors)


def _take_layers(config: dict[str, Any]) -> list[int]:
    for key in ("pard_token", "ptd_token_id", "parallel_drafting"):
        config.pop(key, None)
    return list((config.pop("eagle_config", None) or {}).get("eagle_aux_hidden_state_layer_ids", ()))


def _renamed(tensors: Tensors, *pairs: tuple[str, str]) -> Tensors:
    result: Tensors = {}
    for name, value in tensors.items():
        new = next((name.replace(old, new, 1) for old, new in pairs if name.startswith(old)), name)
        result[new] = value
    return result


def _amazon(config: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
    layers, mask = _take_layers(config), config.pop("mask_token_id", None)
    extra = {"ptd_token_id": mask, "eagle_config": {"eagle_aux_hidden_state_layer_ids": layers}}
    return config | extra, _renamed(tensors, ("layers.0.", "midlayer."))


def _safeailab(config: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
    _take_layers(config)
    return config | {"architectures": ["LlamaForCausalLM"]}, _renamed(tensors, ("layers.0.", "midlayer."))


_OF_LAYERS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "vocab_size",
    "max_position_embeddings", "attention_bias", "mlp_bias", "layer_types", "sliding_window",
)  # fmt: skip


def _speculators(config: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
    layers = _take_layers(config)
    method = "peagle" if "mask_hidden" in tensors else "eagle3"
    nested = {key: config.pop(key) for key in _OF_LAYERS if key in config}
    if nested.pop("rope_scaling", None) is None:
        nested["rope_parameters"] = {"rope_type": "default", "rope_theta": nested.pop("rope_theta")}
    proposals = [{"proposal_type": "greedy", "speculative_tokens": 6}]
    mine = {
        "speculators_model_type": method,
        "architectures": ["PEagleDraftModel"],
        "transformer_layer_config": nested,
        "eagle_aux_hidden_state_layer_ids": layers,
        "speculators_config": {"algorithm": method, "proposal_methods": proposals},
    }
    return config | mine, tensors


def _automodel(config: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
    _take_layers(config)
    top = ("lm_head", "d2t", "t2d", "mask_hidden")
    renamed = {name if name.startswith(top) else f"model.{name}": value for name, value in tensors.items()}
    return config | {"architectures": ["LlamaEagle3DraftModel"], "parallel_drafting": True, "num_depths": 8}, renamed


def _specforge(config: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
    _take_layers(config)
    config.pop("mask_token_id", None)
    return config | {"architectures": ["PEagleDraftModel"]}, tensors


def _nvidia(config: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
    outputs = [layer - 1 for layer in _take_layers(config)]
    eagle = {"eagle_aux_hidden_state_layer_ids": outputs, "use_aux_hidden_state": True, "next_layer_regular": True}
    return config | {"eagle_config": eagle}, tensors


def _angelslim(config: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
    outputs = [layer - 1 for layer in _take_layers(config)]
    return config | {"architectures": ["Eagle3LlamaForCausalLM"], "aux_hidden_states_layer_ids": outputs}, tensors


def _trtllm(config: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
    config, tensors = _nvidia(config, tensors)
    if config["num_hidden_layers"] == 1:
        return config, _renamed(tensors, ("layers.0.", "midlayer."))
    renamed = _renamed(tensors, ("layers.", "midlayer."))
    return config, {
        name if name.startswith("midlayer.0.") else name.replace(".input_layernorm.", ".hidden_norm."): value
        for name, value in renamed.items()
    }


_RESPELLERS = {
    "amazon": _amazon,
    "safeailab": _safeailab,
    "speculators": _speculators,
    "automodel": _automodel,
    "specforge": _specforge,
    "nvidia": _nvidia,
    "angelslim": _angelslim,
    "trtllm": _trtllm,
}


def without_mask(folder: Path, output: Path) -> Path:
    """A P-EAGLE head in our dialect as the plain EAGLE-3 head that is left without its masked slots."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["mask_hidden"]
    config = json.loads((folder / "config.json").read_text())
    for key in ("mask_token_id", "pard_token", "ptd_token_id", "parallel_drafting"):
        del config[key]
    output.mkdir()
    (output / "config.json").write_text(json.dumps(config))
    save_file(tensors, output / "model.safetensors")
    return output
