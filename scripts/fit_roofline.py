"""Fits the roofline's constants, each to a stated part of what was measured; prints them, and writes nothing.

    python -m scripts.fit_roofline decay    decay of conditional acceptance, from the blog's lengths at K = 3 and K = 7
    python -m scripts.fit_roofline h200     three constants, from the paper's 24 gpt-oss cells at K = 3
    python -m scripts.fit_roofline b200     layers from two plain figures, the host's work from three speed-ups
    python -m scripts.fit_roofline cpu      bandwidth and rate, from this CPU's 44 passes
    python -m scripts.fit_roofline spread   the H200's fit again for experts that differ in popularity, and how it does

Times are sums that are linear in what is fitted, so a fit is one least-squares solution of relative errors.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec.structs
import numpy as np

from peagle_trt.cli.script import positive, run_script
from peagle_trt.roofline import Constant, Device, StepTime, curve_from_length, find_device, find_pair, plain_step
from scripts.roofline_tables import (
    CONTEXT_TOKENS,
    DECAYS,
    blog_steps,
    cpu_time,
    is_fitted,
    load_of,
    predict_step,
    published,
    sweep,
    table10,
)


def main() -> None:
    """Parse the command line and print the constants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(COMMANDS))
    parser.add_argument("--context", type=positive, default=CONTEXT_TOKENS)
    options = parser.parse_args()
    COMMANDS[options.what](options.context)


def with_constants(device: Device, **values: float) -> Device:
    """A device with other constants."""
    constants = {name: Constant(value=value, source="being fitted") for name, value in values.items()}
    return msgspec.structs.replace(device, **constants)


def solve(make: Callable[[Sequence[float]], Iterable[float]], measured: Sequence[float], count: int) -> list[float]:
    """Factors of a sum of times that come closest to measured times, in relative terms, none below 0.

    Args:
        make: Times under given factors; linear in them.
        measured: Seconds.
        count: Factors.
    """
    basis = np.array([list(make([float(index == each) for each in range(count)])) for index in range(count)])
    rows = (basis / np.array(measured)).T
    kept = list(range(count))
    while True:
        found = np.linalg.lstsq(rows[:, kept], np.ones(len(measured)), rcond=None)[0]
        if (found >= 0).all():
            break
        kept = [index for index, value in zip(kept, found, strict=True) if value >= 0]
    factors = [0.0] * count
    for index, value in zip(kept, found, strict=True):
        factors[index] = float(value)
    return factors


def fit_h200(context_tokens: int) -> None:
    """Three constants from 24 of the 108 cells."""
    share, layer, request = fit_gpu(find_device("h200"), context_tokens, math.inf)
    print(f"bandwidth_efficiency {share:.3f}, layer {1e6 * layer:.1f} us, request {1e3 * request:.3f} ms")


def fit_gpu(device: Device, context_tokens: int, spread: float) -> tuple[float, float, float]:
    """Share of the bandwidth, seconds of a layer and of a request, from the fitted cells of table 10."""
    cells = [cell for cell in table10() if is_fitted(cell)]
    steps = [lambda each, cell=cell: predict_step(each, cell, context_tokens, spread=spread) for cell in cells]
    slowness, layer, request = solve(
        lambda factors: gpu_times(device, factors, steps), [cell.step_seconds for cell in cells], 3
    )
    return 1 / slowness, layer, request


def fit_spread(context_tokens: int) -> None:
    """Cells of table 10 within 15 % under several spreads, each with constants fitted for it."""
    device, cells = find_device("h200"), table10()
    for spread in (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, math.inf):
        share, layer, request = fit_gpu(device, context_tokens, spread)
        fitted = with_constants(
            device,
            bandwidth_efficiency=min(share, 1.0),
            layer_overhead_seconds=layer,
            request_overhead_seconds=request,
        )
        errors = [
            abs(cell.step_seconds / predict_step(fitted, cell, context_tokens, spread=spread).seconds - 1)
            for cell in cells
        ]
        inside = sum(error <= 0.15 for error in errors)
        print(
            f"spread {spread:5.0f}: {inside:3d} of {len(cells)} within 15%, mean {statistics.mean(errors):.1%}; ",
            end="",
        )
        print(f"share of the bandwidth {share:.2f}, layer {1e6 * layer:.0f} us, request {1e3 * request:.2f} ms")


def gpu_times(
    device: Device, factors: Sequence[float], steps: Sequence[Callable[[Device], StepTime]]
) -> Iterable[float]:
    """Times of steps as a sum: memory at the peak, layers, requests; each by its factor. Arithmetic is left out."""
    peak = with_constants(
        device,
        bandwidth_efficiency=1.0,
        compute_efficiency=1e6,
        layer_overhead_seconds=0.0,
        step_overhead_seconds=0.0,
        request_overhead_seconds=0.0,
        host_pass_seconds=0.0,
    )
    layers = with_constants(peak, layer_overhead_seconds=1.0)
    requests = with_constants(peak, request_overhead_seconds=1.0)
    slowness, layer, request = factors
    for step in steps:
        memory = step(peak).seconds
        yield (
            slowness * memory + layer * (step(layers).seconds - memory) + request * (step(requests).seconds - memory)
        )


def fit_b200(context_tokens: int) -> None:
    """Two constants from the two plain figures; the share of the bandwidth is the H200's."""
    device, request = find_device("b200"), published()["pull_request"]
    pair = find_pair(request["model"])
    slowness = 1 / find_device("h200").bandwidth_efficiency.value
    steps: list[Callable[[Device], StepTime]] = []
    measured = []
    for cell in request["cells"]:
        load = load_of(pair, request["model"], cell["concurrency"], context_tokens)
        steps.append(lambda each, load=load: plain_step(each, pair.target, load))
        measured.append(cell["concurrency"] * cell["speedup"] / cell["tokens_per_second"])
    memory = list(gpu_times(device, [slowness, 0, 0], steps))
    rest = [time - each for time, each in zip(measured, memory, strict=True)]
    print(f"left after memory at {1 / slowness:.3f} of the bandwidth: {[f'{1e3 * each:.3f} ms' for each in rest]}")
    layer, request_cost = solve(lambda factors: gpu_times(device, [0, *factors], steps), rest, 2)
    print(f"layer {1e6 * layer:.1f} us, request {1e3 * request_cost:.3f} ms")
    passes = 1 + published()["blog"]["draft_tokens"]["eagle3"]
    steps_of_one = blog_steps(device, context_tokens, concurrency=(1,))
    found = [step.speedup / step.lengths * step.fast_device / passes for step in steps_of_one]
    print(f"host of a pass, from the blog's three speed-ups of one request: {1e3 * statistics.mean(found):.2f} ms")


def fit_cpu(_: int) -> None:
    """Bandwidth and rate from all passes."""
    measured = sweep()
    shares = cpu_shares(find_device("cpu"), measured["passes"], measured["tokens_present"])
    print(f"bandwidth_efficiency {shares[0]:.3f}, compute_efficiency {shares[1]:.3f}")


def cpu_shares(device: Device, items: Sequence[dict[str, Any]], context_tokens: int) -> tuple[float, float]:
    """Shares of a CPU's bandwidth and rate that come closest to measured passes.

    Args:
        device: The CPU.
        items: Passes of the sweep.
        context_tokens: Tokens present in each.
    """
    free = with_constants(
        device,
        bandwidth_efficiency=1.0,
        compute_efficiency=1.0,
        layer_overhead_seconds=0.0,
        step_overhead_seconds=0.0,
    )

    def times(factors: Sequence[float]) -> Iterable[float]:
        no_memory = with_constants(free, bandwidth_efficiency=1e12)
        for item in items:
            compute = cpu_time(no_memory, item, context_tokens)
            yield factors[0] * (cpu_time(free, item, context_tokens) - compute) + factors[1] * compute

    memory, compute = solve(times, [item["cpu_ms"] / 1e3 for item in items], 2)
    return 1 / memory, 1 / compute


def fit_decay(_: int) -> None:
    """The decay that takes the blog's length at K = 3 to its length at K = 7."""
    acceptance = published()["blog"]["acceptance"]
    for method in DECAYS:
        found = {prompts: one_decay(*lengths) for prompts, lengths in acceptance[method].items()}
        print(f"{method}: {', '.join(f'{name} {value:.3f}' for name, value in found.items())}; ", end="")
        print(f"mean {statistics.mean(found.values()):.3f}")


def one_decay(length_at_3: float, length_at_7: float) -> float:
    """By bisection."""
    low, high = 0.7, 1.1
    for _ in range(50):
        middle = (low + high) / 2
        curve = curve_from_length(length_at_3, draft_tokens=3, max_draft_tokens=7, decay=middle, source="blog")
        low, high = (middle, high) if curve.length(7) < length_at_7 else (low, middle)
    return low


COMMANDS: dict[str, Callable[[int], None]] = {
    "decay": fit_decay,
    "h200": fit_h200,
    "b200": fit_b200,
    "cpu": fit_cpu,
    "spread": fit_spread,
}

if __name__ == "__main__":
    sys.exit(run_script(main))
