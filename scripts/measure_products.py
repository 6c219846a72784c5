"""Rates of float32 products by rows on this CPU: what a step's matrices could reach, and what they do.

    python -m scripts.measure_products [-o FILE] [--threads N] [--rows 1,2,4,8,16,24,32] [--budget SECONDS]

A case is a chain of matrices [columns, inputs], as a checkpoint stores them. A single small one stays in the cache;
many of them come from memory in every pass, as a model's do. ONNX Runtime packs its matrices when it loads them; torch
and numpy, whose libraries MKL and OpenBLAS are, take them as they lie.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from peagle_trt.cli.script import positive, positives, run_script
from peagle_trt.machine import probe_machine

Matrix = NDArray[np.float32]
Product = Callable[[Matrix], object]

CASES: dict[str, tuple[tuple[int, int], ...]] = {
    "576 x 1536, cache": ((576, 1536),),
    "576 x 576, cache": ((576, 576),),
    "576 x 192, cache": ((576, 192),),
    "576 x 1536 and back, memory": ((576, 1536), (1536, 576)) * 12,
    "576 x 576, memory": ((576, 576),) * 60,
    "576 x 49152, memory": ((576, 49152),),
}
"""Inputs and columns of every matrix: SmolLM2-135M's."""
MIN_PASSES = 5


def main() -> None:
    """Parse the command line, measure, print a table and write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--threads", type=positive, choices=range(1, 257), metavar="N", default=1)
    parser.add_argument("--rows", type=positives, default=(1, 2, 4, 8, 16, 24, 32))
    parser.add_argument("--budget", type=float, default=0.25, help="seconds for each figure")
    options = parser.parse_args()
    rates = {name: measure(shapes, options.rows, options.threads, options.budget) for name, shapes in CASES.items()}
    document = {"processor": probe_machine().processor, "threads": options.threads, "gflops": rates}
    if options.output is not None:
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for name, by_engine in rates.items():
        print(f"{name}: GFLOP/s by rows")
        for engine, by_rows in by_engine.items():
            print(f"  {engine:<12}" + "".join(f"{rows:>4}: {rate:<7.1f}" for rows, rate in by_rows.items()))


def measure(
    shapes: Sequence[tuple[int, int]], rows: Sequence[int], threads: int, budget_seconds: float
) -> dict[str, dict[int, float]]:
    """GFLOP/s of a chain of products, by engine and number of rows.

    Args:
        shapes: Inputs and columns of every matrix; a matrix takes what the one before it gives.
        rows: Numbers of rows.
        threads: Threads of every engine.
        budget_seconds: For each figure.
    """
    source = np.random.default_rng(0)
    matrices = [source.uniform(-0.05, 0.05, (columns, inputs)).astype(np.float32) for inputs, columns in shapes]
    operations = sum(2 * matrix.size for matrix in matrices)
    found: dict[str, dict[int, float]] = {}
    for engine, make in ENGINES.items():
        product = make(matrices, threads)
        found[engine] = {
            count: count * operations / seconds_of(product, count, shapes[0][0], budget_seconds) / 1e9 for count in rows
        }
    return found


def seconds_of(product: Product, rows: int, inputs: int, budget_seconds: float) -> float:
    """The lower quartile of a pass's time: what interrupts a pass is the machine's, not the product's."""
    values = np.random.default_rng(1).random((rows, inputs), np.float32)
    product(values)
    times: list[float] = []
    ends_at = time.perf_counter() + budget_seconds
    while len(times) < MIN_PASSES or time.perf_counter() < ends_at:
        started = time.perf_counter()
        product(values)
        times.append(time.perf_counter() - started)
    return statistics.quantiles(times, n=4)[0]


def onnxruntime_product(matrices: Sequence[Matrix], threads: int) -> Product:
    """`Gemm` nodes with constant matrices, as in a build's graphs."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    names = [f"value.{index}" for index in range(len(matrices) + 1)]
    nodes = [
        helper.make_node("Gemm", [given, f"weight.{index}"], [made], transB=1)
        for index, (given, made) in enumerate(itertools.pairwise(names))
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])
        for name, width in ((names[0], matrices[0].shape[1]), (names[-1], matrices[-1].shape[0]))
    ]
    weights = [numpy_helper.from_array(matrix, f"weight.{index}") for index, matrix in enumerate(matrices)]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda values: session.run(None, {names[0]: values})


def torch_product(matrices: Sequence[Matrix], threads: int) -> Product:
    """`torch.nn.functional.linear`."""
    import torch

    torch.set_num_threads(threads)
    weights = [torch.from_numpy(matrix) for matrix in matrices]

    def run(values: Matrix) -> object:
        flowing = torch.from_numpy(values)
        with torch.no_grad():
            for weight in weights:
                flowing = torch.nn.functional.linear(flowing, weight)
        return flowing

    return run


def numpy_product(matrices: Sequence[Matrix], threads: int) -> Product:
    """`values @ matrix.T`; its threads are those of OPENBLAS_NUM_THREADS, which is read when Python starts."""

    def run(values: Matrix) -> object:
        for matrix in matrices:
            values = values @ matrix.T
        return values

    return run


ENGINES: dict[str, Callable[[Sequence[Matrix], int], Product]] = {
    "onnxruntime": onnxruntime_product,
    "torch": torch_product,
    "numpy": numpy_product,
}


if __name__ == "__main__":
    sys.exit(run_script(main))
