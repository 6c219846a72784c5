"""Builds that something happened to, and paths that are not plain folders: what the next run makes of them."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from peagle_trt import pipeline
from peagle_trt.build_folder import read_manifest, staged_build, staging_path
from peagle_trt.errors import MachineError, UsageError, VerificationError
from peagle_trt.files import sha256_of
from peagle_trt.plan import STAGES
from peagle_trt.spec import BuildSpec
from peagle_trt.verify import verify_build
from tests.support.builds import steps_run
from tests.support.models import HIDDEN


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-HIDDEN] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("draft_tokens", [4, 5], ids=["same", "another_k"])
@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("engine/target.safetensors", "quantize"),
        ("engine/drafter.b2.onnx", "graph"),
        ("tokenizer/tokenizer.json", "read"),
    ],
)
def test_damage_that_keeps_the_size_is_mended(spec: BuildSpec, name: str, stage: str, draft_tokens: int) -> None:
    before = {file.path: file.sha256 for file in pipeline.build(spec).files}
    flip_a_byte(spec.output_path / name)
    with pytest.raises(VerificationError, match="is not the file that was built"):
        verify_build(spec.output_path)
    assert stage in steps_run(dataclasses.replace(spec, draft_tokens=draft_tokens))
    verify_build(spec.output_path)
    assert sha256_of(spec.output_path / name) == before[name]


def test_damage_in_staging_is_noticed(spec: BuildSpec) -> None:
    pipeline.build(spec, until="graph")
    flip_a_byte(staging_path(spec.output_path) / "engine" / "drafter.safetensors")
    assert steps_run(spec) == ["quantize", "engine", "verify", "assemble"]
    verify_build(spec.output_path)


MANIFEST_DAMAGE = {"truncated": lambda path: os.truncate(path, 100), "gone": lambda path: path.unlink()}


@pytest.mark.parametrize("damage", MANIFEST_DAMAGE.values(), ids=MANIFEST_DAMAGE.keys())
def test_a_damaged_manifest_is_written_again(spec: BuildSpec, damage: Callable[[Path], None]) -> None:
    first = pipeline.build(spec)
    damage(spec.output_path / "manifest.json")
    assert not pipeline.dry_run(spec).is_complete
    assert pipeline.build(spec) == first
    assert read_manifest(spec.output_path) == first


def test_a_damaged_record_costs_only_time(spec: BuildSpec) -> None:
    first = pipeline.build(spec)
    (spec.output_path / ".steps.json").write_text("{")
    assert steps_run(spec) == list(STAGES)
    assert read_manifest(spec.output_path) == first


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing` does not exist"):
        verify_build(tmp_path / "nothing")


def test_a_changed_file_fails_verification(spec: BuildSpec) -> None:
    pipeline.build(spec)
    flip_a_byte(spec.output_path / "engine" / "drafter.safetensors")
    with pytest.raises(VerificationError, match="is not the file that was built"):
        verify_build(spec.output_path)


@pytest.mark.parametrize("is_dangling", [True, False], ids=["dangling", "to_a_build"])
def test_a_link_leads_to_the_build(spec: BuildSpec, is_dangling: bool) -> None:
    link = spec.output_path.with_name("link")
    if not is_dangling:
        pipeline.build(spec)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to("build")
    pipeline.build(dataclasses.replace(spec, output_path=link, draft_tokens=3))
    assert link.readlink() == Path("build")
    assert read_manifest(spec.output_path).shapes.draft_tokens == 3
    assert sorted(path.name for path in link.parent.iterdir()) == ["build", "link"]


def test_leftovers_beside_a_build_do_not_matter(spec: BuildSpec) -> None:
    pipeline.build(spec)
    old = spec.output_path.with_name(".build.old")
    old.symlink_to("nowhere")
    pipeline.build(dataclasses.replace(spec, draft_tokens=3))
    assert read_manifest(spec.output_path).shapes.draft_tokens == 3


@pytest.mark.parametrize("is_published", [True, False], ids=["after", "between"])
def test_a_run_killed_around_the_exchange_is_settled(
    spec: BuildSpec, is_published: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.build(spec)
    rename, staging = Path.rename, staging_path(spec.output_path)

    def rename_and_die(path: Path, target: Path) -> Path:
        if path == staging and not is_published:
            raise KeyboardInterrupt
        result = rename(path, target)
        if path == staging:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename_and_die)
        with pytest.raises(KeyboardInterrupt):
            pipeline.build(dataclasses.replace(spec, draft_tokens=3))
    assert spec.output_path.exists() == is_published
    assert steps_run(dataclasses.replace(spec, draft_tokens=3, name="renamed")) == ["assemble"]
    verify_build(spec.output_path)
    assert [path.name for path in spec.output_path.parent.iterdir()] == ["build"]
    assert not (spec.output_path / ".replaced").exists()


@pytest.mark.parametrize("output", [".", "", "/", "..", "a/..", "loop", "zero\0byte"])
def test_a_path_that_cannot_be_replaced_is_refused(
    spec: BuildSpec, output: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UsageError, match=r"is the folder you are in|leads nowhere"):
        pipeline.build(dataclasses.replace(spec, output_path=Path(output)))
    assert [path.name for path in Path.cwd().iterdir()] == ["loop"]


def test_a_disk_that_fills_up_while_a_file_is_written_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(MachineError, match=f"cannot use `{tmp_path / 'out'}`: no space is left on the disk"),
        staged_build(tmp_path / "out"),
    ):
        # As `write` raises it: without a name.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert not list(tmp_path.iterdir())
