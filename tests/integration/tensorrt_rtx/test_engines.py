"""Engines of real and of published sizes, compiled by TensorRT-RTX on a machine that needs no GPU for it.

Every build reads its networks back and refuses an attention that lost its lengths, its mask or its alignment.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle_trt.build_folder import staging_path
from peagle_trt.cli.main import run
from peagle_trt.engine.tensorrt.build import read_engines
from scripts.prove_true_size import prove_compile
from tests.support.capabilities import needs

pytestmark = [pytest.mark.rtx, needs("rtx")]
BUILD = ["--quiet", "build", "--backend", "tensorrt-rtx", "--until", "engine"]
ROLES = {"target", "drafter"}


@pytest.mark.parametrize("precision", ["bf16", "fp8", "nvfp4"])
def test_a_real_pair_compiles_for_blackwell(tmp_path: Path, precision: str) -> None:
    output = tmp_path / "smollm2"
    command = [*BUILD, "--target", "smollm2-135m", "--precision", precision, "--sm", "120", "-o", str(output)]
    assert run(command) == 0
    engines = read_engines(staging_path(output))
    assert {role: engine.compute_capabilities for role, engine in engines.items()} == dict.fromkeys(ROLES, ("120",))


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_a_pair_compiles_for_ada_and_ampere_as_far_as_they_multiply(tmp_path: Path, precision: str) -> None:
    output = tmp_path / "tiny"
    capabilities = {"bf16": ("86", "89"), "fp8": ("89",)}[precision]
    command = [*BUILD, "--target", "tiny", "--precision", precision, "--sm", ",".join(capabilities), "-o", str(output)]
    assert run(command) == 0
    engines = read_engines(staging_path(output))
    assert {role: engine.compute_capabilities for role, engine in engines.items()} == dict.fromkeys(ROLES, capabilities)


def test_layers_of_gpt_oss_and_its_drafter_compile_in_every_precision(tmp_path: Path) -> None:
    found = prove_compile("gpt-oss-20b", tmp_path, 1)
    assert {precision: set(engines) for precision, engines in found.items()} == dict.fromkeys(
        ("native", "fp8", "nvfp4"), ROLES
    )
