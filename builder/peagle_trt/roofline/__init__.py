"""A machine model: what a step of speculative decoding takes, from bytes, operations and launches; nothing is run."""

from peagle_trt.roofline.acceptance import AcceptanceCurve, curve_from_length, curve_from_shares
from peagle_trt.roofline.devices import Constant, Device, find_device, list_devices
from peagle_trt.roofline.forecast import Forecast, Row, forecast
from peagle_trt.roofline.formats import CACHE_FORMATS, PRECISIONS, WeightFormats, choose_formats, default_cache_format
from peagle_trt.roofline.geometry import Geometry, drafter_geometry, target_geometry
from peagle_trt.roofline.memory import MemoryNeed, memory_need
from peagle_trt.roofline.pairs import Pair, find_pair, has_pair
from peagle_trt.roofline.routing import expected_experts
from peagle_trt.roofline.steps import Load, StepTime, eagle3_step, p_eagle_step, plain_step

__all__ = [
    "CACHE_FORMATS",
    "PRECISIONS",
    "AcceptanceCurve",
    "Constant",
    "Device",
    "Forecast",
    "Geometry",
    "Load",
    "MemoryNeed",
    "Pair",
    "Row",
    "StepTime",
    "WeightFormats",
    "choose_formats",
    "curve_from_length",
    "curve_from_shares",
    "default_cache_format",
    "drafter_geometry",
    "eagle3_step",
    "expected_experts",
    "find_device",
    "find_pair",
    "forecast",
    "has_pair",
    "list_devices",
    "memory_need",
    "p_eagle_step",
    "plain_step",
    "target_geometry",
]
