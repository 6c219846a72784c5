"""`peagle-trt repo`: a build becomes a Triton model repository."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peagle_trt.cli.options import FOLDER, served_prompt_lookup_option
from peagle_trt.cli.output import Output
from peagle_trt.errors import PeagleError, UsageError

if TYPE_CHECKING:
    from peagle_trt.deploy.findings import Finding
    from peagle_trt.deploy.repository import Repository


@click.command("repo")
@click.argument("path", metavar="BUILD", type=FOLDER)
@click.option("-o", "--output", "output_path", type=FOLDER, help="Folder to write; replaced when it is a repository.")
@click.option("--cpu-build", "cpu_build_path", type=FOLDER, help="Build of the same pair for servers without a GPU.")
@served_prompt_lookup_option
@click.option("--check", "is_checked", is_flag=True, help="Look for what would keep the repository from loading.")
@click.pass_obj
def command(
    output: Output,
    path: Path,
    output_path: Path | None,
    cpu_build_path: Path | None,
    prompt_lookup: bool,
    is_checked: bool,
) -> None:
    """Write the Triton model repository of BUILD.

    With --check and without -o, BUILD is a repository to check, ours or anybody's; nothing is written. With
    --cpu-build, `tritonserver --model-config-name=cpu` and `serve --profile cpu` run that build instead.
    """
    if cpu_build_path is not None and output_path is None:
        raise UsageError("--cpu-build goes into a repository, and none is written", hint="name its folder with -o")
    if prompt_lookup and output_path is None:
        raise UsageError("--prompt-lookup goes into a repository, and none is written", hint="name its folder with -o")
    if output_path is None and not is_checked:
        raise UsageError("there is nothing to do", hint="name a folder to write with -o, or ask for --check")
    written = None
    if output_path is not None:
        written = _assemble(output, path, output_path, cpu_build_path, prompt_lookup=prompt_lookup)
    repository_path = path if written is None else written.path
    findings = _check(output, repository_path) if is_checked else []
    document = {"repository": repository_path, "findings": [_document(finding) for finding in findings]}
    if written is not None:
        document["needs"] = None if written.needs is None else asdict(written.needs)
    if any(finding.is_fatal for finding in findings):
        raise PeagleError(f"`{repository_path}` would not load", hint="; ".join(_line(finding) for finding in findings))
    output.result(document, str(repository_path))


def _assemble(
    output: Output, build_path: Path, output_path: Path, cpu_build_path: Path | None, *, prompt_lookup: bool
) -> Repository:
    from peagle_trt.deploy.hosting.settings import HostSettings
    from peagle_trt.deploy.repository import assemble_repository

    settings = HostSettings(default_prompt_lookup=prompt_lookup)
    repository = assemble_repository(build_path, output_path, settings=settings, cpu_build_path=cpu_build_path)
    output.progress(f"wrote {len(repository.model_names)} models: {', '.join(repository.model_names)}")
    if repository.needs is not None:
        output.progress(f"it runs on {repository.needs}")
    return repository


def _check(output: Output, repository_path: Path) -> list[Finding]:
    from peagle_trt.deploy.check import check_repository

    findings = check_repository(repository_path)
    for finding in findings:
        output.progress(f"{'error' if finding.is_fatal else 'note'}: {_line(finding)}")
    output.progress(f"checked {repository_path}: {len(findings) or 'no'} findings")
    return findings


def _line(finding: Finding) -> str:
    return f"{finding.model_name}: {finding.message}"


def _document(finding: Finding) -> dict[str, object]:
    return {"model": finding.model_name, "message": finding.message, "is_fatal": finding.is_fatal}
