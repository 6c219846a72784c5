"""What compiled engines want of the machine that runs them: they run on the GPUs and the version they were made for."""

from __future__ import annotations

from dataclasses import dataclass

from peagle_trt.engine.registry import require_runnable
from peagle_trt.errors import PeagleError
from peagle_trt.machine import Machine
from peagle_trt.spec import EngineManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNeeds:
    """What all engines of a build want.

    Attributes:
        compute_capabilities: GPUs that all of them run on, such as "120".
        libraries: What runs them, with the version, such as "tensorrt-rtx 1.4.0".
    """

    compute_capabilities: tuple[str, ...]
    libraries: tuple[str, ...]

    def __str__(self) -> str:
        """In words."""
        gpus = " or ".join(f"SM{each}" for each in self.compute_capabilities) or "no GPU that all engines share"
        return f"a GPU of {gpus} and {' and '.join(self.libraries)}"


def engine_needs(manifest: EngineManifest) -> EngineNeeds | None:
    """What a build's engines want; None for one that holds none, which runs on any CPU."""
    engines = list(manifest.engines.values())
    if not engines:
        return None
    shared = set.intersection(*(set(engine.compute_capabilities) for engine in engines))
    return EngineNeeds(
        compute_capabilities=tuple(sorted(shared, key=lambda each: (len(each), each))),
        libraries=tuple(sorted({f"{engine.compiler} {engine.compiler_version}" for engine in engines})),
    )


def why_not_here(manifest: EngineManifest, machine: Machine | None = None) -> str | None:
    """Why this machine cannot run a build, or None.

    Args:
        manifest: The build.
        machine: Where; None looks around.
    """
    try:
        require_runnable(manifest, machine)
    except PeagleError as error:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return None
