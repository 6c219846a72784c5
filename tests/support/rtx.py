"""TensorRT-RTX as a judge of graphs: it compiles for a GPU that is not there, and what it complains about raises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle_trt.graph.batched import Port

SIZES = {"B": (1, 2, 8), "S": (1, 6, 64), "L": (1, 6, 17), "R": (1, 6, 64), "K": (1, 5, 16)}
"""Smallest, usual and largest of every letter."""

NOISE = ("checkMacros", "cudaError 35", "unused or used only at compile-time", "will not be queryable")
"""That there is no driver, that a graph whose layers all have windows reads no lengths, and that a function's body
calls an output what the function calls it."""

SCRATCH = "Max Scratch Memory:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """An engine, and what TensorRT made of each attention: causal kind, has lengths, has a mask, may be taken apart.

    Its scratch memory holds what kernels pass to each other, in the largest pass.
    """

    engine_bytes: int
    scratch_bytes: int
    attentions: list[tuple[str, bool, bool, bool]]


def compile_graph(path: Path, ports: Sequence[Port], *, capability: str = "SM120") -> Compiled:
    """Parse and build.

    Raises:
        AssertionError: TensorRT logs a warning or an error, neither of which raises by itself.
    """
    import tensorrt_rtx as trt

    logger, complaints, remarks = _logger(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    parsed = parser.parse_from_file(str(path))
    assert parsed, [parser.get_error(index).desc() for index in range(parser.num_errors)]
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, capability), 0)
    config.add_optimization_profile(_profile(builder, ports))
    engine = builder.build_serialized_network(network, config)
    assert engine is not None, complaints
    assert not complaints, complaints
    scratch_bytes = int(next(each for each in remarks if each.startswith(SCRATCH)).split()[3])
    return Compiled(engine_bytes=engine.nbytes, scratch_bytes=scratch_bytes, attentions=_attentions(trt, network))


def _logger(trt: Any) -> tuple[Any, list[str], list[str]]:
    complaints: list[str] = []
    remarks: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.Severity.WARNING and not any(noise in message for noise in NOISE):
                complaints.append(message)
            elif severity == trt.ILogger.Severity.INFO:
                remarks.append(message)

    return Logger(), complaints, remarks


def _profile(builder: Any, ports: Sequence[Port]) -> Any:
    profile = builder.create_optimization_profile()
    for port in ports:
        if port.is_input and any(isinstance(dim, str) for dim in port.dims):
            dims = [[SIZES[dim][rank] if isinstance(dim, str) else dim for dim in port.dims] for rank in range(3)]
            profile.set_shape(port.name, *dims)
    return profile


def _attentions(trt: Any, network: Any) -> list[tuple[str, bool, bool, bool]]:
    found = []
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer
            attention = layer.attention
            has_lengths = attention.key_value_lengths is not None
            found.append((attention.causal_kind.name, has_lengths, attention.mask is not None, attention.decomposable))
    return found
