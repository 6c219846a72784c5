"""A manifest whose graphs are not what it says elsewhere is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from peagle_trt.build_folder import read_manifest
from peagle_trt.engine.registry import check_record
from peagle_trt.errors import UsageError


def test_manifests_as_they_were_and_are_written_are_taken(tiny_build: Path) -> None:
    manifest = read_manifest(tiny_build)
    check_record(manifest)
    graphs = {role: path for role, path in manifest.graphs.items() if role != "target.step"}
    check_record(msgspec.structs.replace(manifest, graphs=graphs))
    narrower = msgspec.structs.replace(manifest.shapes, max_batch_size=2)
    check_record(msgspec.structs.replace(manifest, shapes=narrower))


@pytest.mark.parametrize(
    ("role", "path", "message"),
    [
        ("target.step", "engine/nothing.onnx", "its target.step `engine/nothing.onnx` is not in its list of files"),
        ("target.step", "../b/engine/target.step.onnx", "is not in its list of files"),
        ("target.step", "/etc/hostname", "is not in its list of files"),
        ("target.step", "engine", "is not in its list of files"),
        ("target.step", "", "is not in its list of files"),
        ("target.step", "engine/target.b8.onnx", "`engine/target.b8.onnx` is not its target.step"),
        ("target.b1", "engine/drafter.b1.onnx", "`engine/drafter.b1.onnx` is not its target.b1"),
        ("target.stepp", "engine/target.step.onnx", "one of its graphs is `target.stepp`, expected target.bG"),
        ("drafter.step", "engine/target.step.onnx", "one of its graphs is `drafter.step`"),
        ("target.bx", "engine/target.b1.onnx", "one of its graphs is `target.bx`"),
        ("target.b0", "engine/target.b1.onnx", "one of its graphs is `target.b0`"),
    ],
)
def test_a_graph_that_cannot_be_is_named(tiny_build: Path, role: str, path: str, message: str) -> None:
    manifest = read_manifest(tiny_build)
    with pytest.raises(UsageError, match=message):
        check_record(msgspec.structs.replace(manifest, graphs={**manifest.graphs, role: path}))


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (("target.b8",), "its target takes 1 sequences, and its limits say 8"),
        (("target.b1", "target.b8"), "its target takes 0 sequences"),
        (("drafter.b8",), "its drafter takes 4 sequences, and its limits say 8"),
    ],
)
def test_a_missing_size_is_named(tiny_build: Path, missing: tuple[str, ...], message: str) -> None:
    manifest = read_manifest(tiny_build)
    graphs = {role: path for role, path in manifest.graphs.items() if role not in missing}
    with pytest.raises(UsageError, match=message):
        check_record(msgspec.structs.replace(manifest, graphs=graphs))
