"""The commands there are: name, module and one line, so that `--help` imports none of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEntry:
    """One command.

    Attributes:
        module: Module whose `command` is the click command.
        summary: Its line in `peagle-trt --help`.
    """

    module: str
    summary: str


COMMANDS = {
    "build": CommandEntry(module="peagle_trt.cli.build", summary="Compile a target and its P-EAGLE drafter."),
    "inspect": CommandEntry(module="peagle_trt.cli.inspect", summary="Show what a target or a head is."),
    "diagnose": CommandEntry(module="peagle_trt.cli.diagnose", summary="Find out why a head is seldom accepted."),
    "convert": CommandEntry(module="peagle_trt.cli.convert", summary="Write a head as others read it, or quantize."),
    "verify": CommandEntry(module="peagle_trt.cli.verify", summary="Compare a build with an independent reference."),
    "generate": CommandEntry(module="peagle_trt.cli.generate", summary="Continue a prompt with a build."),
    "train": CommandEntry(module="peagle_trt.cli.train", summary="Train a P-EAGLE head for a target."),
    "repo": CommandEntry(module="peagle_trt.cli.repo", summary="Write the Triton model repository of a build."),
    "serve": CommandEntry(module="peagle_trt.cli.serve", summary="Serve a build with NVIDIA Triton."),
    "bench": CommandEntry(module="peagle_trt.cli.bench", summary="Measure what speculation gains."),
    "bench report": CommandEntry(module="peagle_trt.cli.bench_report", summary="Make a page of what was measured."),
    "tune": CommandEntry(module="peagle_trt.cli.tune", summary="Choose K for a build on this machine, and keep it."),
    "plan": CommandEntry(module="peagle_trt.cli.plan", summary="Predict speed, K and memory on a GPU not here."),
    "doctor": CommandEntry(module="peagle_trt.cli.doctor", summary="Show what this machine has and lacks."),
    "targets": CommandEntry(module="peagle_trt.cli.targets", summary="List the targets known by name."),
}
"""In the order of a user's work. A name of two words is typed as two words."""
