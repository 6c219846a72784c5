"""What a decode loop counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LoopStatistics:
    """Counters since the loop began."""

    num_steps: int = 0
    num_target_passes: int = 0
    num_drafter_passes: int = 0
    num_requests: int = 0
    num_output_tokens: int = 0
    largest_batch: int = 0
    num_reused_tokens: int = 0
