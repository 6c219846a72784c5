"""The parts of scripts/gpu_check that need no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from peagle_trt_plugins import torch_forms
from scripts import gpu_check

SMALL = ["--batches", "1,2", "--slots", "3", "--hidden", "16", "--vocabulary", "40", "--copy-bytes", "1000"]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check.importlib.util, "find_spec", lambda package: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_without_a_gpu_it_refuses(no_gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    assert gpu_check.main(["--output", str(path)]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(path.read_text(encoding="utf-8"))
    assert document["ok"] is False
    assert "no CUDA GPU" in document["error"]["message"]


def test_without_triton_it_refuses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(
        gpu_check.importlib.util, "find_spec", lambda package: None if package == "triton" else object()
    )
    assert gpu_check.main([]) == 3
    assert "`triton` is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "1,x", ""])
def test_a_list_that_counts_nothing_is_wrong_use(text: str) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu_check.parse_arguments(["--slots", text])
    assert ended.value.code == 2


def test_what_is_run_by_default_is_what_was_promised() -> None:
    settings = gpu_check.parse_arguments([])
    assert (settings.batches, settings.slots) == ((1, 8, 64), (3, 5, 7))


def test_timings_hold_a_line_for_each_kernel_batch_and_k() -> None:
    settings = gpu_check.parse_arguments(SMALL)
    copied, *timings = gpu_check.measure(torch_forms, settings, bench=run_once, device="cpu")
    assert copied == {"kernel": "copy", "bytes_per_second": 1000}
    assert [(line["kernel"], line["batch"], line["slots"]) for line in timings] == [
        (kernel, batch, 3) for batch in (1, 2) for kernel in ("parallel_draft", "select_draft")
    ]
    # W = 6 rows of two reads and three writes of 16 bfloat16 in 2 s, beside 1000 bytes a second.
    assert timings[0]["bytes"] == 6 * 5 * 16 * 2
    assert timings[0]["share_of_copy_bandwidth"] == 960 / 2 / 1000


def test_a_copy_counts_what_it_reads_and_writes() -> None:
    assert gpu_check.copy_bandwidth(run_once, "cpu", 1000) == 2 * 1000 / 2


def test_equal_forms_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "SHAPES", ((3, 5, 40),))
    assert all(entry["is_equal"] for entry in gpu_check.compare(torch_forms, "cpu"))


@pytest.mark.parametrize("kernel", ["parallel_draft", "select_draft"])
def test_a_kernel_that_returns_something_else_is_not_equal(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "SHAPES", ((3, 5, 40),))

    class Wrong:
        parallel_draft = staticmethod(torch_forms.parallel_draft)
        select_draft = staticmethod(torch_forms.select_draft)
        select_draft_top_k = staticmethod(torch_forms.select_draft_top_k)

    def wrong(*arguments: torch.Tensor, **named: object) -> object:
        found = getattr(torch_forms, kernel)(*arguments, **named)
        return found + 1 if kernel == "select_draft" else (found[0] * float("nan"), *found[1:])

    monkeypatch.setattr(Wrong, kernel, staticmethod(wrong))
    entries = list(gpu_check.compare(Wrong, "cpu"))
    assert {entry["kernel"] for entry in entries if not entry["is_equal"]} == {kernel}


def run_once(call: gpu_check.Callable[[], object]) -> float:
    call()
    return 2.0


def test_what_stops_a_section_is_told_beside_what_it_found() -> None:
    def entries() -> gpu_check.Iterator[dict[str, int]]:
        yield {"found": 1}
        raise RuntimeError("no more")

    report = {"errors": []}
    gpu_check.collect(report, "section", entries(), deadline=float("inf"))
    assert report == {"section": [{"found": 1}], "errors": ["section: RuntimeError: no more"]}


def test_when_the_time_is_over_the_rest_is_left_out() -> None:
    report = {"errors": []}
    gpu_check.collect(report, "section", iter([{"found": 1}, {"found": 2}]), deadline=0)
    assert report["section"] == [{"found": 1}]
    assert "the time is over" in report["errors"][0]


def test_a_gpu_that_the_plugins_do_not_know_is_told() -> None:
    with pytest.raises(gpu_check.MissingError, match=r"compute capability \(7, 5\)"):
        next(gpu_check.compare_plugins((7, 5), "cpu"))
