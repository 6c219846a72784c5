"""What TensorRT-RTX makes of one product for SM120: bytes of the engine, and memory that kernels pass to each other.

    python -m scripts.measure_compiled_linear [--size N]

Scratch memory tells what an engine without a GPU says of its kernels: a matrix that is written out before it is
multiplied is in it, one that is unpacked as it is read is not. Needs `tensorrt_rtx` and no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from peagle_trt.cli.script import positive, run_script
from peagle_trt.graph.batched.experts_stacks import integers
from peagle_trt.graph.batched.layers import linear
from peagle_trt.graph.batched.nodes import BATCHED_OPSET
from peagle_trt.graph.batched.quantized import matrix_of
from peagle_trt.graph.builder import GraphBuilder
from peagle_trt.quant.halves import to_bfloat16
from peagle_trt.quant.layer_recipes import LayerScheme
from peagle_trt.quant.packing import StoredTensor, pack
from peagle_trt.quant.store import _write

NAME = "o_proj"
LARGEST_PASS = (8, 6)
"""Sequences and rows of a verify step with K = 5."""
Product = Callable[[GraphBuilder, str], str]


def multiplied(builder: GraphBuilder, rows: str) -> str:
    """As builds write it."""
    return linear(builder, rows, NAME)


def summed(builder: GraphBuilder, rows: str) -> str:
    """`sum(matrix * row)`, as experts are multiplied."""
    scaled = builder.op("Mul", builder.op("Unsqueeze", rows, integers(builder, 2)), matrix_of(builder, NAME))
    return builder.op("ReduceSum", scaled, integers(builder, -1), keepdims=0)


FORMS: dict[str, tuple[LayerScheme | None, Product]] = {
    "bf16": (None, multiplied),
    "w4a16-nvfp4": (LayerScheme(weights="nvfp4"), multiplied),
    "w4a16-nvfp4, sum(matrix * row)": (LayerScheme(weights="nvfp4"), summed),
    "nvfp4": (LayerScheme(weights="nvfp4", activations="nvfp4"), multiplied),
    "fp8": (LayerScheme(weights="fp8", activations="fp8"), multiplied),
}


def measure(form: str, size: int, folder: Path) -> dict[str, Any]:
    """Compile one form."""
    scheme, emit = FORMS[form]
    values = np.random.default_rng(0).normal(0, 0.05, (size, size)).astype(np.float32)
    tensor = StoredTensor(name=NAME, dtype="F32", shape=values.shape, produce=lambda: values)
    plain = StoredTensor(name=NAME, dtype="BF16", shape=values.shape, produce=lambda: to_bfloat16(values))
    stored = _write(folder / "weights.safetensors", [plain] if scheme is None else pack(tensor, scheme))
    builder = GraphBuilder("linear", stored, opset=BATCHED_OPSET, element="BFLOAT16")
    rows = builder.input("rows", "BFLOAT16", ["B", "S", size])
    builder.op("Identity", emit(builder, rows), output="product")
    builder.output("product", "BFLOAT16", ["B", "S", size])
    path = folder / "linear.onnx"
    path.write_bytes(builder.model().SerializeToString())
    engine_bytes, scratch_bytes = compile_for_sm120(path, size)
    return {"form": form, "engine_bytes": engine_bytes, "scratch_bytes": scratch_bytes}


def compile_for_sm120(path: Path, size: int) -> tuple[int, int]:
    """Bytes of the engine, and of its scratch memory."""
    import tensorrt_rtx as trt

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.scratch_bytes = 0

        def log(self, severity: Any, message: str) -> None:
            if message.startswith("Max Scratch Memory:"):
                self.scratch_bytes = int(message.split()[3])

    log = Log()
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    if not trt.OnnxParser(network, log).parse_from_file(str(path)):
        raise SystemExit(f"TensorRT cannot read {path}")
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM120, 0)
    profile.set_shape("rows", (1, 1, size), (1, LARGEST_PASS[1], size), (*LARGEST_PASS, size))
    config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise SystemExit(f"TensorRT does not compile {path}")
    return engine.nbytes, log.scratch_bytes


def main() -> None:
    """Print a line of JSON for every form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=positive, default=2048, help="rows and columns of the matrix, a multiple of 16")
    size = parser.parse_args().size
    for form in FORMS:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(form, size, Path(folder))), flush=True)


if __name__ == "__main__":
    sys.exit(run_script(main))
