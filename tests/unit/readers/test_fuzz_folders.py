"""Forged indexes, links and odd files in a checkpoint's folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from peagle_trt.readers.json_file import Fields, read_object
from peagle_trt.readers.shards import INDEX_FILE, SINGLE_FILE, read_folder_tensors
from tests.support.fuzzing import JSON_VALUES, bounded, byte_mutations, examples, fuzzed, nested, refuses_or_reads

SHARDS = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name, file_name in SHARDS.items():
        save_file({name: np.ones(3, np.float32)}, folder / file_name)
    write_index(folder, SHARDS)
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "outside.safetensors")
    return folder


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {"total_size": 24}, "weight_map": weight_map}))


def is_refused(folder: Path) -> bool:
    with bounded():
        return refuses_or_reads(lambda: read_folder_tensors(folder), folder) is None


FILE_NAMES = st.one_of(st.sampled_from([*SHARDS.values(), INDEX_FILE, "../outside.safetensors", ""]), JSON_VALUES)
WEIGHT_MAPS = st.one_of(
    st.dictionaries(st.one_of(st.sampled_from(["a", "b"]), st.text(max_size=3)), FILE_NAMES, max_size=4), JSON_VALUES
)


@examples(200)
def test_forged_weight_maps(num_examples: int, folder: Path) -> None:
    @fuzzed(num_examples)
    @given(WEIGHT_MAPS)
    def try_weight_map(weight_map: Any) -> None:
        write_index(folder, weight_map)
        tensors = refuses_or_reads(lambda: read_folder_tensors(folder), folder)
        assert tensors is None or tensors.keys() <= SHARDS.keys()

    with bounded():
        try_weight_map()


@examples(200)
def test_broken_bytes_of_an_index(num_examples: int, folder: Path) -> None:
    content = (folder / INDEX_FILE).read_bytes()

    @fuzzed(num_examples)
    @given(byte_mutations(content, header_bytes=len(content)))
    def try_bytes(changed: bytes) -> None:
        (folder / INDEX_FILE).write_bytes(changed)
        refuses_or_reads(lambda: read_folder_tensors(folder), folder)

    with bounded():
        try_bytes()


NAMES = ["../outside.safetensors", "/etc/passwd", "..", ".", "", "a/b", "x" * 300, "é" * 200, "a\0b", "\ud800", "a\\b"]


@pytest.mark.parametrize("name", NAMES)
def test_a_shard_outside_the_folder_is_refused(name: str, folder: Path) -> None:
    write_index(folder, {"a": name})
    assert is_refused(folder)


def test_a_shard_that_links_to_itself_is_refused(folder: Path) -> None:
    path = folder / SHARDS["a"]
    path.unlink()
    path.symlink_to(path.name)
    assert is_refused(folder)


def test_a_shard_that_links_to_a_loop_of_links_is_refused(folder: Path) -> None:
    (folder / "x").symlink_to("y")
    (folder / "y").symlink_to("x")
    (folder / SHARDS["a"]).unlink()
    (folder / SHARDS["a"]).symlink_to("x")
    assert is_refused(folder)


def test_an_index_that_links_to_itself_is_refused(folder: Path) -> None:
    (folder / INDEX_FILE).unlink()
    (folder / INDEX_FILE).symlink_to(INDEX_FILE)
    assert is_refused(folder)


def test_an_index_that_names_itself_is_refused(folder: Path) -> None:
    write_index(folder, {"a": INDEX_FILE})
    assert is_refused(folder)


@pytest.mark.parametrize("name", [INDEX_FILE, SHARDS["a"]])
@pytest.mark.parametrize("target", ["/dev/zero", "/dev/full", "/proc/self/mem", "/proc/kmsg", "/"])
def test_a_device_is_not_read(name: str, target: str, folder: Path) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(target)
    assert is_refused(folder)


def test_a_shard_that_was_deleted_is_named(folder: Path) -> None:
    (folder / SHARDS["b"]).unlink()
    assert is_refused(folder)


def test_a_file_of_holes_costs_no_memory(folder: Path) -> None:
    for name in (INDEX_FILE, SHARDS["a"], SINGLE_FILE):
        (folder / name).touch()
        os.truncate(folder / name, 1 << 40)
    assert is_refused(folder)
    (folder / INDEX_FILE).unlink()
    assert is_refused(folder)


RAW = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff",
    b'{"a":1,"a":2}',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"a":%s}' % (b"9" * 5000),
    b"\xef\xbb\xbf{}",
    "{}".encode("utf-16"),
    "{}".encode("utf-32"),
    b'{"%s":1,"%s":2}' % (b"x" * 1_000_000, b"x" * 1_000_000),
]


@pytest.mark.parametrize("content", RAW, ids=range(len(RAW)))
def test_what_is_no_json_object_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with bounded():
        assert refuses_or_reads(lambda: read_object(path), path) is None


@pytest.mark.parametrize("depth", [900, 940, 960, 980])
def test_a_value_too_deep_to_be_shown_is_refused(depth: int, tmp_path: Path) -> None:
    fields = Fields(source=tmp_path / "config.json", values={"a": nested(depth)})
    assert refuses_or_reads(lambda: call_deep(100, lambda: fields.text("a")), fields.source) is None


def call_deep(num_frames: int, call: Callable[[], str]) -> str:
    """What is called where less of the stack is left."""
    return call() if num_frames == 0 else call_deep(num_frames - 1, call)


def test_nesting_is_as_deep_as_it_claims() -> None:
    assert json.dumps(nested(3)) == "[[[[]]]]"
