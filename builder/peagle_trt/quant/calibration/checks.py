"""Whether calibration reached what it was meant to reach; each check here was once passed by broken checkpoints."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from peagle_trt.errors import CheckpointError, PeagleError
from peagle_trt.quant.calibration.names import is_of_input, quantizers

if TYPE_CHECKING:
    from torch import Tensor

_SHOWN = 5


@dataclass(slots=True, kw_only=True)
class ExpertsSeen:
    """What one layer's experts were given.

    Attributes:
        counts: Tokens that each expert was chosen for.
        last: Arguments of the last call.
    """

    counts: Tensor
    last: tuple[Any, ...] = field(default=())


def require_finite_parameters(model: Any) -> None:
    """Refuse weights that are nan or infinite, before anything is measured with them.

    Raises:
        CheckpointError: There is one.
    """
    import torch

    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise CheckpointError(
                f"`{name}` holds values that are nan or infinite",
                hint="the weights are damaged, or training diverged; fetch the checkpoint again",
            )


def require_ranges(model: Any) -> None:
    """Every enabled quantizer of an input or a cache must have seen numbers.

    Raises:
        PeagleError: One has no range, which engines would read as nothing to scale by, or as zero.
    """
    missing = [name for name, quantizer in quantizers(model).items() if is_of_input(name) and not _has_range(quantizer)]
    if missing:
        raise PeagleError(
            f"calibration never reached {_listed(missing)}",
            hint="the modules were bypassed, or read nothing but zeros; nothing was written",
        )


def require_eager_experts(model: Any) -> None:
    """Experts must run one by one, for fused kernels go around the quantizers without a word.

    Raises:
        PeagleError: Another implementation is set.
    """
    found = getattr(model.config, "_experts_implementation", None)
    if expert_modules(model) and found != "eager":
        raise PeagleError(
            f"experts run as `{found}`, where quantizers are not called", hint="this transformers is not the pinned one"
        )


def require_experts_quantized(model: Any, seen: dict[str, ExpertsSeen]) -> None:
    """A layer's experts must answer differently with their quantizers than without, on the last input they had.

    Args:
        model: Calibrated.
        seen: What `watching_experts` gathered while it was.

    Raises:
        PeagleError: They answer the same.
    """
    import torch

    for name, module in expert_modules(model).items():
        enabled = quantizers(module)
        if not enabled or not seen[name].last:
            continue
        with torch.inference_mode():
            quantized = module(*seen[name].last)
            with _disabled(enabled):
                plain = module(*seen[name].last)
        if torch.equal(quantized, plain):
            raise PeagleError(
                f"the experts of `{name}` answer the same with quantizers and without: they were bypassed",
                hint="this transformers is not the pinned one; nothing was written",
            )


def dead_experts(seen: dict[str, ExpertsSeen]) -> list[str]:
    """Experts that no token was sent to, as `LAYER expert N`."""
    return [
        f"{name} expert {index}"
        for name, experts in seen.items()
        for index in (experts.counts == 0).nonzero().flatten().tolist()
    ]


def require_live_experts(seen: dict[str, ExpertsSeen]) -> None:
    """Every expert must have been chosen at least once.

    Raises:
        PeagleError: Some were not.
    """
    dead = dead_experts(seen)
    if dead:
        raise PeagleError(
            f"{len(dead)} expert(s) were never chosen: {_listed(dead)}",
            hint="calibrate on more or other texts, or accept them: they then share their layer's scale",
        )


def expert_modules(model: Any) -> dict[str, Any]:
    """Modules that hold a layer's experts as stacked matrices, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "num_experts") and getattr(getattr(module, "down_proj", None), "ndim", 0) == 3
    }


@contextlib.contextmanager
def watching_experts(model: Any) -> Iterator[dict[str, ExpertsSeen]]:
    """Count what experts are chosen for while the body runs, by the modules' names.

    Source: transformers 5: experts are called with hidden states, the indices chosen for each and their weights.
    """
    import torch

    found = expert_modules(model)
    seen = {
        name: ExpertsSeen(counts=torch.zeros(module.num_experts, dtype=torch.int64)) for name, module in found.items()
    }

    def watch(name: str) -> Any:
        def take(module: Any, arguments: tuple[Any, ...]) -> None:
            seen[name].counts += torch.bincount(arguments[1].flatten(), minlength=module.num_experts)
            seen[name].last = arguments

        return take

    hooks = [module.register_forward_pre_hook(watch(name)) for name, module in found.items()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _disabled(enabled: dict[str, Any]) -> Iterator[None]:
    for quantizer in enabled.values():
        quantizer.disable()
    try:
        yield
    finally:
        for quantizer in enabled.values():
            quantizer.enable()


def _has_range(quantizer: Any) -> bool:
    largest = quantizer.amax
    return largest is not None and bool(largest.min() > 0) and math.isfinite(float(largest.max()))


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:_SHOWN]) + rest
