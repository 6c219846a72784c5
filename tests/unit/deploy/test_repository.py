from __future__ import annotations

import os
from pathlib import Path

import pytest

from peagle_trt.deploy.check import check_repository
from peagle_trt.deploy.repository import assemble_repository
from peagle_trt.errors import UsageError


def test_a_repository_has_the_four_models_and_passes_its_own_check(build_path: Path, tmp_path: Path) -> None:
    repository = assemble_repository(build_path, tmp_path / "repo")
    assert repository.model_names == ("ensemble", "peagle", "postprocessing", "preprocessing", "tensorrt_llm_bls")
    assert check_repository(repository.path) == []


def test_the_build_is_linked_and_not_copied(build_path: Path, tmp_path: Path) -> None:
    repository = assemble_repository(build_path, tmp_path / "repo")
    linked = repository.path / "peagle/1/build/engine/target.b8.onnx"
    assert linked.samefile(build_path / "engine/target.b8.onnx")
    assert repository.num_copied_files == 0


def test_a_repository_outlives_its_build(build_path: Path, tmp_path: Path) -> None:
    repository = assemble_repository(build_path, tmp_path / "repo")
    (build_path / "engine/target.b8.onnx").unlink()
    assert (repository.path / "peagle/1/build/engine/target.b8.onnx").read_bytes() == b"not a graph"


def test_the_ends_of_the_ensemble_hold_the_text_side_alone(build_path: Path, tmp_path: Path) -> None:
    path = assemble_repository(build_path, tmp_path / "repo").path / "preprocessing/1/build"
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    assert names == ["manifest.json", "tokenizer/chat_template.jinja", "tokenizer/tokenizer.json"]


def test_files_are_copied_where_they_cannot_be_linked(
    build_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another file system")

    monkeypatch.setattr(os, "link", refuse)
    repository = assemble_repository(build_path, tmp_path / "repo")
    assert repository.num_copied_files == 11
    assert "files were copied" in caplog.text


def test_an_earlier_repository_is_replaced(build_path: Path, tmp_path: Path) -> None:
    assemble_repository(build_path, tmp_path / "repo")
    (tmp_path / "repo/peagle/1/left_over").touch()
    assemble_repository(build_path, tmp_path / "repo")
    assert not (tmp_path / "repo/peagle/1/left_over").exists()


def test_a_folder_of_something_else_is_left_alone(build_path: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.tex").touch()
    with pytest.raises(UsageError, match="not a repository of ours"):
        assemble_repository(build_path, tmp_path / "thesis")
    assert (tmp_path / "thesis/chapter.tex").exists()


def test_a_failure_leaves_nothing_behind(build_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("interrupted")

    monkeypatch.setattr("peagle_trt.files.link_or_copy", fail)
    with pytest.raises(RuntimeError):
        assemble_repository(build_path, tmp_path / "repo")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a build"]


def test_an_unfinished_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a finished build"):
        assemble_repository(tmp_path, tmp_path / "repo")


def test_a_missing_file_of_the_build_is_named(build_path: Path, tmp_path: Path) -> None:
    (build_path / "engine/target.b8.onnx").write_bytes(b"short")
    with pytest.raises(UsageError, match=r"engine/target\.b8\.onnx"):
        assemble_repository(build_path, tmp_path / "repo")
