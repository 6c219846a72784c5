"""Manifests of earlier builds are still read."""

from __future__ import annotations

import json
from pathlib import Path

from peagle_trt.build_folder import read_manifest


def test_a_manifest_from_before_engines_were_compiled_is_read(tiny_build: Path, tmp_path: Path) -> None:
    document = json.loads((tiny_build / "manifest.json").read_text())
    del document["engines"]
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    assert read_manifest(tmp_path).engines == {}
