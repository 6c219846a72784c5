"""An engine on a clock of its own: a pass takes a fixed time and some for each of its rows."""

from __future__ import annotations

from collections.abc import Sequence

from peagle_trt.engine.protocol import DraftOutput, DraftRows, TargetOutput, TargetRows
from tests.support.markov_engine import MarkovEngine


class TimedEngine(MarkovEngine):
    """See `MarkovEngine`.

    Attributes:
        now: The clock, seconds.
        pass_seconds: What a target pass costs, whatever it reads.
        row_seconds: What each of its rows costs.
        drafter_seconds: What a drafter pass costs.
    """

    now = 0.0
    pass_seconds = 1.0
    row_seconds = 0.0
    drafter_seconds = 0.1

    def clock(self) -> float:
        return self.now

    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        self.now += self.pass_seconds + self.row_seconds * sum(len(item.token_ids) for item in rows)
        return super().run_target(rows)

    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        self.now += self.drafter_seconds
        return super().run_drafter(rows, draft_tokens)
