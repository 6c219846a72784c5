"""Reads the tables of what the worker relies on, one for each release."""

from __future__ import annotations

import tomllib
from importlib import resources

import msgspec

RELEASES = ("1.2.1", "1.4")
"""Releases the worker was written for: the newest stable one, and main with its pre-releases of 1.4."""


class FunctionEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function that is called or replaced; `parameters` in order."""

    module: str
    name: str
    parameters: list[str]
    source: str


class ClassEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A class that is subclassed.

    Attributes:
        methods: Methods that are called or overridden, with their first parameters.
        attributes: Fields that are read.
        lacks: Methods whose presence means another release.
    """

    module: str
    name: str
    source: str
    methods: dict[str, list[str]] = {}
    attributes: list[str] = []
    lacks: list[str] = []


class ReadEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attributes that are read of an object that is handed over."""

    names: list[str]
    source: str


class InterfaceTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the worker relies on in one release.

    Attributes:
        version: A name of `RELEASES`.
        worker: Module whose `PEagleWorker` fits.
        functions: Functions.
        classes: Classes.
        reads: Attributes, by the name of the variable that holds the object.
    """

    version: str
    worker: str
    reads: dict[str, ReadEntry]
    functions: list[FunctionEntry] = msgspec.field(name="function")
    classes: list[ClassEntry] = msgspec.field(name="class")


def read_table(release: str) -> InterfaceTable:
    """The table of a name of `RELEASES`."""
    text = (resources.files("peagle_trt.trtllm.releases") / f"{release}.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), InterfaceTable)
