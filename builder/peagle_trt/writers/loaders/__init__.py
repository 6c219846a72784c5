"""Whether vLLM and TensorRT-LLM would load a quantized folder, by the rules that their sources state.

Nothing of theirs is run: each rule names where it was read. A rule that would be broken in silence counts as refused.
"""

from __future__ import annotations

from pathlib import Path

from peagle_trt.readers import Finding
from peagle_trt.writers.loaders.folder import read_quantized_folder
from peagle_trt.writers.loaders.tensors import judge_tensors
from peagle_trt.writers.loaders.trtllm import judge_trtllm
from peagle_trt.writers.loaders.vllm import judge_vllm

LOADERS = ("vLLM", "TensorRT-LLM")


def judge_folder(path: Path) -> list[Finding]:
    """Every rule, with what was found; those of one loader begin with its name.

    Args:
        path: Folder of a target or a head.

    Raises:
        CheckpointError: The folder is damaged, or it is not quantized.
    """
    folder = read_quantized_folder(path)
    return [*judge_tensors(folder), *judge_vllm(folder), *judge_trtllm(folder)]
