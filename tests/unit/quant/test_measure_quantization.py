"""The parts of scripts/measure_quantization that are not measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle_trt.bench.known_answers import last_number, problems, questions_with_answers
from scripts.quantization_recipes import RECIPES
from scripts.quantization_report import error_table, plot, table

ANSWERS = {
    "divergence": 0.25,
    "top1_agreement": 0.5,
    "perplexity": 3.0,
    "numbers": ["1", "2", ""],
    "num_right": 1,
    "num_same": 2,
}
RESULTS = {
    "fp32": {"answers": ANSWERS, "drafts": {"a": 2.0, "b": 3.0}},
    "fp8": {
        "weight_errors": {"x": 0.01, "y": 0.03, "z": 0.02},
        "drafter_weight_errors": {"fc": 0.5},
        "answers": ANSWERS,
        "drafts_target_only": {"a": 1.9, "b": 2.9},
        "drafts_drafter_only": {"a": 1.8, "b": 2.8},
        "drafts": {"a": 1.7, "b": 2.7},
    },
}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so she makes $18 a day.", "18"),
        ("2 + 2 = 4.", "4"),
        ("it costs 1,234.50", "1234.50"),
        ("it costs $10.00", "10"),
        ("from 3 to -5", "-5"),
        ("no number", ""),
    ],
)
def test_the_last_number_is_the_answer(text: str, number: str) -> None:
    assert last_number(text) == number


def test_problems_come_with_the_number_behind_the_mark() -> None:
    request, number = problems(1)[0]
    assert request.startswith("Janet")
    assert number == "18"


def test_texts_are_questions_and_what_people_answered() -> None:
    (worked, code) = questions_with_answers(1)
    assert "<<" not in worked[1]
    assert worked[1].endswith("#### 18")
    assert code[0].startswith("from typing import List")


def test_a_row_holds_every_figure() -> None:
    row = table(RESULTS).splitlines()[-1]
    assert row == (
        "| fp8 | 0.0200 | 0.0300 | 0.2500 | 50.0% | 3.000 | 1 of 3 | 2 of 3 | 1.90 / 2.90 | 1.80 / 2.80 | 1.70 / 2.70 |"
    )


def test_the_worst_modules_come_first() -> None:
    lines = error_table(RESULTS).splitlines()[2:]
    assert lines[0] == "| fp8 | `y` | 0.0300 |"
    assert lines[-1] == "| fp8 | drafter: `fc` | 0.5000 |"


def test_without_matplotlib_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scripts.quantization_report.find_spec", lambda name: None)
    plot(RESULTS, tmp_path / "plot.png")
    assert "matplotlib is not installed" in capsys.readouterr().err
    assert not (tmp_path / "plot.png").exists()


def test_a_recipe_of_feed_forward_layers_leaves_attention_alone() -> None:
    assert set(RECIPES["nvfp4-mlp"].parts) == {"gate_proj", "up_proj", "down_proj"}
    assert "o_proj" in RECIPES["nvfp4"].parts
