"""The drafter as TensorRT-LLM's loader sees it: a module without parameters of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import DrafterCheckpoint
from peagle_trt.readers.dialects import TRTLLM, TRTLLM_ONE_LAYER
from peagle_trt.trtllm.runtime.head import ServedHead
from peagle_trt.trtllm.runtime.one_engine import OneEngine

_TABLES = ("embed_tokens", "embedding")
"""What targets call their embedding table; gpt-oss's class has the second name."""
_LEFT_OUT = ("t2d",)


class PEagleDraftModel(nn.Module):
    """Takes the head's tensors from TensorRT-LLM's loader, and the target's tables where the head has none.

    Args:
        model_config: The head's `ModelConfig`, which weight mappers ask for.
        head: The head, read and checked.
        engine: What will run it.
    """

    def __init__(self, model_config: Any, head: DrafterCheckpoint, engine: OneEngine) -> None:
        super().__init__()
        self.model_config = model_config
        self.config = model_config.pretrained_config
        self._head, self._engine = head, engine
        self._weights: dict[str, Tensor] = {}
        self.attn_metadata: Any = None

    def load_weights(self, weights: Mapping[str, Tensor], weight_mapper: object = None) -> None:
        """Keep every tensor under our own name.

        Raises:
            CheckpointError: One is missing, or nobody would read it.
        """
        dialect = TRTLLM_ONE_LAYER if self._head.config.num_layers == 1 else TRTLLM
        names = {dialect.foreign_name(name): name for name in self._head.weights}
        found = dict(weights.items())
        missing = [name for name in names if name not in found]
        unread = [name for name in found if name not in names and name not in _LEFT_OUT]
        if missing or unread:
            raise CheckpointError(
                f"TensorRT-LLM loaded other tensors than the head `{self._head.path}` has: missing {missing}, "
                f"unknown {unread}",
                hint="build it again with this release",
            )
        self._weights = {ours: found[name] for name, ours in names.items()}

    def load_weights_from_target_model(self, target_model: nn.Module) -> None:
        """Bring the head to the target's GPU and hand it to the engine.

        Raises:
            CheckpointError: The target's class keeps its embeddings under a name that is not known.
        """
        table = _find_table(target_model)
        like = next(table.parameters())
        weights = {name: _shaped(name, tensor).to(like.device) for name, tensor in self._weights.items()}
        # The target's own tables take part in the pass, and its states come in its type.
        weights = {name: each.to(like.dtype) if each.is_floating_point() else each for name, each in weights.items()}
        config = self._head.config
        head = ServedHead(
            config,
            weights,
            embed=None if config.has_own_embeddings else table,
            output_layer=None if config.has_own_lm_head else self._output_layer(target_model),
        )
        self._weights = {}
        self._engine.attach(head)

    def _output_layer(self, target_model: Any) -> Callable[[Tensor], Tensor]:
        def logits(rows: Tensor) -> Tensor:
            # `True` means logits of all rows rather than of each sequence's last.
            result: Tensor = target_model.logits_processor.forward(rows, target_model.lm_head, self.attn_metadata, True)
            return result

        return logits


def _find_table(target_model: Any) -> nn.Module:
    for name in _TABLES:
        table = getattr(target_model.model, name, None)
        if isinstance(table, nn.Module):
            return table
    raise CheckpointError(
        f"the target class `{type(target_model).__name__}` has none of {', '.join(f'`{name}`' for name in _TABLES)}",
        hint="this release of TensorRT-LLM is not one the worker was written for",
    )


def _shaped(name: str, tensor: Tensor) -> Tensor:
    """`mask_hidden` flat, whatever leading axes it is stored with; offsets in the type that indices have."""
    if name == "d2t":
        return tensor.to(torch.int64)
    return tensor.reshape(-1) if name == "mask_hidden" else tensor
