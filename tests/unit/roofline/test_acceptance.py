"""Curves of acceptance."""

from __future__ import annotations

import numpy as np
import pytest

from peagle_trt.roofline import curve_from_length, curve_from_shares


@pytest.mark.parametrize(
    ("length", "draft_tokens", "decay"), [(2.9, 5, 0.94), (1.05, 1, 0.94), (3.9, 3, 1.0), (4.5, 5, 0.9)]
)
def test_a_curve_passes_through_its_length(length: float, draft_tokens: int, decay: float) -> None:
    curve = curve_from_length(length, draft_tokens=draft_tokens, max_draft_tokens=12, decay=decay, source="a test")
    assert curve.length(draft_tokens) == pytest.approx(length, abs=1e-6)
    assert curve.max_draft_tokens == 12


def test_lengths_are_those_of_steps_that_are_played() -> None:
    curve = curve_from_length(2.5, draft_tokens=4, max_draft_tokens=4, decay=0.9, source="a test")
    conditional = np.array([share / before for before, share in zip((1.0, *curve.shares), curve.shares, strict=False)])
    accepted = np.random.default_rng(1).random((200_000, 4)) < conditional
    assert 1 + np.cumprod(accepted, axis=1).sum(axis=1).mean() == pytest.approx(2.5, abs=0.01)
    assert conditional[1:] / conditional[:-1] == pytest.approx(0.9)


def test_more_drafts_yield_more_tokens_and_at_most_one_each() -> None:
    curve = curve_from_length(3.0, draft_tokens=5, max_draft_tokens=10, decay=0.94, source="a test")
    lengths = [curve.length(count) for count in range(11)]
    steps = np.diff(lengths)
    assert lengths[0] == 1
    assert (steps > 0).all()
    assert (steps <= 1).all()


def test_full_acceptance_is_a_curve_too() -> None:
    curve = curve_from_length(6.0, draft_tokens=5, max_draft_tokens=5, decay=0.94, source="a test")
    assert curve.shares == pytest.approx([1.0] * 5)


@pytest.mark.parametrize("length", [1.0, 0.5, 6.1, float("nan")])
def test_a_length_that_no_k_can_yield_is_refused(length: float) -> None:
    with pytest.raises(ValueError, match="acceptance length"):
        curve_from_length(length, draft_tokens=5, max_draft_tokens=5, decay=0.94, source="a test")


@pytest.mark.parametrize("shares", [[], [1.1], [-0.1], [0.3, 0.4], [float("nan")], [0.5, float("nan")]])
def test_shares_that_cannot_be_measured_are_refused(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="share"):
        curve_from_shares(shares, source="a test")


def test_a_curve_answers_only_for_positions_it_knows() -> None:
    curve = curve_from_shares([0.7, 0.5], source="a test")
    assert curve.length(2) == pytest.approx(2.2)
    with pytest.raises(ValueError, match=r"knows 0\.\.2"):
        curve.length(3)
