"""What a comparison runs: the engine itself, or what stands for it where it cannot run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from peagle_trt.engine.protocol import Engine
from peagle_trt.engine.registry import COMPILING_BACKENDS, open_engine
from peagle_trt.machine import Machine, probe_machine
from peagle_trt.quant import find_recipe
from peagle_trt.spec import EngineManifest
from peagle_trt.verify.tolerances import ELEMENT_TOLERANCES, Tolerance, recipe_tolerance

THE_ENGINE = "the engine"
THE_GRAPHS = (
    "the graphs in float32 in ONNX Runtime, written from the weights of the build by the code that wrote those compiled"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is compared with the reference.

    Attributes:
        engine: It.
        description: What it is, for the record.
        tolerance: How far it may be off.
        note: What that leaves unproved, or "".
    """

    engine: Engine
    description: str
    tolerance: Tolerance
    note: str = ""


def open_subject(build_path: Path, manifest: EngineManifest, machine: Machine | None = None) -> Subject:
    """The engine of a build where this machine runs it.

    Args:
        build_path: Folder of the build.
        manifest: Its manifest.
        machine: What to choose for; None looks around.

    Raises:
        MachineError: What was chosen cannot be loaded.
    """
    if manifest.backend in COMPILING_BACKENDS and not (machine or probe_machine()).gpus:
        from peagle_trt.engine.proof import open_proof

        note = f"engine compiled, not run: no GPU on this machine; compared instead: {THE_GRAPHS}"
        engine: Engine = open_proof(build_path, manifest)
        return Subject(engine=engine, description=THE_GRAPHS, tolerance=_recipe_tolerance(manifest), note=note)
    return Subject(
        engine=open_engine(build_path, manifest), description=THE_ENGINE, tolerance=_engine_tolerance(manifest)
    )


def _engine_tolerance(manifest: EngineManifest) -> Tolerance:
    if manifest.backend not in COMPILING_BACKENDS:
        return _recipe_tolerance(manifest)
    recipe = _recipe_tolerance(manifest)
    element = ELEMENT_TOLERANCES.get(find_recipe(manifest.precision).compute_element, recipe)
    return max(recipe, element, key=lambda tolerance: tolerance.logits)


def _recipe_tolerance(manifest: EngineManifest) -> Tolerance:
    return recipe_tolerance(manifest.precision, has_experts=manifest.target.experts is not None)
