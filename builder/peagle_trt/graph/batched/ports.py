"""What goes in and out of the batched graphs: names, types and shapes, for those who write graphs and who bind buffers.

Letters beside those of the room: L rows whose logits are wanted, R rows carried over from the verify step, K drafted
slots, M candidates a slot, A auxiliary states, Ht hidden size of the target.

A cache is an input and an output, `key.{layer}` and `key.{layer}.out`, to be bound to the very same buffer. Buffers are
to be zero at first, for a kernel may multiply what lies behind a sequence's end by a weight of 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt.graph.batched.sinks import SINK_WIDTH, has_sinks
from peagle_trt.graph.builder import Element
from peagle_trt.spec import DrafterConfig, GraphShapes, TargetConfig
from peagle_trt_plugins.contract_select_draft import MAX_CANDIDATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One input or output of a graph.

    Attributes:
        name: Its name in the graph.
        element: Type, as in `onnx.TensorProto`.
        dims: Sizes; a letter is one that every call may choose.
        is_input: Whether it goes in.
        alias: Input whose buffer an output shares, or "".
    """

    name: str
    element: str
    dims: tuple[int | str, ...]
    is_input: bool
    alias: str = ""


def batched_ports(config: TargetConfig | DrafterConfig, shapes: GraphShapes, *, element: Element) -> tuple[Port, ...]:
    """Every input and output of a model's graph, in the graph's order.

    Args:
        config: The model.
        shapes: Limits of the build.
        element: What the graph computes in.
    """
    if isinstance(config, TargetConfig):
        return target_ports(config, element=element, cache_capacity=shapes.cache_capacity)
    return drafter_ports(config, element=element, cache_capacity=shapes.cache_capacity)


def target_ports(config: TargetConfig, *, element: Element, cache_capacity: int) -> tuple[Port, ...]:
    """Ports of the target's graph; what they mean stands at `target_graph`."""
    width = len(config.aux_layer_ids) * config.hidden_size
    return (
        _input("token_ids", "INT32", "B", "S"),
        _input("start_positions", "INT32", "B"),
        _input("key_lengths", "INT32", "B"),
        _input("logit_rows", "INT32", "B", "L"),
        *_caches(config, element, cache_capacity, is_input=True),
        _output("logits", "FLOAT", "B", "L", config.vocab_size),
        _output("hidden", element, "B", "S", width),
        _output("greedy_token_ids", "INT32", "B", "L"),
        *_caches(config, element, cache_capacity, is_input=False),
    )


def drafter_ports(config: DrafterConfig, *, element: Element, cache_capacity: int) -> tuple[Port, ...]:
    """Ports of the drafter's graph; what they mean stands at `drafter_graph`."""
    width = len(config.aux_layer_ids) * config.target_hidden_size
    candidates = num_candidates(config)
    return (
        _input("next_token_ids", "INT32", "B", "R"),
        _input("hidden", element, "B", "R", width),
        _input("num_accepted", "INT32", "B"),
        _input("start_positions", "INT32", "B"),
        _input("key_lengths", "INT32", "B"),
        _input("mask_token_ids", "INT32", "K"),
        *_caches(config, element, cache_capacity, is_input=True),
        _output("candidate_ids", "INT32", "B", "K", candidates),
        _output("probabilities", "FLOAT", "B", "K", candidates),
        *_caches(config, element, cache_capacity, is_input=False),
    )


def num_candidates(config: DrafterConfig) -> int:
    """M, candidates that a slot is given."""
    return min(MAX_CANDIDATES, config.draft_vocab_size)


def cache_dims(config: TargetConfig | DrafterConfig, cache_capacity: int) -> tuple[str, int, int, int]:
    """[B, Hkv, C, Dc] of a cache; with sinks it has one row and `SINK_WIDTH` columns more."""
    extra = (1, SINK_WIDTH) if has_sinks(config) else (0, 0)
    return ("B", config.num_key_value_heads, cache_capacity + extra[0], config.head_dim + extra[1])


def first_key_row(config: TargetConfig | DrafterConfig) -> NDArray[np.float32] | None:
    """What row 0 of every head of every key cache must hold before the first pass, [Dc]; None where nothing.

    No pass overwrites it, and it is the same for all sequences. Row 0 of a value cache stays 0.
    """
    if not has_sinks(config):
        return None
    row = np.zeros(config.head_dim + SINK_WIDTH, np.float32)
    row[config.head_dim] = 1.0
    return row


def _caches(
    config: TargetConfig | DrafterConfig, element: Element, cache_capacity: int, *, is_input: bool
) -> list[Port]:
    dims = cache_dims(config, cache_capacity)
    names = [f"{kind}.{layer}" for layer in range(config.num_layers) for kind in ("key", "value")]
    if is_input:
        return [_input(name, element, *dims) for name in names]
    return [Port(name=f"{name}.out", element=element, dims=dims, is_input=False, alias=name) for name in names]


def _input(name: str, element: str, *dims: int | str) -> Port:
    return Port(name=name, element=element, dims=dims, is_input=True)


def _output(name: str, element: str, *dims: int | str) -> Port:
    return Port(name=name, element=element, dims=dims, is_input=False)
