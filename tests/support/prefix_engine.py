"""A target of tables whose drafter knows its whole prefix, so that a draft tells what the drafter read before it.

The draft of slot k is the target's own choice, unless a checksum of the prefix says otherwise. So two programs accept
the same drafts only if their drafters saw the same tokens at the same places.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from peagle_trt.engine.protocol import DraftOutput, DraftRows
from peagle_trt.trtllm.runtime.head import DraftCache, FlatRows
from tests.support.markov_engine import VOCABULARY, MarkovEngine

MASK = -1.0
"""The state of a masked slot; a real row's is 1, and what nobody wrote is 0."""


class PrefixEngine(MarkovEngine):
    """See above."""

    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        super().run_drafter(rows, draft_tokens)
        drafts = [self.drafts(self.drafter_rows[item.slot], draft_tokens) for item in rows]
        logits = np.eye(VOCABULARY, dtype=np.float32)[np.array(drafts)]
        return DraftOutput(token_ids=np.array(drafts, np.int32), logits=logits)

    def drafts(self, read: Sequence[int], count: int) -> list[int]:
        """Drafts after the tokens that follow rows 0, 1, ...; token 0 of the text is no row's follower."""
        checksum = sum((place + 3) * (token + 1) for place, token in enumerate(read))
        history, drafts = list(read[-2:]), list[int]()
        for slot in range(count):
            best = int(self.next_logits(history if len(history) > 1 else [0, *history]).argmax())
            drafts.append((best + 1) % VOCABULARY if (checksum + 5 * slot) % 6 == 0 else best)
            history.append(best)
        return drafts


class PrefixHead:
    """`ServedHead` over the same rule: its cache holds tokens, and a draft is read from the cache alone."""

    def __init__(self, engine: PrefixEngine) -> None:
        self.engine = engine
        self.config: Any = SimpleNamespace(hidden_size=1, mask_token_id=VOCABULARY)
        self.dtype, self.device = torch.float32, torch.device("cpu")
        self.fused_mask_H = torch.tensor([MASK])
        self._cache: DraftCache | None = None

    def new_cache(self, num_slots: int, capacity: int) -> DraftCache:
        return DraftCache(keys=torch.zeros(num_slots, capacity), values=torch.zeros(num_slots, capacity))

    def fuse(self, auxiliary_RA: torch.Tensor) -> torch.Tensor:
        # The executor's states are what the engine gave; only whether a row is real matters here.
        return torch.ones(len(auxiliary_RA), 1)

    def run(self, rows: FlatRows, cache: DraftCache, attend: Any) -> torch.Tensor:
        cache.keys[rows.slots_R, rows.positions_R] = rows.hidden_RH[:, 0]
        cache.values[rows.slots_R, rows.positions_R] = rows.token_ids_R.float()
        self._cache = cache
        return torch.stack([rows.slots_R, rows.positions_R], dim=1)

    def draft(self, stream_RH: torch.Tensor) -> torch.Tensor:
        return torch.tensor([self._draft(slot, place) for slot, place in stream_RH.tolist()], dtype=torch.int32)

    def _draft(self, slot: int, place: int) -> int:
        assert self._cache is not None
        states = self._cache.keys[slot, : place + 1].tolist()
        num_real = place + 1
        while num_real and states[num_real - 1] == MASK:
            num_real -= 1
        if states[:num_real] != [1.0] * num_real or not num_real:
            # Padding's slot, or a hole in what was read: any token serves the first, none the second.
            return 0
        read = [int(token) for token in self._cache.values[slot, :num_real].tolist()]
        return self.engine.drafts(read, place + 2 - num_real)[-1]
