"""The bars, from cells whose ratios are known."""

from __future__ import annotations

import pytest

from peagle_trt.bench.cells import Cell, CellAnswer, Method
from scripts.measure_headline import bar, headline_table, methods_of

METHODS = methods_of(("p-eagle", "eagle3"), (1, 2), 1, 5)


def cell(number: int, method: Method, seconds: float, digest: str = "d") -> Cell:
    answer = CellAnswer(
        num_prompt_tokens=3,
        num_output_tokens=12,
        num_verify_steps=1,
        accepted_by_position=(1,),
        first_token_seconds=0.5,
        piece_seconds=(0.5,),
        piece_tokens=(12,),
        are_pieces_steps=True,
        digest=digest,
    )
    return Cell(
        prompts="a",
        round=number,
        method=method,
        seconds=seconds,
        cpu_seconds=2 * seconds,
        energy_joules={},
        answers=(answer,),
    )


def cells(num_rounds: int = 1) -> list[Cell]:
    seconds = {("none", 0): 12.0, ("p-eagle", 1): 6.0, ("p-eagle", 2): 4.0, ("eagle3", 1): 5.0, ("eagle3", 2): 8.0}
    return [
        cell(number, method, seconds[method.name, method.draft_tokens])
        for number in range(num_rounds)
        for method in METHODS
    ]


def test_every_k_of_both_heads_takes_its_turn_beside_plain_decoding() -> None:
    assert [(method.name, method.draft_tokens) for method in METHODS] == [
        ("none", 0),
        ("p-eagle", 1),
        ("p-eagle", 2),
        ("eagle3", 1),
        ("eagle3", 2),
    ]


def test_each_side_is_taken_at_its_best_k() -> None:
    over_plain, over_eagle3 = bar(cells(), "p-eagle", "none", 1), bar(cells(), "p-eagle", "eagle3", 1)
    assert (over_plain.ratio, over_plain.draft_tokens, over_plain.over_draft_tokens) == (3.0, 2, 0)
    assert (over_eagle3.ratio, over_eagle3.draft_tokens, over_eagle3.over_draft_tokens) == (1.25, 2, 1)
    assert over_plain.ratio_cpu == 3.0


def test_few_rounds_have_no_interval_and_more_have_one() -> None:
    assert bar(cells(4), "p-eagle", "none", 1).interval is None
    found = bar(cells(6), "p-eagle", "none", 1)
    assert found.interval == pytest.approx((3.0, 3.0))
    assert (found.num_rounds, found.num_equal, found.num_answers) == (6, 12, 12)


def test_answers_that_are_not_plain_decodings_are_counted() -> None:
    changed = [*cells()[:2], cell(0, METHODS[2], 4.0, digest="other"), *cells()[3:]]
    found = bar(changed, "p-eagle", "none", 1)
    assert (found.num_equal, found.num_answers) == (1, 2)


def test_what_the_loop_chooses_takes_its_turn_and_is_named() -> None:
    plain, auto = methods_of(("p-eagle",), (0,), 8, 5)
    assert (auto.draft_tokens, auto.is_adaptive) == (5, True)
    found = bar([cell(0, plain, 4.0), cell(0, auto, 2.0)], "p-eagle", "none", 8)
    assert "| 8 | plain decoding | auto, 0..5 | - | 2.00 |" in headline_table([found])


def test_the_table_names_what_is_compared() -> None:
    table = headline_table([bar(cells(), "p-eagle", "none", 1), bar(cells(), "p-eagle", "eagle3", 1)])
    assert "| 1 | plain decoding | 2 | - | 3.00 | 3.00 | 1 | 2 of 2 |" in table
    assert "| 1 | eagle3 | 2 | 1 | 1.25 | 1.25 | 1 | 4 of 4 |" in table
