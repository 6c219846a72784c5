"""Which release of TensorRT-LLM is installed, and whether it is what the worker was written for."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from peagle_trt.errors import MachineError
from peagle_trt.trtllm.releases.table import RELEASES, ClassEntry, FunctionEntry, InterfaceTable, read_table

PACKAGE = "tensorrt_llm"
CONTAINERS = {
    "1.2.1": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1, or nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3",
    "1.4": "nvcr.io/nvidia/tensorrt-llm/release with a tag of 1.4",
}
"""Where a release is installed; the Triton tags were read in the Dockerfiles of its TensorRT-LLM backend."""


def find_version() -> str | None:
    """The version that is installed, or None."""
    if importlib.util.find_spec(PACKAGE) is None:
        return None
    try:
        return metadata.version("tensorrt_llm")
    except metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(PACKAGE), "__version__", "unknown"))


def name_release(version: str) -> str:
    """The name in `RELEASES` that a version belongs to.

    Raises:
        MachineError: It belongs to none.
    """
    if re.fullmatch(r"1\.2\.1(\.post\d+)?(\+.*)?", version):
        return "1.2.1"
    if re.fullmatch(r"1\.4\.\d+.*", version):
        return "1.4"
    raise MachineError(
        f"TensorRT-LLM {version} is installed; the P-EAGLE worker was written for {' and '.join(RELEASES)}",
        hint=f"use {CONTAINERS['1.2.1']}",
    )


def require_release() -> str:
    """The release that is installed, once it is known to have what the worker relies on.

    Raises:
        MachineError: None is installed, an unknown one is, or something it should have is not there.
    """
    version = find_version()
    if version is None:
        raise MachineError(
            "TensorRT-LLM is not installed", hint=f"run this inside its container: {CONTAINERS['1.2.1']}"
        )
    release = name_release(version)
    problems = find_differences(read_table(release))
    if problems:
        raise MachineError(
            f"TensorRT-LLM {version} differs from what the worker was written for: {'; '.join(problems)}",
            hint="`peagle-trt doctor --trtllm` lists all of it; a release that was changed locally may do this",
        )
    return release


@functools.cache
def worker_class() -> Any:
    """The worker of the release that is installed, which `require_release` has looked at."""
    table = read_table(name_release(find_version() or "unknown"))
    return importlib.import_module(table.worker).PEagleWorker


def find_differences(table: InterfaceTable) -> list[str]:
    """What of a table the installed release does not have, in words; empty where all is well."""
    functions = [problem for entry in table.functions for problem in _function_problems(entry)]
    return functions + [problem for entry in table.classes for problem in _class_problems(entry)]


def _function_problems(entry: FunctionEntry) -> Iterator[str]:
    function, problem = _find(entry.module, entry.name)
    if function is None:
        yield problem
    elif problem := _parameter_problem(function, entry.parameters):
        yield f"`{entry.module}.{entry.name}` {problem}"


def _class_problems(entry: ClassEntry) -> Iterator[str]:
    found, problem = _find(entry.module, entry.name)
    if found is None:
        yield problem
        return
    where = f"`{entry.module}.{entry.name}"
    for name, parameters in entry.methods.items():
        method = getattr(found, name, None)
        if method is None:
            yield f"{where}.{name}` is not there"
        elif problem := _parameter_problem(method, parameters):
            yield f"{where}.{name}` {problem}"
    for name in entry.attributes:
        if name not in _annotations(found) and not hasattr(found, name):
            yield f"{where}.{name}` is not there"
    for name in entry.lacks:
        if hasattr(found, name):
            yield f"{where}.{name}` is there, as in a newer release"


def _find(module: str, name: str) -> tuple[Any, str]:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except (ImportError, OSError, RuntimeError) as error:
        # Without a driver its libraries raise any of these.
        return None, f"`{module}` cannot be imported: {error}"
    return found, f"`{module}.{name}` is not there"


def _parameter_problem(function: Any, expected: list[str]) -> str:
    """Words, or nothing where the first parameters are the expected ones and the others have defaults."""
    parameters = list(inspect.signature(function).parameters.values())
    names = [parameter.name for parameter in parameters]
    takes_any = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    if takes_any and all(name in names or index for index, name in enumerate(expected)):
        return ""
    rest = [parameter for parameter in parameters[len(expected) :] if parameter.default is parameter.empty]
    needed = [parameter.name for parameter in rest if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    if names[: len(expected)] == expected and not needed:
        return ""
    return f"takes {names}; expected {expected}"


def _annotations(found: type) -> set[str]:
    return {name for base in found.__mro__ for name in vars(base).get("__annotations__", {})}
