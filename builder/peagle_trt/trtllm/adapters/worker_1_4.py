"""The worker of TensorRT-LLM 1.4 (main), whose base class owns `forward` and calls `_forward_impl`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from peagle_trt.trtllm.adapters.worker import OneEngineWorker
from peagle_trt.trtllm.runtime.one_engine import OneEngine


class PEagleWorker(OneEngineWorker):
    """One-engine worker of a P-EAGLE head.

    Source: TensorRT-LLM main (1.4 pre-releases) `_torch/speculative/interface.py` (`SpecWorkerBase`, which refuses a
        subclass with a `forward`) and `eagle3.py` (`Eagle3OneModelWorker`).
    """

    def __init__(self, spec_config: Any, mapping: Any, engine: OneEngine) -> None:
        # The drafter's cache is ours; the flag is about a second cache of TensorRT-LLM's.
        super().__init__(spec_config, mapping, engine, use_separate_draft_kv_cache=False)

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
        """One step of `runtime_draft_len` drafts."""
        if spec_metadata.runtime_draft_len == 0:
            # Only warm-up asks for it: what would turn drafts off while serving is refused.
            return self.skip_drafting(  # type: ignore[no-any-return]
                input_ids, position_ids, hidden_states, logits, attn_metadata, spec_metadata, draft_model
            )
        return self.verify_and_draft(
            input_ids,
            position_ids,
            logits,
            attn_metadata,
            spec_metadata,
            draft_model,
            num_drafts=spec_metadata.runtime_draft_len,
            accept=self._accept_draft_tokens,
        )
