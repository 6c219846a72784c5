"""Every name of TensorRT-LLM that the code uses is in the table of each release it is used with."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import peagle_trt.trtllm
from peagle_trt.trtllm.releases.support import find_differences
from peagle_trt.trtllm.releases.table import RELEASES, InterfaceTable, read_table
from tests.support.fake_trtllm import installed

ROOM = Path(peagle_trt.trtllm.__file__).parent
WORKERS = {"worker_1_2.py": "1.2.1", "worker_1_4.py": "1.4"}
SOURCES = [path for folder in ("adapters", "runtime", "hosting") for path in sorted((ROOM / folder).glob("*.py"))]
SOURCES += [ROOM / "refusals.py"]
OURS = {"spec_metadata": {"peagle_slots"}}
# Ours are called alike in some files: the head's configuration, and the target's sizes.
OTHERS = {("draft_model.py", "model_config"): {"pretrained_config"}}


def tables_of(path: Path) -> list[InterfaceTable]:
    releases = [WORKERS[path.name]] if path.name in WORKERS else list(RELEASES)
    return [read_table(release) for release in releases]


def imported(path: Path) -> set[tuple[str, str]]:
    return {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorrt_llm")
        for alias in node.names
    }


def attributes(path: Path) -> set[tuple[str, str]]:
    """Pairs of a variable's name and an attribute that is read of it."""
    return {
        (node.value.id, node.attr)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_every_import_is_in_the_table(path: Path) -> None:
    for table in tables_of(path):
        known = {(entry.module, entry.name) for entry in (*table.functions, *table.classes)}
        # A module is imported to replace a function in it.
        known |= {tuple(entry.module.rpartition(".")[::2]) for entry in table.functions}  # type: ignore[misc]
        assert imported(path) <= known


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_every_attribute_of_what_is_handed_over_is_in_the_table(path: Path) -> None:
    for table in tables_of(path):
        unknown = {
            (variable, name)
            for variable, name in attributes(path)
            if variable in table.reads
            and name not in {*table.reads[variable].names, *OURS.get(variable, set())}
            and name not in OTHERS.get((path.name, variable), set())
        }
        assert unknown == set()


@pytest.mark.parametrize(
    "path", [ROOM / "adapters" / name for name in ("worker.py", *WORKERS)], ids=lambda path: path.name
)
def test_a_worker_calls_only_methods_of_its_base_that_are_in_the_table(path: Path) -> None:
    own = {"max_draft_len", "spec_config", "mapping", "engine", "verify_and_draft"}
    used = {name for variable, name in attributes(path) if variable == "self"}
    for table in tables_of(path):
        base = next(entry for entry in table.classes if entry.name == "SpecWorkerBase")
        assert used <= {*base.methods, *own}


@pytest.mark.parametrize("release", RELEASES)
def test_the_stand_in_is_what_the_table_says(release: str) -> None:
    with installed(release):
        assert find_differences(read_table(release)) == []


@pytest.mark.parametrize(("release", "other"), [("1.2.1", "1.4"), ("1.4", "1.2.1")])
def test_releases_are_told_apart(release: str, other: str) -> None:
    with installed(release):
        assert find_differences(read_table(other)) != []


@pytest.mark.parametrize("release", RELEASES)
def test_every_entry_names_the_file_it_was_read_in(release: str) -> None:
    table = read_table(release)
    entries = (*table.functions, *table.classes, *table.reads.values())
    assert all(".py" in entry.source for entry in entries)
    assert table.version == release
