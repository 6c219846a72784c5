"""A build for a GPU that is not there: float32 graphs, and plans that a fake of TensorRT's runtime runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from peagle_trt.build_folder import read_manifest
from peagle_trt.engine.batched_engine import BatchedEngine
from peagle_trt.engine.proof import drafter_source, target_source
from peagle_trt.engine.tensorrt.device import Device
from peagle_trt.engine.tensorrt.library import Library
from peagle_trt.engine.tensorrt.passes import TensorRTPasses
from peagle_trt.engine.tensorrt.profiles import drafter_profiles, target_profiles
from peagle_trt.spec import CompiledEngine, EngineManifest, EngineProfile
from tests.support.fake_cuda import FakeCuda
from tests.support.fake_tensorrt import fake_tensorrt, write_plan

VERSION = "1.2.3"


def make_gpu_build(build_path: Path, folder: Path) -> EngineManifest:
    """Turn a copy of a finished build into one of a TensorRT backend; its graphs compute in float32."""
    shutil.copytree(build_path, folder)
    manifest = msgspec.structs.replace(read_manifest(folder), backend="tensorrt-rtx")
    sources = {"target": target_source, "drafter": drafter_source}
    profiles = {"target": target_profiles(manifest.shapes), "drafter": drafter_profiles(manifest.shapes)}
    engines = {}
    for role, source in sources.items():
        graph = folder / "engine" / f"{role}.onnx"
        graph.write_bytes(source(folder, manifest).model)
        write_plan(graph.with_suffix(".plan"), graph, profiles[role])
        engines[role] = record(role, profiles[role])
    return msgspec.structs.replace(manifest, engines=engines)


def with_plugins(manifest: EngineManifest) -> EngineManifest:
    """The same, as full TensorRT would have compiled it."""
    engines = {role: msgspec.structs.replace(each, plugin_version="1") for role, each in manifest.engines.items()}
    return msgspec.structs.replace(manifest, engines=engines)


def record(role: str, profiles: tuple[EngineProfile, ...]) -> CompiledEngine:
    return CompiledEngine(
        path=f"engine/{role}.plan",
        compiler="tensorrt-rtx",
        compiler_version=VERSION,
        compute_capabilities=("120",),
        profiles=profiles,
        plugin_version="",
        size_bytes=0,
        sha256="",
        build_seconds=0.0,
        peak_memory_bytes=0,
    )


def open_fake_engine(
    folder: Path, manifest: EngineManifest, cuda: FakeCuda, *, can_capture: bool = True
) -> BatchedEngine:
    module = fake_tensorrt(cuda, version=VERSION, can_capture=can_capture)
    library = Library(backend="tensorrt-rtx", module=module, version=VERSION)
    return BatchedEngine(folder, manifest, TensorRTPasses(library, Device(cuda), folder, manifest))
