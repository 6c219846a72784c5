"""`plan`: what it answers, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peagle_trt.cli.main import run
from tests.support.checkpoints import edit_config
from tests.support.models import save_drafter, save_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    save_target(folder / "target")
    save_drafter(folder / "head")
    save_drafter(folder / "other")
    edit_config(folder / "other", mask_token_id=4000)
    return folder


def plan(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code = run(["--json", "plan", *map(str, words)])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["ok"] == (code == 0)
    return code, document


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    _, document = plan(capsys, *words)
    error: dict[str, Any] = document["error"]
    return error


def test_a_catalog_name_is_answered_without_its_weights(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = plan(capsys, "--target", "gpt-oss-120b", "--gpu", "b200", "--concurrency", "1,8")
    assert (code, document["fits"], document["formats"]["feed_forward"]) == (0, True, "mxfp4")
    assert [row["draft_tokens"] for row in document["rows"]] == [0, 1, 2, 3, 4, 5, 6, 7, 8] * 2
    assert [best["concurrency"] for best in document["best"]] == [1, 8]
    assert {best["bound"] for best in document["best"]} <= {"bandwidth", "compute", "launch"}
    assert document["gpu"]["bandwidth_bytes_per_second"]["source"].startswith("NVIDIA")


def test_the_text_names_the_best_k_and_says_that_nothing_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--target", "gpt-oss-20b", "--gpu", "h200", "--concurrency", "1,4", "-k", "3,5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "gpt-oss-20b on NVIDIA H200 SXM: predicted, not measured"
    assert [line.split(":")[0] for line in lines[-2:]] == ["best at 1 request", "best at 4 requests"]


def test_a_load_at_which_nothing_gains_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--target", "smollm2-135m", "--gpu", "cpu", "--acceptance", "0.05,0.01"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("no K gains")


def test_a_pair_that_does_not_fit_is_answered_and_ends_with_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = plan(capsys, "--target", "gpt-oss-120b", "--gpu", "cpu")
    assert (code, document["fits"], document["error"]["exit_code"]) == (3, False, 3)
    assert "gpt-oss-120b` needs 6" in document["error"]["message"]
    assert len(document["rows"]) == 9


def test_checkpoints_are_planned_by_their_configurations(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--target", folder / "target", "--drafter", folder / "head", "--gpu", "h200", "--context", "64")
    code, document = plan(capsys, *words, "--acceptance", "0.6,0.4,0.2")
    assert (code, document["target"]) == (0, "target")
    assert [row["draft_tokens"] for row in document["rows"]] == [0, 1, 2, 3]
    assert document["rows"][3]["acceptance_length"] == pytest.approx(2.2)


def test_a_head_of_another_target_is_rejected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--target", folder / "target", "--drafter", folder / "other", "--gpu", "h200", "--acceptance", "0.6")
    assert refused(capsys, *words)["exit_code"] == 4


def test_a_document_of_bench_is_an_acceptance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.json"
    results = [{"acceptance_by_position": shares} for shares in ([], [0.7], [0.7, 0.5, 0.2])]
    path.write_text(json.dumps({"results": results, "acceptance_by_position": [0.7]}))
    _, document = plan(capsys, "--target", "tiny", "--gpu", "cpu", "--acceptance", path)
    assert document["acceptance"] == {"shares": [0.7, 0.5, 0.2], "source": "measured, bench.json"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "gpt-oss-120b", "--gpu", "b300"], "`b300` is no known device"),
        (["--target", "gpt-oss-120b", "--gpu", "absent.toml"], "cannot read `absent.toml`"),
        (["--target", "gpt-oss-12b", "--gpu", "b200"], "`gpt-oss-12b` is no known target"),
        (["--target", "gpt-oss-120b", "--gpu", "b200", "-k", "0"], "0 is not in the range 1<=x<=16"),
        (["--target", "gpt-oss-120b", "--gpu", "b200", "-k", "17"], "17 is not in the range 1<=x<=16"),
        (["--target", "gpt-oss-120b", "--gpu", "b200", "-k", "9"], "acceptance is known for 8 positions"),
        (["--target", "gpt-oss-120b", "--gpu", "b200", "--concurrency", "0"], "0 is not in the range"),
        (["--target", "gpt-oss-120b", "--gpu", "b200", "--context", "200000"], "more than the 131072 tokens"),
        (["--target", "gpt-oss-120b", "--gpu", "b200", "--precision", "int3"], "'int3' is not one of"),
        (["--target", "gpt-oss-120b", "--gpu", "b200", "--drafter", "x"], "--drafter is for a target given by path"),
        (["--target", "gpt-oss-120b", "--gpu", "b200", "--acceptance", "0.5,0.6"], "above 0.5 before it"),
        (["--target", "gpt-oss-120b", "--gpu", "b200", "--acceptance", "1.5"], "expected 0..1"),
        (["--target", "gpt-oss-120b", "--gpu", "b200", "--acceptance", "nan"], "expected 0..1"),
        (["--target", "gpt-oss-120b", "--gpu", "b200", "--acceptance", "alpaca"], "no file and no list of shares"),
        (["--target", "gpt-oss-120b", "--gpu", "b200", "--acceptance", ",".join(["0.1"] * 17)], "17 shares"),
        (["--gpu", "b200"], "Missing option '--target'"),
    ],
)
def test_wrong_use_is_refused_with_its_reason(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, *words)
    assert error["exit_code"] == 2
    assert message.lower() in error["message"].lower()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"results": 3}', '{"acceptance_by_position": ["a"]}', '{"acceptance_by_position": [true]}']
)
def test_a_file_that_is_no_document_of_bench_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench.json"
    path.write_text(text)
    assert refused(capsys, "--target", "tiny", "--gpu", "cpu", "--acceptance", path)["exit_code"] == 2


def test_shares_longer_than_a_file_name_are_shares(capsys: pytest.CaptureFixture[str]) -> None:
    shares = ",".join(["0.50000000000000000000"] * 13)
    code, document = plan(capsys, "--target", "tiny", "--gpu", "cpu", "--acceptance", shares)
    assert (code, len(document["acceptance"]["shares"])) == (0, 13)


def test_checkpoints_need_a_head_and_an_acceptance(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = ("--target", folder / "target", "--gpu", "h200", "--context", "64")
    assert "its head is missing" in refused(capsys, *target)["message"]
    assert "no acceptance is known" in refused(capsys, *target, "--drafter", folder / "head")["message"]
