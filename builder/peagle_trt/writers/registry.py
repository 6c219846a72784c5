"""The dialects there are to write, by the name that `convert --to` takes."""

from __future__ import annotations

from collections.abc import Callable

from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint
from peagle_trt.writers import automodel, speculators, trtllm, vllm
from peagle_trt.writers.spelled import SpelledHead

Writer = Callable[[DrafterCheckpoint, TargetCheckpoint | None], SpelledHead]
"""Spells a head, given its target where it is known; refuses what its dialect cannot hold."""

WRITERS: dict[str, Writer] = {
    "vllm": vllm.spell,
    "speculators": speculators.spell,
    "automodel": automodel.spell,
    "trtllm": trtllm.spell,
}
