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
PRECISIONS = (PUBLISHED, "fp32", "bf16", "fp8", "fp8-experts", "nvfp4")


class WeightFormats(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each part is stored in.

    Attributes:
        attention: Projections of the target's attention.
        feed_forward: The target's feed-forward blocks, its experts where it has them.
        head: The target's embedding and output layer.
        drafter: All of the drafter.
    """

    attention: Format
    feed_forward: Format
    head: Format
    drafter: Format


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
        return WeightFormats(attention="fp32", feed_forward="fp32", head="fp32", drafter="fp32")
    # Experts in MXFP4 stay in the checkpoint's files, and other experts go along only where they are named.
    experts: Format = "mxfp4" if published.feed_forward == "mxfp4" else "bf16"
    if precision == "bf16":
        return WeightFormats(attention="bf16", feed_forward=experts, head="bf16", drafter="bf16")
    if precision == "fp8":
        return WeightFormats(
            attention="fp8", feed_forward=experts if has_experts else "fp8", head="bf16", drafter="bf16"
        )
    if precision == "fp8-experts":
        return WeightFormats(attention="fp8", feed_forward="fp8", head="bf16", drafter="bf16")
    if precision == "nvfp4":
        return WeightFormats(attention="nvfp4", feed_forward="nvfp4", head="bf16", drafter="bf16")
    raise UsageError(f"unknown precision `{precision}`", hint=f"known: {', '.join(PRECISIONS)}")
