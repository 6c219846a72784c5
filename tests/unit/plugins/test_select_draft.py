"""The contract, the reference and the ONNX bodies of peagle::SelectDraft and peagle::SelectDraftTopK."""

from __future__ import annotations

import numpy as np
import pytest

from peagle_trt_plugins.reference_select_draft import draft_logits, select_draft, select_draft_top_k
from tests.support.plugin_bodies import run_case
from tests.support.plugin_cases import SELECT_CASES, SelectCase, assert_agrees

IDENTITY = np.arange(3)


def pick(lm_head: list[list[float]], hidden: list[float], draft_to_target: np.ndarray = IDENTITY) -> int:
    table = np.array(lm_head, np.float32)
    rows = np.array([[hidden]], np.float32)
    return int(select_draft(rows, np.zeros((1, 1), np.int32), table, draft_to_target)[0, 0])


def test_the_largest_logit_wins() -> None:
    assert pick([[1, 0], [0, 2], [1, 1]], [1, 1]) == 1


def test_of_equals_the_lowest_id_wins() -> None:
    assert pick([[0, 1], [2, 0], [0, 2]], [1, 1]) == 1


def test_an_id_is_the_targets() -> None:
    assert pick([[0, 1], [2, 0], [0, 1]], [1, 1], np.array([7, 100_000, 200_000])) == 100_000


def test_a_nan_never_wins() -> None:
    assert pick([[np.nan, 0], [0, -5], [0, -6]], [1, 1]) == 1


def test_a_row_of_nothing_but_nan_gives_the_lowest_id() -> None:
    assert pick([[1, 0], [0, 2], [1, 1]], [np.nan, 1]) == 0


def test_probabilities_are_the_softmax_over_the_candidates() -> None:
    # Logits 3, 1, 2 at temperature 2: exp(0), exp(-1/2) over their sum; id 1 is not a candidate.
    ids, probabilities = select_draft_top_k(
        np.ones((1, 1, 1), np.float32),
        np.zeros((1, 1), np.int32),
        np.array([[3], [1], [2]], np.float32),
        IDENTITY,
        np.array([2], np.float32),
        candidates=2,
    )
    assert ids.tolist() == [[[0, 2]]]
    np.testing.assert_allclose(probabilities[0, 0], np.array([1, np.exp(-0.5)]) / (1 + np.exp(-0.5)), rtol=1e-6)


@pytest.mark.parametrize("case", SELECT_CASES, ids=str)
def test_the_onnx_body_equals_the_reference(case: SelectCase) -> None:
    assert_agrees(case, run_case(case))


@pytest.mark.parametrize("case", [case for case in SELECT_CASES if case.candidates], ids=str)
def test_probabilities_sum_to_one_and_fall(case: SelectCase) -> None:
    probabilities = case.expected()[1]
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-6)
    assert np.all(np.diff(probabilities, axis=-1) <= 0)


def test_logits_are_finite_whatever_comes_in() -> None:
    case = SelectCase(batch=2, slots=3, hidden=40, vocabulary=200, damage="weights of NaN and infinity")
    inputs = case.inputs()
    assert np.isfinite(draft_logits(inputs["hidden"], inputs["sample_rows"], inputs["lm_head"])).all()


def test_a_sampled_row_outside_the_pass_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected 0\.\.1 for 2 rows"):
        select_draft(np.ones((1, 2, 1)), np.array([[2]], np.int32), np.ones((3, 1)), IDENTITY)


@pytest.mark.parametrize(("temperature", "candidates", "word"), [(0, 2, "temperature"), (1, 4, "candidates")])
def test_settings_that_mean_nothing_are_refused(temperature: float, candidates: int, word: str) -> None:
    rows, table = np.ones((1, 1, 1), np.float32), np.ones((3, 1), np.float32)
    with pytest.raises(ValueError, match=f"`{word}` is"):
        select_draft_top_k(
            rows,
            np.zeros((1, 1), np.int32),
            table,
            IDENTITY,
            np.array([temperature], np.float32),
            candidates=candidates,
        )
