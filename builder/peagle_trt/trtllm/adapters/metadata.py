"""The metadata of a step, with every generating request's slot looked up before a captured graph reads it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from tensorrt_llm._torch.speculative.eagle3 import Eagle3OneModelSpecMetadata

from peagle_trt.trtllm.runtime.one_engine import OneEngine, look_up_slots


class PEagleSpecMetadata(Eagle3OneModelSpecMetadata):
    """Eagle3's, which captures the target's states, and the slots.

    Copies that CUDA graphs use share the engine and have slots of their own, as `create_cuda_graph_metadata` calls
    `__post_init__` again.
    """

    peagle_engine: OneEngine
    peagle_slots: torch.Tensor

    def __post_init__(self) -> None:
        """Allocate the slots after the buffers of Eagle3."""
        super().__post_init__()
        self.allocate_slots()

    def allocate_slots(self) -> None:
        """Room for the slots of every request of a step, at an address that stays."""
        self.peagle_slots = torch.full(
            (self.max_num_requests,),
            self.peagle_engine.slots.scratch,
            dtype=torch.int64,
            device=self.hidden_states.device,
        )

    def prepare(self) -> None:
        """Called on the host before every step, captured or not."""
        super().prepare()
        look_up_slots(self.peagle_engine.slots, self.request_ids, self.num_generations, self.peagle_slots)


def adopt(metadata: Any, engine: OneEngine | None) -> Any:
    """Make the metadata that TensorRT-LLM built ours, where a P-EAGLE worker will read it; others are left alone.

    Raises:
        PlanError: TensorRT-LLM was started for more requests than the build.
    """
    if engine is None or type(metadata) is not Eagle3OneModelSpecMetadata:
        return metadata
    engine.require_room(metadata.max_num_requests)
    metadata.__class__ = PEagleSpecMetadata
    metadata.peagle_engine = engine
    metadata.allocate_slots()
    return metadata


def adopting(get_spec_metadata: Callable[..., Any], find_engine: Callable[[], OneEngine | None]) -> Callable[..., Any]:
    """TensorRT-LLM's factory, whose results are adopted."""

    @functools.wraps(get_spec_metadata)
    def get_peagle_spec_metadata(*args: Any, **kwargs: Any) -> Any:
        return adopt(get_spec_metadata(*args, **kwargs), find_engine())

    return get_peagle_spec_metadata
