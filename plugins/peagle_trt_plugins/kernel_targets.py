"""What kernels are compiled for: GPUs with the limits that a kernel must keep, and the variants worth compiling."""

from __future__ import annotations

from dataclasses import dataclass

from peagle_trt_plugins.kernel_launches import num_entries
from peagle_trt_plugins.kernel_variants import (
    ELEMENTS,
    KernelVariant,
    merge_best_variant,
    merge_candidates_variant,
    parallel_draft_variant,
    select_blocks_variant,
    select_cut,
)

# PTX version -> CUDA version of the oldest driver that compiles it.
# Source: PTX ISA, release history.
DRIVER_OF_PTX = {"8.6": "12.7", "8.7": "12.8", "8.8": "12.9", "9.0": "13.0", "9.1": "13.1"}

MAX_REGISTERS = 255
"""Of a thread, on every GPU since 2012; beyond it the compiler spills. Source: CUDA C++ Programming Guide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One kind of GPU.

    Attributes:
        name: As assemblers call it.
        capability: Compute capability times ten.
        ptx_version: Written for it: the oldest that knows the GPU and all that the kernels use, times ten.
        max_shared_bytes: Shared memory a block can have.
        examples: Cards.

    Source: CUDA C++ Programming Guide, technical specifications per compute capability.
    """

    name: str
    capability: int
    ptx_version: int
    max_shared_bytes: int
    examples: str


ARCHITECTURES = (
    Architecture(name="sm_90a", capability=90, ptx_version=87, max_shared_bytes=227 << 10, examples="H100, H200"),
    Architecture(name="sm_100a", capability=100, ptx_version=87, max_shared_bytes=227 << 10, examples="B200"),
    Architecture(name="sm_103a", capability=103, ptx_version=88, max_shared_bytes=227 << 10, examples="B300"),
    Architecture(
        name="sm_120a", capability=120, ptx_version=87, max_shared_bytes=99 << 10, examples="RTX PRO 6000, RTX 5090"
    ),
)


def find_architecture(major: int, minor: int) -> Architecture | None:
    """The architecture of a GPU's compute capability; None where the kernels were never compiled for it."""
    return next((each for each in ARCHITECTURES if each.capability == 10 * major + minor), None)


def kernel_variants(hidden_size: int = 2880, *, draft_vocabulary: int = 201_088) -> tuple[KernelVariant, ...]:
    """Every kernel in every type, for a drafter's sizes; those of gpt-oss unless told otherwise."""
    parallel = [parallel_draft_variant(hidden_size, element) for element in ELEMENTS]
    cuts = {(element, select_cut(samples, element)): None for element in ELEMENTS for samples in (16, 64)}
    select = [
        select_blocks_variant(hidden_size, element, candidates=candidates, cut=cut)
        for element, cut in cuts
        for candidates in (1, 8)
    ]
    best, eight = (num_entries(draft_vocabulary, candidates, select_cut(16, "bf16")) for candidates in (1, 8))
    return (*parallel, *select, merge_best_variant(best), merge_candidates_variant(eight, 8))
