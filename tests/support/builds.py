"""Builds, seen by the stages that ran."""

from __future__ import annotations

from peagle_trt import pipeline
from peagle_trt.spec import BuildSpec


def steps_run(spec: BuildSpec, **options: object) -> list[str]:
    """Build, and name the stages that ran rather than being taken over."""
    lines: list[str] = []
    pipeline.build(spec, report=lines.append, **options)  # type: ignore[arg-type]
    return [line.removesuffix(" ...") for line in lines if line.endswith(" ...")]
