"""Activations and cache of a transformers model as a quantized engine would see them: rounded on calibrated scales."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from peagle_trt.errors import CheckpointError
from peagle_trt.quant.calibration.recipes import CACHE_LARGEST, LARGEST
from peagle_trt.quant.calibration.scales import CACHE_SCALES, INPUT_SCALE, PRE_QUANT_SCALE
from peagle_trt.quant.calibration.simulation import simulate_fp8, simulate_nvfp4

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    Scales = Mapping[str, NDArray[np.float32]]

_ATTENTION = "peagle_trt_simulated"
_SIMULATE = {"fp8": simulate_fp8, "nvfp4": simulate_nvfp4}


@contextlib.contextmanager
def simulated_activations(
    model: Any, scales: Scales, scheme: Literal["fp8", "nvfp4"], is_quantized: Callable[[str], bool] = lambda name: True
) -> Iterator[None]:
    """Round the input of every linear that has a scale, while the body runs.

    Args:
        model: Its weights are worth what their codes are.
        scales: A file's values.
        scheme: Number format of activations.
        is_quantized: Whether a module's weight is quantized; activations of others are left alone.

    Raises:
        CheckpointError: A scale belongs to no module of the model.
    """
    import torch

    modules = dict(model.named_modules())
    hooks = []
    try:
        for name, scale in scales.items():
            module = name.removesuffix(INPUT_SCALE)
            if not name.endswith(INPUT_SCALE) or not is_quantized(module):
                continue
            if module not in modules:
                raise CheckpointError(
                    f"the scale `{name}` belongs to no module", hint="it was found for another checkpoint"
                )
            largest = torch.tensor(float(scale) * LARGEST[scheme])
            columns = scales.get(f"{module}{PRE_QUANT_SCALE}")
            hook = _round(scheme, largest, None if columns is None else torch.from_numpy(columns))
            hooks.append(modules[module].register_forward_pre_hook(hook))
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def simulated_cache(model: Any, scales: Scales, scheme: Literal["fp8", "nvfp4"]) -> Iterator[None]:
    """Round keys and values before they are attended to, while the body runs; keys after their rotation.

    Raises:
        CheckpointError: The file has no scales of a cache.
    """
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    names = [name for name in scales if name.endswith(CACHE_SCALES)]
    found = {name: torch.tensor(float(scales[name]) * CACHE_LARGEST) for name in names}
    if not found:
        raise CheckpointError("the file of scales has none of a cache", hint="calibrate for a recipe with one")
    places = {id(module): name for name, module in model.named_modules()}
    simulate = _SIMULATE[scheme]

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **settings: Any) -> Any:
        place = places[id(module)]
        key = simulate(key, found[f"{place}.k_proj{CACHE_SCALES[0]}"])
        value = simulate(value, found[f"{place}.v_proj{CACHE_SCALES[1]}"])
        return sdpa_attention_forward(module, query, key, value, mask, **settings)

    AttentionInterface.register(_ATTENTION, attend)
    AttentionMaskInterface.register(_ATTENTION, sdpa_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(_ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _round(scheme: Literal["fp8", "nvfp4"], largest: Tensor, columns: Tensor | None) -> Callable[..., tuple[Tensor]]:
    simulate = _SIMULATE[scheme]

    def hook(module: Any, arguments: tuple[Tensor, ...]) -> tuple[Tensor]:
        if columns is None:
            return (simulate(arguments[0], largest),)
        return (simulate(arguments[0] * columns, largest) / columns,)

    return hook
