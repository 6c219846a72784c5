"""The worker of TensorRT-LLM 1.4 (main), whose base class owns `forward` and calls `_forward_impl`."""

from __future__ import annotations

from typing import Any

from tensorrt_llm._torch.speculative.interface import SpecWorkerBase
from torch import Tensor

from peagle_trt.trtllm.runtime.one_engine import OneEngine


class PEagleWorker(SpecWorkerBase):
    """One-engine worker: verify K drafts, then draft K more in one pass.

    Source: TensorRT-LLM main (1.4 pre-releases) `_torch/speculative/interface.py` (`SpecWorkerBase`, which refuses a
        subclass with a `forward`) and `eagle3.py` (`Eagle3OneModelWorker`, whose results have these names).
    """

    def __init__(self, spec_config: Any, mapping: Any, engine: OneEngine) -> None:
        # The drafter's cache is ours; the flag is about a second cache of TensorRT-LLM's.
        super().__init__(use_separate_draft_kv_cache=False)
        self.spec_config, self.mapping, self.engine = spec_config, mapping, engine

    @property
    def max_draft_len(self) -> int:
        """K."""
        return int(self.spec_config.max_draft_len)

    def set_guided_decoder(self, guided_decoder: object) -> bool:
        """Refused: guided decoding walks its grammar draft by draft, and all drafts come at once."""
        return False

    def _forward_impl(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        hidden_states: Tensor,
        logits: Tensor,
        attn_metadata: Any,
        spec_metadata: Any,
        draft_model: Any,
        resource_manager: object = None,
    ) -> dict[str, Tensor]:
        """One step; nothing of `attn_metadata` is touched, since the drafter attends over a cache of its own."""
        if spec_metadata.runtime_draft_len == 0:
            # Only warm-up asks for it: what would turn drafts off while serving is refused.
            return self.skip_drafting(  # type: ignore[no-any-return]
                input_ids, position_ids, hidden_states, logits, attn_metadata, spec_metadata, draft_model
            )
        num_contexts, batch_size = attn_metadata.num_contexts, attn_metadata.num_seqs
        drafted = spec_metadata.draft_tokens.reshape(batch_size - num_contexts, spec_metadata.runtime_draft_len)
        accepted, num_accepted = self._accept_draft_tokens(logits, drafted, num_contexts, batch_size, spec_metadata)
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
