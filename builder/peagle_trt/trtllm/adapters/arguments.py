"""TensorRT-LLM's own arguments, looked at where all of them are known and no weight is loaded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensorrt_llm._torch.pyexecutor import py_executor_creator

from peagle_trt.trtllm.refusals import require_arguments, require_gpu, require_one_model
from peagle_trt.trtllm.served_settings import is_served_head, read_served_settings


def check_arguments() -> None:
    """Look at the arguments of every executor from here on; safe to call twice."""
    if getattr(py_executor_creator.create_py_executor, "checks_for_peagle", False):
        return
    wrapped = checking(py_executor_creator.create_py_executor)
    wrapped.checks_for_peagle = True  # type: ignore[attr-defined]
    py_executor_creator.create_py_executor = wrapped


def checking(create_py_executor: Callable[..., Any]) -> Callable[..., Any]:
    """TensorRT-LLM's factory, which loads weights, behind a look at its arguments."""

    @functools.wraps(create_py_executor)
    def create_peagle_executor(llm_args: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_misfits(llm_args)
        return create_py_executor(llm_args, *args, **kwargs)

    return create_peagle_executor


def refuse_misfits(llm_args: Any) -> None:
    """Refuse what the build's limits or the GPU do not allow; without a P-EAGLE head everything is left alone.

    Raises:
        PeagleError: The arguments ask for what the drafter cannot follow, the head's limits are damaged, or
            TensorRT-LLM decodes with drafts wrongly on this GPU.

    Source: TensorRT-LLM main `executor/base_worker.py` (`BaseWorker.setup_engine`): a worker process chooses its GPU
        before it imports and calls `create_py_executor`, so the current device is the one that will serve.
    """
    spec_config = llm_args.speculative_config
    if spec_config is None or not spec_config.speculative_model:
        return
    head_path = Path(spec_config.speculative_model)
    if not is_served_head(head_path):
        return
    if torch.cuda.is_available():
        require_gpu(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    require_one_model(spec_config)
    require_arguments(llm_args, read_served_settings(head_path))
