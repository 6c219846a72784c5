"""Targets of the stand-in: each constructs a drafter and a worker, and runs them after itself."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from torch import nn


class Target(nn.Module):
    """`SpecDecOneEngineForCausalLM`: constructs drafter and worker, runs them after the target."""

    table = "embed_tokens"

    def __init__(self, model_config: Any) -> None:
        super().__init__()
        self.model_config = model_config
        sizes = model_config.pretrained_config
        self.model = nn.Module()
        setattr(self.model, self.table, nn.Embedding(sizes.vocab_size, sizes.hidden_size))
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.logits_processor = SimpleNamespace(forward=lambda rows, head, metadata, context: head(rows).float())
        self.draft_model = self.spec_worker = None
        if model_config.spec_config is None:
            return
        speculative = sys.modules["tensorrt_llm._torch.models.modeling_speculative"]
        draft_config = SimpleNamespace(pretrained_config=sizes, mapping=model_config.mapping)
        self.draft_model = speculative.get_draft_model(model_config, draft_config, self.lm_head, self.model)
        options = {"use_separate_draft_kv_cache": True} if speculative.is_newer else {}
        self.spec_worker = speculative.get_spec_worker(
            model_config.spec_config, model_config, model_config.mapping, **options
        )
        if speculative.is_newer:
            self.spec_worker.set_draft_model(self.draft_model)

    def load_draft_weights(self, weights: Any, weight_mapper: Any = None) -> None:
        self.draft_model.load_weights(weights=weights, weight_mapper=weight_mapper)
        self.draft_model.load_weights_from_target_model(self)


class GptOss(Target):
    table = "embedding"
