"""The files beside the checkpoints of a build for TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Callable

from peagle_trt.bundle.fields import check_document, read_fields
from peagle_trt.bundle.gpus import cache_type, experts_backend
from peagle_trt.bundle.yaml_text import Value, write_yaml
from peagle_trt.spec import BuildSpec, DrafterConfig, TargetConfig

RELEASES = ("1.2.1", "1.4")
PROMPT_ROWS_A_STEP = 8192
"""Rows of prompts and verify steps that a step may hold; TensorRT-LLM's own default."""
_FREE_MEMORY = 0.8
"""Of what is left once weights are loaded, for the target's cache: its guide of gpt-oss with drafts says so."""

PLUGIN = "plugin/peagle_trt_plugin/__init__.py"
_PLUGIN_TEXT = '''"""Imported by `--custom_module_dirs`: makes TensorRT-LLM serve P-EAGLE heads."""

from peagle_trt.trtllm.plugin import install

install()
'''
_SERVE_TEXT = """#!/bin/sh
# Start this build with trtllm-serve, inside a container with TensorRT-LLM and this project:
#   pip install peagle-trt && peagle-trt doctor --trtllm
# CONFIG is the file for the release that is installed.
cd "$(dirname "$0")" && exec trtllm-serve ./target --backend pytorch --custom_module_dirs ./plugin/peagle_trt_plugin \\
  --config "${CONFIG:-config-1.2.1.yaml}" "$@"
"""
_TRITON_TEXT = """#!/bin/sh
# Start this build with Triton, inside NVIDIA's tritonserver container with TensorRT-LLM and this project.
# LAUNCHER is the script of TensorRT-LLM's repository, which starts one MPI process and tritonserver in it.
cd "$(dirname "$0")" && exec python3 "${LAUNCHER:-/app/scripts/launch_triton_server.py}" --model_repo "$PWD/triton" \\
  --world_size 1 "$@"
"""


def trtllm_files(spec: BuildSpec, target: TargetConfig, drafter: DrafterConfig, capability: str) -> dict[str, str]:
    """Texts by path.

    Raises:
        PlanError: A setting is none of the release's.
    """
    from peagle_trt.bundle.triton import llmapi_repository

    files = {f"config-{release}.yaml": _config(spec, target, drafter, capability, release) for release in RELEASES}
    settings = trtllm_settings(spec, target, drafter, capability, RELEASES[0])
    return files | {
        PLUGIN: _PLUGIN_TEXT,
        "serve": _SERVE_TEXT,
        "serve-triton": _TRITON_TEXT,
        **llmapi_repository({"model": "../../../target", "backend": "pytorch", **_beside_triton(settings)}),
    }


def trtllm_settings(
    spec: BuildSpec, target: TargetConfig, drafter: DrafterConfig, capability: str, release: str
) -> dict[str, Value]:
    """Arguments of TensorRT-LLM's `LLM`, checked against those of a release.

    Raises:
        PlanError: A setting is none of the release's.
    """
    experts = experts_backend(target, capability)
    document: dict[str, Value] = {
        "trust_remote_code": False,
        "tensor_parallel_size": 1,
        "max_batch_size": spec.max_batch_size,
        "max_num_tokens": max(PROMPT_ROWS_A_STEP, spec.max_batch_size * (spec.draft_tokens + 1)),
        "max_seq_len": spec.max_sequence_length,
        "enable_attention_dp": False,
        "enable_chunked_prefill": True,
        "disable_overlap_scheduler": False,
        "kv_cache_config": {
            # Reused tokens would never pass the drafter, whose cache is its own.
            "enable_block_reuse": False,
            "free_gpu_memory_fraction": _FREE_MEMORY,
            "dtype": cache_type(spec.precision),
        },
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": spec.max_batch_size},
        **({"moe_config": {"backend": experts}} if experts else {}),
        "speculative_config": _SPECULATION[release](spec.draft_tokens, [layer - 1 for layer in drafter.aux_layer_ids]),
    }
    check_document(document, read_fields(f"trtllm_{release}"))
    return document


def _older_speculation(draft_tokens: int, outputs: list[int]) -> dict[str, Value]:
    return {
        "decoding_type": "Eagle",
        "max_draft_len": draft_tokens,
        "speculative_model_dir": "./drafter",
        "eagle3_one_model": True,
        # Without it this release decodes greedily whatever a request asks for.
        "allow_advanced_sampling": True,
        "eagle3_layers_to_capture": outputs,
    }


def _newer_speculation(draft_tokens: int, outputs: list[int]) -> dict[str, Value]:
    return {
        "decoding_type": "Eagle3",
        "max_draft_len": draft_tokens,
        "speculative_model": "./drafter",
        "eagle3_layers_to_capture": outputs,
    }


_SPECULATION: dict[str, Callable[[int, list[int]], dict[str, Value]]] = {
    "1.2.1": _older_speculation,
    "1.4": _newer_speculation,
}


def _config(spec: BuildSpec, target: TargetConfig, drafter: DrafterConfig, capability: str, release: str) -> str:
    heading = (
        f"{spec.name} with its P-EAGLE head, K = {spec.draft_tokens}, for TensorRT-LLM {release} on SM{capability}.",
        "Relative paths mean the build's folder; `serve` goes there. `eagle3_layers_to_capture` counts outputs.",
    )
    return write_yaml(trtllm_settings(spec, target, drafter, capability, release), heading)


def _beside_triton(settings: dict[str, Value]) -> dict[str, Value]:
    """The same settings for a file that lies three folders further down."""
    speculation = settings["speculative_config"]
    assert isinstance(speculation, dict), "written above"
    return settings | {"speculative_config": speculation | {"speculative_model_dir": "../../../drafter"}}
