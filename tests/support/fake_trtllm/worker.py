"""What a drafting worker of the stand-in is built on: metadata of a step, and two releases of its base."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

GRAPH_PADDING_ID = (1 << 64) - 1
"""Source: `_torch/pyexecutor/cuda_graph_runner.py`, `CUDA_GRAPH_DUMMY_REQUEST_ID`."""


@dataclass
class SpecMetadata:
    """Source: `_torch/speculative/interface.py`."""

    max_num_requests: int
    max_draft_len: int
    max_total_draft_tokens: int
    num_generations: int = 0
    is_cuda_graph: bool = False
    draft_tokens: Any = None
    request_ids: Any = None
    gather_ids: Any = None
    num_tokens: int = 0
    runtime_draft_len: int = 0
    num_layers: int = 0

    def __post_init__(self) -> None:
        pass

    def prepare(self) -> None:
        pass

    def create_cuda_graph_metadata(self, max_batch_size: int) -> Any:
        if self.is_cuda_graph:
            return self
        result = copy.copy(self)
        result.is_cuda_graph = True
        result.max_num_requests = max_batch_size
        result.__post_init__()
        return result


@dataclass
class Eagle3OneModelSpecMetadata(SpecMetadata):
    """Source: `_torch/speculative/eagle3.py`."""

    hidden_states: Any = None
    layers_to_capture: Any = None
    hidden_size: int = 0
    max_num_tokens: int = 0
    dtype: Any = torch.float32

    def __post_init__(self) -> None:
        if self.layers_to_capture is None:
            self.layers_to_capture = (1, self.num_layers // 2 - 1, self.num_layers - 4)
        self.layers_to_capture = sorted(self.layers_to_capture)
        width = self.hidden_size * len(self.layers_to_capture)
        # The real buffer is `torch.empty`: what nobody wrote must never matter.
        self.hidden_states = torch.full((self.max_num_tokens, width), torch.nan, dtype=self.dtype)

    def prepare(self) -> None:
        assert self.request_ids is not None
        self.num_tokens -= self.num_generations * self.max_draft_len

    def maybe_capture_hidden_states(self, layer_id: int, hidden_states: Any, residual: Any = None) -> None:
        index = list(self.layers_to_capture).index(layer_id)
        saved = hidden_states if residual is None else hidden_states + residual
        columns = slice(index * self.hidden_size, (index + 1) * self.hidden_size)
        self.hidden_states[: len(saved), columns].copy_(saved)


def _accept(self: Any, logits: Any, draft_tokens: Any, num_contexts: int, batch_size: int, spec_metadata: Any) -> Any:
    """Source: `SpecWorkerBase._sample_and_accept_draft_tokens_base`, greedy and strict; other columns are garbage."""
    num_drafts = draft_tokens.shape[-1] if draft_tokens.dim() > 1 else self.max_draft_len
    accepted = torch.randint(0, logits.shape[-1], (batch_size, num_drafts + 1), dtype=torch.int32)
    counts = torch.ones(batch_size, dtype=torch.int32)
    chosen = logits.argmax(dim=-1).int()
    accepted[:num_contexts, 0] = chosen[:num_contexts]
    generated = chosen[num_contexts:].reshape(batch_size - num_contexts, num_drafts + 1)
    accepted[num_contexts:] = generated
    counts[num_contexts:] += torch.cumprod((draft_tokens == generated[:, :num_drafts]).int(), dim=-1).sum(1).int()
    return accepted, counts


class OlderWorkerBase(nn.Module, ABC):
    """`SpecWorkerBase` of 1.2."""

    def __init__(self) -> None:
        super().__init__()
        self.guided_decoder: Any = None

    @property
    @abstractmethod
    def max_draft_len(self) -> int: ...

    _sample_and_accept_draft_tokens_base = _accept


class NewerWorkerBase(nn.Module, ABC):
    """`SpecWorkerBase` of main: owns `forward`."""

    def __init__(self, use_separate_draft_kv_cache: bool = False) -> None:
        super().__init__()
        self.guided_decoder: Any = None
        self.use_separate_draft_kv_cache = use_separate_draft_kv_cache
        self._d2t: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in cls.__dict__:
            raise TypeError(f"{cls.__name__} must not override SpecWorkerBase.forward")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward_impl(*args, **kwargs)

    @abstractmethod
    def _forward_impl(self, *args: Any, **kwargs: Any) -> Any: ...

    @property
    @abstractmethod
    def max_draft_len(self) -> int: ...

    def set_draft_model(self, draft_model: Any) -> None:
        self._d2t = getattr(getattr(draft_model, "model", None), "d2t", None)

    def skip_drafting(
        self,
        input_ids: Any,
        position_ids: Any,
        hidden_states: Any,
        logits: Any,
        attn_metadata: Any,
        spec_metadata: Any,
        draft_model: Any,
    ) -> Any:
        return {"next_draft_tokens": torch.zeros((attn_metadata.num_seqs, 0), dtype=torch.int32)}

    _accept_draft_tokens = _accept
