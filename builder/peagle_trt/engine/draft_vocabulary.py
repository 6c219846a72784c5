"""The drafter's vocabulary, as a build stores it beside the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def read_draft_to_target(build_path: Path) -> NDArray[np.int64]:
    """[D] int64: id in the target's vocabulary of every draft id."""
    from peagle_trt.quant.store import open_stored

    spec = open_stored(build_path / "engine" / "drafter.safetensors")["draft_to_target"]
    assert spec.location is not None
    return np.fromfile(spec.location.path, np.dtype("<i8"), spec.shape[0], offset=spec.location.offset_bytes)
