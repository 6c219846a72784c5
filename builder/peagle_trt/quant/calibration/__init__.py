"""Calibration: scales of activations and caches, from what flows through a model over real text."""

from peagle_trt.quant.calibration.drafter import DrafterMaxima, DrafterText, DraftOnce, calibrate_drafter
from peagle_trt.quant.calibration.recipes import CALIBRATIONS, CalibrationRecipe, find_calibration
from peagle_trt.quant.calibration.scales import Scales, read_scales, write_scales
from peagle_trt.quant.calibration.target import CalibrationRun, calibrate_target

__all__ = [
    "CALIBRATIONS",
    "CalibrationRecipe",
    "CalibrationRun",
    "DraftOnce",
    "DrafterMaxima",
    "DrafterText",
    "Scales",
    "calibrate_drafter",
    "calibrate_target",
    "find_calibration",
    "read_scales",
    "write_scales",
]
