"""What docs/machine_model.md claims of the roofline, and that its constants are those that the fits find."""

from __future__ import annotations

import pytest

from peagle_trt.roofline import find_device
from peagle_trt.roofline.acceptance import EAGLE3_DECAY, P_EAGLE_DECAY
from scripts import fit_roofline, validate_roofline
from scripts.roofline_tables import published, table10

CONTEXT = 1000


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_every_published_cell_is_there_once() -> None:
    cells = table10()
    assert len(cells) == len(set(cells)) == 3 * 2 * 3 * 2 * 3
    assert sum(cell.tokens_per_second for cell in cells) == 103_671
    assert sum(map(sum, published()["blog"]["speedups"].values())) == pytest.approx(28.83)


def test_most_cells_of_the_paper_are_met(capsys: pytest.CaptureFixture[str]) -> None:
    validate_roofline.lay_against_table10(CONTEXT)
    found = lines(capsys)
    assert any(line.startswith("tokens/s, all cells: 105 of 108 within 15%") for line in found)
    assert any(line.startswith("tokens/s, cells that no constant was fitted to: 81 of 84") for line in found)
    assert any(line.startswith("gain of P-EAGLE over EAGLE-3 at equal K: 54 of 54") for line in found)
    assert sum(line.endswith("MISS") for line in found) == 3


def test_the_speedups_of_the_blog_are_met(capsys: pytest.CaptureFixture[str]) -> None:
    validate_roofline.lay_against_blog(CONTEXT)
    found = lines(capsys)
    assert any(line.startswith("B200, P-EAGLE K=7 over EAGLE-3 K=3: 21 of 21 within 15%") for line in found)
    assert any(line.startswith("pull request 32887, tokens/s: 4 of 4 within 15%") for line in found)


def test_the_passes_of_this_cpu_are_met(capsys: pytest.CaptureFixture[str]) -> None:
    validate_roofline.lay_against_cpu(CONTEXT)
    found = lines(capsys)
    assert any(line.startswith("passes, ms of CPU time: 44 of 44 within 15%") for line in found)
    others = "passes, each by constants fitted to other numbers of requests"
    assert any(line.startswith(f"{others}: 44 of 44 within 15%") for line in found)
    assert any(line.startswith("verify and draft together, as ratios: 20 of 20 within 15%") for line in found)
    assert any(line.startswith("decode loop, tokens/s: 23 of 24 within 15%") for line in found)
    assert any(line.startswith("decode loop, speed-up over plain decoding: 18 of 20 within 15%") for line in found)


def test_the_decays_are_those_that_are_fitted(capsys: pytest.CaptureFixture[str]) -> None:
    fit_roofline.fit_decay(CONTEXT)
    assert [line.rpartition(" ")[2] for line in lines(capsys)] == [f"{P_EAGLE_DECAY:.3f}", f"{EAGLE3_DECAY:.3f}"]


def test_the_devices_hold_what_is_fitted(capsys: pytest.CaptureFixture[str]) -> None:
    for fit in (fit_roofline.fit_h200, fit_roofline.fit_b200, fit_roofline.fit_cpu):
        fit(CONTEXT)
    h200, b200 = find_device("h200"), find_device("b200")
    text = "\n".join(lines(capsys))
    assert f"bandwidth_efficiency {h200.bandwidth_efficiency.value:.2f}" in text
    assert f"layer {1e6 * h200.layer_overhead_seconds.value:.0f}." in text
    assert f"request {1e3 * h200.request_overhead_seconds.value:.2f}" in text.replace("0.278", "0.28")
    assert f"layer {1e6 * b200.layer_overhead_seconds.value:.1f} us" in text
    assert f"one request: {1e3 * b200.host_pass_seconds.value:.2f} ms" in text
    # What is fitted of the CPU are shares of its own two constants.
    assert text.endswith("bandwidth_efficiency 1.000, compute_efficiency 1.000")
