"""COD: which mask slots of which rollouts one training step sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSettings:
    """Conditional drop-token: how many depths, and how fast they thin out.

    Attributes:
        num_depths: K in training; depth 0 is the bonus slot. Train deeper than you serve.
        retention: Share r of the positions that survive from one depth to the next.
        floor: Least share of any depth.
    """

    num_depths: int = 7
    retention: float = 0.7
    floor: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """The rows of one sequence, or of a piece of it: context slots in order, then mask slots, rollout by rollout.

    Attributes:
        anchors: Slot of the rollout's bonus token, [R] int64; a context row is its own anchor.
        depths: Mask slots after the bonus slot, [R] int64; zero for context rows.
    """

    anchors: NDArray[np.int64]
    depths: NDArray[np.int64]

    @property
    def positions(self) -> NDArray[np.int64]:
        """Rotary position and index of the supervision, [R] int64."""
        return self.anchors + self.depths

    @property
    def num_context(self) -> int:
        """Context slots among the rows."""
        return int(np.count_nonzero(self.depths == 0))

    def take(self, rows: NDArray[np.intp] | slice) -> RowPlan:
        """Some of the rows, in their order."""
        return RowPlan(anchors=self.anchors[rows], depths=self.depths[rows])


def sample_rows(
    num_context: int, supervised: NDArray[np.bool_], settings: DropSettings, generator: np.random.Generator
) -> RowPlan:
    """Draw the mask slots of one sequence.

    A rollout's slot at depth d is drawn only with its slot at depth d-1, and both the anchor and every slot are
    supervised positions, so no anchor lies before the sequence or in the prompt.

    Args:
        num_context: L, slots of the sequence.
        supervised: Whether slot i predicts a token that the target generated, [L].
        settings: Depths and shares.
        generator: Source of randomness.

    Returns:
        L context rows, then the mask rows, rollout by rollout.

    Source: P-EAGLE (arXiv 2602.01469) section 4 and PARD's conditional drop-token.
    """
    anchors = [np.arange(num_context)]
    depths = [np.zeros(num_context, dtype=np.int64)]
    num_seeds = int(supervised.sum())
    pool = np.flatnonzero(supervised[1:] & supervised[:-1]) + 1
    for depth in range(1, settings.num_depths):
        share = max(settings.retention**depth, settings.floor)
        size = min(int(max(0, num_seeds - depth) * share), len(pool))
        if size <= 0:
            break
        positions = np.sort(generator.choice(pool, size=size, replace=False))
        anchors.append(positions - depth)
        depths.append(np.full(size, depth))
        following = positions[positions + 1 < num_context] + 1
        pool = following[supervised[following]]
    plan = RowPlan(anchors=np.concatenate(anchors), depths=np.concatenate(depths))
    by_rollout = np.lexsort((plan.depths, plan.anchors))
    return plan.take(np.concatenate([np.arange(num_context), by_rollout[plan.depths[by_rollout] > 0]]))


def full_rows(num_context: int, anchors: NDArray[np.int64], num_depths: int) -> RowPlan:
    """Every mask slot of the given anchors: what an exact walk over all draft positions needs."""
    mask_depths = np.tile(np.arange(1, num_depths), len(anchors))
    return RowPlan(
        anchors=np.concatenate([np.arange(num_context), np.repeat(anchors, num_depths - 1)]),
        depths=np.concatenate([np.zeros(num_context, dtype=np.int64), mask_depths]),
    )


def visible_rows(plan: RowPlan) -> NDArray[np.bool_]:
    """Which row may read which: `[query, key]`, [R, R].

    A row reads the context up to its anchor and its own rollout up to itself; causal attention over a cache gives
    exactly this at inference.

    Source: P-EAGLE's training mask, as in vLLM's speculators.
    """
    query_anchors, key_anchors = plan.anchors[:, None], plan.anchors[None, :]
    query_depths, key_depths = plan.depths[:, None], plan.depths[None, :]
    context = (key_depths == 0) & (query_anchors >= key_anchors)
    own_rollout = (query_anchors == key_anchors) & (query_depths >= key_depths)
    visible: NDArray[np.bool_] = context | own_rollout
    return visible
