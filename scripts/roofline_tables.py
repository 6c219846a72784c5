"""What was measured, and our steps of the same loads: for `validate_roofline.py` and `fit_roofline.py`.

Published figures lie in scripts/roofline/published.toml, this CPU's in cpu_sweep.json and cpu_loop.json, which
measure_steps.py and measure_loop.py wrote.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec.structs

from peagle_trt.roofline import (
    AcceptanceCurve,
    Device,
    Geometry,
    Load,
    Pair,
    StepTime,
    choose_formats,
    curve_from_length,
    default_cache_format,
    eagle3_step,
    find_pair,
    p_eagle_step,
    plain_step,
)
from peagle_trt.roofline.acceptance import EAGLE3_DECAY, P_EAGLE_DECAY
from peagle_trt.roofline.steps import drafter_pass, verify_pass

FOLDER = Path(__file__).parent / "roofline"
CONTEXT_TOKENS = 1000
DECAYS = {"p-eagle": P_EAGLE_DECAY, "eagle3": EAGLE3_DECAY}
# The published head of this target belongs to its FP8 checkpoint, and bf16 experts alone would take longer than the
# paper's steps do.
PRECISIONS = {"qwen3-coder-30b-a3b": "fp8-experts"}


def published() -> dict[str, Any]:
    """What others measured."""
    return tomllib.loads((FOLDER / "published.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One cell of table 10.

    Attributes:
        model: Catalog name.
        method: "p-eagle" or "eagle3".
        prompts: Set of prompts.
        draft_tokens: K.
        concurrency: Requests in flight.
        tokens_per_second: Of all of them.
        acceptance_length: At this K, from the curve through table 9's length at K = 5.
    """

    model: str
    method: str
    prompts: str
    draft_tokens: int
    concurrency: int
    tokens_per_second: float
    acceptance_length: float

    @property
    def step_seconds(self) -> float:
        """What a step took."""
        return self.concurrency * self.acceptance_length / self.tokens_per_second

    @property
    def name(self) -> str:
        """For a table."""
        return f"{self.model} {self.method} {self.prompts} C={self.concurrency} K={self.draft_tokens}"


def table10() -> list[Published]:
    """Its 108 cells."""
    table = published()["table10"]
    return [
        Published(
            model=cell["model"],
            method=cell["method"],
            prompts=prompts,
            draft_tokens=cell["draft_tokens"],
            concurrency=cell["concurrency"],
            tokens_per_second=rate,
            acceptance_length=paper_curve(table, cell["model"], cell["method"], column).length(cell["draft_tokens"]),
        )
        for cell in table["cells"]
        for column, (prompts, rate) in enumerate(zip(table["prompts"], cell["tokens_per_second"], strict=True))
    ]


def paper_curve(table: dict[str, Any], model: str, method: str, column: int) -> AcceptanceCurve:
    """Through the paper's length at K = 5."""
    acceptance = table["acceptance"]
    return curve_from_length(
        acceptance[model][method][column],
        draft_tokens=acceptance["draft_tokens"],
        max_draft_tokens=7,
        decay=DECAYS[method],
        source="P-EAGLE paper, table 9",
    )


def load_of(pair: Pair, model: str, concurrency: int, context_tokens: int) -> Load:
    """A load of the published models."""
    formats = choose_formats(PRECISIONS.get(model, "published"), pair.formats, has_experts=True)
    return Load(
        batch_size=concurrency,
        context_tokens=context_tokens,
        formats=formats,
        cache_format=default_cache_format(formats),
    )


def one_layer(drafter: Geometry) -> Geometry:
    """The paper's EAGLE-3 baseline, whose sizes it does not print: one layer of its P-EAGLE head."""
    return msgspec.structs.replace(drafter, num_layers=1)


def predict_step(device: Device, cell: Published, context_tokens: int, *, spread: float = math.inf) -> StepTime:
    """A step of table 10, with experts of a given spread of popularity."""
    pair = find_pair(cell.model)
    load = replace(load_of(pair, cell.model, cell.concurrency, context_tokens), routing_spread=spread)
    if cell.method == "p-eagle":
        return p_eagle_step(device, pair.target, pair.drafter, load, cell.draft_tokens)
    return eagle3_step(device, pair.target, one_layer(pair.drafter), load, cell.draft_tokens)


def is_fitted(cell: Published) -> bool:
    """Whether h200.toml's constants were fitted to a cell."""
    return cell.model.startswith("gpt-oss") and cell.draft_tokens == 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BlogStep:
    """One speed-up of the blog.

    Attributes:
        name: For a table.
        speedup: As published.
        lengths: Ratio of the published acceptance lengths.
        fast: Seconds of a P-EAGLE step.
        slow: Seconds of an EAGLE-3 step.
        fast_device: Seconds of the device's part of a P-EAGLE step.
    """

    name: str
    speedup: float
    lengths: float
    fast: float
    slow: float
    fast_device: float


def blog_steps(device: Device, context_tokens: int, concurrency: Sequence[int]) -> list[BlogStep]:
    """The blog's speed-ups with our steps."""
    blog = published()["blog"]
    pair = find_pair(blog["model"])
    head = msgspec.structs.replace(pair.drafter, **blog["eagle3_head"])
    slots, found = blog["draft_tokens"], []
    for prompts, speedups in blog["speedups"].items():
        lengths = blog["acceptance"]["p-eagle"][prompts][1] / blog["acceptance"]["eagle3"][prompts][0]
        for count, speedup in zip(blog["concurrency"], speedups, strict=True):
            if count not in concurrency:
                continue
            load = load_of(pair, blog["model"], count, context_tokens)
            slow = eagle3_step(device, pair.target, head, load, slots["eagle3"])
            fast = p_eagle_step(device, pair.target, pair.drafter, load, slots["p-eagle"])
            found.append(
                BlogStep(
                    name=f"{prompts} C={count} (EAGLE-3 {slow.bound}, P-EAGLE {fast.bound})",
                    speedup=speedup,
                    lengths=lengths,
                    fast=fast.seconds,
                    slow=slow.seconds,
                    fast_device=fast.device_seconds,
                )
            )
    return found


def sweep() -> dict[str, Any]:
    """Passes on this CPU, which measure_steps.py wrote."""
    found: dict[str, Any] = json.loads((FOLDER / "cpu_sweep.json").read_text(encoding="utf-8"))
    return found


def loops() -> dict[str, Any]:
    """Steps of the decode loop on this CPU, which measure_loop.py wrote."""
    found: dict[str, Any] = json.loads((FOLDER / "cpu_loop.json").read_text(encoding="utf-8"))
    return found


def loop_time(device: Device, item: dict[str, Any], context_tokens: int) -> float:
    """Seconds of a step of the decode loop."""
    pair = find_pair("smollm2-135m")
    load = Load(
        batch_size=item["concurrency"],
        context_tokens=context_tokens,
        formats=pair.formats,
        cache_format=default_cache_format(pair.formats),
    )
    if not item["draft_tokens"]:
        return plain_step(device, pair.target, load).seconds
    return p_eagle_step(device, pair.target, pair.drafter, load, item["draft_tokens"]).seconds


def cpu_time(device: Device, item: dict[str, Any], context_tokens: int) -> float:
    """Seconds of a pass of the sweep."""
    pair = find_pair("smollm2-135m")
    load = Load(
        batch_size=item["batch_size"],
        context_tokens=context_tokens,
        formats=pair.formats,
        cache_format=default_cache_format(pair.formats),
    )
    slots = item["draft_tokens"]
    if item["model"] == "target":
        found = verify_pass(device, pair.target, load, draft_tokens=slots)
        return found.seconds + device.step_overhead_seconds.value
    found = drafter_pass(device, pair.drafter, load, rows_each=2 * slots, sampled_each=slots, reads_target=True)
    return found.seconds
