"""Reads a parsed network back before it is compiled: what the graph promised must be what TensorRT understood.

The parser drops what it does not know without an error: a mask beside causal attention, the key lengths of a standard
Attention node, the alignment of its causality. Each would compile, and answer wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from peagle_trt.engine.tensorrt.library import Library
from peagle_trt.errors import PeagleError


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSummary:
    """What a network holds.

    Attributes:
        num_layers: Layers.
        num_causal: Attentions that end at each row's own position.
        num_masked: Attentions with a mask of their own.
        num_caches: Caches that are updated in place.
    """

    num_layers: int
    num_causal: int
    num_masked: int
    num_caches: int


def check_network(library: Library, network: Any, name: str) -> NetworkSummary:
    """Check every attention and every cache.

    Args:
        library: Whose network it is.
        network: An `INetworkDefinition`.
        name: Of the graph, for messages.

    Raises:
        PeagleError: An attention would ignore lengths, mask or alignment, or a cache would not be updated in place.
    """
    attentions = list(_attentions(library.module, network))
    masked = [_check_attention(library.module, attention, name) for attention in attentions]
    return NetworkSummary(
        num_layers=network.num_layers,
        num_causal=masked.count(False),
        num_masked=masked.count(True),
        num_caches=_check_caches(library.module, network, name),
    )


def _attentions(trt: Any, network: Any) -> Iterator[Any]:
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            # The bindings give the base class, whatever the layer is.
            layer.__class__ = trt.IAttentionInputLayer
            yield layer.attention


def _check_attention(trt: Any, attention: Any, name: str) -> bool:
    """Refuse an attention that is neither causal over lengths nor masked; returns whether it is masked."""
    is_causal = attention.causal_kind == trt.CausalMaskKind.LOWER_RIGHT
    has_mask, has_lengths = attention.mask is not None, attention.key_value_lengths is not None
    if attention.causal_kind == trt.CausalMaskKind.NONE and has_mask:
        return True
    if is_causal and has_lengths and not has_mask:
        return False
    raise PeagleError(
        f"`{name}`: attention `{attention.name}` was read with causality {attention.causal_kind.name}, "
        f"{'a' if has_mask else 'no'} mask and {'' if has_lengths else 'no '}key lengths; "
        "expected LOWER_RIGHT with key lengths, or a mask without causality",
        hint="this is a fault of the graph, please report it",
    )


def _check_caches(trt: Any, network: Any, name: str) -> int:
    """Every cache's output must be written by an update of the input of the same name."""
    updates = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.KV_CACHE_UPDATE:
            updates[layer.get_output(0).name] = layer.get_input(0).name
    outputs = [network.get_output(index).name for index in range(network.num_outputs)]
    caches = [output for output in outputs if output.startswith(("key.", "value."))]
    for output in caches:
        if updates.get(output) != output.removesuffix(".out"):
            raise PeagleError(
                f"`{name}`: cache `{output}` is not updated in place from its input",
                hint="this is a fault of the graph, please report it",
            )
    return len(caches)
