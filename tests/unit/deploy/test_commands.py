from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle_trt.cli.main import run


def test_repo_writes_a_repository_and_checks_it(
    build_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--json", "repo", str(build_path), "-o", str(tmp_path / "repo"), "--check"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    assert (tmp_path / "repo/ensemble/config.pbtxt").is_file()


def test_repo_checks_a_repository_without_writing(build_path: Path, tmp_path: Path) -> None:
    assert run(["repo", str(build_path), "-o", str(tmp_path / "repo")]) == 0
    assert run(["repo", str(tmp_path / "repo"), "--check"]) == 0


def test_a_damaged_repository_fails_the_check_with_every_reason(
    build_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["repo", str(build_path), "-o", str(tmp_path / "repo")]) == 0
    (tmp_path / "repo/peagle/1/model.py").unlink()
    (tmp_path / "repo/postprocessing/config.pbtxt").unlink()
    capsys.readouterr()
    assert run(["--json", "repo", str(tmp_path / "repo"), "--check"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert "model.py` is missing" in error["hint"]
    assert "`config.pbtxt` is missing" in error["hint"]


def test_repo_with_nothing_to_do_is_wrong_use(build_path: Path) -> None:
    assert run(["repo", str(build_path)]) == 2


def test_a_repository_is_told_to_look_up_prompts(build_path: Path, tmp_path: Path) -> None:
    assert run(["repo", str(build_path), "-o", str(tmp_path / "repo"), "--prompt-lookup", "--check"]) == 0
    text = (tmp_path / "repo/peagle/config.pbtxt").read_text()
    assert 'key: "default_prompt_lookup"\n  value {\n    string_value: "true"' in text


def test_prompt_lookup_without_a_repository_to_write_is_wrong_use(
    build_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["repo", str(build_path), "-o", str(tmp_path / "repo")]) == 0
    assert run(["repo", str(tmp_path / "repo"), "--check", "--prompt-lookup"]) == 2
    assert "--prompt-lookup goes into a repository" in capsys.readouterr().err
    assert run(["serve", str(tmp_path / "repo"), "--prompt-lookup"]) == 2
    assert "holds its own settings" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["repo", "serve"])
def test_a_folder_that_is_no_build_is_wrong_use(tmp_path: Path, command: str) -> None:
    arguments = {"repo": ["-o", str(tmp_path / "repo")], "serve": []}[command]
    assert run([command, str(tmp_path), *arguments]) == 2
    assert list(tmp_path.iterdir()) == []
