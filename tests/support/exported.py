"""Tiny random models and what modelopt's own export makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.models import save_target

ARCHITECTURES = ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "GptOssForCausalLM")
SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 32}


@dataclass(frozen=True)
class Exported:
    """A calibrated model, before and after the export.

    Attributes:
        weights: The model's own, bfloat16.
        scales: What we extracted.
        tensors: What modelopt wrote.
    """

    weights: dict[str, Any]
    scales: dict[str, np.ndarray]
    tensors: dict[str, Any]


def texts(count: int = 4, length: int = 64) -> list[list[int]]:
    numbers = np.random.default_rng(0)
    return [numbers.integers(3, 299, length).tolist() for _ in range(count)]


def tiny_model(folder: Path, architecture: str, **settings: Any) -> Any:
    """A random model in float32, saved to the folder too."""
    return save_target(folder, architecture, **(SIZES | {"moe_intermediate_size": 64} | settings))


def export(folder: Path, architecture: str, recipe_name: str) -> Exported:
    """Calibrate in bfloat16, take our scales, and let modelopt export the same model."""
    import torch
    from modelopt.torch.export import export_hf_checkpoint
    from safetensors.torch import load_file

    from peagle_trt.quant.calibration import find_calibration
    from peagle_trt.quant.calibration.target import extract_scales, run_modelopt

    model = tiny_model(folder / "target", architecture).to(torch.bfloat16)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    recipe = find_calibration(recipe_name)
    run_modelopt(model, recipe, texts())
    scales = extract_scales(model, recipe)
    # A model that was made from a configuration does not say what it is, and its type is still that of the folder.
    model.config.architectures, model.config.dtype = [architecture], torch.bfloat16
    export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=folder / "exported")
    return Exported(weights=weights, scales=scales, tensors=load_file(folder / "exported/model.safetensors"))
