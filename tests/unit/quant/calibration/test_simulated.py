"""Rounding while a model runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from peagle_trt.errors import CheckpointError
from peagle_trt.quant.calibration.simulated import simulated_activations, simulated_cache
from peagle_trt.quant.calibration.simulation import simulate_nvfp4
from tests.support.models import save_target

IDS = torch.arange(3, 15)[None]
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return save_target(tmp_path_factory.mktemp("model"), num_hidden_layers=1)


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS, use_cache=False).logits


def scales(**values: float) -> dict[str, np.ndarray]:
    return {name: np.array(value, np.float32) for name, value in values.items()}


def watch(model: Any, name: str) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []
    # Registered last, so called last: after whatever rounds.
    model.get_submodule(name).register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    return seen


def test_inputs_of_linears_with_a_scale_are_rounded_and_others_are_not(model: Any) -> None:
    plain = logits(model)
    largest = torch.tensor(4.0)
    with simulated_activations(model, scales(**{f"{Q}.input_scale": 4 / 2688}), "nvfp4"):
        inputs, others = watch(model, Q), watch(model, DOWN)
        rounded = logits(model)
    assert torch.equal(inputs[0], simulate_nvfp4(inputs[0], largest))
    assert not torch.equal(others[0], simulate_nvfp4(others[0], largest))
    assert not torch.equal(rounded, plain)
    assert torch.equal(logits(model), plain)


def test_modules_that_are_not_quantized_are_left_alone(model: Any) -> None:
    plain = logits(model)
    with simulated_activations(model, scales(**{f"{Q}.input_scale": 1e-4}), "fp8", lambda name: name != Q):
        assert torch.equal(logits(model), plain)


def test_a_scale_of_another_checkpoint_is_named(model: Any) -> None:
    with (
        pytest.raises(CheckpointError, match=r"`model\.layers\.9\.q_proj\.input_scale` belongs to no module"),
        simulated_activations(model, scales(**{"model.layers.9.q_proj.input_scale": 1.0}), "fp8"),
    ):
        pass


def test_columns_are_multiplied_for_rounding_alone(model: Any) -> None:
    plain = logits(model)
    found = scales(**{f"{Q}.input_scale": 1.0}) | {f"{Q}.pre_quant_scale": np.full(64, 4.0, np.float32)}
    # A power of two changes no number of FP8 within its range.
    with simulated_activations(model, found, "fp8"):
        scaled = logits(model)
    with simulated_activations(model, scales(**{f"{Q}.input_scale": 0.25}), "fp8"):
        assert torch.equal(logits(model), scaled)
    assert not torch.equal(scaled, plain)


def test_a_file_without_scales_of_a_cache_is_refused(model: Any) -> None:
    with (
        pytest.raises(CheckpointError, match="has none of a cache"),
        simulated_cache(model, scales(**{f"{Q}.input_scale": 1.0}), "fp8"),
    ):
        pass


def test_a_cache_of_values_that_vanish_attends_to_nothing(model: Any) -> None:
    attention = "model.layers.0.self_attn"
    # On a scale this coarse every key and value is rounded to zero.
    found = scales(**{f"{attention}.k_proj.k_scale": 1e6, f"{attention}.v_proj.v_scale": 1e6})
    with simulated_cache(model, found, "fp8"):
        outputs = watch(model, f"{attention}.o_proj")
        logits(model)
    assert torch.equal(outputs[0], torch.zeros_like(outputs[0]))
    assert model.config._attn_implementation == "eager"
