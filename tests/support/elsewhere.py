"""A device that is not there: its tensors claim `meta` and hold values on the host all the same.

Work that mixes them with tensors of the host fails as it would on a GPU: every operand has to be moved on purpose,
every result fetched on purpose, and what is created without a device is the host's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

ELSEWHERE = torch.device("meta")
_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
_CHOICE = torch.ops.aten._fused_sdp_choice.default


class FarTensor(torch.Tensor):
    """A tensor of that device."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> FarTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=ELSEWHERE,
        )

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    def tolist(self) -> Any:
        """As on a GPU, which fetches the values by itself."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class FarDevice(TorchDispatchMode):
    """While it is entered, `meta` is the device that is not there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func is _CHOICE:
        # Of the kernels for attention, the one that is plain products.
        return 0
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    is_far = any(isinstance(tensor, FarTensor) for tensor in tensors)
    if is_far and func not in _COPIES:
        for tensor in tensors:
            # Numbers go along with any device.
            assert isinstance(tensor, FarTensor) or tensor.dim() == 0, (
                f"{func}: a tensor {tuple(tensor.shape)} of the host beside one elsewhere"
            )
    wanted = kwargs.get("device")
    plain_args, plain_kwargs = tree_map_only(FarTensor, lambda tensor: tensor.held, (args, kwargs))
    if wanted is not None:
        is_far = torch.device(wanted).type == ELSEWHERE.type
        plain_kwargs = {**plain_kwargs, "device": torch.device("cpu")}
    result = func(*plain_args, **plain_kwargs)
    if func._schema.is_mutable and isinstance(result, torch.Tensor):
        return args[0]
    return tree_map_only(torch.Tensor, FarTensor, result) if is_far else result
