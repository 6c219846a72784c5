"""What a comparison runs: the engine itself, or what stands for it where it cannot run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from peagle_trt.engine.protocol import Engine
from peagle_trt.engine.registry import COMPILING_BACKENDS, open_engine
from peagle_trt.machine import Machine, probe_machine
from peagle_trt.quant import find_recipe
from peagle_trt.spec import EngineManifest
from peagle_trt.verify.sources import ReferenceSource
from peagle_trt.verify.tolerances import ELEMENT_TOLERANCES, TOLERANCES, Tolerance

THE_ENGINE = "the engine"
THE_GRAPHS = "the build's graphs, run in float32 in ONNX Runtime"


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


def open_subject(
    build_path: Path, manifest: EngineManifest, source: ReferenceSource, machine: Machine | None = None
) -> Subject:
    """The engine of a build where it was compiled for this machine's GPU, or needs none; else its graphs.

    Args:
        build_path: Folder of the build.
        manifest: Its manifest.
        source: Where the reference takes its weights from.
        machine: What to choose for; None looks around.

    Raises:
        UsageError: The build's recipe is unknown.
        MachineError: What was chosen cannot be loaded.
    """
    weights = _weight_tolerance(manifest, source)
    reason = _why_it_cannot_run(manifest, machine or probe_machine())
    if reason:
        from peagle_trt.engine.proof import open_proof

        note = f"the engines were compiled, not run: {reason}; what was compared are {THE_GRAPHS}"
        engine: Engine = open_proof(build_path, manifest)
        return Subject(engine=engine, description=THE_GRAPHS, tolerance=weights, note=note)
    tolerance = max(weights, _element_tolerance(manifest, weights), key=lambda each: each.logits)
    return Subject(engine=open_engine(build_path, manifest), description=THE_ENGINE, tolerance=tolerance)


def _why_it_cannot_run(manifest: EngineManifest, machine: Machine) -> str:
    """Why no engine of a build can run on this machine whatever is installed, in words, or ""."""
    if manifest.backend not in COMPILING_BACKENDS:
        return ""
    if not machine.gpus:
        return "this machine has no GPU"
    gpu = machine.gpus[0]
    capability = gpu.compute_capability.replace(".", "")
    if all(capability in engine.compute_capabilities for engine in manifest.engines.values()):
        return ""
    made_for = sorted({each for engine in manifest.engines.values() for each in engine.compute_capabilities})
    return f"they are for {' and '.join(f'SM{each}' for each in made_for)}, and this {gpu.name} is SM{capability}"


def _weight_tolerance(manifest: EngineManifest, source: ReferenceSource) -> Tolerance:
    """How far the weights and activations of a recipe move what is computed in float32."""
    recipe = find_recipe(manifest.precision)
    is_exact = source.is_rounded and recipe.linear_scheme == "none"
    return TOLERANCES["fp32" if is_exact else recipe.name]


def _element_tolerance(manifest: EngineManifest, otherwise: Tolerance) -> Tolerance:
    """How far an engine strays for what it computes in."""
    if manifest.backend not in COMPILING_BACKENDS:
        return otherwise
    return ELEMENT_TOLERANCES.get(find_recipe(manifest.precision).compute_element, otherwise)
