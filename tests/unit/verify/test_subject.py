"""What is compared where an engine cannot run, and how closely."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from peagle_trt.build_folder import read_manifest
from peagle_trt.errors import UsageError
from peagle_trt.machine import Gpu, Machine, probe_machine
from peagle_trt.quant import open_stored
from peagle_trt.spec import EngineManifest
from peagle_trt.verify.sources import ReferenceSource, build_source
from peagle_trt.verify.subject import THE_GRAPHS, open_subject
from peagle_trt.verify.tolerances import TOLERANCES
from tests.support.gpu_builds import make_gpu_build

B200 = Gpu(name="B200", compute_capability="10.0", memory_bytes=1 << 37, driver="580.1")


@pytest.fixture(scope="module")
def gpu_build(tiny_build: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EngineManifest]:
    folder = tmp_path_factory.mktemp("gpu") / "tiny"
    return folder, make_gpu_build(tiny_build, folder)


def source_of(folder: Path, manifest: EngineManifest) -> ReferenceSource:
    stored = (open_stored(folder / "engine" / f"{role}.safetensors") for role in ("target", "drafter"))
    return build_source(manifest.target, manifest.drafter, *stored)


def machine(*gpus: Gpu) -> Machine:
    return replace(probe_machine(), gpus=gpus)


@pytest.mark.parametrize(
    ("gpus", "reason"), [((), "has no GPU"), ((B200,), "they are for SM120, and this B200 is SM100")]
)
def test_the_graphs_stand_for_engines_of_another_gpu(
    gpu_build: tuple[Path, EngineManifest], gpus: tuple[Gpu, ...], reason: str
) -> None:
    subject = open_subject(*gpu_build, source_of(*gpu_build), machine(*gpus))
    assert subject.description == THE_GRAPHS
    assert reason in subject.note


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("is_rounded", [False, True])
def test_rounding_counts_only_against_weights_that_are_not_rounded(
    gpu_build: tuple[Path, EngineManifest], precision: str, is_rounded: bool
) -> None:
    folder, manifest = gpu_build
    source = replace(source_of(folder, manifest), is_rounded=is_rounded)
    subject = open_subject(folder, msgspec.structs.replace(manifest, precision=precision), source, machine())
    assert subject.tolerance == TOLERANCES["fp32" if is_rounded else precision]


def test_an_unknown_recipe_is_named(tiny_build: Path) -> None:
    manifest = msgspec.structs.replace(read_manifest(tiny_build), precision="fp3")
    with pytest.raises(UsageError, match="unknown precision `fp3`"):
        open_subject(tiny_build, manifest, source_of(tiny_build, manifest), machine())
