"""The rules of vLLM and TensorRT-LLM: what is written here passes, and every public report of a bad folder is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from peagle_trt.errors import CheckpointError
from peagle_trt.quant.layer_recipes import load_layer_recipe
from peagle_trt.readers import Finding, read_head, read_target
from peagle_trt.writers.loaders import judge_folder
from peagle_trt.writers.loaders.trtllm import is_left_out as is_left_out_by_trtllm
from peagle_trt.writers.loaders.vllm import is_left_out as is_left_out_by_vllm
from peagle_trt.writers.quantized import quantize_head, quantize_target
from tests.support.checkpoints import copy_folder
from tests.support.quantized_export import edit_descriptions, edit_document

TARGETS = {
    "fp8-kv": ("llama", "fp8-kv"),
    "nvfp4": ("llama", "nvfp4"),
    "weights": ("llama", "w4a16-nvfp4"),
    "mlp": ("llama", "nvfp4-mlp"),
    "experts": ("qwen/target", "nvfp4-experts"),
    "gpt-oss": ("gpt-oss/target", "nvfp4"),
}
ATTENTION, MLP = "model.layers.1.self_attn", "model.layers.1.mlp"


@pytest.fixture(scope="session")
def folders(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantized")
    for name, (source, recipe) in TARGETS.items():
        quantize_target(read_target(sources / source), load_layer_recipe(recipe), folder / name)
    quantize_head(read_head(sources / "head"), None, load_layer_recipe("nvfp4-mlp"), "vllm", folder / "head")
    return folder


def refusals(folder: Path) -> list[Finding]:
    return [finding for finding in judge_folder(folder) if finding.level == "refused"]


@pytest.mark.parametrize("name", ["fp8-kv", "nvfp4", "weights", "mlp", "experts", "head"])
def test_what_is_written_passes_every_rule(folders: Path, name: str) -> None:
    findings = judge_folder(folders / name)
    assert {finding.level for finding in findings} == {"ok"}
    assert {"vLLM: layers left out", "TensorRT-LLM: layers left out"} <= {finding.what for finding in findings}


def test_the_published_layout_of_gpt_oss_passes(sources: Path) -> None:
    # Its own description leaves out attention, router and tables.
    assert refusals(sources / "gpt-oss" / "target") == []


def test_vllm_passes_over_the_scales_of_gpt_oss_in_nvfp4(folders: Path) -> None:
    # github.com/vllm-project/vllm/issues/46641: answers of nothing but exclamation marks.
    assert [finding.what for finding in refusals(folders / "gpt-oss")] == ["vLLM: names of experts"]


def test_a_folder_that_is_not_quantized_cannot_be_judged(sources: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not quantized: neither `hf_quant_config\.json` nor"):
        judge_folder(sources / "llama")


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def drop(*names: str) -> Callable[[Path], None]:
    return lambda folder: edit(folder, lambda tensors: [tensors.pop(name) for name in names] and None)


def put(name: str, value: torch.Tensor) -> Callable[[Path], None]:
    return lambda folder: edit(folder, lambda tensors: tensors.update({name: value}))


def scaled(name: str, factor: float) -> Callable[[Path], None]:
    return lambda folder: edit(folder, lambda tensors: tensors.update({name: tensors[name] * factor}))


def described(algorithm: str | None = None, left_out: list[str] | None = None) -> Callable[[Path], None]:
    return lambda folder: edit_descriptions(folder, algorithm, left_out)


def dropped_key(folder: Path) -> None:
    edit_document(folder / "hf_quant_config.json", lambda document: document["quantization"].pop("kv_cache_quant_algo"))
    edit_document(folder / "config.json", lambda document: document.pop("quantization_config"))


def other_method(folder: Path) -> None:
    edit_document(folder / "config.json", lambda document: document["quantization_config"].update(quant_method="nvfp4"))


def disagreeing(folder: Path) -> None:
    edit_document(folder / "config.json", lambda document: document["quantization_config"].update(ignore=[]))


BENT: dict[str, tuple[str, Callable[[Path], None], str, str]] = {
    # vLLM issue 54189: a missing input scale is read as 0, so every expert gives 0.
    "input_scale": (
        "experts",
        drop(f"{MLP}.experts.3.up_proj.input_scale"),
        "tensors of quantized layers",
        f"`{MLP}.experts.3.up_proj` lacks `input_scale`",
    ),
    # vLLM issue 54974, pull request 56095; Model-Optimizer pull request 1411.
    "gate_up_apart": (
        "experts",
        scaled(f"{MLP}.experts.3.up_proj.weight_scale_2", 4),
        "overall scales of fused layers",
        f"`{MLP}.experts.3.gate_proj` has",
    ),
    "qkv_apart": (
        "nvfp4",
        scaled(f"{ATTENTION}.k_proj.weight_scale_2", 0.25),
        "overall scales of fused layers",
        f"`{ATTENTION}.k_proj` has",
    ),
    # TensorRT-LLM issue 16867, pull request 10745.
    "value_scale": (
        "fp8-kv",
        drop(f"{ATTENTION}.v_proj.v_scale"),
        "scales of the cache",
        f"`{ATTENTION}` lacks `v_scale`",
    ),
    # Model-Optimizer pull request 1382: what underflowed.
    "scale_0": (
        "fp8-kv",
        put(f"{MLP}.up_proj.weight_scale", torch.tensor(0.0)),
        "scales",
        f"`{MLP}.up_proj.weight_scale` is 0",
    ),
    # modular issue 6600: compressed-tensors stores the reciprocal.
    "reciprocal": (
        "nvfp4",
        put(f"{MLP}.down_proj.weight_scale_2", torch.tensor(10836.66)),
        "scales",
        f"`{MLP}.down_proj.weight_scale_2` is 10836.7, which looks like a reciprocal",
    ),
    "vector_scale": (
        "nvfp4",
        put(f"{MLP}.down_proj.weight_scale_2", torch.ones(64)),
        "tensors of quantized layers",
        f"`{MLP}.down_proj.weight_scale_2` is F32 [64], not one F32 number",
    ),
    "block_scales": (
        "nvfp4",
        put(f"{MLP}.down_proj.weight_scale", torch.ones(64, 3).to(torch.float8_e4m3fn)),
        "tensors of quantized layers",
        "is F8_E4M3 [64, 3], not F8_E4M3 [64, 6]",
    ),
    # ModelOpt's `mxfp4`: TensorRT-LLM's names of algorithms are told apart by case.
    "case": ("nvfp4", described("nvfp4"), "TensorRT-LLM: quant_algo", "nvfp4"),
    "algorithm": ("nvfp4", described("NVFP4_AWQ"), "vLLM: quant_algo", "NVFP4_AWQ"),
    "substring": (
        "nvfp4",
        described(left_out=["lm_head", "model.embed_tokens", "model.layers.1.mlp"]),
        "vLLM: layers left out",
        f"`{MLP}.gate_proj` is quantized but left out",
    ),
    "wildcard": (
        "nvfp4",
        described(left_out=["lm_head", "model.*"]),
        "TensorRT-LLM: layers left out",
        "is quantized but left out",
    ),
    "not_left_out": (
        "mlp",
        described(left_out=["lm_head", "model.embed_tokens"]),
        "vLLM: layers left out",
        "`model.layers.0.self_attn.q_proj` is left as it is, but not left out",
    ),
    # ModelOpt 0.47's export of a drafter: `model*` leaves out all of it, as vLLM prefixes it.
    "modelopt_head": (
        "head",
        described(left_out=["eagle_module.lm_head", "lm_head", "model*"]),
        "vLLM: layers left out",
        "`layers.0.mlp.gate_proj` is quantized but left out",
    ),
    # A pattern on `self_attn` does not reach `layers.N.qkv_proj`, as older versions of vLLM call it.
    "fused_head": (
        "head",
        described(left_out=["lm_head", "fc", "*.fc", "*.self_attn.*", "*.embed_tokens"]),
        "vLLM: layers left out",
        "`layers.0.self_attn.q_proj` is left as it is, but not left out, as `model.layers.48.qkv_proj`",
    ),
    "mask_hidden": ("head", drop("mask_hidden"), "vLLM: masked state", "none"),
    "missing_key": ("nvfp4", dropped_key, "vLLM: keys of NVFP4", "kv_cache_quant_algo"),
    "method": ("nvfp4", other_method, "vLLM: quant_method", "nvfp4"),
    "disagreement": ("mlp", disagreeing, "agreement of hf_quant_config.json and config.json", "exclude_modules"),
}


@pytest.mark.parametrize("case", BENT)
def test_what_goes_wrong_in_silence_is_refused(folders: Path, tmp_path: Path, case: str) -> None:
    name, bend, what, found = BENT[case]
    folder = copy_folder(folders / name, tmp_path / "bent")
    bend(folder)
    told = {finding.what: finding.found for finding in refusals(folder)}
    assert found in told.get(what, ""), told


def test_scales_of_a_cache_that_nobody_names_are_a_warning(folders: Path, tmp_path: Path) -> None:
    folder = copy_folder(folders / "fp8-kv", tmp_path / "bent")
    edit_document(folder / "hf_quant_config.json", lambda d: d["quantization"].update(kv_cache_quant_algo=None))
    edit_document(folder / "config.json", lambda d: d["quantization_config"].pop("kv_cache_scheme"))
    assert [finding.what for finding in judge_folder(folder) if finding.level == "warning"] == ["scales of the cache"]


@pytest.mark.parametrize(
    ("prefix", "patterns", "vllm", "older", "newer"),
    [
        ("model.layers.1.self_attn.qkv_proj", ["model.layers.1.self_attn*"], True, True, True),
        ("model.layers.1.self_attn.qkv_proj", ["model.layers.1.self_attn.q_proj"], False, True, True),
        ("model.layers.1.mlp.down_proj", ["model.layers.1.mlp"], True, False, True),
        ("model.layers.11.mlp.down_proj", ["model.layers.1.mlp"], False, False, False),
        ("model.layers.1.mlp.down_proj", ["down"], True, False, False),
        ("model.layers.1.mlp.down_proj", [r"re:.*\.mlp\..*"], False, True, True),
        ("lm_head", ["lm_head"], True, True, True),
        ("lm_head", [], False, False, False),
    ],
)
def test_loaders_match_patterns_each_in_its_way(
    prefix: str, patterns: list[str], vllm: bool, older: bool, newer: bool
) -> None:
    assert is_left_out_by_vllm(prefix, patterns) == vllm
    assert is_left_out_by_trtllm(prefix, patterns, looks_at_ancestors=False) == older
    assert is_left_out_by_trtllm(prefix, patterns, looks_at_ancestors=True) == newer
