"""`peagle-trt doctor`: what this machine has and lacks."""

from __future__ import annotations

from dataclasses import asdict

import click

from peagle_trt.cli.output import Output
from peagle_trt.machine import Machine, find_problems, probe_machine


@click.command("doctor")
@click.pass_obj
def command(output: Output) -> None:
    """Show Python, packages, processors, GPUs and servers, and what will get in the way."""
    machine = probe_machine()
    problems = find_problems(machine)
    output.result({"machine": asdict(machine), "problems": list(problems)}, _text(machine, problems))


def _text(machine: Machine, problems: tuple[str, ...]) -> str:
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
    lines += [f"package    {name} {version}" for name, version in machine.packages.items()]
    lines += [f"note: {problem}" for problem in problems] or ["nothing in the way"]
    return "\n".join(lines)
