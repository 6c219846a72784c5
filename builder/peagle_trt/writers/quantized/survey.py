"""Looks at every number once before the first is written: what is largest in each group, and what is no number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from peagle_trt.quant.magnitudes import require_roundable
from peagle_trt.quant.mxfp4 import NO_POWERS, POWERS_APART, mxfp4_to_nvfp4, power_range
from peagle_trt.quant.stored_floats import largest_magnitude
from peagle_trt.readers.safetensors_file import entry_of
from peagle_trt.readers.stored_bytes import read_codes
from peagle_trt.readers.tensors import PackedTensor
from peagle_trt.writers.quantized.plan import CheckpointPlan
from peagle_trt.writers.quantized.planner import Source


def survey(plan: CheckpointPlan, progress: Callable[[str], None]) -> dict[str, float]:
    """The largest magnitude of each group; of MXFP4 the largest power of two.

    Args:
        plan: What is to be written.
        progress: Told now and then.

    Raises:
        CheckpointError: A tensor holds values that are no numbers, or too large for bfloat16; or MXFP4 blocks are too
            far apart for NVFP4.
    """
    for spec in plan.finite:
        largest_magnitude(spec)
    for spec in plan.halved:
        require_roundable(spec.name, float(largest_magnitude(spec)))
    largest: dict[str, float] = {}
    for index, (group, sources) in enumerate(plan.groups.items()):
        if index % 1000 == 0:
            progress(f"looking at weights: {index:,} of {len(plan.groups):,} groups")
        largest[group] = max(map(_largest, sources))
    return largest


def _largest(source: Source) -> float:
    if not isinstance(source, PackedTensor):
        return float(largest_magnitude(source))
    ranges = [power_range(source.codes.name, *_expert(source, index)) for index in range(source.codes.shape[0])]
    largest = max((high for low, high in ranges if (low, high) != NO_POWERS), default=NO_POWERS[1])
    # What NVFP4 cannot hold is refused now rather than after hours.
    for index, (low, _) in enumerate(ranges):
        if low < largest - POWERS_APART:
            mxfp4_to_nvfp4(source.codes.name, *_expert(source, index), largest)
    return largest


def _expert(source: PackedTensor, index: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    return read_codes(entry_of(source.codes, index)), read_codes(entry_of(source.scales, index))
