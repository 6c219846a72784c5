"""A build from end to end: what is done, what is taken over, and what an accident leaves."""

from __future__ import annotations

import dataclasses
import fcntl
import os
from pathlib import Path

import numpy as np
import pytest

from peagle_trt import pipeline, stages
from peagle_trt.build_folder import read_manifest, staging_path
from peagle_trt.errors import CheckpointError, MachineError, PlanError, UsageError, VerificationError
from peagle_trt.files import sha256_of
from peagle_trt.plan import STAGES
from peagle_trt.spec import BuildSpec
from peagle_trt.verify import verify_build
from tests.support.builds import steps_run
from tests.support.checkpoints import edit_config, edit_tensors
from tests.support.models import HIDDEN, save_drafter


def test_a_build_is_complete_and_verified(spec: BuildSpec) -> None:
    assert steps_run(spec) == list(STAGES)
    manifest = read_manifest(spec.output_path)
    assert manifest.target.aux_layer_ids == manifest.drafter.aux_layer_ids == (1, 3, 5)
    listed = {file.path for file in manifest.files}
    found = {p.relative_to(spec.output_path).as_posix() for p in spec.output_path.rglob("*") if p.is_file()}
    assert found - listed == {"manifest.json", ".steps.json"}
    assert set(manifest.graphs.values()) <= listed
    assert all(sha256_of(spec.output_path / file.path) == file.sha256 for file in manifest.files)
    assert verify_build(spec.output_path).num_drafts_compared == 16
    assert [path.name for path in spec.output_path.parent.iterdir()] == ["build"]


def test_a_manifest_holds_no_absolute_path(spec: BuildSpec) -> None:
    pipeline.build(spec)
    assert str(spec.target_path.parent) not in (spec.output_path / "manifest.json").read_text()


def test_a_second_run_does_nothing(spec: BuildSpec) -> None:
    first = pipeline.build(spec)
    assert steps_run(spec) == []
    assert pipeline.build(spec) == first


def test_another_k_keeps_weights_and_graphs(spec: BuildSpec) -> None:
    pipeline.build(spec)
    weights = spec.output_path / "engine" / "target.safetensors"
    before = weights.stat().st_ino
    assert steps_run(dataclasses.replace(spec, draft_tokens=6)) == ["verify", "assemble"]
    assert weights.stat().st_ino == before
    assert read_manifest(spec.output_path).shapes.draft_tokens == 6


def test_another_batch_size_makes_new_graphs_only(spec: BuildSpec) -> None:
    pipeline.build(spec)
    assert steps_run(dataclasses.replace(spec, max_batch_size=1)) == ["graph", "engine", "verify", "assemble"]
    assert not (spec.output_path / "engine" / "target.b2.onnx").exists()


def test_changed_weights_are_noticed(spec: BuildSpec) -> None:
    pipeline.build(spec)
    edit_config(spec.drafter_path, rms_norm_eps=1e-6)
    assert steps_run(spec) == list(STAGES)


def test_a_fresh_build_takes_nothing_over(spec: BuildSpec) -> None:
    pipeline.build(spec)
    assert steps_run(spec, is_fresh=True) == list(STAGES)


def test_a_damaged_output_is_made_again(spec: BuildSpec) -> None:
    pipeline.build(spec)
    (spec.output_path / "engine" / "target.b1.onnx").write_bytes(b"short")
    assert steps_run(spec) == ["graph"]
    verify_build(spec.output_path)


def test_an_early_stop_publishes_nothing_and_is_continued(spec: BuildSpec) -> None:
    assert steps_run(spec, until="graph") == ["read", "quantize", "graph"]
    assert not spec.output_path.exists()
    assert steps_run(spec) == ["engine", "verify", "assemble"]


@pytest.mark.parametrize("stage", ["write_weights", "write_graphs", "list_files"])
def test_an_interrupted_build_leaves_nothing_that_looks_finished(
    spec: BuildSpec, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"peagle_trt.stages.{stage}", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pipeline.build(spec)
    assert not spec.output_path.exists()
    pipeline.build(spec)
    verify_build(spec.output_path)
    assert [path.name for path in spec.output_path.parent.iterdir()] == ["build"]


def test_a_failed_build_leaves_the_earlier_one_alone(spec: BuildSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.build(spec)
    before = read_manifest(spec.output_path)

    def disagree(*_: object) -> None:
        raise VerificationError("made up")

    monkeypatch.setattr("peagle_trt.verify.compare_subject", disagree)
    with pytest.raises(VerificationError):
        pipeline.build(dataclasses.replace(spec, max_batch_size=1))
    assert read_manifest(spec.output_path) == before
    verify_files(spec.output_path)


def verify_files(build_path: Path) -> None:
    for file in read_manifest(build_path).files:
        assert sha256_of(build_path / file.path) == file.sha256


def test_an_interrupted_graph_stage_does_not_touch_the_finished_build(
    spec: BuildSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.build(spec)
    # Graphs are taken over by a hard link, then made again for another batch size in the same staging folder.
    with monkeypatch.context() as patch:
        patch.setattr("peagle_trt.stages.list_files", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pipeline.build(dataclasses.replace(spec, draft_tokens=3))
    pipeline.build(dataclasses.replace(spec, max_sequence_length=32), until="graph")
    verify_files(spec.output_path)


def test_a_folder_that_is_no_build_is_left_alone(spec: BuildSpec) -> None:
    spec.output_path.mkdir(parents=True)
    (spec.output_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="exists and is not a build"):
        pipeline.build(spec)
    assert (spec.output_path / "thesis.tex").read_text() == "years of work"
    assert not staging_path(spec.output_path).exists()


def test_two_builds_of_one_folder_are_refused(spec: BuildSpec) -> None:
    staging = staging_path(spec.output_path)
    staging.mkdir(parents=True)
    descriptor = os.open(staging, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(MachineError, match="another process is building"):
        pipeline.build(spec)
    os.close(descriptor)


def test_a_full_disk_is_noticed_before_the_first_byte(spec: BuildSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    free = os.statvfs(spec.target_path)
    assert free.f_bavail > 0
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(MachineError, match="has 1,000 free"):
        pipeline.build(spec)
    assert not spec.output_path.parent.exists()


def test_a_dry_run_writes_nothing_and_counts_bytes(spec: BuildSpec) -> None:
    plan = pipeline.dry_run(spec)
    assert [step.name for step in plan.steps] == list(STAGES)
    assert not any(step.is_cached for step in plan.steps)
    assert not spec.output_path.parent.exists()
    pipeline.build(spec)
    sizes = [(spec.output_path / "engine" / f"{model}.safetensors").stat().st_size for model in ("target", "drafter")]
    planned = plan.step("quantize").size_bytes
    assert planned is not None and plan.memory_bytes is not None
    # The largest tensor of this pair is small beside what the interpreter and its libraries take.
    assert stages.BASE_MEMORY_BYTES < plan.memory_bytes < 1.1 * stages.BASE_MEMORY_BYTES
    # The headers are not planned.
    assert planned <= sum(sizes) <= planned + 20_000
    assert pipeline.dry_run(spec).is_complete


def test_a_misfit_is_refused_before_anything_is_written(spec: BuildSpec) -> None:
    edit_config(spec.drafter_path, mask_token_id=300)
    with pytest.raises(CheckpointError, match=r"mask token does not fit: .* found 300"):
        pipeline.build(spec)
    assert not spec.output_path.parent.exists()


def test_a_tokenizer_of_another_model_is_refused(spec: BuildSpec) -> None:
    tokenizer = spec.target_path / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"!": 0', '"!": 300'))
    with pytest.raises(CheckpointError, match="makes the token 300, but the target's vocabulary has 300"):
        pipeline.build(spec)
    tokenizer.write_text("{}")
    with pytest.raises(CheckpointError, match="is no tokenizer"):
        pipeline.build(spec)


LIMITS = {"draft_tokens": 17, "max_batch_size": 0, "max_sequence_length": 2000}


@pytest.mark.parametrize(("name", "value"), LIMITS.items())
def test_a_setting_out_of_range_is_refused(spec: BuildSpec, name: str, value: int) -> None:
    with pytest.raises(PlanError, match=str(value)):
        pipeline.build(dataclasses.replace(spec, **{name: value}))


def test_a_head_with_its_own_tables_and_fewer_words_builds(spec: BuildSpec, tmp_path: Path) -> None:
    save_drafter(
        tmp_path / "other", draft_vocab_size=120, norm_before_fc=True, attention_bias=True, norm_before_residual=True
    )
    edit_tensors(tmp_path / "other", embed_tokens__weight=np.random.default_rng(0).random((300, HIDDEN), "f"))
    pipeline.build(dataclasses.replace(spec, drafter_path=tmp_path / "other"))
    verify_build(spec.output_path)


@pytest.mark.parametrize("template", ["{% if %}", "{% for m in messages %}", "{{ messages[0] "])
def test_a_chat_template_that_cannot_be_read_is_refused(spec: BuildSpec, template: str) -> None:
    (spec.target_path / "chat_template.jinja").write_text(template)
    with pytest.raises(CheckpointError, match=r"chat template .* is no template: line 1"):
        pipeline.build(spec)


def test_a_target_too_short_for_any_build_is_refused(spec: BuildSpec) -> None:
    edit_config(spec.target_path, max_position_embeddings=8)
    with pytest.raises(CheckpointError, match=r"made for 8 token\(s\); a build needs 16"):
        pipeline.build(dataclasses.replace(spec, max_sequence_length=16))


@pytest.mark.parametrize("model", ["target", "head"])
def test_weights_that_are_no_numbers_are_the_checkpoint_s_fault(spec: BuildSpec, model: str) -> None:
    edit_tensors(spec.target_path.with_name(model), **{NORMS[model]: np.full(HIDDEN, np.nan, np.float32)})
    with pytest.raises(CheckpointError, match=r"norm\.weight` holds 64 value"):
        pipeline.build(spec)
    assert not spec.output_path.exists()


NORMS = {"target": "model__norm__weight", "head": "norm__weight"}


def test_weights_of_zero_are_weights(spec: BuildSpec) -> None:
    zeros = np.zeros((300, HIDDEN), np.float32)
    edit_tensors(spec.target_path, model__embed_tokens__weight=zeros)
    pipeline.build(spec)


def test_the_choice_of_a_backend_is_told_only_when_it_runs(spec: BuildSpec) -> None:
    lines: list[str] = []
    automatic = dataclasses.replace(spec, backend="auto")
    pipeline.build(automatic, report=lines.append, until="read")
    assert lines[0].startswith("backend onnxruntime: ")
    pipeline.build(automatic)
    lines.clear()
    pipeline.build(automatic, report=lines.append)
    assert [line.partition(":")[0] for line in lines] == ["nothing to do"]
