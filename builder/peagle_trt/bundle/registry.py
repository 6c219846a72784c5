"""The backends whose engines are somebody else's servers, and the stages their builds have."""

from __future__ import annotations

from peagle_trt.errors import PlanError, UsageError
from peagle_trt.spec import DrafterConfig, EngineManifest

BUNDLE_BACKENDS = ("trtllm", "vllm")
"""Names that `--backend` takes for them."""
BUNDLE_STAGES = ("read", "quantize", "engine", "verify", "assemble")
"""Without `graph`: their engines are made from checkpoints when they start."""
SERVERS = {"trtllm": "TensorRT-LLM", "vllm": "vLLM"}
AS_STORED = "native"
"""The precision that leaves the target's files as they are: gpt-oss's MXFP4, or the checkpoint's own quantization."""
_PRECISIONS = (AS_STORED, "fp8", "nvfp4")


def choose_precision(precision: str, automatic: str) -> str:
    """The precision of a build for another server.

    Args:
        precision: As asked for.
        automatic: What stands for a choice.

    Raises:
        UsageError: The writers of quantized checkpoints have no such recipe.
    """
    if precision == automatic:
        return AS_STORED
    if precision not in _PRECISIONS:
        raise UsageError(
            f"precision `{precision}` is none that {' and '.join(SERVERS.values())} load", hint=f"take {_listed()}"
        )
    return precision


def require_parallel(backend: str, drafter: DrafterConfig) -> None:
    """Refuse a plain EAGLE-3 head: both servers run those without our help.

    Raises:
        PlanError: It is one.
    """
    if not drafter.is_parallel:
        raise PlanError(
            f"the head is a plain EAGLE-3 one, which {SERVERS[backend]} runs by itself",
            hint="write it with `peagle-trt convert --to "
            f"{backend}` and follow that project's guide, or use --backend onnxruntime",
        )


def refuse_to_run(manifest: EngineManifest) -> UsageError:
    """What is said to somebody who wants to run such a build with this project's own loop."""
    server = SERVERS[manifest.backend]
    return UsageError(
        f"the build is for {server}: this program holds no engine of it",
        hint=f"start it with its own `serve`, where {server} is installed, or with its Triton repository in `triton/`; "
        "bench it with --url",
    )


def _listed() -> str:
    return ", ".join(_PRECISIONS)
