"""What passes of both models cost here, measured in turns over the plain step of one request."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from peagle_trt.decode.session import LoadedBuild
from peagle_trt.engine.protocol import DraftRows, TargetRows
from peagle_trt.tuning.stopwatch import Clock


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PassKind:
    """A pass.

    Attributes:
        model: "target" or "drafter".
        draft_tokens: K; 0 for the target's plain step.
        batch_size: Requests in it.
    """

    model: str
    draft_tokens: int
    batch_size: int


PLAIN = PassKind(model="target", draft_tokens=0, batch_size=1)
"""What every turn begins with, and what all other passes of the turn are laid over."""


def measure_passes(
    loaded: LoadedBuild, kinds: Collection[PassKind], *, context_tokens: int, turns: int, clock: Clock
) -> dict[PassKind, float]:
    """Seconds of every pass.

    A pass of a turn is taken over that turn's plain step, and the medians of these ratios over the median plain step:
    a machine that is slow for a while slows both alike.

    Args:
        loaded: The build.
        kinds: Passes to measure.
        context_tokens: Tokens of each request that are in the caches.
        turns: How often each is measured.
        clock: Seconds.
    """
    passes = {kind: _make_pass(loaded, kind, context_tokens) for kind in dict.fromkeys([PLAIN, *sorted(kinds)])}
    for run in passes.values():
        run()
    samples: dict[PassKind, list[float]] = {kind: [] for kind in passes}
    for _ in range(turns):
        for kind, run in passes.items():
            started = clock()
            run()
            samples[kind].append(clock() - started)
    plain = statistics.median(samples[PLAIN])
    return {
        kind: plain * statistics.median(each / base for each, base in zip(taken, samples[PLAIN], strict=True))
        for kind, taken in samples.items()
    }


def _make_pass(loaded: LoadedBuild, kind: PassKind, context_tokens: int) -> Callable[[], object]:
    limit = loaded.engine.shapes.max_sequence_length - 2 * kind.draft_tokens - 2
    start = max(1, min(context_tokens, limit))
    if kind.model == "target":
        rows = [_target_rows(slot, kind.draft_tokens, start) for slot in range(kind.batch_size)]
        return lambda: loaded.engine.run_target(rows)
    drafts = [_draft_rows(loaded, slot, kind.draft_tokens, start) for slot in range(kind.batch_size)]
    return lambda: loaded.engine.run_drafter(drafts, kind.draft_tokens)


def _target_rows(slot: int, draft_tokens: int, start: int) -> TargetRows:
    # Which tokens does not matter: a pass of some shape takes the same time whatever it reads.
    ids = np.ones(1 + draft_tokens, np.int32)
    return TargetRows(slot=slot, token_ids=ids, start_position=start, num_logit_rows=len(ids), needs_logits=False)


def _draft_rows(loaded: LoadedBuild, slot: int, draft_tokens: int, start: int) -> DraftRows:
    drafter = loaded.manifest.drafter
    count = draft_tokens + 1
    return DraftRows(
        slot=slot,
        next_token_ids=np.ones(count, np.int32),
        hidden=np.full((count, len(drafter.aux_layer_ids) * drafter.target_hidden_size), 0.5, np.float32),
        num_accepted=draft_tokens // 2,
        start_position=start,
    )
