"""What the workers of all releases share: verify K drafts, then draft K more in one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorrt_llm._torch.speculative.interface import SpecWorkerBase
from torch import Tensor

from peagle_trt.trtllm.runtime.one_engine import OneEngine


class OneEngineWorker(SpecWorkerBase):
    """A worker without the method that its release calls.

    Args:
        spec_config: TensorRT-LLM's.
        mapping: TensorRT-LLM's.
        engine: The head with its cache.
        options: What the release's base class wants to know.

    Source: TensorRT-LLM `_torch/speculative/interface.py` (`SpecWorkerBase`) and `eagle3.py`
        (`Eagle3OneModelWorker`, whose results have these names), release/1.2 and main.
    """

    def __init__(self, spec_config: Any, mapping: Any, engine: OneEngine, **options: bool) -> None:
        super().__init__(**options)
        self.spec_config, self.mapping, self.engine = spec_config, mapping, engine

    @property
    def max_draft_len(self) -> int:
        """K."""
        return int(self.spec_config.max_draft_len)

    def set_guided_decoder(self, guided_decoder: object) -> bool:
        """Refused: guided decoding walks its grammar draft by draft, and all drafts come at once."""
        return False

    def verify_and_draft(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        logits: Tensor,
        attn_metadata: Any,
        spec_metadata: Any,
        draft_model: Any,
        *,
        num_drafts: int,
        accept: Callable[..., tuple[Tensor, Tensor]],
    ) -> dict[str, Tensor]:
        """One step; nothing of `attn_metadata` is touched, since the drafter attends over a cache of its own.

        Args:
            input_ids: [T] tokens that the target read.
            position_ids: [1, T] or [T] their positions.
            logits: [contexts + generations * (K+1), vocabulary] of the rows that are sampled.
            attn_metadata: The step's.
            spec_metadata: The step's.
            draft_model: Keeps the attention metadata, as TensorRT-LLM's own does.
            num_drafts: K of this step.
            accept: The release's method that samples and compares.
        """
        num_contexts, batch_size = attn_metadata.num_contexts, attn_metadata.num_seqs
        drafted = spec_metadata.draft_tokens.reshape(batch_size - num_contexts, num_drafts)
        accepted, num_accepted = accept(logits, drafted, num_contexts, batch_size, spec_metadata)
        draft_model.attn_metadata = attn_metadata
        drafts, next_tokens = self.engine.step(
            input_ids, position_ids, accepted, num_accepted, attn_metadata, spec_metadata
        )
        return {
            "logits": logits,
            "new_tokens": accepted,
            "new_tokens_lens": num_accepted,
            "next_draft_tokens": drafts,
            "next_new_tokens": next_tokens,
        }
