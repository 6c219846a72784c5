"""Where a training runs: on the host or on a GPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from peagle_trt.errors import MachineError, UsageError

if TYPE_CHECKING:
    import torch

_NAME = re.compile(r"auto|cpu|cuda(:\d+)?")


def choose_device(name: str, rank: int = 0) -> torch.device:
    """The device of a name, once it is known to be there.

    Args:
        name: `auto`, `cpu`, `cuda` or `cuda:N`; without a number, workers take GPUs in turn.
        rank: This worker's number.

    Raises:
        UsageError: It is no such name.
        MachineError: torch sees no such GPU.
    """
    import torch

    if not _NAME.fullmatch(name):
        raise UsageError(f"`{name}` is no device", hint="name auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    _, _, number = name.partition(":")
    index = int(number) if number else rank % max(1, count)
    if index >= count:
        raise MachineError(
            f"`{name}` was asked for, and torch {torch.__version__} sees {count} GPU(s)",
            hint="train with --device cpu, or install a torch made for CUDA; `peagle-trt doctor` names the GPUs",
        )
    return torch.device("cuda", index)


def usual_compute_dtype(device: torch.device) -> str:
    """Type of products where none was asked for; weights and their optimizer are float32 either way."""
    return "bfloat16" if device.type == "cuda" else "float32"
