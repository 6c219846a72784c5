"""What a TensorRT backend can be asked for on this machine, decided before the first long step.

Source: TensorRT-RTX 1.7.1 and TensorRT 11.4, tried; NVIDIA's support matrix for number formats.
"""

from __future__ import annotations

import re

from peagle_trt.engine.tensorrt.library import MODULES, Library, load_library
from peagle_trt.errors import MachineError, PlanError
from peagle_trt.machine import Gpu, Machine

DEFAULT_CAPABILITY = "120"
"""RTX PRO 6000 Blackwell and RTX 50: what TensorRT-RTX compiles for where there is no GPU to ask."""

# CUDA version of the oldest driver, 13.0, as CUDA writes it: the libraries are built for CUDA 13, and the PTX of our
# kernels is older.
_OLDEST_DRIVER = 13_000
# The driver of CUDA 13.0 on Linux, for where CUDA cannot be asked. Source: CUDA 13.0 release notes, table 3.
_OLDEST_DRIVER_BRANCH = 580
# Constants of FP4 are compiled for Blackwell alone, experts' words for any; Turing has no bfloat16.
_OLDEST_OF_PRECISION = {
    "nvfp4": 100,
    "nvfp4-awq": 100,
    "nvfp4-mlp": 100,
    "w4a16-nvfp4": 100,
    "fp8": 89,
    "bf16": 80,
    "native": 80,
    "mxfp4": 80,
    "nvfp4-experts": 80,
}


def choose_capabilities(backend: str, requested: tuple[str, ...], precision: str, machine: Machine) -> tuple[str, ...]:
    """The GPUs to compile for.

    Args:
        backend: A TensorRT backend.
        requested: Such as ("120", "89"); empty leaves the choice.
        precision: Recipe of the weights.
        machine: This machine.

    Raises:
        MachineError: The backend cannot compile here.
        PlanError: It does not compile for one of them, or one cannot multiply the recipe's numbers.
    """
    if backend == "tensorrt":
        chosen = _capability_of_this_gpu(requested, machine)
    else:
        chosen = _capabilities_ahead(load_library(backend), requested, machine)
    oldest = _OLDEST_OF_PRECISION.get(precision, 0)
    for capability in chosen:
        if int(capability) < oldest:
            raise PlanError(
                f"SM{capability} cannot multiply {precision}; SM{oldest} is the first that can",
                hint="choose another --precision, such as fp16, or with --sm other GPUs",
            )
    return chosen


def supported_capabilities(library: Library) -> tuple[str, ...]:
    """GPUs that a library compiles for ahead of time, such as "120"; empty where it compiles for its own alone."""
    if not library.is_ahead_of_time:
        return ()
    members = library.module.ComputeCapability.__members__
    found = [match[1] for name in members if (match := re.fullmatch(r"SM(\d+)", name))]
    return tuple(sorted(found, key=int))


def capability_of(gpu: Gpu) -> str:
    """A GPU's compute capability as "100" for 10.0."""
    return gpu.compute_capability.replace(".", "")


def require_gpu(backend: str, machine: Machine) -> Gpu:
    """The first GPU.

    Raises:
        MachineError: There is none, or its driver is too old.
    """
    if not machine.gpus:
        raise MachineError(
            f"backend `{backend}` runs on an NVIDIA GPU, and this machine shows none",
            hint="check that `nvidia-smi` lists one; without, build with --backend onnxruntime",
        )
    problem = find_driver_problem(machine)
    if problem:
        raise MachineError(
            f"{problem}; `{MODULES[backend]}` needs one for CUDA {_dotted(_OLDEST_DRIVER)}",
            hint="update the NVIDIA driver",
        )
    return machine.gpus[0]


def find_driver_problem(machine: Machine) -> str:
    """What is wrong with the driver of a machine with a GPU, in words, or ""."""
    driver, cuda = machine.gpus[0].driver, machine.driver_cuda_version
    if cuda is not None:
        return f"driver {driver} is made for CUDA {_dotted(cuda)}" if cuda < _OLDEST_DRIVER else ""
    branch = driver.partition(".")[0]
    is_old = branch.isdigit() and int(branch) < _OLDEST_DRIVER_BRANCH
    return f"driver {driver} is older than {_OLDEST_DRIVER_BRANCH}" if is_old else ""


def _capability_of_this_gpu(requested: tuple[str, ...], machine: Machine) -> tuple[str, ...]:
    gpu = require_gpu("tensorrt", machine)
    own = capability_of(gpu)
    if requested not in ((), (own,)):
        raise PlanError(
            f"TensorRT compiles for the GPU it runs on, SM{own} ({gpu.name}); --sm asks for {', '.join(requested)}",
            hint="leave --sm out, or use --backend tensorrt-rtx, which compiles for other GPUs",
        )
    load_library("tensorrt")
    return (own,)


def _capabilities_ahead(library: Library, requested: tuple[str, ...], machine: Machine) -> tuple[str, ...]:
    supported = supported_capabilities(library)
    own = [capability_of(gpu) for gpu in machine.gpus]
    # The first GPU is the one that runs it; another beside it that cannot is no reason to refuse.
    own = [each for each in own if each in supported or each == own[0]]
    chosen = tuple(sorted(set(requested), key=int)) or tuple(sorted(set(own), key=int)) or (DEFAULT_CAPABILITY,)
    if machine.gpus and own[0] in chosen:
        # The stage `verify` would find out, after the long one.
        require_gpu(library.backend, machine)
    for capability in chosen:
        if capability not in supported:
            raise PlanError(
                f"{library.module.__name__} {library.version} does not compile for SM{capability}; "
                f"it does for {', '.join(f'SM{each}' for each in supported)}",
                hint="for H100, H200, B200 and B300 build with --backend tensorrt, on that machine",
            )
    return chosen


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
