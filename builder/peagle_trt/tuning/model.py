"""The machine model with constants of this machine: bytes and operations of a pass as the roofline counts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from peagle_trt.roofline import Geometry, Load, WeightFormats, drafter_geometry, find_device, target_geometry
from peagle_trt.roofline.formats import Format
from peagle_trt.roofline.steps import PassTime, drafter_pass, verify_pass
from peagle_trt.spec import EngineManifest
from peagle_trt.tuning.passes import PassKind

STORED_AS: dict[str, Format] = {
    "fp32": "fp32",
    "native": "fp32",
    "bf16": "bf16",
    "fp16": "bf16",
    "fp8": "fp8",
    "int8": "fp8",
    "int4": "nvfp4",
}
"""Format of about as many bytes an element, by the start of a precision's name; any other counts as nvfp4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """Seconds of a pass: so much a byte and so much an operation, for each of the two models.

    Attributes:
        manifest: Of the build.
        context_tokens: Tokens present.
        constants: Seconds a byte and seconds an operation, by model.
    """

    manifest: EngineManifest
    context_tokens: int
    constants: Mapping[str, tuple[float, float]]

    def seconds(self, kind: PassKind) -> float:
        """What a pass takes."""
        return sum(self.parts(kind))

    def parts(self, kind: PassKind) -> tuple[float, float]:
        """Its time for bytes and its time for operations."""
        size_bytes, operations = count_work(self.manifest, kind, self.context_tokens)
        a_byte, an_operation = self.constants[kind.model]
        return size_bytes * a_byte, operations * an_operation


def fit_model(manifest: EngineManifest, measured: Mapping[PassKind, float], *, context_tokens: int) -> FittedModel:
    """Constants that come closest to what was measured, in relative terms.

    Args:
        manifest: Of the build.
        measured: Seconds of passes; at least two of each model, of different shapes.
        context_tokens: Tokens that were present.
    """
    constants = {
        model: _fit(
            [count_work(manifest, kind, context_tokens) for kind in measured if kind.model == model],
            [seconds for kind, seconds in measured.items() if kind.model == model],
        )
        for model in ("target", "drafter")
    }
    return FittedModel(manifest=manifest, context_tokens=context_tokens, constants=constants)


def count_work(manifest: EngineManifest, kind: PassKind, context_tokens: int) -> tuple[float, float]:
    """Bytes and operations of a pass."""
    # On a device that moves a byte and does an operation in a second, seconds are bytes and operations.
    unit = find_device("cpu")
    load = _load(manifest, kind.batch_size, context_tokens)
    found = _pass_time(manifest, kind, load)
    size_bytes = found.memory_seconds * unit.bandwidth_bytes_per_second.value
    return size_bytes, found.compute_seconds * unit.operations_per_second["fp32"].value


def _pass_time(manifest: EngineManifest, kind: PassKind, load: Load) -> PassTime:
    device = find_device("cpu")
    if kind.model == "target":
        return verify_pass(device, _target(manifest), load, draft_tokens=kind.draft_tokens)
    count = kind.draft_tokens
    geometry = drafter_geometry(manifest.drafter)
    return drafter_pass(device, geometry, load, rows_each=2 * count, sampled_each=count, reads_target=True)


def _target(manifest: EngineManifest) -> Geometry:
    return target_geometry(manifest.target)


def _load(manifest: EngineManifest, batch_size: int, context_tokens: int) -> Load:
    found = [each for name, each in STORED_AS.items() if manifest.precision.startswith(name)]
    stored: Format = found[0] if found else "nvfp4"
    formats = WeightFormats(attention=stored, feed_forward=stored, head=stored, drafter=stored, drafter_head=stored)
    return Load(batch_size=batch_size, context_tokens=context_tokens, formats=formats, cache_format="fp32")


def _fit(work: list[tuple[float, float]], seconds: list[float]) -> tuple[float, float]:
    """Least squares of relative errors, neither constant below nought."""
    rows = np.array(work) / np.array(seconds)[:, None]
    both = np.linalg.lstsq(rows, np.ones(len(seconds)), rcond=None)[0]
    if (both >= 0).all():
        return float(both[0]), float(both[1])
    # One of them explains all: take the better.
    alone = [float(row.sum() / (row * row).sum()) for row in rows.T]
    errors = [float(((row * value - 1) ** 2).sum()) for row, value in zip(rows.T, alone, strict=True)]
    return (alone[0], 0.0) if errors[0] <= errors[1] else (0.0, alone[1])
