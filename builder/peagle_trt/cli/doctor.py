"""`peagle-trt doctor`: what this machine has and lacks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from peagle_trt.cli.output import Output
from peagle_trt.engine.registry import choose_backend
from peagle_trt.errors import MachineError, PeagleError, UsageError
from peagle_trt.machine import Machine, find_problems, probe_machine

if TYPE_CHECKING:
    from peagle_trt_plugins.kernel_build import CompiledKernel


@click.command("doctor")
@click.option(
    "--kernels",
    "compiles_kernels",
    is_flag=True,
    help="Compile every kernel of the plugins for H200, B200, B300 and RTX PRO 6000 instead, and show what each needs. "
    "Takes no GPU, about a minute, and the extra `kernels`.",
)
@click.option(
    "--trtllm",
    "looks_at_container",
    is_flag=True,
    help="Say instead what this container lacks to serve a build for TensorRT-LLM: its release, every interface the "
    "P-EAGLE worker relies on, GPUs and packages. Exit code 3 where something is missing.",
)
@click.pass_obj
def command(output: Output, compiles_kernels: bool, looks_at_container: bool) -> None:
    """Show Python, packages, processors, GPUs and servers, and what will get in the way.

    With --kernels: for every kernel and GPU the registers and spilled bytes of a thread, the shared memory of a block,
    the version of its PTX, the CUDA version of the oldest driver that accepts it, and the types of the parameters that
    TensorRT supplies (the two pointers that Triton adds are taken out first). `problems` is empty where all is well.
    Exit code 3 says that Triton or ptxas is missing.
    """
    if compiles_kernels and looks_at_container:
        raise UsageError("--kernels and --trtllm are two reports", hint="ask for one at a time")
    if compiles_kernels:
        _report_kernels(output)
        return
    if looks_at_container:
        _report_container(output)
        return
    machine = probe_machine()
    problems = find_problems(machine)
    backend, reason = choose_backend("auto", machine)
    document = {
        "machine": asdict(machine),
        "automatic_backend": {"name": backend, "reason": reason},
        "problems": list(problems),
    }
    output.result(document, _text(machine, f"{backend}: {reason}", problems))


def _report_container(output: Output) -> None:
    from peagle_trt.trtllm.container import look_at_container

    report = look_at_container(probe_machine())
    for problem in report.problems:
        output.progress(f"missing: {problem}")
    if report.problems:
        raise MachineError(
            f"a build for TensorRT-LLM cannot be served here: {'; '.join(report.problems)}",
            hint="the build's `serve` starts it once all of this is mended",
        )
    output.result(asdict(report), f"TensorRT-LLM {report.version}, served as {report.release}: nothing is missing")


def _report_kernels(output: Output) -> None:
    from peagle_trt_plugins.kernel_build import KernelError, MissingToolError

    try:
        kernels = _compile_kernels(output)
    except MissingToolError as error:
        raise MachineError(str(error), hint=error.hint) from error
    except KernelError as error:
        raise PeagleError(str(error), hint="the kernels are compiled with the release that `kernels` pins") from error
    problems = [
        f"{kernel.kernel}, {kernel.label}, {kernel.architecture}: {problem}"
        for kernel in kernels
        for problem in kernel.problems
    ]
    lines = [_kernel_line(kernel) for kernel in kernels]
    lines += [f"note: {problem}" for problem in problems] or ["nothing in the way"]
    output.result({"kernels": [asdict(kernel) for kernel in kernels], "problems": problems}, "\n".join(lines))


def _compile_kernels(output: Output) -> list[CompiledKernel]:
    from peagle_trt_plugins.kernel_build import compile_kernel
    from peagle_trt_plugins.kernel_targets import ARCHITECTURES, kernel_variants

    kernels = []
    for variant in kernel_variants():
        output.progress(f"compiling {variant.kernel}, {variant.label}")
        kernels += [compile_kernel(variant, architecture) for architecture in ARCHITECTURES]
    return kernels


def _kernel_line(kernel: CompiledKernel) -> str:
    return (
        f"{kernel.architecture:8} {kernel.kernel:24} {kernel.registers:3} registers, {kernel.spilled_bytes} B spilled, "
        f"{kernel.shared_bytes:6} B shared, {len(kernel.parameters):2} parameters, PTX {kernel.ptx_version} "
        f"(CUDA {kernel.driver_cuda}): {kernel.label}"
    )


def _text(machine: Machine, backend: str, problems: tuple[str, ...]) -> str:
    lines = [
        f"system     {machine.system}, Python {machine.python}",
        f"processor  {machine.processor}, {machine.num_usable_cores} usable cores",
        f"memory     {machine.memory_bytes / 1e9:.1f} GB",
        f"server     {machine.triton_server or 'none'}",
    ]
    for gpu in machine.gpus:
        lines.append(
            f"gpu        {gpu.name}, compute {gpu.compute_capability}, {gpu.memory_bytes / 1e9:.0f} GB, {gpu.driver}"
        )
    if machine.driver_cuda_version is not None:
        major, minor = divmod(machine.driver_cuda_version, 1000)
        lines.append(f"driver     made for CUDA {major}.{minor // 10}")
    lines.append(f"backend    {backend}")
    lines += [f"package    {name} {version}" for name, version in machine.packages.items()]
    lines += [f"note: {problem}" for problem in problems] or ["nothing in the way"]
    return "\n".join(lines)
