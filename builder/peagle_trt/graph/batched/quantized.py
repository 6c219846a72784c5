"""Products with matrices that a recipe stored in FP8 or NVFP4, in the forms that TensorRT turns into its own kernels.

FP8 is the same nodes everywhere. NVFP4 is not: ONNX Runtime 1.32 has no kernel that reads FLOAT4E2M1, and TensorRT
takes no FP4 out of bytes. A graph that computes in float32, which is what proves a build's numbers on a CPU, therefore
spells the same arithmetic out: codes read from the same bytes, activations rounded by the format's rule.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from peagle_trt.graph.batched.experts_stacks import integers
from peagle_trt.graph.batched.nodes import BATCHED_OPSET
from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.quant.fp8 import LARGEST_E4M3
from peagle_trt.quant.nvfp4 import LARGEST_E2M1
from peagle_trt.quant.packing import BLOCK_SCALES, COLUMN_SCALES, GLOBAL_SCALE, INPUT_SCALE, ROW_INPUT_SCALE, SCALE
from peagle_trt.readers.float_codes import decode_e2m1
from peagle_trt.readers.packed import NVFP4_BLOCK

if TYPE_CHECKING:
    import onnx

LARGEST_FP8, LARGEST_NVFP4 = LARGEST_E4M3, LARGEST_E2M1 * LARGEST_E4M3
TENSORRT = "trt"
DYNAMIC_QUANTIZE = "TRT_FP4DynamicQuantize"


def is_quantized(builder: GraphBuilder, name: str) -> bool:
    """Whether a matrix is stored in FP8 or NVFP4."""
    return builder.has_weight(f"{name}{SCALE}") or builder.has_weight(f"{name}{BLOCK_SCALES}")


def linear(builder: GraphBuilder, rows: str, name: str, bias: str = "") -> str:
    """`rows @ weight.T + bias`, the weight quantized, and rows too where the recipe says so; the bias if it is stored.

    Rows are divided by their calibrated scale, and what lies beyond the format's range is cut off. Without one every
    row is brought to that range by a scale that is measured as it comes, and nothing is cut off. A matrix without
    either is of a recipe that quantizes weights alone: rows stay as they are.

    Args:
        builder: Graph under construction.
        rows: [..., columns] in the type that the graph computes in; three dimensions at most for NVFP4.
        name: Stored name of a matrix for which `is_quantized`.
        bias: Stored name of the bias, or "".

    Returns:
        [..., rows of the matrix], in the same type.
    """
    row_scale, coarse = _quantized_rows(builder, rows, name) if _rounds_rows(builder, name) else ("", rows)
    product = builder.op("MatMul", coarse, builder.op("Transpose", matrix_of(builder, name), perm=[1, 0]))
    if row_scale:
        product = _in_element(builder, builder.op("Mul", _as_float(builder, product), row_scale))
    return builder.op("Add", product, builder.weight(bias)) if bias and builder.has_weight(bias) else product


def matrix_of(builder: GraphBuilder, name: str) -> str:
    """What a matrix's codes are worth, [rows, columns] in the type that the graph computes in."""
    if _is_fp8(builder, name):
        return _fp8_matrix(builder, name)
    return _spelled_nvfp4_matrix(builder, name) if builder.element == "FLOAT" else _nvfp4_matrix(builder, name)


def _rounds_rows(builder: GraphBuilder, name: str) -> bool:
    return any(builder.has_weight(f"{name}{suffix}") for suffix in (INPUT_SCALE, ROW_INPUT_SCALE))


def _quantized_rows(builder: GraphBuilder, rows: str, name: str) -> tuple[str, str]:
    """What a product of the rows is still to be multiplied by, or "", and the rows as their format holds them."""
    row_scale, scaled = "", _as_float(builder, rows)
    if builder.has_weight(f"{name}{COLUMN_SCALES}"):
        scaled = builder.op("Mul", scaled, builder.raw_weight(f"{name}{COLUMN_SCALES}"))
    if not builder.has_weight(f"{name}{INPUT_SCALE}"):
        row_scale, scaled = _scale_rows(builder, scaled, LARGEST_FP8 if _is_fp8(builder, name) else LARGEST_NVFP4)
    if _is_fp8(builder, name):
        return row_scale, _fp8_rows(builder, scaled, name)
    spell = _spelled_nvfp4_rows if builder.element == "FLOAT" else _nvfp4_rows
    return row_scale, spell(builder, scaled, name)


def _scale_rows(builder: GraphBuilder, rows: str, largest: float) -> tuple[str, str]:
    """What every row of float32 is divided by, [..., 1], and the rows, whose largest magnitude is then `largest`.

    A row has the same scale alone and among others, so that a verify step sees what single steps see.
    """
    found = builder.op("ReduceMax", builder.op("Abs", rows), integers(builder, -1), keepdims=1)
    scale = builder.op("Mul", found, _number(builder, 1 / largest))
    is_zero = builder.op("Equal", scale, _number(builder, 0))
    sound = builder.op("Where", is_zero, _number(builder, 1), scale)
    return sound, builder.op("Div", rows, sound)


def _input_scale(builder: GraphBuilder, name: str) -> str:
    """What rows are still to be divided by."""
    is_calibrated = builder.has_weight(f"{name}{INPUT_SCALE}")
    return builder.raw_weight(f"{name}{INPUT_SCALE if is_calibrated else ROW_INPUT_SCALE}")


def _is_fp8(builder: GraphBuilder, name: str) -> bool:
    return builder.has_weight(f"{name}{SCALE}")


def _fp8_rows(builder: GraphBuilder, rows: str, name: str) -> str:
    scale = _input_scale(builder, name)
    codes = builder.op("QuantizeLinear", rows, scale, output_dtype=_number_of("FLOAT8E4M3FN"))
    return builder.op("DequantizeLinear", codes, scale, output_dtype=_number_of(builder.element))


def _fp8_matrix(builder: GraphBuilder, name: str) -> str:
    scale = builder.raw_weight(f"{name}{SCALE}")
    return builder.op("DequantizeLinear", builder.raw_weight(name), scale, output_dtype=_number_of(builder.element))


def _nvfp4_rows(builder: GraphBuilder, rows: str, name: str) -> str:
    """Rows by TensorRT's own dynamic quantization, then back; the two become operands of one FP4 product."""
    builder.function(_dynamic_quantize_function())
    scale = _input_scale(builder, name)
    codes, scales = builder.ops(
        DYNAMIC_QUANTIZE,
        rows,
        scale,
        outputs=2,
        domain=TENSORRT,
        axis=-1,
        block_size=NVFP4_BLOCK,
        scale_type=_number_of("FLOAT8E4M3FN"),
    )
    return _two_levels(builder, codes, scales, scale)


def _nvfp4_matrix(builder: GraphBuilder, name: str) -> str:
    spec = builder.stored(name)
    # Two codes a byte, which is how ONNX packs FLOAT4E2M1, low half first.
    codes = replace(spec, name=f"{name}.codes", dtype="F4", shape=(spec.shape[0], 2 * spec.shape[1]))
    scales, scale = builder.raw_weight(f"{name}{BLOCK_SCALES}"), builder.raw_weight(f"{name}{GLOBAL_SCALE}")
    return _two_levels(builder, builder.place(codes), scales, scale)


def _two_levels(builder: GraphBuilder, codes: str, scales: str, scale: str) -> str:
    """Codes times the scales of their blocks times the scale of all.

    Scales stay float32: TensorRT takes them apart again, and a bfloat16 one would be off by up to 0.2 %.
    """
    block_scales = builder.op("DequantizeLinear", scales, scale)
    values = builder.op(
        "DequantizeLinear",
        codes,
        block_scales,
        axis=-1,
        block_size=NVFP4_BLOCK,
        output_dtype=_number_of("FLOAT"),
    )
    return builder.cast(values, builder.element)


def _spelled_nvfp4_matrix(builder: GraphBuilder, name: str) -> str:
    spec = builder.stored(name)
    rows, columns = spec.shape[0], 2 * spec.shape[1]
    pairs = builder.constant(decode_e2m1(np.arange(256, dtype=np.uint8).reshape(-1, 1)))
    values = builder.op("Gather", pairs, builder.cast(builder.raw_weight(name), "INT32"), axis=0)
    blocks = builder.op("Reshape", values, integers(builder, rows, columns // NVFP4_BLOCK, NVFP4_BLOCK))
    scales = builder.cast(builder.raw_weight(f"{name}{BLOCK_SCALES}"), "FLOAT")
    factors = builder.op("Mul", scales, builder.raw_weight(f"{name}{GLOBAL_SCALE}"))
    scaled = builder.op("Mul", blocks, builder.op("Unsqueeze", factors, integers(builder, 2)))
    return builder.op("Reshape", scaled, integers(builder, rows, columns))


def _spelled_nvfp4_rows(builder: GraphBuilder, rows: str, name: str) -> str:
    """The nearest numbers that blocks of NVFP4 can hold, ties to even."""
    scale = _input_scale(builder, name)
    columns = 2 * builder.stored(name).shape[1]
    blocks = builder.op("Reshape", rows, integers(builder, -1, columns // NVFP4_BLOCK, NVFP4_BLOCK))
    largest = builder.op("ReduceMax", builder.op("Abs", blocks), integers(builder, 2), keepdims=1)
    wanted = builder.op("Div", largest, builder.op("Mul", scale, _number(builder, LARGEST_E2M1)))
    # Not every runtime saturates where it casts.
    limited = builder.op("Min", wanted, _number(builder, LARGEST_E4M3))
    block_scales = builder.cast(builder.cast(limited, "FLOAT8E4M3FN"), "FLOAT")
    is_zero = builder.op("Equal", block_scales, _number(builder, 0))
    factors = builder.op("Mul", builder.op("Where", is_zero, _number(builder, 1), block_scales), scale)
    values = _nearest_e2m1(builder, builder.op("Div", blocks, factors))
    return builder.op("Reshape", builder.op("Mul", values, factors), builder.op("Shape", rows))


def _nearest_e2m1(builder: GraphBuilder, quotients: str) -> str:
    """Steps are 0.5 below 2, 1 below 4 and 2 up to 6; `Round` takes ties to even, which are the even codes."""
    magnitudes = builder.op("Min", builder.op("Abs", quotients), _number(builder, LARGEST_E2M1))
    rounded = [
        builder.op("Mul", builder.op("Round", builder.op("Mul", magnitudes, _number(builder, 1 / step))), number)
        for step, number in ((step, _number(builder, step)) for step in (0.5, 1.0, 2.0))
    ]
    coarse = builder.op("Where", builder.op("Less", magnitudes, _number(builder, 4)), rounded[1], rounded[2])
    nearest = builder.op("Where", builder.op("Less", magnitudes, _number(builder, 2)), rounded[0], coarse)
    return builder.op("Mul", nearest, builder.op("Sign", quotients))


def _dynamic_quantize_function() -> onnx.FunctionProto:
    """What TensorRT does by that name, in standard operators: for checkers, and for runtimes that have FP4.

    Source: NVIDIA onnx-tensorrt 11, `TRT_FP4DynamicQuantize`: data and scale of all to codes and scales of blocks.
    """
    from onnx import TensorProto, helper

    node = helper.make_node
    nodes = [
        node("Constant", [], ["by_block"], value_ints=[0, 0, -1, NVFP4_BLOCK]),
        node("Constant", [], ["last"], value_ints=[-1]),
        node("Constant", [], ["largest_code"], value_float=LARGEST_E2M1),
        node("Constant", [], ["one"], value_float=1.0),
        node("Constant", [], ["zero"], value_float=0.0),
        node("Cast", ["data"], ["values"], to=TensorProto.FLOAT),
        node("Reshape", ["values", "by_block"], ["blocks"]),
        node("Abs", ["blocks"], ["magnitudes"]),
        node("ReduceMax", ["magnitudes", "last"], ["largest"], keepdims=0),
        node("Mul", ["scale", "largest_code"], ["unit"]),
        node("Div", ["largest", "unit"], ["wanted"]),
        node("Cast", ["wanted"], ["scales"], to=TensorProto.FLOAT8E4M3FN),
        node("Cast", ["scales"], ["found"], to=TensorProto.FLOAT),
        node("Equal", ["found", "zero"], ["is_zero"]),
        node("Where", ["is_zero", "one", "found"], ["sound"]),
        node("Mul", ["sound", "scale"], ["factors"]),
        node(
            "QuantizeLinear",
            ["values", "factors"],
            ["codes"],
            axis=-1,
            block_size=NVFP4_BLOCK,
            output_dtype=TensorProto.FLOAT4E2M1,
        ),
    ]
    return helper.make_function(
        domain=TENSORRT,
        fname=DYNAMIC_QUANTIZE,
        inputs=["data", "scale"],
        outputs=["codes", "scales"],
        nodes=nodes,
        opset_imports=[helper.make_opsetid("", BATCHED_OPSET)],
        attributes=["axis", "block_size", "scale_type"],
    )


def _as_float(builder: GraphBuilder, values: str) -> str:
    return values if builder.element == "FLOAT" else builder.cast(values, "FLOAT")


def _in_element(builder: GraphBuilder, values: str) -> str:
    return values if builder.element == "FLOAT" else builder.cast(values, builder.element)


def _number_of(element: str) -> int:
    from onnx import TensorProto

    return int(TensorProto.DataType.Value(element))


def _number(builder: GraphBuilder, value: float) -> str:
    return builder.constant(np.array(value, np.float32))
