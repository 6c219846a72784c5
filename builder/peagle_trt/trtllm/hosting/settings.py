"""What `model.yaml` says: arguments of TensorRT-LLM's `LLM`, and how the server treats the model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from peagle_trt.errors import PlanError

SERVER_SECTION = "triton_config"
_PATHS = ("speculative_model", "speculative_model_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmSettings:
    """Settings of the model.

    Attributes:
        arguments: Keyword arguments of `LLM`, paths made whole.
        max_requests: Requests that are answered at once.
    """

    arguments: dict[str, object]
    max_requests: int


def read_llm_settings(path: Path) -> LlmSettings:
    """Read `model.yaml`; relative paths mean its folder.

    Raises:
        PlanError: It is absent or damaged, lacks the pair or the number of requests, or reuses the target's cache.
    """
    try:
        document = msgspec.yaml.decode(path.read_bytes(), type=dict[str, object])
    except (OSError, msgspec.MsgspecError, ImportError) as error:
        raise PlanError(f"cannot read `{path}`: {error}", hint="build it again") from error
    document.pop(SERVER_SECTION, None)
    speculation, cache = (_section(path, document, key) for key in ("speculative_config", "kv_cache_config"))
    if cache.get("enable_block_reuse", True):
        raise PlanError(
            f"`{path}`: `kv_cache_config.enable_block_reuse` is on, and the drafter's cache cannot follow",
            hint="set it to false",
        )
    heads = {name: _whole(path, name, value) for name, value in speculation.items() if name in _PATHS}
    if not heads:
        raise PlanError(f"`{path}`: `speculative_config` names no head", hint=f"give its folder as `{_PATHS[0]}`")
    target = _whole(path, "model", document.get("model"))
    document |= {"speculative_config": speculation | heads, "model": target}
    batch = document.get("max_batch_size")
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise PlanError(f"`{path}`: `max_batch_size` is {batch!r}; expected a number from 1 on", hint="mind the quotes")
    return LlmSettings(arguments=document, max_requests=batch)


def forget_launcher() -> None:
    """Drop what an `mpirun` around the server left in the environment, so that TensorRT-LLM can start its own workers.

    Source: TensorRT-LLM `triton_backend/all_models/llmapi/tensorrt_llm/1/model.py`, which does so before its imports;
        settings of the MPI library itself stay.
    """
    for name in list(os.environ):
        is_job = name.startswith(("OMPI_", "PMIX_", "PMI_", "ORTE_")) and "_MCA_" not in name
        if is_job or name.startswith("OMPI_MCA_orte_"):
            del os.environ[name]


def _section(path: Path, document: dict[str, object], key: str) -> dict[str, object]:
    value = document.get(key)
    if not isinstance(value, dict):
        raise PlanError(f"`{path}` has no section `{key}`", hint="build it again")
    return dict(value)


def _whole(path: Path, name: str, value: object) -> str:
    folder = (path.parent / value).resolve() if isinstance(value, str) and value else None
    if folder is None or not folder.is_dir():
        raise PlanError(
            f"`{path}`: `{name}` is {value!r}, which is no folder beside it",
            hint="move the build as a whole: its Triton repository names its checkpoints",
        )
    return str(folder)
