"""Opens the engines of a TensorRT build on this machine's GPU."""

from __future__ import annotations

from pathlib import Path

from peagle_trt.engine.protocol import Engine
from peagle_trt.engine.tensorrt.support import require_gpu
from peagle_trt.machine import probe_machine
from peagle_trt.spec import EngineManifest


def open_tensorrt_engine(build_path: Path, manifest: EngineManifest) -> Engine:
    """Load a build's engines onto the GPU."""
    require_gpu(manifest.backend, probe_machine())
    raise NotImplementedError
