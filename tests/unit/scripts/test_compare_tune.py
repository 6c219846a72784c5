"""The verdict on a choice of K, from cells that are known."""

from __future__ import annotations

import pytest

from peagle_trt.bench.cells import Cell, CellAnswer, Method
from scripts.compare_tune import compare


def cell(draft_tokens: int, number: int, cpu_seconds: float, *, load: int = 2) -> Cell:
    method = Method(name="p-eagle" if draft_tokens else "none", draft_tokens=draft_tokens, concurrency=load)
    answer = CellAnswer(
        num_prompt_tokens=1,
        num_output_tokens=10,
        num_verify_steps=0,
        accepted_by_position=(),
        first_token_seconds=0.0,
        piece_seconds=(),
        piece_tokens=(),
        are_pieces_steps=True,
        digest="",
    )
    return Cell(
        prompts="a",
        round=number,
        method=method,
        seconds=9.0,
        cpu_seconds=cpu_seconds,
        energy_joules={},
        answers=(answer,),
    )


def test_a_choice_is_laid_over_the_best_of_the_same_rounds() -> None:
    # The second round is twice as slow for all.
    cells = [cell(0, 0, 2.0), cell(3, 0, 1.0), cell(5, 0, 1.1), cell(0, 1, 4.0), cell(3, 1, 2.0), cell(5, 1, 2.2)]
    row = compare(2, 5, cells)
    assert (row["best"], row["rounds"]) == (3, 2)
    assert row["ratio"] == pytest.approx(1 / 1.1)


def test_the_best_is_its_own_measure_and_other_loads_are_none_of_it() -> None:
    cells = [cell(0, 0, 2.0), cell(3, 0, 1.0), cell(0, 0, 0.1, load=8)]
    assert compare(2, 3, cells)["ratio"] == 1.0
    assert compare(8, 0, cells)["best"] == 0
