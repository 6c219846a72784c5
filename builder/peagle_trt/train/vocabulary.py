"""The reduced draft vocabulary: which of the target's tokens a drafter can propose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZE_STEP = 1024


def choose_draft_vocabulary(
    counts_V: NDArray[np.int64], *, coverage: float, always: Iterable[int], size: int | None = None
) -> NDArray[np.int64]:
    """The most frequent tokens, as many as cover the given share of the text.

    Args:
        counts_V: Occurrences of each target token among generated tokens, [V].
        coverage: Share of the occurrences to cover; ignored with `size`.
        always: Tokens that are in whatever their count.
        size: Exact size instead of a coverage.

    Returns:
        Target ids in ascending order; their number is a multiple of 1,024 or the whole vocabulary.
    """
    forced = np.array(sorted(set(always)), dtype=np.int64)
    ranked = counts_V.astype(np.float64)
    ranked[forced] = np.inf
    order = np.argsort(-ranked, kind="stable")
    covered = np.cumsum(counts_V[order]) / max(1, counts_V.sum())
    wanted = size or int(np.searchsorted(covered, coverage) + 1)
    rounded = min(len(counts_V), -(-max(wanted, len(forced)) // SIZE_STEP) * SIZE_STEP)
    return np.sort(order[: size or rounded])


def draft_offsets(draft_to_target: NDArray[np.int64]) -> NDArray[np.int64]:
    """`d2t` as checkpoints store it: target id minus draft id, [draft vocabulary] int64."""
    return draft_to_target - np.arange(len(draft_to_target))
