"""Scales of a target's activations and cache: modelopt's maxima over real text, checked, by names of the checkpoint."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import UsageError
from peagle_trt.quant.calibration import checks
from peagle_trt.quant.calibration.model import (
    TargetStreams,
    answer,
    capture_streams,
    encode_turns,
    load_model,
    read_calibratable,
    stdout_to_stderr,
)
from peagle_trt.quant.calibration.names import (
    cache_scale,
    fused_groups,
    input_scale_stems,
    is_of_input,
    quantizers,
)
from peagle_trt.quant.calibration.recipes import CACHE_LARGEST, LARGEST, CalibrationRecipe, find_calibration
from peagle_trt.quant.calibration.scales import INPUT_SCALE, PRE_QUANT_SCALE, Scales
from peagle_trt.quant.calibration.simulation import BACKEND, register_backend

logger = logging.getLogger(__name__)

ANSWER_TOKENS = 64
"""Tokens that the target adds to each prompt; an engine spends most of its steps on answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRun:
    """A calibration that passed its checks.

    Attributes:
        scales: What it found.
        streams: The texts with the hidden states that a drafter reads, of the model before it was quantized.
        dead_experts: Experts that no token was sent to.
    """

    scales: Scales
    streams: tuple[TargetStreams, ...]
    dead_experts: tuple[str, ...]


def calibrate_target(
    folder: Path,
    recipe_name: str,
    turns: Sequence[str],
    *,
    answer_tokens: int = ANSWER_TOKENS,
    stream_layers: Sequence[int] = (),
    allows_dead_experts: bool = False,
) -> CalibrationRun:
    """Run a target over texts and keep the largest magnitude that each quantized input took.

    Args:
        folder: Hugging Face checkpoint that fits into memory as float32.
        recipe_name: One of `CALIBRATIONS`.
        turns: What users ask; the target's own greedy answers are read too.
        answer_tokens: Longest answer; 0 reads the questions alone.
        stream_layers: Auxiliary layers of a drafter, if `streams` is wanted.
        allows_dead_experts: Take experts that saw nothing; their layer's scale is of those that did.

    Raises:
        PeagleError: See `read_calibratable` and the checks; nothing is found by a run that missed a module.
    """
    recipe = find_calibration(recipe_name)
    target = read_calibratable(folder, recipe)
    prompts = encode_turns(target, turns)
    model = load_model(target)
    checks.require_finite_parameters(model)
    texts = answer(model, prompts, answer_tokens)
    streams = tuple(capture_streams(model, text, stream_layers) for text in texts) if stream_layers else ()
    seen = run_modelopt(model, recipe, texts)
    dead = checks.dead_experts(seen)
    if not allows_dead_experts:
        checks.require_live_experts(seen)
    elif dead:
        logger.warning("%d expert(s) were never chosen and take their layer's scale", len(dead))
    scales = Scales(
        values=extract_scales(model, recipe),
        recipe=recipe.name,
        num_texts=len(texts),
        num_tokens=sum(map(len, texts)),
        tool=_tool(),
    )
    return CalibrationRun(scales=scales, streams=streams, dead_experts=tuple(dead))


def run_modelopt(
    model: Any, recipe: CalibrationRecipe, texts: Sequence[Sequence[int]]
) -> dict[str, checks.ExpertsSeen]:
    """Put quantizers into a model and let them see the texts, then check that all of them did.

    Args:
        model: Of transformers; changed in place.
        recipe: What to quantize.
        texts: Token ids.

    Returns:
        What each layer's experts were given.

    Raises:
        UsageError: There are no texts; modelopt would take that for a model without activations to quantize.
        PeagleError: A module was not reached.
    """
    import modelopt.torch.quantization as quantization

    if not any(texts):
        raise UsageError("no texts to calibrate on", hint="name a set of prompts or a file of them")
    register_backend()
    with checks.watching_experts(model) as seen, stdout_to_stderr():
        quantization.quantize(model, _configuration(recipe), _feed(texts))
    checks.require_eager_experts(model)
    checks.require_ranges(model)
    checks.require_experts_quantized(model, seen)
    return seen


def extract_scales(model: Any, recipe: CalibrationRecipe) -> dict[str, NDArray[np.float32]]:
    """The scales of a calibrated model, by names of the quantized checkpoint; those of fused linears are one."""
    values: dict[str, NDArray[np.float32]] = {}
    for name, quantizer in quantizers(model).items():
        if not is_of_input(name):
            continue
        largest = np.float32(quantizer.amax.float().max().item())
        cache = cache_scale(name)
        if cache is not None:
            values[cache] = np.array(largest / np.float32(CACHE_LARGEST))
            continue
        for stem in input_scale_stems(name, model):
            values[f"{stem}input_scale"] = np.array(largest / np.float32(LARGEST[recipe.scheme]))
            if quantizer.pre_quant_scale is not None:
                values[f"{stem}pre_quant_scale"] = quantizer.pre_quant_scale.float().numpy().copy()
    _unify(values)
    return values


def _unify(values: dict[str, NDArray[np.float32]]) -> None:
    """Linears that read the same input get one scale: the largest, and the mean of searched columns' scales.

    Source: modelopt 0.47's export. The largest scale holds for the mean too, for no mean is above the largest.
    """
    modules = {name.removesuffix(INPUT_SCALE) for name in values if name.endswith(INPUT_SCALE)}
    for group in fused_groups(modules):
        largest = max(values[f"{module}{INPUT_SCALE}"] for module in group)
        values.update({f"{module}{INPUT_SCALE}": largest for module in group})
        searched = [values[key] for module in group if (key := f"{module}{PRE_QUANT_SCALE}") in values]
        if searched:
            mean = np.mean(searched, axis=0, dtype=np.float32)
            values.update({f"{module}{PRE_QUANT_SCALE}": mean for module in group})


def _configuration(recipe: CalibrationRecipe) -> dict[str, Any]:
    """What modelopt ships as configuration, with our backend wherever a format needs blocks."""
    import modelopt.torch.quantization as quantization

    configuration = copy.deepcopy(getattr(quantization, recipe.preset))
    if recipe.cache_preset:
        configuration["quant_cfg"] += copy.deepcopy(getattr(quantization, recipe.cache_preset)["quant_cfg"])
    for entry in configuration["quant_cfg"]:
        settings = entry.get("cfg") or {}
        if "scale_bits" in (settings.get("block_sizes") or {}):
            settings["backend"] = BACKEND
    return dict(configuration)


def _feed(texts: Sequence[Sequence[int]]) -> Callable[[Any], None]:
    import torch

    def run(model: Any) -> None:
        # Not `inference_mode`: AWQ-lite writes to weights afterwards.
        with torch.no_grad():
            for text in texts:
                model(input_ids=torch.tensor([list(text)]), use_cache=False)

    return run


def _tool() -> str:
    from importlib.metadata import version

    return f"nvidia-modelopt {version('nvidia-modelopt')}"
