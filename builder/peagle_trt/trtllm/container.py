"""What a container lacks to serve a build with TensorRT-LLM; looks without loading any weight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from peagle_trt.errors import MachineError
from peagle_trt.machine import Machine
from peagle_trt.trtllm.refusals import GIBBERISH_CAPABILITY, KNOWN_CAPABILITIES
from peagle_trt.trtllm.releases.support import CONTAINERS, find_differences, find_version, name_release
from peagle_trt.trtllm.releases.table import read_table

_NEEDED = ("msgspec", "numpy", "torch", "safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerReport:
    """What was found.

    Attributes:
        version: TensorRT-LLM's version, or None.
        release: The release the worker treats it as, or None.
        problems: What is in the way, a sentence each; empty where a build can be served.
    """

    version: str | None
    release: str | None
    problems: tuple[str, ...]


def look_at_container(machine: Machine) -> ContainerReport:
    """Look for TensorRT-LLM, its interfaces, a GPU and the packages that the worker imports."""
    version, release = find_version(), None
    problems = [*_package_problems(machine), *_gpu_problems(machine)]
    if version is None:
        problems.insert(0, f"TensorRT-LLM is not installed: run this inside {CONTAINERS['1.2.1']}")
        return ContainerReport(version=None, release=None, problems=tuple(problems))
    try:
        release = name_release(version)
    except MachineError as error:
        problems.insert(0, f"{error.message}: {error.hint}")
    else:
        problems += find_differences(read_table(release))
    return ContainerReport(version=version, release=release, problems=tuple(problems))


def _package_problems(machine: Machine) -> Iterator[str]:
    for name in _NEEDED:
        if name not in machine.packages:
            yield f"`{name}` is not installed: pip install peagle-trt"


def _gpu_problems(machine: Machine) -> Iterator[str]:
    if not machine.gpus:
        yield "no NVIDIA GPU: start the container with --gpus all"
    for gpu in machine.gpus:
        major, _, minor = gpu.compute_capability.partition(".")
        capability = 10 * int(major) + int(minor or 0)
        if capability not in (*KNOWN_CAPABILITIES, GIBBERISH_CAPABILITY):
            known = ", ".join(f"SM{each}" for each in KNOWN_CAPABILITIES)
            yield f"{gpu.name} is SM{capability}; settings are known for {known}"
        if capability == GIBBERISH_CAPABILITY:
            yield f"{gpu.name} is SM{capability}, where TensorRT-LLM gave gibberish with drafts (its issue 11125)"
