"""What layer 0 makes of a mask slot before rotation: the same numbers for every slot, made once at build time.

All mask slots enter layer 0 with the same vector `[norm(embedding of the mask token) | norm(fused_mask_hidden)]`. Up to
the rotary embedding nothing in layer 0 knows a row's position: projections, biases and the norms of queries and keys
act on each row alone. So q, k and v of a mask slot are constants, and only the R rows that may be real need a product
with the weights instead of W = R + K - 1. The residual of a mask slot is constant for the same reason, but what follows
the attention is not: each slot sees its own keys.

No graph uses it, for it pays nowhere that was looked at:

* ONNX Runtime 1.32 (measured, one core, float32), the projection alone, whole against folded: hidden 576, K = 5, one
  sequence 0.20 and 0.14 ms, 8 sequences 1.6 and 1.1 ms; hidden 2880 9.8 and 7.8 ms, 47 and 30 ms. Of a whole draft
  pass, whose output layer dwarfs this, about a hundredth.
* A B200 (computed, at 8 TB/s and 2.25 PFLOP/s in bfloat16), gpt-oss's drafter: the packed projection is 5760 x 5120, 59
  MB that are read whatever the rows, 7.4 us; a row costs 59 MFLOP. K = 7, one sequence: 14 rows, 0.8 GFLOP, 0.4 us, of
  which folding takes 6 rows away; 8 sequences: 112 rows, 6.6 GFLOP, 2.9 us, folded 64 rows, 1.7 us. Both hide behind
  the 7.4 us of reading, so that folding saves nothing and adds a launch that lays the rows out, about 2 us. The product
  becomes bound by arithmetic beyond 281 rows, 20 sequences. At 64 it takes 23.5 us, folded 13.4: 10 us of a pass that
  reads 2.4 GB and so takes 300 us at least. Weights of half the bytes are multiplied twice as fast: the same 281 rows.

It stays as the proof that the mask slots are constants, for whoever serves hundreds of sequences with a small output
layer.

Letters as in contract.py; N is the width of a projection, C the columns that its weight reads, 2H.

Source: P-EAGLE (arXiv 2602.01469): one mask token and one mask hidden state, shared by all slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peagle_trt_plugins.reference import Floats, rms_norm

Numbers = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One of layer 0's projections of queries, keys or values.

    Attributes:
        weight_NC: [N, 2H].
        bias_N: Added to the product, or None.
        head_norm_weight: [head size], for an RMSNorm over every head behind the projection, or None.
    """

    weight_NC: Floats
    bias_N: Floats | None = None
    head_norm_weight: Floats | None = None


def fold_mask_rows(
    mask_embedding_H: Floats,
    fused_mask_hidden_H: Floats,
    embedding_norm_weight_H: Floats,
    hidden_norm_weight_H: Floats,
    projections: tuple[Projection, ...],
    *,
    epsilon: float,
) -> tuple[NDArray[np.float32], ...]:
    """Compute what each projection gives for any mask slot.

    Args:
        mask_embedding_H: The mask token's row of the embedding table.
        fused_mask_hidden_H: As in contract.py.
        embedding_norm_weight_H: As in contract.py.
        hidden_norm_weight_H: As in contract.py.
        projections: Of layer 0, such as queries, keys, values.
        epsilon: Of all the norms.

    Returns:
        [N] float32 for each projection, computed in float64 once normalised.
    """
    halves = (
        rms_norm(mask_embedding_H, embedding_norm_weight_H, epsilon),
        rms_norm(fused_mask_hidden_H, hidden_norm_weight_H, epsilon),
    )
    row_1C = np.concatenate(halves)[None, :].astype(np.float64)
    return tuple(project(row_1C, projection, epsilon=epsilon)[0].astype(np.float32) for projection in projections)


def project(rows_TC: Numbers, projection: Projection, *, epsilon: float) -> Numbers:
    """Apply a projection to rows: [T, N], in the type of `rows_TC`."""
    projected_TN: Numbers = rows_TC @ projection.weight_NC.astype(rows_TC.dtype).T
    if projection.bias_N is not None:
        projected_TN = projected_TN + projection.bias_N.astype(rows_TC.dtype)
    if projection.head_norm_weight is None:
        return projected_TN
    heads = projected_TN.reshape(len(rows_TC), -1, len(projection.head_norm_weight))
    scale = 1.0 / np.sqrt(np.mean(np.square(heads), axis=-1, keepdims=True) + epsilon)
    normed: Numbers = (heads * scale * projection.head_norm_weight).astype(rows_TC.dtype)
    return normed.reshape(projected_TN.shape)


def place_mask_rows(
    projected_BRN: Numbers, mask_N: NDArray[np.float32], num_accepted_B: NDArray[np.int32], *, slots: int
) -> Numbers:
    """Lay a folded row where mask slots are.

    Args:
        projected_BRN: Projection of the rows carried over; what a rejected row holds is not read.
        mask_N: From `fold_mask_rows`.
        num_accepted_B: [B] int32, 0..R-1.
        slots: K.

    Returns:
        [B, W, N]: real rows, then mask rows; padding holds the mask row too, which nothing valid attends to.
    """
    batch, rows, width = projected_BRN.shape
    placed_BWN = np.broadcast_to(mask_N, (batch, rows + slots - 1, width)).astype(projected_BRN.dtype)
    is_real_BR = np.arange(rows)[None, :] <= num_accepted_B[:, None]
    placed_BWN[:, :rows][is_real_BR] = projected_BRN[is_real_BR]
    return placed_BWN
