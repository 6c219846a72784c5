"""What transformers and plain torch say about a checkpoint, with one expert in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from tests.support.drafter_reference import DrafterReference


class Tensors:
    """The tensors of a folder by name, read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self._files = [safe_open(path, "pt") for path in sorted(folder.glob("*.safetensors"))]
        self._file_of = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118

    def read(self, name: str, part: Any = slice(None)) -> torch.Tensor:
        """A tensor, or a part along its first axis, in its own type."""
        tensor: torch.Tensor = self._file_of[name].get_slice(name)[part]
        return tensor

    def names(self, prefix: str) -> list[str]:
        """Names that begin with a prefix."""
        return [name for name in self._file_of if name.startswith(prefix)]


class LazyExperts:
    """Stands in for a stacked parameter: an expert's matrix is made when it is looked up."""

    def __init__(self, make: Callable[[int], torch.Tensor]) -> None:
        self._make = make

    def __getitem__(self, expert: torch.Tensor | int) -> torch.Tensor:
        return self._make(int(expert))


def layer_streams(folder: Path, token_ids: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Streams before and after each layer, and logits, of transformers' own layers in float32."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    config._attn_implementation = config._experts_implementation = "eager"
    tensors = Tensors(folder)
    make_layer, rotary = _pieces(config)
    stream = tensors.read("model.embed_tokens.weight")[torch.from_numpy(token_ids).long()].float()[None]
    positions = torch.arange(len(token_ids))[None]
    embeddings = rotary(stream, positions)
    # No window is shorter than the text.
    mask = torch.full((len(token_ids), len(token_ids)), -torch.inf).triu(1)[None, None]
    streams = [stream[0].numpy()]
    with torch.no_grad():
        for index in range(config.num_hidden_layers):
            layer = _fill(make_layer(index), tensors, f"model.layers.{index}.")
            stream = layer(stream, attention_mask=mask, position_ids=positions, position_embeddings=embeddings)
            streams.append(stream[0].numpy())
        scale = torch.rsqrt(stream.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps)
        normed = stream * scale * tensors.read("model.norm.weight").float()
        logits = normed[0] @ tensors.read("lm_head.weight", slice(0, 4096)).float().T
    return streams, logits.numpy()


def draft_logits(folder: Path, next_token_ids: list[int], hidden: np.ndarray, draft_tokens: int) -> np.ndarray:
    """Logits [K, D] of a head after a history, in float64."""
    return _TrueSizeReference(folder).draft_logits(next_token_ids, hidden, draft_tokens)


class _DoubleTensors:
    """A head's tensors as float64 under the names of `DrafterReference`, read when they are asked for."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors.read(name.replace("layers.0.", "midlayer.")).double()

    def get(self, name: str, default: float) -> float:
        """Published heads carry no biases."""
        assert not self._tensors.names(name.replace("layers.0.", "midlayer."))
        return default


class _LazyTable:
    """Rows of a table, and products with its transpose, a block of rows at a time."""

    def __init__(self, tensors: Tensors, name: str) -> None:
        self._table = tensors.read(name)

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._table[rows].double()

    @property
    def T(self) -> _LazyTable:  # noqa: N802
        """Itself: `rows @ table.T` is all that is asked of it."""
        return self

    def __rmatmul__(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([rows @ block.double().T for block in self._table.split(8192)], dim=-1)


class _TrueSizeReference(DrafterReference):
    """The reference of the tests, without holding 14 GB of float64."""

    def __init__(self, folder: Path) -> None:
        tensors = Tensors(folder)
        self.c = json.loads((folder / "config.json").read_text())
        self.c["mask_token_id"] = self.c["ptd_token_id"]
        self.t = _DoubleTensors(tensors)
        self.embedding, self.lm_head = (_LazyTable(tensors, f"{name}.weight") for name in ("embed_tokens", "lm_head"))

    def draft_logits(self, next_token_ids: list[int], hidden: np.ndarray, draft_tokens: int) -> np.ndarray:
        with torch.no_grad():
            return super().draft_logits(next_token_ids, hidden, draft_tokens)

    def _rotate(self, heads: torch.Tensor) -> torch.Tensor:
        import transformers
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

        keys = (
            "hidden_size",
            "num_attention_heads",
            "head_dim",
            "rope_theta",
            "rope_scaling",
            "max_position_embeddings",
        )
        rotary = LlamaRotaryEmbedding(transformers.LlamaConfig(**{key: self.c[key] for key in keys}))
        cosines, sines = rotary(heads, torch.arange(len(heads))[None])
        rotated, _ = apply_rotary_pos_emb(heads.transpose(0, 1)[None], heads.transpose(0, 1)[None], cosines, sines)
        return rotated[0].transpose(0, 1)


def _pieces(config: Any) -> tuple[Callable[[int], torch.nn.Module], torch.nn.Module]:
    """A maker of layers without memory, and the rotary embedding."""
    if config.model_type == "gpt_oss":
        from transformers.models.gpt_oss.modeling_gpt_oss import GptOssDecoderLayer as Layer
        from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRotaryEmbedding as Rotary
    else:
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeDecoderLayer as Layer
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRotaryEmbedding as Rotary

    def make(index: int) -> torch.nn.Module:
        with torch.device("meta"):
            return Layer(config, index).eval()

    return make, Rotary(config)


def _fill(layer: torch.nn.Module, tensors: Tensors, prefix: str) -> torch.nn.Module:
    """Give a layer its weights; experts stay on the disk."""
    experts = layer.mlp.experts
    for name, stack in _expert_stacks(tensors, f"{prefix}mlp.experts.").items():
        delattr(experts, name)
        setattr(experts, name, stack)
    values = {name: tensors.read(f"{prefix}{name}").float() for name, _ in layer.named_parameters()}
    layer.load_state_dict(values, assign=True, strict=True)
    return layer


def _expert_stacks(tensors: Tensors, prefix: str) -> dict[str, LazyExperts]:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    if not tensors.names(f"{prefix}gate_up_proj_blocks"):

        def matrix(expert: int, *parts: str) -> torch.Tensor:
            return torch.cat([tensors.read(f"{prefix}{expert}.{part}_proj.weight") for part in parts]).float()

        return {
            "gate_up_proj": LazyExperts(lambda expert: matrix(expert, "gate", "up")),
            "down_proj": LazyExperts(lambda expert: matrix(expert, "down")),
        }

    def unpack(name: str, expert: int) -> torch.Tensor:
        part = slice(expert, expert + 1)
        codes, scales = (tensors.read(f"{prefix}{name}_{kind}", part) for kind in ("blocks", "scales"))
        unpacked: torch.Tensor = convert_moe_packed_tensors(codes, scales, dtype=torch.float32)[0]
        return unpacked

    return {name: LazyExperts(lambda expert, name=name: unpack(name, expert)) for name in ("gate_up_proj", "down_proj")}
