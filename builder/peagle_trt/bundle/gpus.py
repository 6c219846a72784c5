"""What TensorRT-LLM is told for a target on a GPU: which kernels its experts use, and how its cache is stored."""

from __future__ import annotations

from peagle_trt.errors import PlanError
from peagle_trt.spec import TargetConfig

DEFAULT_CAPABILITY = "100"
"""A B200's."""
KNOWN_CAPABILITIES = ("90", "100", "103")


def require_capability(capability: str) -> str:
    """A GPU that its decoding with drafts is known to work on.

    Raises:
        PlanError: It is another.
    """
    if capability in KNOWN_CAPABILITIES:
        return capability
    reason = "gives gibberish with drafts there (its issue 11125)" if capability == "120" else "was not looked at there"
    raise PlanError(
        f"TensorRT-LLM {reason}: SM{capability}",
        hint=f"settings are known for {', '.join(f'SM{each}' for each in KNOWN_CAPABILITIES)}",
    )


def experts_backend(target: TargetConfig, capability: str) -> str | None:
    """Kernels of the experts, or None for a target without any.

    Source: TensorRT-LLM's deployment guides of gpt-oss (TRTLLM for low latency on Blackwell; TRITON wants expert
        parallelism and a checkout of kernels on Hopper, so CUTLASS there) and of Qwen3 (CUTLASS).
    """
    if target.experts is None:
        return None
    is_gpt_oss = target.has_sinks
    return "TRTLLM" if is_gpt_oss and capability != "90" else "CUTLASS"


def cache_type(precision: str) -> str:
    """Type of the target's cache: as the checkpoint says, since 8-bit caches of gpt-oss gave garbage (issue 10614)."""
    return "fp8" if precision in ("fp8", "nvfp4") else "auto"
