"""Builds for TensorRT-LLM and vLLM: what lies in them, what is taken over, and what is refused."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from peagle_trt import catalog, pipeline
from peagle_trt.build_folder import read_manifest
from peagle_trt.bundle import build as bundle_build
from peagle_trt.bundle.gpus import experts_backend
from peagle_trt.bundle.vllm import vllm_files
from peagle_trt.bundle.yaml_text import write_yaml
from peagle_trt.cli.main import run
from peagle_trt.decode.session import open_build
from peagle_trt.errors import CheckpointError, PlanError, UsageError
from peagle_trt.readers import read_drafter, read_target
from peagle_trt.spec import BuildSpec
from peagle_trt.verify import verify_build
from tests.support.builds import steps_run
from tests.support.checkpoints import save_byte_tokenizer
from tests.support.fake_trtllm import installed
from tests.support.models import save_drafter, save_target
from tests.support.quantized import to_mxfp4
from tests.support.trtllm_models import load_pair, model_config


def tiny_spec(folder: Path, backend: str, **settings: Any) -> BuildSpec:
    entry = catalog.find_entry("tiny")
    target = catalog.target_path(entry)
    return BuildSpec(
        **{
            "name": "tiny",
            "target_path": target,
            "drafter_path": catalog.drafter_path(entry),
            "tokenizer_path": target,
            "output_path": folder / backend,
            "precision": "auto",
            "backend": backend,
            "max_sequence_length": 512,
        }
        | settings  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module", params=["trtllm", "vllm"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BuildSpec:
    spec = tiny_spec(tmp_path_factory.mktemp("bundle"), request.param)
    pipeline.build(spec)
    return spec


def test_a_second_run_has_nothing_to_do(built: BuildSpec) -> None:
    assert steps_run(built) == []


def test_the_target_shares_its_bytes_with_the_checkpoint(built: BuildSpec) -> None:
    name = "model.safetensors"
    linked = (built.output_path / "target" / name).stat()
    assert linked.st_nlink > 1 or not os.path.samestat(linked, (built.target_path / name).stat())
    assert read_target(built.output_path / "target").config == read_target(built.target_path).config


def test_the_head_is_the_same_in_the_servers_dialect(built: BuildSpec) -> None:
    import numpy as np

    before, after = read_drafter(built.drafter_path), read_drafter(built.output_path / "drafter")
    for name in before.weights:
        np.testing.assert_array_equal(before.weights.load(name), after.weights.load(name))


def test_the_manifest_lists_every_file(built: BuildSpec) -> None:
    manifest = read_manifest(built.output_path)
    on_disk = {
        path.relative_to(built.output_path).as_posix() for path in built.output_path.rglob("*") if path.is_file()
    }
    assert {file.path for file in manifest.files} == on_disk - {"manifest.json", ".steps.json"}
    assert manifest.graphs == {}
    assert str(built.output_path) not in (built.output_path / "manifest.json").read_text()


def test_the_launch_lines_can_be_started(built: BuildSpec) -> None:
    for name in ("serve", "serve-triton"):
        assert os.access(built.output_path / name, os.X_OK)
        assert str(built.output_path) not in (built.output_path / name).read_text()


@pytest.mark.parametrize("name", ["$(touch pwned)", "`touch pwned`", "it's", 'a"b', "two words"])
def test_a_name_is_never_run_by_the_shell(tmp_path: Path, name: str) -> None:
    texts = vllm_files(tiny_spec(tmp_path, "vllm", name=name, precision="native"))
    (tmp_path / "vllm").write_text('#!/bin/sh\nprintf "%s\\n" "$@"')
    (tmp_path / "serve").write_text(texts["serve"])
    for script in ("vllm", "serve"):
        (tmp_path / script).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = subprocess.run([tmp_path / "serve"], env=environment, capture_output=True, text=True, check=True).stdout
    assert words.splitlines()[2:4] == ["--served-model-name", name]
    assert not (tmp_path / "pwned").exists()


def test_vllms_two_doors_have_the_same_settings(tmp_path: Path) -> None:
    texts = vllm_files(tiny_spec(tmp_path, "vllm", precision="fp8"))
    arguments = json.loads(texts["triton/vllm_model/1/model.json"])
    words = shlex.split(texts["serve"].replace("\\\n", " "), comments=True)
    for name in ("max_num_seqs", "max_model_len", "kv_cache_dtype"):
        assert words[words.index("--" + name.replace("_", "-")) + 1] == str(arguments[name])
    assert json.loads(words[words.index("--speculative-config") + 1]) == arguments["speculative_config"]


def test_a_name_cannot_end_the_comment_of_a_configuration() -> None:
    assert write_yaml({"a": 1}, ["x\nb: 2, K = 5"]) == "# x b: 2, K = 5\na: 1\n"


def test_it_is_not_run_here(built: BuildSpec) -> None:
    server = {"trtllm": "TensorRT-LLM", "vllm": "vLLM"}[built.backend]
    for use in (open_build, verify_build):
        with pytest.raises(UsageError, match=f"the build is for {server}"):
            use(built.output_path)


def test_settings_of_tensorrt_llm(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, "trtllm", draft_tokens=4, max_batch_size=6)
    pipeline.build(spec)
    for release, kind, key in (("1.2.1", "Eagle", "speculative_model_dir"), ("1.4", "Eagle3", "speculative_model")):
        settings = yaml.safe_load((spec.output_path / f"config-{release}.yaml").read_text())
        assert settings["kv_cache_config"]["enable_block_reuse"] is False
        speculation = settings["speculative_config"]
        assert (speculation["decoding_type"], speculation["max_draft_len"], speculation[key]) == (kind, 4, "./drafter")
        # The head reads the streams entering layers 1, 2 and 3: the outputs of 0, 1 and 2.
        assert speculation["eagle3_layers_to_capture"] == [0, 1, 2]
    model = yaml.safe_load((spec.output_path / "triton/tensorrt_llm/1/model.yaml").read_text())
    assert model["triton_config"] == {"max_batch_size": 0, "decoupled": True, "cancellation_check_period_ms": 100}
    limits = json.loads((spec.output_path / "drafter/config.json").read_text())["peagle_trt"]
    assert limits == {"draft_tokens": 4, "max_batch_size": 6, "max_sequence_length": 512}


@pytest.mark.parametrize("release", ["1.2.1", "1.4"])
def test_the_worker_takes_what_the_build_wrote(tmp_path: Path, release: str) -> None:
    spec = tiny_spec(tmp_path, "trtllm")
    manifest = pipeline.build(spec)
    with installed(release) as registry:
        from peagle_trt.trtllm.plugin import install

        install()
        head = spec.output_path / "drafter"
        model = registry["LlamaForCausalLM"](model_config(manifest.target, head, draft_tokens=5))
        load_pair(model, read_target(spec.output_path / "target"), head)
        assert model.spec_worker.engine._head is not None


def test_a_new_k_costs_no_new_target(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, "trtllm")
    pipeline.build(spec)
    assert steps_run(replace(spec, draft_tokens=3)) == ["engine", "verify", "assemble"]


@pytest.mark.parametrize("precision", ["fp8", "nvfp4"])
def test_a_dense_target_can_be_quantized_on_the_way(tmp_path: Path, precision: str) -> None:
    spec = tiny_spec(tmp_path, "trtllm", precision=precision)
    pipeline.build(spec)
    settings = yaml.safe_load((spec.output_path / "config-1.2.1.yaml").read_text())
    assert settings["kv_cache_config"]["dtype"] == "fp8"
    assert (spec.output_path / "target" / "hf_quant_config.json").is_file()
    assert (spec.output_path / "target" / "tokenizer.json").is_file()


def test_layers_that_rounding_moves_too_far_are_left_out(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, "trtllm", precision="nvfp4", keep_above=0.095)
    lines: list[str] = []
    manifest = pipeline.build(spec, report=lines.append)
    assert manifest.keep_above == 0.095
    assert any("layers stay as they are" in line for line in lines), lines


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"precision": "int4"}, UsageError, "precision `int4` is none that"),
        ({"keep_above": 0.1}, PlanError, "precision `native` quantizes none"),
        ({"compute_capabilities": ("120",)}, PlanError, "gibberish.*SM120"),
        ({"compute_capabilities": ("75",)}, PlanError, "SM75"),
        ({"compute_capabilities": ("90", "100")}, PlanError, "for one GPU"),
    ],
)
def test_what_tensorrt_llm_would_not_run_is_refused(
    tmp_path: Path, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    spec = tiny_spec(tmp_path, "trtllm", **settings)
    with pytest.raises(error, match=message):
        pipeline.build(spec)
    assert not spec.output_path.exists()


def test_gpt_oss_keeps_its_mxfp4(tmp_path: Path) -> None:
    save_target(tmp_path / "target", "GptOssForCausalLM")
    to_mxfp4(tmp_path / "target", tmp_path / "plain")
    save_byte_tokenizer(tmp_path / "target")
    save_drafter(tmp_path / "drafter", carries=("embed_tokens", "lm_head"))
    paths = {name: tmp_path / name.split("_")[0] for name in ("target_path", "drafter_path")}
    spec = tiny_spec(tmp_path, "trtllm", **paths, tokenizer_path=tmp_path / "target")
    with pytest.raises(PlanError, match=r"MXFP4.*a second time"):
        pipeline.build(replace(spec, precision="nvfp4"))
    pipeline.build(spec)
    settings = yaml.safe_load((spec.output_path / "config-1.4.yaml").read_text())
    assert settings["moe_config"] == {"backend": "TRTLLM"}
    assert settings["kv_cache_config"]["dtype"] == "auto"
    kept = json.loads((spec.output_path / "target/config.json").read_text())
    assert kept["quantization_config"]["quant_method"] == "mxfp4"


def test_on_hopper_the_experts_use_other_kernels(tmp_path: Path) -> None:
    save_target(tmp_path / "target", "GptOssForCausalLM")
    config = read_target(tmp_path / "target").config
    assert [experts_backend(config, each) for each in ("90", "100")] == ["CUTLASS", "TRTLLM"]


def test_a_target_on_another_disk_counts_as_new_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tiny_spec(tmp_path, "trtllm", precision="native")
    pair = read_target(spec.target_path), read_drafter(spec.drafter_path)
    new, shared = bundle_build.written_bytes(spec, *pair)
    assert 0 < new < new + shared
    monkeypatch.setattr(bundle_build, "shares_file_system", lambda path, folder: False)
    assert bundle_build.written_bytes(spec, *pair) == (new + shared, 0)


def test_a_stage_that_a_backend_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="a build for `vllm` has no stage `graph`"):
        pipeline.build(tiny_spec(tmp_path, "vllm"), until="graph")


def test_a_plain_head_is_refused(tmp_path: Path) -> None:
    save_target(tmp_path / "target")
    save_drafter(tmp_path / "plain", mask_token_id=None)
    pair = {"target_path": tmp_path / "target", "drafter_path": tmp_path / "plain"}
    with pytest.raises(PlanError, match="a plain EAGLE-3 one, which TensorRT-LLM runs by itself"):
        pipeline.build(tiny_spec(tmp_path, "trtllm", **pair))


def test_an_unknown_target_is_refused_for_tensorrt_llm(tmp_path: Path) -> None:
    save_target(tmp_path / "target", "MistralForCausalLM")
    save_drafter(tmp_path / "drafter", carries=("embed_tokens", "lm_head"))
    pair = {"target_path": tmp_path / "target", "drafter_path": tmp_path / "drafter"}
    with pytest.raises(CheckpointError, match="found `MistralForCausalLM`"):
        pipeline.build(tiny_spec(tmp_path, "trtllm", **pair))


def test_a_dry_run_names_the_stages_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["--json", "build", "--target", "tiny", "--backend", "trtllm", "--dry-run", "-o", str(tmp_path / "b")]) == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert [step["name"] for step in document["steps"]] == ["read", "quantize", "engine", "verify", "assemble"]
