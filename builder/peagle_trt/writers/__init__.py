"""Heads out, in the dialects of other projects; the only room besides readers that knows foreign names."""

from peagle_trt.writers.convert import ConvertedHead, convert_head
from peagle_trt.writers.registry import WRITERS

__all__ = ["WRITERS", "ConvertedHead", "convert_head"]
