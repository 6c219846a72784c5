"""The keys that servers take in their settings, release by release, and the check against them."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources

import msgspec

from peagle_trt.bundle.yaml_text import Document
from peagle_trt.errors import PlanError

_TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "integer": (int,),
    "number": (int, float),
    "flag": (bool,),
    "integers": (list, tuple),
    "strings": (list, tuple),
}


class FieldTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of one release.

    Attributes:
        release: Its name.
        source: Where they were read.
        fields: Kind of value by key; a key inside another has a dot.
        choices: Values of a key that takes no others.
    """

    release: str
    source: str
    fields: dict[str, str]
    choices: dict[str, list[str]] = {}


def read_fields(name: str) -> FieldTable:
    """The table of a server's release: `trtllm_1.2.1`, `trtllm_1.4` or `vllm`."""
    text = (resources.files("peagle_trt.bundle.tables") / f"{name}.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), FieldTable)


def check_document(document: Document, table: FieldTable) -> None:
    """Refuse a key that a server would refuse, or leave unread.

    Raises:
        PlanError: A key is unknown, or its value is of another kind.
    """
    for path, value in _flatten(document):
        kind = table.fields.get(path)
        if kind is None:
            close = difflib.get_close_matches(path, table.fields, n=1)
            raise PlanError(
                f"`{path}` is no setting of {table.release}",
                hint=f"did you mean `{close[0]}`?" if close else f"its settings were read in {table.source}",
            )
        is_flag = isinstance(value, bool)
        if not isinstance(value, _TYPES[kind]) or is_flag != (kind == "flag"):
            raise PlanError(
                f"`{path}` of {table.release} is {value!r}; expected a value of kind {kind}", hint="mind the quotes"
            )
        allowed = table.choices.get(path)
        if allowed is not None and value not in allowed:
            raise PlanError(
                f"`{path}` is {value!r}; {table.release} takes {', '.join(allowed)}", hint="take one of them"
            )


def _flatten(document: Document, prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
