"""The central types every room speaks in; this room imports nothing of ours."""

from peagle_trt.spec.build import BuildSpec
from peagle_trt.spec.drafter import DrafterConfig
from peagle_trt.spec.experts import ExpertsConfig
from peagle_trt.spec.manifest import (
    ARTIFACT_FORMAT,
    CompiledEngine,
    EngineFile,
    EngineManifest,
    EngineProfile,
    GraphShapes,
    TokenizerFiles,
)
from peagle_trt.spec.rope import RopeConfig
from peagle_trt.spec.target import TargetConfig
from peagle_trt.spec.tensor import TensorLocation, TensorSpec

__all__ = [
    "ARTIFACT_FORMAT",
    "BuildSpec",
    "CompiledEngine",
    "DrafterConfig",
    "EngineFile",
    "EngineManifest",
    "EngineProfile",
    "ExpertsConfig",
    "GraphShapes",
    "RopeConfig",
    "TargetConfig",
    "TensorLocation",
    "TensorSpec",
    "TokenizerFiles",
]
