"""Prometheus families, their numbers in this process, and the text that Prometheus reads."""

from peagle_trt.metrics.families import Family, Labels
from peagle_trt.metrics.table import SeriesTable

__all__ = ["Family", "Labels", "SeriesTable"]
