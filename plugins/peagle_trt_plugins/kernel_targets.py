"""What kernels are compiled for: GPUs with the limits that a kernel must keep, and the variants worth compiling."""

from __future__ import annotations

from dataclasses import dataclass

from peagle_trt_plugins.triton_launch import SelectBlocks, merge_warps, next_power_of_two, row_warps, select_blocks

# Elements as Triton names them, and their bytes.
ELEMENTS = {"fp32": 4, "fp16": 2, "bf16": 2}

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


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelVariant:
    """One kernel with everything that a build fixes.

    Attributes:
        kernel: Name of the function in triton_kernels.py.
        label: What tells this variant from the others of its kernel.
        pointers: Element type of every pointer parameter.
        constants: Value of every `constexpr`.
        num_warps: Of a program.
        num_stages: Reads in flight.
    """

    kernel: str
    label: str
    pointers: dict[str, str]
    constants: dict[str, int | float | bool]
    num_warps: int
    num_stages: int = 3


def kernel_variants(hidden_size: int = 2880, *, draft_vocabulary: int = 201_088) -> tuple[KernelVariant, ...]:
    """Every kernel in every type, for a drafter's sizes; those of gpt-oss unless told otherwise."""
    parallel = [_parallel_draft(hidden_size, element) for element in ELEMENTS]
    cuts = {(element, select_blocks(samples, size)): None for element, size in ELEMENTS.items() for samples in (16, 64)}
    select = [_select(hidden_size, element, cut, candidates) for element, cut in cuts for candidates in (1, 8)]
    merges = [_merge_best(draft_vocabulary), _merge_candidates(draft_vocabulary, 8)]
    return (*parallel, *select, *merges)


def _parallel_draft(hidden_size: int, element: str) -> KernelVariant:
    integers = ("next_token_ids", "num_accepted", "start_positions", "mask_token_ids", "positions", "sample_rows")
    floats = (
        "fused_hidden",
        "embedding",
        "fused_mask_hidden",
        "embedding_norm_weight",
        "hidden_norm_weight",
        "layer_input",
        "residual",
    )
    return KernelVariant(
        kernel="parallel_draft_kernel",
        label=f"{element}, hidden {hidden_size}",
        pointers=dict.fromkeys(integers, "i32") | dict.fromkeys(floats, element),
        constants={
            "HIDDEN": hidden_size,
            "EPSILON": 1e-5,
            "NORM_BEFORE_RESIDUAL": False,
            "BLOCK": next_power_of_two(hidden_size),
        },
        num_warps=row_warps(hidden_size),
    )


def _select(hidden_size: int, element: str, cut: SelectBlocks, candidates: int) -> KernelVariant:
    return KernelVariant(
        kernel="select_blocks_kernel",
        label=f"{element}, hidden {hidden_size}, {cut.rows} samples, {candidates} candidates",
        pointers={
            "hidden": element,
            "sample_rows": "i32",
            "lm_head": element,
            "block_values": "fp32",
            "block_ids": "i32",
        },
        constants={
            "HIDDEN": hidden_size,
            "CANDIDATES": candidates,
            "WIDENS": False,
            "BLOCK_ROWS": cut.rows,
            "BLOCK_IDS": cut.ids,
            "BLOCK_HIDDEN": cut.hidden,
        },
        num_warps=cut.num_warps,
        num_stages=cut.num_stages,
    )


_MERGED = {"block_values": "fp32", "block_ids": "i32", "draft_to_target": "i64"}


def _merged_block(draft_vocabulary: int, candidates: int) -> int:
    blocks = -(-draft_vocabulary // select_blocks(16, 2).ids)
    return next_power_of_two(blocks * candidates)


def _merge_best(draft_vocabulary: int) -> KernelVariant:
    block = _merged_block(draft_vocabulary, 1)
    return KernelVariant(
        kernel="merge_best_kernel",
        label=f"{draft_vocabulary} ids",
        pointers={**_MERGED, "draft_token_ids": "i32"},
        constants={"BLOCK": block},
        num_warps=merge_warps(block),
    )


def _merge_candidates(draft_vocabulary: int, candidates: int) -> KernelVariant:
    block = _merged_block(draft_vocabulary, candidates)
    return KernelVariant(
        kernel="merge_candidates_kernel",
        label=f"{draft_vocabulary} ids, {candidates} candidates",
        pointers={**_MERGED, "temperature": "fp32", "candidate_ids": "i32", "probabilities": "fp32"},
        constants={
            "CANDIDATES": candidates,
            "BLOCK_CANDIDATES": next_power_of_two(candidates),
            "BLOCK": block,
        },
        num_warps=merge_warps(block),
    )
