"""Passes of a plain EAGLE-3 head in ONNX Runtime: each reads just the rows there are, whatever sequence they are of.

Letters: T rows of all sequences, F rows with states of the target, N rows with states of the drafter, G groups of a
graph, B sequences, A*Ht and H widths of the two kinds of states.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from peagle_trt.engine.ort_graph import GraphFamily
from peagle_trt.engine.protocol import DraftOutput, DraftRows, DraftStep, host_rows
from peagle_trt.spec import DrafterConfig


def run_first_pass(family: GraphFamily, config: DrafterConfig, rows: Sequence[DraftRows]) -> DraftOutput:
    """The verify step's accepted rows and the bonus row of every sequence; its caches have room for them."""
    counts = [item.num_accepted + 1 for item in rows]
    kept = list(zip(rows, counts, strict=True))
    return _run(
        family,
        config,
        slots=[item.slot for item in rows],
        next_token_ids=np.concatenate([item.next_token_ids[:count] for item, count in kept]),
        hidden=np.concatenate([host_rows(item.hidden)[:count] for item, count in kept]),
        drafter_hidden=np.zeros((0, config.hidden_size), np.float32),
        counts=counts,
        ends=[item.start_position + count for item, count in kept],
    )


def run_next_pass(family: GraphFamily, config: DrafterConfig, rows: Sequence[DraftStep]) -> DraftOutput:
    """One row of every sequence: the token drafted last, and the state that the drafter gave it."""
    return _run(
        family,
        config,
        slots=[item.slot for item in rows],
        next_token_ids=np.array([item.token_id for item in rows], np.int32),
        hidden=np.zeros((0, len(config.aux_layer_ids) * config.target_hidden_size), np.float32),
        # Stacking copies: the states lie in a buffer that this very pass may write.
        drafter_hidden=np.stack([item.hidden for item in rows]),
        counts=[1] * len(rows),
        ends=[item.position + 1 for item in rows],
    )


def _run(
    family: GraphFamily,
    config: DrafterConfig,
    *,
    slots: Sequence[int],
    next_token_ids: NDArray[np.int32],
    hidden: NDArray[np.float32],
    drafter_hidden: NDArray[np.float32],
    counts: Sequence[int],
    ends: Sequence[int],
) -> DraftOutput:
    batch = len(slots)
    groups = family.smallest(batch)
    padding = [1] * (groups - batch)
    feeds: dict[str, NDArray[np.generic]] = {
        "next_token_ids": next_token_ids,
        "hidden": hidden,
        "drafter_hidden": drafter_hidden,
        "sampled_rows": np.cumsum(counts, dtype=np.int32) - np.int32(1),
        "key_lengths": np.array([*ends, *padding], np.int32),
    }
    if groups > 1:
        feeds["row_counts"] = np.array([*counts, *padding], np.int64)
    outputs = {
        "draft_token_ids": (np.int32, (batch,)),
        "draft_logits": (np.float32, (batch, config.draft_vocab_size)),
        "next_hidden": (np.float32, (batch, config.hidden_size)),
    }
    found = family.graph(groups).run(feeds, outputs, slots=slots)
    return DraftOutput(
        token_ids=found["draft_token_ids"][:, None],
        logits=found["draft_logits"][:, None],
        next_hidden=found["next_hidden"],
    )
