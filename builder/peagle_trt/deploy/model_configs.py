"""The config.pbtxt of every model, derived from the build's manifest alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from peagle_trt.deploy.engine_needs import engine_needs
from peagle_trt.deploy.hosting.settings import BUILD_FOLDER, CPU_BUILD_FOLDER, HostSettings, write_parameters
from peagle_trt.deploy.text_proto import Symbol, Value, write_message
from peagle_trt.spec import EngineManifest
from peagle_trt_repo import tensors
from peagle_trt_repo.tensors import EnsembleStep, TensorField

MAX_BATCH_SIZE = 1
"""A request is one prompt. The batch dimension is there because classic and OpenAI clients send [1, 1] shapes; the
engine forms its own batches out of the requests in flight."""

NUM_TEXT_INSTANCES = 1
"""Processes for each end of the ensemble; one keeps up with some 1,500 pieces a second."""


def model_configs(manifest: EngineManifest, settings: HostSettings) -> dict[str, str]:
    """Model name to config.pbtxt.

    Args:
        manifest: The build.
        settings: Parameters of the `peagle` model.
    """
    return {
        "peagle": write_message(_peagle(manifest, settings, BUILD_FOLDER)),
        "preprocessing": write_message(
            _python_model("preprocessing", tensors.PREPROCESSING_INPUTS, tensors.PREPROCESSING_OUTPUTS)
        ),
        "postprocessing": write_message(
            _python_model("postprocessing", tensors.POSTPROCESSING_INPUTS, tensors.POSTPROCESSING_OUTPUTS)
        ),
        "ensemble": write_message(_ensemble()),
        "tensorrt_llm_bls": write_message(_bls()),
    }


def cpu_profile(manifest: EngineManifest, settings: HostSettings) -> str:
    """The second configuration of the `peagle` model.

    Args:
        manifest: The build for machines without a GPU.
        settings: Parameters of the model.
    """
    return write_message(_peagle(manifest, settings, CPU_BUILD_FOLDER))


def _peagle(manifest: EngineManifest, settings: HostSettings, build_folder: str) -> dict[str, Value]:
    config = _python_model("peagle", tensors.PEAGLE_INPUTS, tensors.PEAGLE_OUTPUTS)
    described = {
        "build": build_folder,
        "target": manifest.name,
        "method": manifest.drafter.method,
        "backend": manifest.backend,
        "precision": manifest.precision,
        "draft_tokens": str(manifest.shapes.draft_tokens),
        "max_draft_tokens": str(manifest.shapes.max_draft_tokens),
        "max_concurrent_requests": str(manifest.shapes.max_batch_size),
        "max_sequence_length": str(manifest.shapes.max_sequence_length),
        "peagle_trt_version": manifest.peagle_trt_version,
    }
    needs = engine_needs(manifest)
    if needs is not None:
        described |= {
            "compute_capabilities": ", ".join(needs.compute_capabilities),
            "engine_library": ", ".join(needs.libraries),
        }
    return config | {
        "model_transaction_policy": {"decoupled": True},
        "parameters": _map(write_parameters(settings) | described, lambda text: {"string_value": text}),
    }


def _python_model(name: str, inputs: Sequence[TensorField], outputs: Sequence[TensorField]) -> dict[str, Value]:
    return {
        "name": name,
        "backend": "python",
        "max_batch_size": MAX_BATCH_SIZE,
        "input": [_input(field) for field in inputs],
        "output": [_output(field) for field in outputs],
        # One instance holds the one engine; the ends of the ensemble are cheap enough for one each.
        "instance_group": [{"count": NUM_TEXT_INSTANCES, "kind": Symbol("KIND_CPU")}],
    }


def _ensemble() -> dict[str, Value]:
    return {
        "name": "ensemble",
        "platform": "ensemble",
        "max_batch_size": MAX_BATCH_SIZE,
        "input": [_input(field) for field in tensors.ENSEMBLE_INPUTS],
        "output": [_output(field) for field in tensors.ENSEMBLE_OUTPUTS],
        "ensemble_scheduling": {"step": [_step(step) for step in tensors.ensemble_steps()]},
    }


def _bls() -> dict[str, Value]:
    config = _python_model("tensorrt_llm_bls", tensors.ENSEMBLE_INPUTS, tensors.ENSEMBLE_OUTPUTS)
    return config | {
        "model_transaction_policy": {"decoupled": True},
        "parameters": _map({"accumulate_tokens": "false"}, lambda text: {"string_value": text}),
    }


def _step(step: EnsembleStep) -> dict[str, Value]:
    return {
        "model_name": step.model_name,
        "model_version": -1,
        "input_map": _map(step.inputs, str),
        "output_map": _map(step.outputs, str),
    }


def _input(field: TensorField) -> dict[str, Value]:
    return _output(field) | ({"optional": True} if field.is_optional else {})


def _output(field: TensorField) -> dict[str, Value]:
    return {"name": field.name, "data_type": Symbol(f"TYPE_{field.data_type}"), "dims": list(field.dims)}


def _map(entries: Mapping[str, str], value_of: Callable[[str], Value]) -> list[Value]:
    return [{"key": key, "value": value_of(value)} for key, value in entries.items()]
