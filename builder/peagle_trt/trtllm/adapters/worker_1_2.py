"""The worker of TensorRT-LLM 1.2.1, whose base class leaves `forward` to the worker."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from peagle_trt.trtllm.adapters.worker import OneEngineWorker


class PEagleWorker(OneEngineWorker):
    """One-engine worker of a P-EAGLE head.

    Source: TensorRT-LLM release/1.2 `_torch/speculative/interface.py` (`SpecWorkerBase`) and `eagle3.py`
        (`Eagle3OneModelWorker.forward`).
    """

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        hidden_states: Tensor,
        logits: Tensor,
        attn_metadata: Any,
        spec_metadata: Any,
        draft_model: Any,
    ) -> dict[str, Tensor]:
        """One step; K is the same in all of them."""
        return self.verify_and_draft(
            input_ids,
            position_ids,
            logits,
            attn_metadata,
            spec_metadata,
            draft_model,
            num_drafts=self.max_draft_len,
            accept=self._sample_and_accept_draft_tokens_base,
        )
