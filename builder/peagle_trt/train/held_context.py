"""The context's keys and values between passes, and the gradients that later rows owe them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from peagle_trt.train.row_attention import KeysValues

if TYPE_CHECKING:
    from torch import Tensor


class HeldContext:
    """Keys and values of a sequence's context in every layer, and the gradients that later rows owe them."""

    def __init__(self, layers: Sequence[KeysValues]) -> None:
        """Hold the keys and values of all context slots, one entry a layer; their own graph is left alone."""
        import torch

        self._layers = layers
        self._owed = [(torch.zeros_like(layer.keys), torch.zeros_like(layer.values)) for layer in layers]

    def leaves(self, num_slots: int) -> list[KeysValues]:
        """The first slots as leaves of a new graph."""
        return [
            KeysValues(
                keys=layer.keys[:num_slots].detach().requires_grad_(),
                values=layer.values[:num_slots].detach().requires_grad_(),
            )
            for layer in self._layers
        ]

    def collect(self, leaves: list[KeysValues]) -> None:
        """Take over what a backward pass left in the leaves."""
        for leaf, owed in zip(leaves, self._owed, strict=True):
            for tensor, sink in zip((leaf.keys, leaf.values), owed, strict=True):
                if tensor.grad is not None:
                    sink[: len(tensor)] += tensor.grad
                    tensor.grad = None

    def gradients(self, slots: slice) -> list[tuple[Tensor, Tensor]]:
        """What later rows owe these slots; complete once all of them have run."""
        return [(keys[slots], values[slots]) for keys, values in self._owed]


def append(held: Sequence[KeysValues] | None, new: Sequence[KeysValues]) -> list[KeysValues]:
    """Keys and values of more slots behind those that are held, layer by layer."""
    import torch

    if held is None:
        return list(new)
    return [
        KeysValues(keys=torch.cat([old.keys, more.keys]), values=torch.cat([old.values, more.values]))
        for old, more in zip(held, new, strict=True)
    ]
