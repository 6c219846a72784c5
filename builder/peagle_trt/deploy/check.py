"""Finds, without a server, what would keep a model repository from loading.

A server reports most of these as "failed to poll from model repository" and hangs for ever on a missing model.py.
Source: behaviour of tritonserver 2.51, each case provoked.
"""

from __future__ import annotations

import difflib
import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from peagle_trt.deploy.build_files import open_build_tokenizer, read_whole_build
from peagle_trt.deploy.check_ensemble import check_ensemble
from peagle_trt.deploy.engine_needs import engine_needs, why_not_here
from peagle_trt.deploy.findings import Finding
from peagle_trt.deploy.hosting.settings import BUILD_FOLDER, HostSettings, read_settings, write_parameters
from peagle_trt.errors import MachineError, PeagleError, UsageError
from peagle_trt.machine import Machine
from peagle_trt_repo.tensors import PEAGLE_INPUTS

OPENAI_INPUTS = (
    "text_input",
    "stream",
    "max_tokens",
    "stop_words",
    "top_p",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "temperature",
    "return_num_input_tokens",
    "return_num_output_tokens",
)
"""What NVIDIA's OpenAI frontend sends to a model; one undeclared name fails every request. Source: server 26.09."""

MISSPELT = 0.8
"""How alike a parameter's name must be to one of ours to be taken for it; others may be anybody's notes."""


def check_repository(path: Path, machine: Machine | None = None) -> list[Finding]:
    """Everything that is wrong with a repository, model by model.

    Args:
        path: Folder with one folder a model.
        machine: What compiled engines are held against; None looks around.

    Raises:
        UsageError: There is no repository.
        MachineError: The parser of Triton's configurations is not installed.
    """
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []
    if not folders:
        raise UsageError(f"`{path}` holds no models")
    configs: dict[str, Any] = {}
    findings: list[Finding] = []
    for folder in folders:
        parsed = _parse(folder)
        if isinstance(parsed, Finding):
            findings.append(parsed)
        else:
            configs[folder.name] = parsed
            findings += _check_model(folder, parsed)
            findings += _check_engines(folder, parsed, machine)
            findings += _check_texts(folder)
        findings += _check_profiles(folder)
    for name, config in configs.items():
        if config.platform == "ensemble":
            findings += check_ensemble(name, configs)
    return findings


def _check_profiles(folder: Path) -> Iterator[Finding]:
    """What is wrong with the configurations that a server takes with --model-config-name."""
    for path in sorted((folder / "configs").glob("*.pbtxt")):
        parsed = _parse(folder, path.relative_to(folder))
        if isinstance(parsed, Finding):
            yield parsed
            continue
        for finding in _check_model(folder, parsed):
            yield replace(finding, message=f"`configs/{path.name}`: {finding.message}")


def _parse(folder: Path, name: Path = Path("config.pbtxt")) -> Any:
    """A configuration, or the finding that says why there is none."""
    try:
        text_format = importlib.import_module("google.protobuf.text_format")
        model_config_pb2 = importlib.import_module("tritonclient.grpc.model_config_pb2")
    except ImportError as error:
        raise MachineError("`tritonclient` is not installed", hint="pip install 'peagle-trt[serve]'") from error
    path = folder / name
    if not path.is_file():
        return Finding(model_name=folder.name, message=f"`{name}` is missing")
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        return Finding(model_name=folder.name, message=f"`{name}` cannot be read: {error}")
    if placeholder := re.search(r"\$\{[^}]*\}?", text):
        return Finding(model_name=folder.name, message=f"`{name}` holds the unfilled `{placeholder[0]}`")
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        return Finding(model_name=folder.name, message=f"`{name}` cannot be read: {error}")


def _check_model(folder: Path, config: Any) -> Iterator[Finding]:
    messages = [*_check_identity(folder, config), *_check_placement(config), *_check_versions(folder, config)]
    for message in messages:
        yield Finding(model_name=folder.name, message=message)
    if config.name == "peagle":
        for message in _check_settings(config):
            yield Finding(model_name=folder.name, message=message)
        for message in _misspelt_settings(config):
            yield Finding(model_name=folder.name, message=message, is_fatal=False)
    if config.name == "peagle" or config.platform == "ensemble":
        declared = {tensor.name for tensor in config.input}
        for name in OPENAI_INPUTS:
            if name not in declared:
                message = f"input `{name}` is not declared; an OpenAI frontend sends it"
                yield Finding(model_name=folder.name, message=message, is_fatal=False)


def _check_engines(folder: Path, config: Any, machine: Machine | None) -> Iterator[Finding]:
    """Whether this machine runs the engines inside; another may, so that is only worth knowing."""
    if config.name != "peagle":
        return
    build = config.parameters["build"].string_value or BUILD_FOLDER
    for path in sorted(folder.glob(f"[0-9]*/{build}/manifest.json")):
        place = f"{path.parent.parent.name}/{build}"
        try:
            manifest = read_whole_build(path.parent)
        except PeagleError as error:
            yield Finding(model_name=folder.name, message=f"`{place}` cannot be read: {error.message}")
            continue
        needs, reason = engine_needs(manifest), why_not_here(manifest, machine)
        if needs is not None and reason is not None:
            message = f"`{place}` needs {needs}, and would not load on this machine: {reason}"
            yield Finding(model_name=folder.name, message=message, is_fatal=False)


def _check_texts(folder: Path) -> Iterator[Finding]:
    """Whether the two models around the engine can open the tokenizer that came with them."""
    if folder.name not in ("preprocessing", "postprocessing"):
        return
    for path in sorted(folder.glob(f"[0-9]*/{BUILD_FOLDER}")):
        try:
            open_build_tokenizer(path)
        except PeagleError as error:
            message = f"`{path.parent.name}/{BUILD_FOLDER}` cannot be read: {error.message}"
            yield Finding(model_name=folder.name, message=message)


def _check_settings(config: Any) -> Iterator[str]:
    """What is wrong with the values of the parameters that the model reads."""
    parameters = {name: {"string_value": entry.string_value} for name, entry in config.parameters.items()}
    try:
        read_settings({"model_config": json.dumps({"parameters": parameters})})
    except PeagleError as error:
        yield error.message


def _misspelt_settings(config: Any) -> Iterator[str]:
    known = sorted(write_parameters(HostSettings()))
    for name in sorted(set(config.parameters) - set(known)):
        for close in difflib.get_close_matches(name, known, n=1, cutoff=MISSPELT):
            yield f"parameter `{name}` is read by nothing; did you mean `{close}`?"


def _check_identity(folder: Path, config: Any) -> Iterator[str]:
    if config.name and config.name != folder.name:
        yield f"its configuration says `{config.name}`, its folder `{folder.name}`"
    if not config.backend and not config.platform:
        yield "neither `backend` nor `platform` is set"
    for kind, fields in (("input", config.input), ("output", config.output)):
        names = [field.name for field in fields]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"{kind} `{name}` is declared twice"
    if config.name == "peagle" and {field.name for field in config.input} != {field.name for field in PEAGLE_INPUTS}:
        yield "its inputs are not those of this version; assemble the repository again"


def _check_placement(config: Any) -> Iterator[str]:
    kinds = type(config).DESCRIPTOR.fields_by_name["instance_group"].message_type.enum_types_by_name["Kind"]
    gpu = kinds.values_by_name["KIND_GPU"].number
    if any(group.kind == gpu for group in config.instance_group):
        yield "`KIND_GPU` does not load on a machine without a GPU; the engine places itself, use `KIND_CPU`"
    if config.response_cache.enable and config.model_transaction_policy.decoupled:
        yield "`response_cache` does not go with a decoupled model"


def _check_versions(folder: Path, config: Any) -> Iterator[str]:
    versions = sorted(entry for entry in folder.iterdir() if entry.is_dir() and entry.name.isdecimal())
    if not versions:
        yield "it has no version folder such as `1`"
    if config.backend != "python":
        return
    for version in versions:
        source = version / (config.default_model_filename or "model.py")
        if not source.is_file():
            yield f"`{version.name}/{source.name}` is missing; the server would load for ever"
            continue
        yield from _check_source(source)
        if config.name == "peagle":
            build = config.parameters["build"].string_value or BUILD_FOLDER
            if not (version / build / "manifest.json").is_file():
                yield f"`{version.name}/{build}/manifest.json` is missing"


def _check_source(source: Path) -> Iterator[str]:
    try:
        compile(source.read_text(encoding="utf-8"), source.name, "exec")
    except (SyntaxError, UnicodeDecodeError) as error:
        yield f"`{source.parent.name}/{source.name}` is not valid Python: {error}"
