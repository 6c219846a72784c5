"""Checkpoints that memory cannot hold pass through the kernel's page cache without filling it.

Each tensor is read twice, by the survey and when it is written. Where the whole checkpoint fits into memory, the second
reading finds it there. Where it does not, what was cached is gone by then: it only pushed out what others had cached,
and the kernel spent more time on finding pages than on reading them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from peagle_trt.readers.tensors import PackedTensor
from peagle_trt.spec import TensorSpec

Source = TensorSpec | PackedTensor
"""What is read: a tensor, or codes with their scales."""


def outgrows_memory(num_bytes: int) -> bool:
    """Whether so many bytes would fill more than half of the machine's memory."""
    return num_bytes > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def stored_bytes(sources: Iterable[Source]) -> int:
    """Bytes that tensors take in their files."""
    return sum(spec.location.length_bytes for spec in _stored(sources) if spec.location)


def let_go(sources: Iterable[Source]) -> None:
    """Tell the kernel that tensors will not be read again soon; nothing where the system has no such call."""
    if not hasattr(os, "posix_fadvise"):
        return
    for spec in _stored(sources):
        place = spec.location
        assert place is not None, "only a computed tensor lies nowhere"
        with place.path.open("rb") as file:
            os.posix_fadvise(file.fileno(), place.offset_bytes, place.length_bytes, os.POSIX_FADV_DONTNEED)


def _stored(sources: Iterable[Source]) -> Iterable[TensorSpec]:
    for source in sources:
        yield from (source.codes, source.scales) if isinstance(source, PackedTensor) else (source,)
