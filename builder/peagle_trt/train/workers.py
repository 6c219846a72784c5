"""Several processes that share every step of one training, over torch.distributed.

A step has many backward passes, and the gradients of a sequence's context are whole only after its last one. They are
therefore added up once, after the step, instead of by hooks that fire once a backward pass. The losses were divided by
the weight of the whole step beforehand, so the sum is the gradient that one process would have found.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# One worker may still let the target answer questions, or measure a head, while the others wait.
LONGEST_WAIT = timedelta(days=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """This process among those that train together.

    Attributes:
        rank: Its number, from zero.
        count: How many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes and speaks for all."""
        return self.rank == 0

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over all workers; sizes and order are the same in all."""
        import torch
        import torch.distributed as distributed

        if self.count == 1:
            return
        # Over the host: gloo is what every machine has, and counts are on it anyway.
        joined = torch.cat([tensor.flatten().cpu() for tensor in tensors])
        distributed.all_reduce(joined)
        start = 0
        for tensor in tensors:
            tensor.copy_(joined[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()

    def gather(self, value: object) -> list[object]:
        """Every worker's value, in order of rank."""
        import torch.distributed as distributed

        if self.count == 1:
            return [value]
        gathered: list[object] = [None] * self.count
        distributed.all_gather_object(gathered, value)
        return gathered

    def wait(self) -> None:
        """Return once all workers have come here."""
        self.gather(None)


@contextlib.contextmanager
def join_workers() -> Iterator[Workers]:
    """Join the processes that `torchrun` started; outside of it, there is one.

    Yields:
        This process among them.
    """
    # torchrun's own protocol: it starts the processes and tells them apart by these variables.
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Workers()
        return
    import torch.distributed as distributed

    distributed.init_process_group("gloo", timeout=LONGEST_WAIT)
    try:
        yield Workers(rank=distributed.get_rank(), count=count)
    finally:
        distributed.destroy_process_group()
