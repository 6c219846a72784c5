"""Checkpoints in ModelOpt's unified layout, which vLLM and TensorRT-LLM load, written as a stream."""

from peagle_trt.writers.quantized.export import QuantizedCheckpoint, quantize_head, quantize_target
from peagle_trt.writers.quantized.head_plan import HEAD_DIALECTS, HeadDialect, plan_head
from peagle_trt.writers.quantized.layers import LayerPlan
from peagle_trt.writers.quantized.plan import CheckpointPlan, plan_target

__all__ = [
    "HEAD_DIALECTS",
    "CheckpointPlan",
    "HeadDialect",
    "LayerPlan",
    "QuantizedCheckpoint",
    "plan_head",
    "plan_target",
    "quantize_head",
    "quantize_target",
]
