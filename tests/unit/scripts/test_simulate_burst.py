"""A burst on the simulated machine takes what its passes and rows add up to."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from scripts.simulate_burst import main, parse_options, simulate

SMALL = ["--requests", "3", "--prompt-tokens", "100", "--answer-tokens", "20", "--pass-ms", "10", "--row-ms", "2"]

Typed = Callable[..., None]


@pytest.fixture
def type_words(monkeypatch: pytest.MonkeyPatch) -> Typed:
    return lambda *words: monkeypatch.setattr(sys, "argv", ["simulate_burst", *words])


@pytest.mark.parametrize("young_tokens", [8, float("inf")])
def test_answers_that_come_together_take_what_reading_all_first_takes(type_words: Typed, young_tokens: float) -> None:
    type_words(*SMALL)
    first, second = simulate(parse_options(), 0, young_tokens)
    # 300 rows of prompts in two passes of 256 at most give the first token, 19 passes of three rows the others.
    milliseconds = (2 * 10 + 300 * 2) + 19 * (10 + 3 * 2)
    assert [first.total_ms, second.total_ms] == pytest.approx([milliseconds] * 2)
    assert first.num_reading_steps == second.num_reading_steps == 2


def test_prompts_beside_answers_take_longer(type_words: Typed) -> None:
    type_words(*SMALL)
    options = parse_options()
    together, beside = (simulate(options, 0, young_tokens)[1] for young_tokens in (8, 0))
    assert beside.total_ms > together.total_ms
    assert beside.num_reading_steps > together.num_reading_steps


def test_the_table_has_a_row_for_every_k_burst_and_way(type_words: Typed, capsys: pytest.CaptureFixture[str]) -> None:
    type_words(*SMALL, "-k", "2", "--bursts", "1")
    main()
    rows = [line.split(" | ")[:3] for line in capsys.readouterr().out.splitlines()[2:]]
    ways = ["prompts first", "as it is", "beside answers"]
    assert rows == [[f"| {k}", "1", way] for k in (0, 2) for way in ways]


@pytest.mark.parametrize("words", [["--row-ms", "-1"], ["--pass-ms", "nan"], ["--requests", "0"], ["-k", "AUTO"]])
def test_a_machine_that_cannot_be_is_wrong_use(type_words: Typed, words: list[str]) -> None:
    type_words(*words)
    with pytest.raises(SystemExit, match="2"):
        main()
