"""Calls a torch form of the plugins on a case."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tests.support.plugin_cases import Arrays, DraftCase, SelectCase


def call(forms: ModuleType | Any, case: DraftCase | SelectCase) -> list[np.ndarray]:
    """`forms` has `parallel_draft`, `select_draft` and `select_draft_top_k`: a module, or `torch.ops.peagle`."""
    outputs = function_for(forms, case)(*tensors(case.inputs()), **case.attributes())
    return [to_numpy(output) for output in (outputs if isinstance(outputs, tuple | list) else [outputs])]


def function_for(forms: ModuleType | Any, case: DraftCase | SelectCase) -> Callable[..., Any]:
    if isinstance(case, DraftCase):
        return forms.parallel_draft
    return forms.select_draft_top_k if case.candidates else forms.select_draft


def tensors(inputs: Arrays) -> list[torch.Tensor]:
    return [to_torch(array) for array in inputs.values()]


def to_torch(array: np.ndarray) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
