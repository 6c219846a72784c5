"""Reads PTX text: its version, its kernel's parameters, and what Triton hid among them."""

from __future__ import annotations

import re

HIDDEN_PARAMETERS = 2
"""Pointers to global and profiling scratch memory that Triton (3.9) adds behind a kernel's own parameters."""

_ENTRY = re.compile(r"(?P<head>\.entry\s+(?P<name>\w+)\s*\()(?P<list>.*?)(?P<tail>\n?\s*\))", re.DOTALL)
_PARAMETER = re.compile(r"\.param\s+\.(\w+)[^,]*?(\w+)\s*$")


def ptx_version(ptx: str) -> str:
    """Version of the language a text is written in, such as "8.7"."""
    found = re.search(r"^\.version\s+(\d+\.\d+)", ptx, re.MULTILINE)
    if found is None:
        raise ValueError("the text is no PTX: it has no `.version`")
    return found[1]


def kernel_name(ptx: str) -> str:
    """Name of the only kernel.

    Raises:
        ValueError: There is not exactly one kernel.
    """
    return _entry(ptx)["name"]


def kernel_parameters(ptx: str) -> tuple[tuple[str, str], ...]:
    """Type and name of every parameter of the only kernel, in order.

    Raises:
        ValueError: There is not exactly one kernel, or a parameter cannot be read.
    """
    return tuple(_read_parameter(text) for text in _entry(ptx)["list"].split(",") if text.strip())


def drop_hidden_parameters(ptx: str) -> str:
    """The kernel without the two pointers that a caller who knows only the contract, as TensorRT, does not supply.

    A launch hands over parameters by their number and place: two that nobody supplies are read from whatever lies
    behind the last one. They stand last and must be unused, so that the text without them means the same.

    Raises:
        ValueError: The last two parameters are no pointers, or the kernel reads them.
    """
    entry, parameters = _entry(ptx), kernel_parameters(ptx)
    hidden = parameters[-HIDDEN_PARAMETERS:]
    if [kind for kind, _ in hidden] != ["u64"] * HIDDEN_PARAMETERS:
        raise ValueError(f"the last parameters are {hidden}; expected Triton's two hidden pointers")
    body = ptx[entry.end() :]
    used = [name for _, name in hidden if re.search(rf"\b{name}\b", body)]
    if used:
        raise ValueError(f"the kernel reads {used}: scratch memory that only Triton's own launcher provides")
    kept = ",".join(entry["list"].split(",")[:-HIDDEN_PARAMETERS])
    return ptx[: entry.start()] + entry["head"] + kept + entry["tail"] + body


def _entry(ptx: str) -> re.Match[str]:
    found = list(_ENTRY.finditer(ptx))
    if len(found) != 1:
        raise ValueError(f"the text has {len(found)} kernels; expected one")
    return found[0]


def _read_parameter(text: str) -> tuple[str, str]:
    found = _PARAMETER.search(text.strip())
    if found is None:
        raise ValueError(f"`{text.strip()}` is no parameter of a kernel")
    return found[1], found[2]
