"""Engines against an independent reference."""

from peagle_trt.verify.build import verify_build
from peagle_trt.verify.comparison import Outcome, compare_engine, compare_subject, compare_with_reference
from peagle_trt.verify.sources import ReferenceSource, build_source, checkpoint_source, rounded_source

__all__ = [
    "Outcome",
    "ReferenceSource",
    "build_source",
    "checkpoint_source",
    "compare_engine",
    "compare_subject",
    "compare_with_reference",
    "rounded_source",
    "verify_build",
]
