"""A forecast: tokens a second and the gain of every K at every number of requests, the best K, and the memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from peagle_trt.roofline.acceptance import AcceptanceCurve
from peagle_trt.roofline.devices import Device
from peagle_trt.roofline.geometry import Geometry
from peagle_trt.roofline.memory import MemoryNeed, memory_need
from peagle_trt.roofline.steps import Load, StepTime, p_eagle_step, plain_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One K at one load.

    Attributes:
        concurrency: Requests in flight.
        draft_tokens: K; 0 for plain decoding.
        acceptance_length: Tokens a step yields for a request, bonus counted.
        step: What a step takes.
        tokens_per_second: Of all requests together, prompts not counted.
        speedup: Over plain decoding at the same load.
    """

    concurrency: int
    draft_tokens: int
    acceptance_length: float
    step: StepTime
    tokens_per_second: float
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a pair would do on a device.

    Attributes:
        rows: By concurrency, then K, plain decoding first.
        memory: Need at the largest concurrency and K.
    """

    rows: tuple[Row, ...]
    memory: MemoryNeed

    def best(self, concurrency: int) -> Row:
        """The row with most tokens a second at a load; plain decoding where nothing beats it."""
        return max((row for row in self.rows if row.concurrency == concurrency), key=lambda row: row.tokens_per_second)


def forecast(
    device: Device,
    target: Geometry,
    drafter: Geometry,
    load: Load,
    *,
    concurrency: Sequence[int],
    draft_tokens: Sequence[int],
    acceptance: AcceptanceCurve,
    sequence_tokens: int,
) -> Forecast:
    """Predict every combination.

    Args:
        device: Where.
        target: Sizes of the target.
        drafter: Sizes of the drafter.
        load: Context and formats; its batch size is replaced by each of `concurrency`.
        concurrency: Numbers of requests in flight.
        draft_tokens: Values of K, each at least 1.
        acceptance: What a step yields.
        sequence_tokens: Longest sequence that every request has room for.
    """
    rows = [
        row
        for count in concurrency
        for row in _rows(device, target, drafter, replace(load, batch_size=count), draft_tokens, acceptance)
    ]
    memory = memory_need(
        device,
        target,
        drafter,
        replace(load, batch_size=max(concurrency)),
        sequence_tokens=sequence_tokens,
        draft_tokens=max(draft_tokens),
    )
    return Forecast(rows=tuple(rows), memory=memory)


def _rows(
    device: Device,
    target: Geometry,
    drafter: Geometry,
    load: Load,
    draft_tokens: Sequence[int],
    acceptance: AcceptanceCurve,
) -> list[Row]:
    plain = _row(load, 0, 1.0, plain_step(device, target, load), None)
    steps = {count: p_eagle_step(device, target, drafter, load, count) for count in draft_tokens}
    return [plain, *(_row(load, count, acceptance.length(count), step, plain) for count, step in steps.items())]


def _row(load: Load, draft_tokens: int, length: float, step: StepTime, plain: Row | None) -> Row:
    rate = load.batch_size * length / step.seconds
    return Row(
        concurrency=load.batch_size,
        draft_tokens=draft_tokens,
        acceptance_length=length,
        step=step,
        tokens_per_second=rate,
        speedup=rate / plain.tokens_per_second if plain else 1.0,
    )
