"""What TensorRT-LLM's processes import: checks the release, then registers the targets."""

from __future__ import annotations


def install() -> None:
    """Make TensorRT-LLM serve P-EAGLE heads, in this process and the workers it starts; safe to call twice.

    Raises:
        MachineError: TensorRT-LLM is not installed, or it is a release that the worker was not written for.
    """
    from peagle_trt.trtllm.releases.support import require_release

    require_release()
    from peagle_trt.trtllm.adapters import targets

    assert targets.__name__ == "peagle_trt.trtllm.adapters.targets", "worker processes import it by this name"
