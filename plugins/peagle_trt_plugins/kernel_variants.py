"""Everything about a kernel that a build fixes: element types, constants, warps and cuts of the work.

One source for all who compile or launch: torch's operators, the TensorRT plugins and `doctor --kernels`. Letters as in
the contracts; E entries that the blocks of the vocabulary leave for a sample.
"""

from __future__ import annotations

from dataclasses import dataclass

ELEMENTS = {"fp32": 4, "fp16": 2, "bf16": 2}
"""Elements as Triton names them, and their bytes."""

_EPSILON = 1e-5


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How `select_blocks_kernel` cuts its work.

    Attributes:
        rows: Samples of a program; 16 is the least that a matrix instruction takes.
        ids: Rows of `lm_head` of a program.
        hidden: Columns read at a time.
        num_warps: Of a program.
        num_stages: Reads in flight.
    """

    rows: int
    ids: int
    hidden: int
    num_warps: int
    num_stages: int


def row_warps(hidden_size: int) -> int:
    """Warps for a program that holds whole rows: at most 16 numbers of a row to a thread, where 8 warps allow it."""
    return 1 if hidden_size <= 512 else 4 if hidden_size <= 2048 else 8


def merge_warps(block: int) -> int:
    """Warps for a program that holds a block of candidates: at most 128 numbers to a thread."""
    return 4 if block <= 4096 else 8 if block <= 16_384 else 16


def product_element(element: str, table_element: str) -> str:
    """The type in which hidden states and `lm_head` meet: their own where it is the same, else float32."""
    return element if element == table_element else "fp32"


def select_cut(num_samples: int, element: str) -> Cut:
    """The cut for so many samples of a type; few samples are bound by memory, many by the matrix units."""
    if ELEMENTS[element] == 4:
        return Cut(rows=16, ids=64, hidden=32, num_warps=4, num_stages=2)
    rows = 16 if num_samples <= 16 else 32 if num_samples <= 32 else 64
    return Cut(rows=rows, ids=128, hidden=64, num_warps=4, num_stages=3)


SELECT_TACTICS = (16, 32, 64)
"""Samples of a program that a TensorRT plugin may choose from, by the time they take; the first unless it chooses."""


def plugin_cut(tactic: int, element: str) -> Cut:
    """The cut of a plugin's tactic: blocks of as many ids for all of a type, and little shared memory.

    Source: measured with Triton 3.9 at H = 2880: at most 41 KB, on every architecture, of the 48 KB that a launch is
    given without asking for more; whether TensorRT asks is not documented.
    """
    rows = tactic or SELECT_TACTICS[0]
    if ELEMENTS[element] == 4:
        return Cut(rows=rows, ids=64, hidden=32, num_warps=4, num_stages=2)
    return Cut(rows=rows, ids=128, hidden=32 if rows == 64 else 64, num_warps=4, num_stages=3)


def next_power_of_two(number: int) -> int:
    """The least power of two that is not below `number`, which is at least 1."""
    return 1 << (number - 1).bit_length()


def parallel_draft_variant(
    hidden_size: int,
    element: str,
    table_element: str | None = None,
    *,
    epsilon: float = _EPSILON,
    norm_before_residual: bool = False,
    num_warps: int | None = None,
) -> KernelVariant:
    """`parallel_draft_kernel` for hidden states of a type and an embedding table of another."""
    integers = ("next_token_ids", "num_accepted", "start_positions", "mask_token_ids", "positions", "sample_rows")
    floats = ("fused_hidden", "fused_mask_hidden", "embedding_norm_weight", "hidden_norm_weight")
    return KernelVariant(
        kernel="parallel_draft_kernel",
        label=f"{_both(element, table_element)}, hidden {hidden_size}",
        pointers=dict.fromkeys(integers, "i32")
        | dict.fromkeys((*floats, "layer_input", "residual"), element)
        | {"embedding": table_element or element},
        constants={
            "HIDDEN": hidden_size,
            "EPSILON": epsilon,
            "NORM_BEFORE_RESIDUAL": norm_before_residual,
            "BLOCK": next_power_of_two(hidden_size),
        },
        num_warps=num_warps or row_warps(hidden_size),
    )


def select_blocks_variant(
    hidden_size: int, element: str, table_element: str | None = None, *, candidates: int, cut: Cut
) -> KernelVariant:
    """`select_blocks_kernel` for hidden states of a type and an output layer of another."""
    table = table_element or element
    return KernelVariant(
        kernel="select_blocks_kernel",
        label=f"{_both(element, table)}, hidden {hidden_size}, {cut.rows} samples, {candidates} candidates",
        pointers={
            "hidden": element,
            "sample_rows": "i32",
            "lm_head": table,
            "block_values": "fp32",
            "block_ids": "i32",
        },
        constants={
            "HIDDEN": hidden_size,
            "CANDIDATES": candidates,
            "WIDENS": element != table,
            "BLOCK_ROWS": cut.rows,
            "BLOCK_IDS": cut.ids,
            "BLOCK_HIDDEN": cut.hidden,
        },
        num_warps=cut.num_warps,
        num_stages=cut.num_stages,
    )


def merge_best_variant(entries: int) -> KernelVariant:
    """`merge_best_kernel` for E entries of a sample."""
    block = next_power_of_two(entries)
    return KernelVariant(
        kernel="merge_best_kernel",
        label=f"{entries} entries",
        pointers={**_MERGED, "draft_token_ids": "i32"},
        constants={"BLOCK": block},
        num_warps=merge_warps(block),
    )


def merge_candidates_variant(entries: int, candidates: int) -> KernelVariant:
    """`merge_candidates_kernel` for E entries of a sample."""
    block = next_power_of_two(entries)
    return KernelVariant(
        kernel="merge_candidates_kernel",
        label=f"{entries} entries, {candidates} candidates",
        pointers={**_MERGED, "temperature": "fp32", "candidate_ids": "i32", "probabilities": "fp32"},
        constants={
            "CANDIDATES": candidates,
            "BLOCK_CANDIDATES": next_power_of_two(candidates),
            "BLOCK": block,
        },
        num_warps=merge_warps(block),
    )


_MERGED = {"block_values": "fp32", "block_ids": "i32", "draft_to_target": "i64"}


def _both(element: str, table_element: str | None) -> str:
    return element if table_element in {None, element} else f"{element} and {table_element}"
