"""`peagle-trt tune` on the tiny build: a choice, its reasons, and a build that follows it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from peagle_trt.build_folder import read_manifest
from peagle_trt.cli.main import run

WORDS = ["--num-prompts", "2", "--max-tokens", "24", "--turns", "3", "--load", "1,3", "-k", "3", "--threads", "1"]


@pytest.fixture
def build(tiny_build: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_build, tmp_path / "tiny"))


def test_a_choice_is_kept_in_the_build_and_followed(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_manifest(build)
    assert run(["--json", "tune", str(build), *WORDS]) == 0
    document = json.loads(capsys.readouterr().out)
    kept = read_manifest(build).shapes.draft_schedule
    assert [[pair["up_to_requests"], pair["draft_tokens"]] for pair in document["schedule"]] == [list(p) for p in kept]
    assert kept[-1][0] == 3
    assert [choice["concurrency"] for choice in document["choices"]] == [1, 3]
    for choice in document["choices"]:
        rates = {item["draft_tokens"]: item["measured"] for item in choice["candidates"] if item["measured"]}
        assert rates[choice["draft_tokens"]] >= 0.99 * max(rates.values())
    assert read_manifest(build).files == before.files
    assert run(["--json", "generate", str(build), "One two", "--max-tokens", "12", "--no-chat"]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert len(metrics["accepted_by_position"]) == max(count for _, count in kept)


def test_a_dry_run_leaves_the_build_as_it_is(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (build / "manifest.json").read_bytes()
    assert run(["tune", str(build), *WORDS, "--dry-run"]) == 0
    assert (build / "manifest.json").read_bytes() == before
    text = capsys.readouterr().out
    assert "nothing was written" in text
    assert "1 request: " in text and "3 requests: " in text


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--load", "64"], "a load of 64"), (["-k", "17"], "17"), (["--load", ""], "--load")],
)
def test_wrong_use_is_refused(
    tiny_build: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", str(tiny_build), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_build_that_cannot_be_written_is_refused_before_anything_is_measured(
    build: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("peagle_trt.cli.tune.sample_traffic", lambda *_, **__: pytest.fail("it measured"))
    (build / ".manifest.json.partial").mkdir()  # Permissions would not stop root.
    assert run(["tune", str(build), *WORDS]) == 3
    assert "cannot use" in capsys.readouterr().err
