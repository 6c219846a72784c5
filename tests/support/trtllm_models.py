"""A target class with a P-EAGLE head, as TensorRT-LLM would construct and load it, over the stand-in package."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from peagle_trt.readers import TargetCheckpoint, read_head, read_target
from peagle_trt.writers.convert import convert_head
from tests.support.fake_trtllm import FakeMapping, FakeModelConfig, FakeSpecConfig


def write_served_head(target_path: Path, drafter_path: Path, output_path: Path, **limits: int) -> Path:
    """The head in TensorRT-LLM's dialect, with the limits of a build."""
    target = read_target(target_path)
    head = read_head(drafter_path, num_target_layers=target.config.num_layers)
    convert_head(head, target, "trtllm", output_path)
    settings = {"draft_tokens": 5, "max_batch_size": 4, "max_sequence_length": 200} | limits
    edit_document(output_path, peagle_trt=settings)
    return output_path


def edit_document(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


def model_config(target: Any, head_path: Path, *, draft_tokens: int = 3, **options: Any) -> FakeModelConfig:
    """What TensorRT-LLM hands to a target class; `target` is our `TargetConfig` or its like."""
    sizes = SimpleNamespace(
        hidden_size=target.hidden_size, vocab_size=target.vocab_size, num_hidden_layers=target.num_layers
    )
    mapping = FakeMapping(**options.pop("mapping", {}))
    layers = [layer - 1 for layer in target.aux_layer_ids]
    speculation = {"eagle3_layers_to_capture": layers, "max_draft_len": draft_tokens} | options
    config = FakeSpecConfig(speculative_model=str(head_path), max_draft_len=speculation.pop("max_draft_len"))
    vars(config).update(speculation)
    return FakeModelConfig(pretrained_config=sizes, mapping=mapping, spec_config=config)


def load_pair(model: Any, target: TargetCheckpoint, head_path: Path) -> None:
    """What TensorRT-LLM's loader does: the target's tables, as far as a drafter sees them, then the head."""
    from safetensors.torch import load_file

    embeddings = torch.from_numpy(target.weights.load("embed_tokens"))
    output = embeddings if target.config.is_tied else torch.from_numpy(target.weights.load("lm_head"))
    with torch.no_grad():
        next(iter(model.model.children())).weight.copy_(embeddings)
        model.lm_head.weight.copy_(output)
    model.load_draft_weights(load_file(head_path / "model.safetensors"), weight_mapper=object())
