"""Builds whose weights stay in the checkpoints' own files."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from peagle_trt import pipeline
from peagle_trt.build_folder import read_manifest
from peagle_trt.decode.session import require_files
from peagle_trt.errors import CheckpointError, VerificationError
from peagle_trt.files import SAMPLE_STEP_BYTES, sampled_sha256_of
from peagle_trt.plan import STAGES
from peagle_trt.spec import BuildSpec
from peagle_trt.verify import verify_build
from scripts.synthesize_checkpoint import read_published, shorten, write_drafter, write_target
from tests.support.builds import steps_run
from tests.support.checkpoints import edit_tensors, narrow_tensors
from tests.support.models import HIDDEN
from tests.support.shrunk_models import shrink


@pytest.fixture
def native(spec: BuildSpec) -> BuildSpec:
    narrow_tensors(spec.target_path)
    narrow_tensors(spec.drafter_path)
    return dataclasses.replace(spec, precision="native")


def test_a_build_outlives_the_checkpoints_it_was_made_from(native: BuildSpec) -> None:
    assert steps_run(native) == list(STAGES)
    shutil.rmtree(native.target_path)
    shutil.rmtree(native.drafter_path)
    assert verify_build(native.output_path).num_drafts_compared == 16


def test_a_second_run_does_nothing_and_another_k_links_again(native: BuildSpec) -> None:
    pipeline.build(native)
    assert steps_run(native) == []
    assert steps_run(dataclasses.replace(native, draft_tokens=6)) == ["verify", "assemble"]
    shards = [native.output_path / "engine" / f"{name}.model.safetensors" for name in ("target", "drafter")]
    sources = [path / "model.safetensors" for path in (native.target_path, native.drafter_path)]
    assert all(shard.samefile(source) for shard, source in zip(shards, sources, strict=True))


def test_another_recipe_leaves_the_checkpoint_alone(native: BuildSpec) -> None:
    before = (native.target_path / "model.safetensors").read_bytes()
    pipeline.build(native)
    pipeline.build(dataclasses.replace(native, precision="fp32"))
    assert not (native.output_path / "engine" / "target.model.safetensors").exists()
    assert (native.target_path / "model.safetensors").read_bytes() == before


def test_a_checkpoint_that_changed_is_linked_anew(native: BuildSpec) -> None:
    pipeline.build(native)
    edit_tensors(native.drafter_path, norm__weight=np.full(HIDDEN, 2.0, np.float32))
    assert steps_run(native) == list(STAGES)
    verify_build(native.output_path)


def test_a_checkpoint_written_over_in_place_is_noticed_when_the_build_is_opened(native: BuildSpec) -> None:
    pipeline.build(native)
    manifest = read_manifest(native.output_path)
    shard = native.drafter_path / "model.safetensors"
    shard.touch()
    require_files(native.output_path, manifest)
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    # As `cp` does: the same file with other bytes, which the build's link shares.
    with shard.open("r+b") as file:
        file.write(content)
    with pytest.raises(VerificationError, match="is not the file that was built"):
        require_files(native.output_path, manifest)


def test_a_dry_run_tells_new_bytes_from_shared_ones(native: BuildSpec) -> None:
    step = pipeline.dry_run(native).step("quantize")
    sizes = [(path / "model.safetensors").stat().st_size for path in (native.target_path, native.drafter_path)]
    assert step.in_place_bytes == sum(sizes)
    # 300 ids of 8 bytes and one row of 64 float32.
    assert step.size_bytes == 300 * 8 + HIDDEN * 4


def test_a_target_too_large_for_float32_stays_in_place(spec: BuildSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    automatic = dataclasses.replace(spec, precision="auto")
    lines: list[str] = []
    monkeypatch.setattr("peagle_trt.quant.choice.MAX_AUTOMATIC_BYTES", 1000)
    assert pipeline.build(automatic, report=lines.append).precision == "native"
    assert any(line.startswith("precision native: the target would take ") for line in lines)
    monkeypatch.undo()
    assert pipeline.build(automatic).precision == "fp32"


def test_a_large_target_that_cannot_stay_in_place_becomes_float32(
    spec: BuildSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peagle_trt.quant.choice.MAX_AUTOMATIC_BYTES", 1000)
    monkeypatch.setattr("peagle_trt.quant.in_place.REFERABLE_TYPES", ("BF16",))
    lines: list[str] = []
    automatic = dataclasses.replace(spec, precision="auto")
    assert pipeline.build(automatic, report=lines.append, until="read").precision == "fp32"
    assert any("cannot be read in place" in line for line in lines)
    with pytest.raises(CheckpointError, match="which a graph cannot read in place"):
        pipeline.build(dataclasses.replace(spec, precision="native"))


def test_gigabytes_are_told_apart_by_a_sample(native: BuildSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle_trt.build_folder.SAMPLED_FROM_BYTES", 100_000)
    monkeypatch.setattr("peagle_trt.build_folder.sha256_of", _refuse_large)
    pipeline.build(native)
    sampled = [file.path for file in read_manifest(native.output_path).files if file.is_sampled]
    assert sampled == ["engine/drafter.model.safetensors", "engine/target.model.safetensors"]
    assert steps_run(native) == []
    other = native.output_path / "engine" / "target.model.safetensors"
    content = bytearray(other.read_bytes())
    content[100] ^= 1
    other.write_bytes(content)
    with pytest.raises(VerificationError, match="is not the file that was built"):
        verify_build(native.output_path)


def _refuse_large(path: Path) -> str:
    from peagle_trt.files import sha256_of

    assert path.stat().st_size < 100_000, f"{path} was read in full"
    return sha256_of(path)


@pytest.mark.parametrize("place", [0, SAMPLE_STEP_BYTES + (1 << 22), 3 * SAMPLE_STEP_BYTES + (1 << 22) + 4095])
def test_a_sample_reaches_all_over_a_file(tmp_path: Path, place: int) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(5 * SAMPLE_STEP_BYTES)
    before = sampled_sha256_of(path)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"x")
    changed = sampled_sha256_of(path)
    with path.open("r+b") as file:
        file.truncate(5 * SAMPLE_STEP_BYTES + 1)
    assert len({before, changed, sampled_sha256_of(path)}) == 3


@pytest.mark.parametrize("model", ["gpt-oss-120b", "qwen3-coder-30b-a3b"])
def test_a_target_with_experts_is_built_and_verified_without_its_checkpoint(model: str, tmp_path: Path) -> None:
    published = shrink(shorten(read_published(model), 2))
    write_target(tmp_path / "target", published, is_filled=lambda _: True, seed=1)
    write_drafter(tmp_path / "head", published, is_filled=lambda _: True, seed=2)
    spec = BuildSpec(
        name=model,
        target_path=tmp_path / "target",
        drafter_path=tmp_path / "head",
        tokenizer_path=tmp_path / "target",
        output_path=tmp_path / "build",
        precision="native",
        max_batch_size=2,
        max_sequence_length=64,
    )
    pipeline.build(spec)
    shutil.rmtree(tmp_path / "target")
    shutil.rmtree(tmp_path / "head")
    assert verify_build(tmp_path / "build").num_drafts_compared == 20
