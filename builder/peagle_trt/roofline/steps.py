"""What one step takes: the target's verify pass and the drafter's passes, as memory, arithmetic and launches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from peagle_trt.roofline.devices import Device
from peagle_trt.roofline.formats import BYTES_PER_ELEMENT, WeightFormats
from peagle_trt.roofline.geometry import Geometry
from peagle_trt.roofline.routing import expected_experts

_LOGIT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a step works on.

    Attributes:
        batch_size: Requests in flight.
        context_tokens: Tokens of each that are in the caches.
        formats: What weights are stored in.
        cache_format: What keys and values are stored in.
        routing_spread: How equal a mixture's experts are in popularity, see `expected_experts`; without limit, all are.
    """

    batch_size: int
    context_tokens: int
    formats: WeightFormats
    cache_format: str
    routing_spread: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """One pass of one model.

    Attributes:
        memory_seconds: Share of its time that waits for memory.
        compute_seconds: Share that waits for arithmetic.
        launch_seconds: Launches and other fixed costs.
    """

    memory_seconds: float = 0.0
    compute_seconds: float = 0.0
    launch_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.memory_seconds + self.compute_seconds + self.launch_seconds

    def __add__(self, other: PassTime) -> PassTime:
        return PassTime(
            memory_seconds=self.memory_seconds + other.memory_seconds,
            compute_seconds=self.compute_seconds + other.compute_seconds,
            launch_seconds=self.launch_seconds + other.launch_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One step of every request in flight.

    Attributes:
        verify: The target's pass.
        draft: The drafter's pass or passes.
        overhead_seconds: What is neither: scheduling, sampling.
        host_seconds: The host's work for the passes; it runs beside the device's, so the longer of the two counts.
    """

    verify: PassTime
    draft: PassTime
    overhead_seconds: float
    host_seconds: float

    @property
    def device_seconds(self) -> float:
        """The device's part."""
        return self.verify.seconds + self.draft.seconds + self.overhead_seconds

    @property
    def seconds(self) -> float:
        """All of it."""
        return max(self.device_seconds, self.host_seconds)

    @property
    def bound(self) -> str:
        """What takes the largest part: "bandwidth", "compute" or "launch", the host's work among the last."""
        if self.host_seconds > self.device_seconds:
            return "launch"
        total = self.verify + self.draft
        parts = {
            "bandwidth": total.memory_seconds,
            "compute": total.compute_seconds,
            "launch": total.launch_seconds + self.overhead_seconds,
        }
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operation:
    """Weights or caches read, and the arithmetic on them."""

    size_bytes: float
    operations: float
    stored_format: str


def plain_step(device: Device, target: Geometry, load: Load) -> StepTime:
    """One token for every request, without a drafter."""
    return _step(device, load, verify_pass(device, target, load, draft_tokens=0), PassTime(), num_passes=1)


def p_eagle_step(device: Device, target: Geometry, drafter: Geometry, load: Load, draft_tokens: int) -> StepTime:
    """K drafts in one pass of width 2K (DESIGN: the verify step's K + 1 rows and K - 1 masked ones), then verified."""
    draft = drafter_pass(
        device, drafter, load, rows_each=2 * draft_tokens, sampled_each=draft_tokens, reads_target=True
    )
    return _step(device, load, verify_pass(device, target, load, draft_tokens=draft_tokens), draft, num_passes=2)


def eagle3_step(device: Device, target: Geometry, drafter: Geometry, load: Load, draft_tokens: int) -> StepTime:
    """K drafts in K passes: the first over the verify step's K + 1 rows, each other over one row of its own draft."""
    draft = drafter_pass(device, drafter, load, rows_each=draft_tokens + 1, sampled_each=1, reads_target=True)
    for _ in range(draft_tokens - 1):
        draft += drafter_pass(device, drafter, load, rows_each=1, sampled_each=1, reads_target=False)
    verify = verify_pass(device, target, load, draft_tokens=draft_tokens)
    return _step(device, load, verify, draft, num_passes=1 + draft_tokens)


def verify_pass(device: Device, target: Geometry, load: Load, *, draft_tokens: int) -> PassTime:
    """The target over K + 1 rows of every request, logits of all of them."""
    rows = load.batch_size * (draft_tokens + 1)
    operations = (
        _matrix(target.attention_parameters + target.router_parameters, rows, load.formats.attention),
        _feed_forward(target, load, rows, load.formats.feed_forward),
        _attention(target, load, draft_tokens + 1),
        _output_layer(target, rows, load.formats.head),
    )
    return _pass_time(device, iter(operations), target.num_layers)


def drafter_pass(
    device: Device, drafter: Geometry, load: Load, *, rows_each: int, sampled_each: int, reads_target: bool
) -> PassTime:
    """The drafter over some rows of every request, logits of some of them.

    Args:
        device: Where.
        drafter: Its sizes.
        load: What it works on.
        rows_each: Rows of a request.
        sampled_each: Rows of a request with logits.
        reads_target: The pass reads the target's auxiliary states through `fc`.
    """
    rows = load.batch_size * rows_each
    fused = drafter.hidden_size * drafter.fused_size
    operations = (
        _matrix(drafter.attention_parameters - fused, rows, load.formats.drafter),
        _matrix(fused if reads_target else 0, rows, load.formats.drafter_head),
        _feed_forward(drafter, load, rows, load.formats.drafter),
        _attention(drafter, load, rows_each),
        _output_layer(drafter, load.batch_size * sampled_each, load.formats.drafter_head),
    )
    return _pass_time(device, iter(operations), drafter.num_layers)


def _pass_time(device: Device, operations: Iterator[_Operation], num_layers: int) -> PassTime:
    total = PassTime(launch_seconds=num_layers * device.layer_overhead_seconds.value)
    for operation in operations:
        memory = device.memory_seconds(operation.size_bytes)
        compute = device.compute_seconds(operation.operations, operation.stored_format)
        if not device.overlaps:
            total += PassTime(memory_seconds=memory, compute_seconds=compute)
        elif memory >= compute:
            total += PassTime(memory_seconds=memory)
        else:
            total += PassTime(compute_seconds=compute)
    return total


def _matrix(parameters: int, rows: int, stored_format: str) -> _Operation:
    """Weights that every row is multiplied with, read once."""
    return _Operation(
        size_bytes=parameters * BYTES_PER_ELEMENT[stored_format],
        operations=2.0 * parameters * rows,
        stored_format=stored_format,
    )


def _feed_forward(model: Geometry, load: Load, rows: int, stored_format: str) -> _Operation:
    """Blocks of every layer: of a mixture only the experts that some row is sent to are read."""
    if not model.num_experts:
        return _matrix(model.feed_forward_parameters, rows, stored_format)
    touched = expected_experts(model.num_experts, model.experts_per_token, rows, spread=load.routing_spread)
    layers = model.num_layers * model.block_parameters
    return _Operation(
        size_bytes=layers * touched * BYTES_PER_ELEMENT[stored_format],
        operations=2.0 * layers * model.experts_per_token * rows,
        stored_format=stored_format,
    )


def _attention(model: Geometry, load: Load, rows_each: int) -> _Operation:
    """Each request's cache, read once for all of its rows; the new rows' keys and values, written."""
    attended = model.attended_tokens(load.context_tokens)
    written = model.num_layers * rows_each
    elements = load.batch_size * model.cache_elements_per_token * (attended + written)
    width = model.num_attention_heads * model.head_dim
    return _Operation(
        size_bytes=elements * BYTES_PER_ELEMENT[load.cache_format],
        # Scores and the weighted sum of values: two multiply-adds for each width element of each attended token.
        operations=4.0 * load.batch_size * rows_each * attended * width,
        # A cache in FP8 is widened before it is multiplied.
        stored_format="fp32" if load.cache_format == "fp32" else "bf16",
    )


def _output_layer(model: Geometry, rows: int, stored_format: str) -> _Operation:
    matrix = _matrix(model.head_parameters, rows, stored_format)
    return _Operation(
        size_bytes=matrix.size_bytes + rows * model.output_rows * _LOGIT_BYTES,
        operations=matrix.operations,
        stored_format=stored_format,
    )


def _step(device: Device, load: Load, verify: PassTime, draft: PassTime, *, num_passes: int) -> StepTime:
    requests = load.batch_size * device.request_overhead_seconds.value
    return StepTime(
        verify=verify,
        draft=draft,
        overhead_seconds=device.step_overhead_seconds.value + requests,
        host_seconds=num_passes * device.host_pass_seconds.value,
    )
