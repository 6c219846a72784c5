"""What a server loads before it answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from peagle_trt.build_folder import read_manifest
from peagle_trt.deploy.hosting.open import open_engine_host
from peagle_trt.engine.onnxruntime import OnnxRuntimeEngine

from ..conftest import Published


@pytest.mark.parametrize(
    ("default", "schedule", "is_ever_plain"),
    [
        ("build", (), False),
        ("build", ((1, 5), (4, 2)), False),
        ("build", ((1, 5), (4, 0)), True),
        ("auto", (), True),
    ],
)
def test_the_step_graph_is_loaded_where_a_request_may_get_no_drafts_unasked(
    tiny_build: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    default: str,
    schedule: tuple[tuple[int, int], ...],
    is_ever_plain: bool,
) -> None:
    build = shutil.copytree(tiny_build, tmp_path / "1" / "build")
    manifest = read_manifest(build)
    shapes = msgspec.structs.replace(manifest.shapes, draft_schedule=schedule)
    (build / "manifest.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, shapes=shapes)))
    asked: list[bool] = []
    monkeypatch.setattr(OnnxRuntimeEngine, "preload", lambda _, *, plain_steps=True: asked.append(plain_steps))
    monkeypatch.setattr("peagle_trt.deploy.hosting.open.RegisteredFamilies", lambda *_: Published())
    config = {"parameters": {"default_draft_tokens": {"string_value": default}}}
    arguments = {"model_repository": str(tmp_path), "model_version": "1", "model_name": "peagle"}
    open_engine_host({**arguments, "model_config": json.dumps(config)})
    assert asked == [is_ever_plain]
