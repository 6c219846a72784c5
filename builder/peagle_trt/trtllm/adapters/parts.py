"""Puts the P-EAGLE drafter and worker where TensorRT-LLM would put those of Eagle3, while a target is constructed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorrt_llm._torch.models import modeling_speculative
from tensorrt_llm._torch.pyexecutor import model_engine

from peagle_trt.trtllm.adapters.draft_model import PEagleDraftModel
from peagle_trt.trtllm.adapters.metadata import adopting
from peagle_trt.trtllm.refusals import read_fitting_head, require_one_model, require_parallelism, require_speculation
from peagle_trt.trtllm.releases.support import worker_class
from peagle_trt.trtllm.runtime.one_engine import OneEngine
from peagle_trt.trtllm.served_settings import is_served_head, read_served_settings, require_draft_tokens

_constructed: list[OneEngine] = []
"""The engine of the target that was constructed last: a worker process serves one."""


def latest_engine() -> OneEngine | None:
    """The engine whose slots the metadata of steps looks up."""
    return _constructed[-1] if _constructed else None


def follow_steps() -> None:
    """Adopt the metadata of every step from here on; safe to call twice."""
    if getattr(model_engine.get_spec_metadata, "adopts_for_peagle", False):
        return
    wrapped = adopting(model_engine.get_spec_metadata, latest_engine)
    wrapped.adopts_for_peagle = True  # type: ignore[attr-defined]
    model_engine.get_spec_metadata = wrapped


@contextlib.contextmanager
def peagle_parts(model_config: Any) -> Iterator[None]:
    """While a target is constructed, its drafter and worker are ours if its head is a P-EAGLE one.

    Raises:
        PeagleError: The head, its limits, or how the model is spread over GPUs cannot be served; nothing is loaded yet.
    """
    spec_config = getattr(model_config, "spec_config", None)
    if spec_config is None or not _is_ours(spec_config):
        _constructed.clear()
        yield
        return
    head_path = Path(spec_config.speculative_model)
    require_one_model(spec_config)
    settings = read_served_settings(head_path)
    require_parallelism(model_config.mapping)
    require_speculation(spec_config)
    require_draft_tokens(settings, spec_config.max_draft_len)
    head = read_fitting_head(head_path, model_config.pretrained_config, spec_config.eagle3_layers_to_capture)
    engine = OneEngine(settings)
    stock = modeling_speculative.get_draft_model, modeling_speculative.get_spec_worker

    def get_draft_model(model_config: Any, draft_config: Any, lm_head: Any, model: Any) -> PEagleDraftModel:
        return PEagleDraftModel(draft_config, head, engine)

    def get_spec_worker(spec_config: Any, model_config: Any, mapping: Any, **options: Any) -> Any:
        return worker_class()(spec_config, mapping, engine)

    modeling_speculative.get_draft_model, modeling_speculative.get_spec_worker = get_draft_model, get_spec_worker
    try:
        yield
    finally:
        modeling_speculative.get_draft_model, modeling_speculative.get_spec_worker = stock
    _constructed[:] = [engine]


def _is_ours(spec_config: Any) -> bool:
    return bool(spec_config.speculative_model) and is_served_head(Path(spec_config.speculative_model))
