"""The files beside the checkpoints of a build for vLLM."""

from __future__ import annotations

import json
import shlex

from peagle_trt.bundle.fields import check_document, read_fields
from peagle_trt.bundle.gpus import cache_type
from peagle_trt.bundle.yaml_text import Value
from peagle_trt.deploy.text_proto import Symbol, write_message
from peagle_trt.deploy.text_proto import Value as Field
from peagle_trt.spec import BuildSpec

_SERVE_TEXT = """#!/bin/sh
# Start this build with vLLM 0.16 or newer. Prefix caching is off: tokens that are reused never pass the drafter.
cd "$(dirname "$0")" && exec vllm serve ./target --served-model-name {name} --max-num-seqs {max_num_seqs} \\
  --max-model-len {max_model_len} --kv-cache-dtype {kv_cache_dtype} --no-enable-prefix-caching \\
  --speculative-config {speculation} "$@"
"""

_TRITON_TEXT = """#!/bin/sh
# Start this build with Triton, inside NVIDIA's tritonserver container with vLLM; model.json names paths from here.
cd "$(dirname "$0")" && exec tritonserver --model-repository "$PWD/triton" "$@"
"""


def vllm_files(spec: BuildSpec) -> dict[str, str]:
    """Texts by path.

    Source: vLLM `config/speculative.py` for `parallel_drafting`; Triton's vllm_backend for the repository: model.json
        holds engine arguments, config.pbtxt no more than the backend's name.

    Raises:
        PlanError: A setting is none of vLLM's.
    """
    arguments = vllm_arguments(spec, "./target", "./drafter")
    serve = _SERVE_TEXT.format(
        # A folder's name may hold anything that a shell would run.
        name=shlex.quote(spec.name),
        max_num_seqs=arguments["max_num_seqs"],
        max_model_len=arguments["max_model_len"],
        kv_cache_dtype=arguments["kv_cache_dtype"],
        speculation=shlex.quote(json.dumps(arguments["speculative_config"])),
    )
    config: dict[str, Field] = {
        "backend": "vllm",
        "instance_group": [{"count": 1, "kind": Symbol("KIND_MODEL")}],
    }
    return {
        "serve": serve,
        "serve-triton": _TRITON_TEXT,
        "triton/vllm_model/config.pbtxt": write_message(config),
        "triton/vllm_model/1/model.json": json.dumps(arguments, indent=2) + "\n",
    }


def vllm_arguments(spec: BuildSpec, target_path: str, drafter_path: str) -> dict[str, Value]:
    """Engine arguments, checked against vLLM's.

    Raises:
        PlanError: A setting is none of vLLM's.
    """
    document: dict[str, Value] = {
        "model": target_path,
        "max_num_seqs": spec.max_batch_size,
        "max_model_len": spec.max_sequence_length,
        "kv_cache_dtype": cache_type(spec.precision),
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        "speculative_config": {
            "method": "eagle3",
            "model": drafter_path,
            "num_speculative_tokens": spec.draft_tokens,
            "parallel_drafting": True,
        },
    }
    check_document(document, read_fields("vllm"))
    return document
