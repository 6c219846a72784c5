"""Number formats: bytes an element takes, and what each part of a pair is stored in under a precision."""

from __future__ import annotations

from typing import Literal

import msgspec

from peagle_trt.errors import UsageError

Format = Literal["fp32", "bf16", "fp8", "nvfp4", "mxfp4"]

BYTES_PER_ELEMENT: dict[str, float] = {
    "fp32": 4,
    "bf16": 2,
    # One float32 scale for a tensor, or for 128 x 128 elements: nothing.
    "fp8": 1,
    # Half a byte and one E4M3 scale for 16 elements.
    "nvfp4": 0.5 + 1 / 16,
    # Half a byte and one E8M0 scale for 32 elements.
    "mxfp4": 0.5 + 1 / 32,
}
CACHE_FORMATS = ("bf16", "fp8", "fp32")
PUBLISHED = "published"
# What builds of that name quantize: attention, feed-forward layers, and the experts of a mixture.
_QUANTIZED: dict[str, tuple[Format, Format, Format]] = {
    "bf16": ("bf16", "bf16", "bf16"),
    "mxfp4": ("bf16", "bf16", "bf16"),
    "fp8": ("fp8", "fp8", "bf16"),
    "nvfp4": ("nvfp4", "nvfp4", "nvfp4"),
    "nvfp4-awq": ("nvfp4", "nvfp4", "nvfp4"),
    "nvfp4-mlp": ("bf16", "nvfp4", "nvfp4"),
    "nvfp4-experts": ("bf16", "bf16", "nvfp4"),
    "w4a16-nvfp4": ("nvfp4", "nvfp4", "nvfp4"),
}
FP8_EXPERTS = "fp8-experts"
PRECISIONS = (PUBLISHED, "fp32", *_QUANTIZED, FP8_EXPERTS)


class WeightFormats(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each part is stored in.

    Attributes:
        attention: Projections of the target's attention.
        feed_forward: The target's feed-forward blocks, its experts where it has them.
        head: The target's embedding and output layer.
        drafter: Projections of the drafter's layers.
        drafter_head: Its `fc`, embedding and output layer.
    """

    attention: Format
    feed_forward: Format
    head: Format
    drafter: Format
    drafter_head: Format


def default_cache_format(formats: WeightFormats) -> Format:
    """What keys and values are stored in unless someone asks for another: what the attention computes in."""
    return "fp32" if formats.attention == "fp32" else "bf16"


def choose_formats(precision: str, published: WeightFormats, *, has_experts: bool) -> WeightFormats:
    """Formats under a precision, as `build` understands its name.

    Args:
        precision: One of `PRECISIONS`; `fp8-experts`, which no build makes, is what published FP8 checkpoints of
            mixtures hold.
        published: Formats of the checkpoint.
        has_experts: The target is a mixture of experts.

    Raises:
        UsageError: There is no such precision.
    """
    if precision == PUBLISHED:
        return published
    if precision == "fp32":
        return WeightFormats(attention="fp32", feed_forward="fp32", head="fp32", drafter="fp32", drafter_head="fp32")
    if precision == FP8_EXPERTS:
        return WeightFormats(attention="fp8", feed_forward="fp8", head="bf16", drafter="bf16", drafter_head="bf16")
    if precision not in _QUANTIZED:
        raise UsageError(f"unknown precision `{precision}`", hint=f"known: {', '.join(PRECISIONS)}")
    attention, feed_forward, experts = _QUANTIZED[precision]
    # Experts in MXFP4 keep their words.
    kept: Format = "mxfp4" if published.feed_forward == "mxfp4" else experts
    # A head's attention and feed-forward layers share one number here; a head has no experts.
    drafter = attention if attention == feed_forward else "bf16"
    return WeightFormats(
        attention=attention,
        feed_forward=kept if has_experts else feed_forward,
        head="bf16",
        drafter=drafter,
        drafter_head="bf16",
    )
