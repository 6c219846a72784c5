"""The Triton repository of a build for TensorRT-LLM: NVIDIA's llmapi layout, and the classic door before it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

from peagle_trt.bundle.yaml_text import Value, write_yaml
from peagle_trt.deploy.text_proto import Symbol, write_message
from peagle_trt.deploy.text_proto import Value as Field
from peagle_trt_repo import tensors
from peagle_trt_repo.llmapi_tensors import LLMAPI_INPUTS, LLMAPI_OUTPUTS
from peagle_trt_repo.tensors import TensorField

LLMAPI, ENSEMBLE = "tensorrt_llm", "ensemble"
CANCELLATION_PERIOD_MS = 100
CLASSIC_OUTPUTS = tuple(
    field
    for field in tensors.ENSEMBLE_OUTPUTS
    if field.name in ("text_output", "num_input_tokens", "num_output_tokens", "finish_reason")
)
"""Of the classic outputs, those that TensorRT-LLM's answers tell; what was drafted stands in its own metrics."""


def llmapi_repository(settings: Mapping[str, Value]) -> dict[str, str]:
    """Texts by path.

    Args:
        settings: Arguments of TensorRT-LLM's `LLM`.

    Source: TensorRT-LLM `triton_backend/all_models/llmapi` for names, shapes and `triton_config`; the tables of the
        classic ensemble in `peagle_trt_repo.tensors`.
    """
    server: dict[str, Value] = {
        "max_batch_size": 0,
        "decoupled": True,
        "cancellation_check_period_ms": CANCELLATION_PERIOD_MS,
    }
    return {
        f"triton/{LLMAPI}/config.pbtxt": write_message(_config(LLMAPI, 0, LLMAPI_INPUTS, LLMAPI_OUTPUTS)),
        f"triton/{LLMAPI}/1/model.py": _source("llmapi"),
        f"triton/{LLMAPI}/1/model.yaml": write_yaml({**settings, "triton_config": server}),
        f"triton/{ENSEMBLE}/config.pbtxt": write_message(
            _config(ENSEMBLE, 1, tensors.ENSEMBLE_INPUTS, CLASSIC_OUTPUTS)
        ),
        f"triton/{ENSEMBLE}/1/model.py": _source("classic"),
    }


def _config(
    name: str, max_batch_size: int, inputs: tuple[TensorField, ...], outputs: tuple[TensorField, ...]
) -> dict[str, Field]:
    return {
        "name": name,
        "backend": "python",
        # Here and in model.yaml: the launcher turns off the completion that would read it there.
        "max_batch_size": max_batch_size,
        "model_transaction_policy": {"decoupled": True},
        "input": [_tensor(field) | ({"optional": True} if field.is_optional else {}) for field in inputs],
        "output": [_tensor(field) for field in outputs],
        "instance_group": [{"count": 1, "kind": Symbol("KIND_CPU")}],
    }


def _tensor(field: TensorField) -> dict[str, Field]:
    return {"name": field.name, "data_type": Symbol(f"TYPE_{field.data_type}"), "dims": list(field.dims)}


def _source(name: str) -> str:
    path = resources.files("peagle_trt_repo") / "models" / name / "1" / "model.py"
    return path.read_text(encoding="utf-8")
