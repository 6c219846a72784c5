"""How often each kernel runs and which integers it is given, for sizes that may be known or TensorRT's expressions.

Only `+ - * //` are used, which Python's integers and TensorRT's symbolic dimensions share: so one formula serves
torch's launches and what the plugins hand to TensorRT. Letters as in the contracts; S samples, which are B * K.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from peagle_trt_plugins.kernel_variants import Cut


class Dimension(Protocol):
    """A size: an integer, or an expression that becomes one at run time."""

    def __add__(self, other: Self | int, /) -> Self: ...

    def __sub__(self, other: Self | int, /) -> Self: ...

    def __mul__(self, other: Self | int, /) -> Self: ...

    def __floordiv__(self, other: Self | int, /) -> Self: ...


Size = TypeVar("Size", bound=Dimension)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(Generic[Size]):
    """One launch of a kernel.

    Attributes:
        grid: Programs along x and, where there is a second, y.
        scalars: The kernel's 32-bit integers, in its order; they stand between inputs and outputs.
    """

    grid: tuple[Size, ...]
    scalars: tuple[Size, ...]


def ceiling_division(number: Size, divisor: int) -> Size:
    """`number / divisor`, rounded up."""
    return (number + (divisor - 1)) // divisor


def draft_width(rows: Size, slots: Size) -> Size:
    """W, rows of a draft pass."""
    return rows + slots - 1


def num_entries(num_ids: Size, candidates: int, cut: Cut) -> Size:
    """E, entries that `select_blocks_kernel` leaves for a sample."""
    return ceiling_division(num_ids, cut.ids) * candidates


def launch_parallel_draft(batch: Size, rows: Size, slots: Size) -> Launch[Size]:
    """One program for each row out."""
    return Launch(grid=(batch * draft_width(rows, slots),), scalars=(rows, slots))


def launch_select_blocks(batch: Size, slots: Size, width: Size, num_ids: Size, cut: Cut) -> Launch[Size]:
    """One program for each block of samples and block of the vocabulary."""
    samples = batch * slots
    grid = (ceiling_division(samples, cut.rows), ceiling_division(num_ids, cut.ids))
    return Launch(grid=grid, scalars=(samples, slots, width, num_ids))


def launch_merge_best(batch: Size, slots: Size, entries: Size) -> Launch[Size]:
    """One program for each sample."""
    return Launch(grid=(batch * slots,), scalars=(entries,))


def launch_merge_candidates(batch: Size, slots: Size, entries: Size) -> Launch[Size]:
    """One program for each sample."""
    return Launch(grid=(batch * slots,), scalars=(entries, slots))
