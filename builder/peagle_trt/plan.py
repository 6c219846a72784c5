"""What a build would do: its steps, what each depends on, what is done already, and how many bytes it takes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path

from peagle_trt import __version__
from peagle_trt.build_folder import finished_steps
from peagle_trt.bundle.registry import BUNDLE_BACKENDS, BUNDLE_STAGES
from peagle_trt.errors import PlanError
from peagle_trt.quant.left_out import check_limit
from peagle_trt.readers import checkpoint_files
from peagle_trt.spec import BuildSpec
from peagle_trt.spec.build import MAX_DRAFT_TOKENS, MIN_DRAFT_TOKENS

MAX_BATCH_SIZE = 256
MIN_SEQUENCE_LENGTH = 16
MAX_SEQUENCE_LENGTH = 1 << 20
STAGES = ("read", "quantize", "graph", "engine", "verify", "assemble")

# Whose source code each stage runs: a changed program must not be served from the cache of the old one.
_ROOMS = {
    "read": ("peagle_trt.readers", "peagle_trt.spec"),
    "quantize": ("peagle_trt.quant",),
    "graph": ("peagle_trt.graph", "peagle_trt_plugins"),
    "engine": ("peagle_trt.engine",),
    "verify": ("peagle_trt.verify",),
    "assemble": (),
}
_BUNDLE_ROOMS = _ROOMS | {
    "quantize": ("peagle_trt.quant", "peagle_trt.writers", "peagle_trt.bundle"),
    "engine": ("peagle_trt.bundle", "peagle_trt_repo"),
    "verify": ("peagle_trt.bundle",),
}
_LIBRARIES = {"graph": ("onnx",), "engine": ("onnxruntime",), "verify": ("onnxruntime",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One stage of a build.

    Attributes:
        name: One of `STAGES`.
        inputs: Hash of everything it depends on, earlier steps included.
        is_cached: An earlier run left its outputs, made from the same inputs.
        size_bytes: What it writes, or None where that is not known before it runs.
        in_place_bytes: What it leaves in the checkpoints' files and points at; 0 where that is nothing or not known.
    """

    name: str
    inputs: str
    is_cached: bool
    size_bytes: int | None = None
    in_place_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of a build.

    Attributes:
        steps: In order.
        is_complete: The finished build is there, and made from the same inputs.
        memory_bytes: Most that the stages up to `graph` take, roughly; None where no checkpoint was read.
    """

    steps: tuple[Step, ...]
    is_complete: bool
    memory_bytes: int | None = None

    def step(self, name: str) -> Step:
        """A step by name."""
        return next(step for step in self.steps if step.name == name)


def stages_of(backend: str) -> tuple[str, ...]:
    """The stages that a build for a backend has, in order."""
    return BUNDLE_STAGES if backend in BUNDLE_BACKENDS else STAGES


def check_spec(spec: BuildSpec) -> None:
    """Refuse settings that contradict each other or the limits.

    Raises:
        PlanError: A number is out of range.
    """
    limits = (
        ("draft tokens (K)", spec.draft_tokens, MIN_DRAFT_TOKENS, MAX_DRAFT_TOKENS),
        ("the batch size", spec.max_batch_size, 1, MAX_BATCH_SIZE),
        ("the sequence length", spec.max_sequence_length, MIN_SEQUENCE_LENGTH, MAX_SEQUENCE_LENGTH),
    )
    for name, value, low, high in limits:
        if not low <= value <= high:
            raise PlanError(f"{name} must lie in {low}..{high}; found {value}")
    check_limit(spec.keep_above)


def make_plan(spec: BuildSpec) -> Plan:
    """Plan a build; reads no checkpoint, and knows no sizes.

    Args:
        spec: The build.

    Raises:
        CheckpointError: A checkpoint's files are not there.
    """
    finished = finished_steps(spec.output_path)
    settings = _settings(spec)
    steps: list[Step] = []
    digest = ""
    for stage in stages_of(spec.backend):
        rooms = _rooms_digest(stage, _BUNDLE_ROOMS if spec.backend in BUNDLE_BACKENDS else _ROOMS)
        digest = _digest([digest, __version__, settings[stage], rooms, _library_versions(stage, spec)])
        is_cached = finished.is_done(stage, digest)
        steps.append(Step(name=stage, inputs=digest, is_cached=is_cached))
    is_complete = finished.has_manifest and all(finished.is_published(step.name, step.inputs) for step in steps)
    return Plan(steps=tuple(steps), is_complete=is_complete)


def _settings(spec: BuildSpec) -> dict[str, object]:
    """The part of a spec that each stage depends on, so that a new K costs no new weights."""
    paths = dict.fromkeys((spec.target_path, spec.drafter_path, spec.tokenizer_path))
    scales = [_digest_of(path) for path in (spec.scales_path, spec.drafter_scales_path)]
    limits = [spec.draft_tokens, spec.max_batch_size, spec.max_sequence_length]
    is_ours = spec.backend not in BUNDLE_BACKENDS
    return {
        "read": [spec.mask_token_id, *(_fingerprint(path) for path in paths)],
        "quantize": [spec.precision, spec.keep_above, *scales],
        "graph": [spec.max_batch_size, spec.max_sequence_length, spec.backend],
        "engine": [spec.backend, *_compiler_settings(spec), *([] if is_ours else [spec.name, spec.precision, *limits])],
        "verify": spec.draft_tokens,
        "assemble": [spec.name, spec.draft_tokens, spec.target_source, spec.drafter_source],
    }


def _fingerprint(path: Path) -> list[object]:
    """Name, size and time of every file: hashing gigabytes of weights would cost more than the cache saves."""
    stats = [(file.name, file.stat()) for file in checkpoint_files(path)] if path.exists() else []
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def _digest_of(path: Path | None) -> str | None:
    """Of a small file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path is not None else None


def _rooms_digest(stage: str, rooms: Mapping[str, tuple[str, ...]]) -> str:
    digest = hashlib.sha256()
    for room in rooms[stage]:
        folder = Path(str(resources.files(room)))
        for source in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".toml")):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _compiler_settings(spec: BuildSpec) -> list[object]:
    """What compiled engines depend on besides their graphs: K, for which they are tuned, and the GPUs."""
    return [spec.draft_tokens, *spec.compute_capabilities] if spec.compute_capabilities else []


def _library_versions(stage: str, spec: BuildSpec) -> list[str]:
    is_ours = spec.backend not in BUNDLE_BACKENDS
    versions = [metadata.version(name) for name in _LIBRARIES.get(stage, ()) if is_ours]
    if stage == "engine" and spec.compute_capabilities and is_ours:
        from peagle_trt.engine.tensorrt.library import load_library

        versions.append(load_library(spec.backend).version)
    return versions


def _digest(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
