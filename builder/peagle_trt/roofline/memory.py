"""Memory that a pair needs on a device: weights, caches, logits."""

from __future__ import annotations

from dataclasses import dataclass

from peagle_trt.roofline.devices import Device
from peagle_trt.roofline.formats import BYTES_PER_ELEMENT
from peagle_trt.roofline.geometry import Geometry
from peagle_trt.roofline.steps import Load

USABLE_SHARE = 0.9
"""Share of a device's memory that weights, caches and logits may take; the rest is the runtime's.

Source: vLLM's default of `gpu_memory_utilization`.
"""
_LOGIT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes, by what they hold.

    Attributes:
        target_bytes: The target's weights, every expert counted.
        drafter_bytes: The drafter's weights.
        cache_bytes: Keys and values of both, for every request's whole context in every layer: windowed layers keep
            theirs too, as in this project's engines.
        logits_bytes: Logits of a step, in float32.
        usable_bytes: What the device offers.
    """

    target_bytes: float
    drafter_bytes: float
    cache_bytes: float
    logits_bytes: float
    usable_bytes: float

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return self.target_bytes + self.drafter_bytes + self.cache_bytes + self.logits_bytes

    @property
    def fits(self) -> bool:
        """Whether the device has that much."""
        return self.total_bytes <= self.usable_bytes


def memory_need(
    device: Device, target: Geometry, drafter: Geometry, load: Load, *, sequence_tokens: int, draft_tokens: int
) -> MemoryNeed:
    """What a pair needs.

    Args:
        device: Where.
        target: Sizes of the target.
        drafter: Sizes of the drafter.
        load: Requests in flight and formats.
        sequence_tokens: Longest sequence that every request has room for.
        draft_tokens: K.
    """
    formats, cache = load.formats, BYTES_PER_ELEMENT[load.cache_format]
    target_parts = (
        (formats.attention, target.attention_parameters + target.router_parameters),
        (formats.feed_forward, target.feed_forward_parameters),
        (formats.head, target.head_parameters + target.embedding_rows * target.hidden_size),
    )
    fused = drafter.hidden_size * drafter.fused_size
    drafter_parts = (
        (formats.drafter, drafter.attention_parameters - fused + drafter.feed_forward_parameters),
        (formats.drafter_head, fused + drafter.head_parameters + drafter.embedding_rows * drafter.hidden_size),
    )
    tokens = load.batch_size * sequence_tokens
    cached = sum(model.num_layers * model.cache_elements_per_token for model in (target, drafter))
    logits = (draft_tokens + 1) * target.output_rows + draft_tokens * drafter.output_rows
    return MemoryNeed(
        target_bytes=sum(count * BYTES_PER_ELEMENT[name] for name, count in target_parts),
        drafter_bytes=sum(count * BYTES_PER_ELEMENT[name] for name, count in drafter_parts),
        cache_bytes=tokens * cached * cache,
        logits_bytes=load.batch_size * logits * _LOGIT_BYTES,
        usable_bytes=device.memory_bytes.value * USABLE_SHARE,
    )
