"""Checkpoints in, build out: one call a stage. Read this file first.

name or folder -> catalog -> readers (target, drafter) -> pairing -> quant -> graph -> engine -> verify -> manifest
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from peagle_trt import stages
from peagle_trt.build_folder import (
    StagedBuild,
    check_files,
    read_manifest,
    require_replaceable,
    staged_build,
)
from peagle_trt.bundle import build as bundle
from peagle_trt.bundle.registry import BUNDLE_BACKENDS, choose_precision
from peagle_trt.errors import CheckpointError, PlanError, UsageError, VerificationError
from peagle_trt.files import require_free_space, resolve_output
from peagle_trt.graph.attention import check_head_dims
from peagle_trt.machine import probe_machine
from peagle_trt.plan import MIN_SEQUENCE_LENGTH, STAGES, Plan, check_spec, make_plan, stages_of
from peagle_trt.quant import AUTOMATIC, choose_recipe, describe_kept_experts, require_recipe
from peagle_trt.readers import (
    DrafterCheckpoint,
    TargetCheckpoint,
    check_pair,
    read_head,
    read_target,
    read_tokenizer,
)
from peagle_trt.spec import BuildSpec, EngineManifest
from peagle_trt.stages import Checkpoints

Report = Callable[[str], None]
"""Called with one line about what is going on."""


def build(
    spec: BuildSpec, *, until: str = STAGES[-1], is_fresh: bool = False, report: Report = lambda line: None
) -> EngineManifest:
    """Build what `spec` asks for; steps that an earlier run finished are taken over.

    Args:
        spec: The build.
        until: Last stage to run. Short of the last, the finished steps wait in the staging folder.
        is_fresh: Take nothing over.
        report: Told of every step.

    Returns:
        The manifest; its list of files is empty when the build stopped early.

    Raises:
        PeagleError: Something a user can mend; nothing then stands under `spec.output_path` that was not there before.
    """
    spec, choices = _resolve(spec)
    _require_stage(spec, until)
    plan = make_plan(spec)
    standing = _standing_build(spec, report) if plan.is_complete and not is_fresh else None
    if standing is not None:
        report(f"nothing to do: `{spec.output_path}` is complete")
        return standing
    for choice in choices:
        report(choice)
    checkpoints = read_checkpoints(spec, report)
    layers = stages.LayerChoice(spec, checkpoints, report)
    if is_fresh or not plan.step("quantize").is_cached:
        require_free_space(spec.output_path.parent, _plan_weights(spec, checkpoints, layers).written)
    with staged_build(spec.output_path) as folder:
        run = _Run(spec=spec, plan=plan, folder=folder, until=until, is_fresh=is_fresh, report=report)
        run.stage("read", lambda: stages.write_tokenizer(checkpoints, folder.path))
        if spec.backend in BUNDLE_BACKENDS:
            manifest = _run_bundle(run, checkpoints)
        else:
            manifest = _run_engines(run, checkpoints, layers)
        if not run.stage("assemble", lambda: ()):
            return manifest
        published = stages.list_files(manifest, folder)
        folder.publish(published)
    report(f"built `{spec.output_path}`")
    return published


def _run_engines(run: _Run, checkpoints: Checkpoints, layers: stages.LayerChoice) -> EngineManifest:
    """The stages between reading and assembling of a build that runs here."""
    spec, folder, report = run.spec, run.folder, run.report
    run.stage("quantize", lambda: stages.write_weights(spec, checkpoints, folder.path, layers.left_out()))
    run.stage("graph", lambda: stages.write_graphs(spec, checkpoints, folder.path))
    manifest = msgspec.structs.replace(
        stages.describe(spec, checkpoints),
        graphs=stages.graph_roles(folder),
        left_out=stages.list_left_out(spec, checkpoints, folder.path),
    )
    with stages.EngineStages(folder.path, manifest) as engine:
        run.stage("engine", lambda: engine.make(spec, report))
        run.stage("verify", lambda: engine.verify(checkpoints, report))
    return manifest


def _run_bundle(run: _Run, checkpoints: Checkpoints) -> EngineManifest:
    """The same of a build for another project's server, which has no graphs."""
    spec, path, target, drafter = run.spec, run.folder.path, checkpoints.target, checkpoints.drafter
    scales, _ = stages.read_scales(spec)
    run.stage("quantize", lambda: bundle.write_target(spec, target, scales, path, run.report))
    run.stage("engine", lambda: bundle.write_server_files(spec, target, drafter, path))
    run.stage("verify", lambda: bundle.check_written(spec, target, path))
    return bundle.describe(spec, target, drafter, stages.tokenizer_files(checkpoints))


def dry_run(spec: BuildSpec, *, report: Report = lambda line: None) -> Plan:
    """What `build` would do, after checking everything that can be checked without writing.

    Raises:
        PeagleError: What `build` would raise before its first long step.
    """
    spec, choices = _resolve(spec)
    for choice in choices:
        report(choice)
    require_replaceable(spec.output_path)
    checkpoints = read_checkpoints(spec, report)
    weights = _plan_weights(spec, checkpoints, stages.LayerChoice(spec, checkpoints, report))
    plan = make_plan(spec)
    steps = [
        replace(step, size_bytes=weights.written, in_place_bytes=weights.in_place) if step.name == "quantize" else step
        for step in plan.steps
    ]
    return replace(plan, steps=tuple(steps), memory_bytes=weights.memory)


def read_checkpoints(spec: BuildSpec, report: Report = lambda line: None) -> Checkpoints:
    """Read both checkpoints and check that they belong together.

    Raises:
        CheckpointError: One is damaged or unknown, or they do not fit.
    """
    target = read_target(spec.target_path)
    drafter = read_head(spec.drafter_path, num_target_layers=target.config.num_layers, mask_token_id=spec.mask_token_id)
    check_pair(target, drafter)
    _check_method(spec, drafter)
    if spec.backend in BUNDLE_BACKENDS:
        bundle.require_buildable(spec, target)
    else:
        check_head_dims(target.config, drafter.config)
    is_own = spec.tokenizer_path == spec.target_path and target.tokenizer is not None
    tokenizer = target.tokenizer if is_own else read_tokenizer(spec.tokenizer_path)
    assert tokenizer is not None, "read_tokenizer refuses a path without one"
    _check_lengths(spec, target, drafter, report)
    kept = describe_kept_experts(spec.precision, target)
    if kept:
        report(f"note: {kept}")
    config = msgspec.structs.replace(target.config, aux_layer_ids=drafter.config.aux_layer_ids)
    return Checkpoints(target=replace(target, config=config), drafter=drafter, tokenizer=tokenizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One pass over the stages."""

    spec: BuildSpec
    plan: Plan
    folder: StagedBuild
    until: str
    is_fresh: bool
    report: Report
    has_run: set[str] = field(default_factory=set)

    def stage(self, name: str, work: Callable[[], tuple[str, ...]]) -> bool:
        """Run a stage unless it is done or lies past the last one wanted.

        Args:
            name: One of `STAGES`.
            work: Writes the stage's files and returns their paths relative to the build.

        Returns:
            Whether the stage's outputs are there now.
        """
        if STAGES.index(name) > STAGES.index(self.until):
            return False
        inputs = self.plan.step(name).inputs
        # Engines compiled twice differ, so what was verified once says nothing about the second.
        is_stale = name == "verify" and "engine" in self.has_run
        if not self.is_fresh and not is_stale and self.folder.adopt(name, inputs):
            self.report(f"{name}: done before")
            return True
        self.report(f"{name} ...")
        self.folder.forget(name)
        self.folder.finish(name, inputs, work())
        self.has_run.add(name)
        return True


def _standing_build(spec: BuildSpec, report: Report) -> EngineManifest | None:
    """The finished build, or None where something happened to it since."""
    try:
        manifest = read_manifest(spec.output_path)
        check_files(spec.output_path, manifest.files)
    except (UsageError, VerificationError) as error:
        report(f"mending: {error.message}")
        return None
    return manifest


def _resolve(spec: BuildSpec) -> tuple[BuildSpec, list[str]]:
    """The spec with backend, recipe and output path decided, and a line about each that was chosen for the user."""
    from peagle_trt.engine.registry import choose_backend

    check_spec(spec)
    stages.read_scales(spec)
    backend, reason = choose_backend(spec.backend)
    choices = [] if backend == spec.backend else [f"backend {backend}: {reason}"]
    precision = _choose_precision(spec, backend, choices)
    capabilities = _choose_capabilities(replace(spec, backend=backend, precision=precision), choices)
    resolved = replace(
        spec,
        backend=backend,
        precision=precision,
        output_path=resolve_output(spec.output_path),
        compute_capabilities=capabilities,
    )
    return resolved, choices


def _choose_precision(spec: BuildSpec, backend: str, choices: list[str]) -> str:
    if backend in BUNDLE_BACKENDS:
        return choose_precision(spec.precision, AUTOMATIC)
    precision = spec.precision
    if precision == AUTOMATIC:
        precision, reason = choose_recipe(read_target(spec.target_path), backend)
        choices.append(f"precision {precision}: {reason}")
    require_recipe(precision, backend)
    return precision


def _require_stage(spec: BuildSpec, until: str) -> None:
    if until not in stages_of(spec.backend):
        raise PlanError(
            f"a build for `{spec.backend}` has no stage `{until}`",
            hint=f"its stages are {', '.join(stages_of(spec.backend))}",
        )


def _choose_capabilities(spec: BuildSpec, choices: list[str]) -> tuple[str, ...]:
    """The GPUs to compile for; refuses what this machine or the compiler cannot do before anything long begins."""
    from peagle_trt.engine.registry import COMPILING_BACKENDS

    if spec.backend in BUNDLE_BACKENDS:
        return bundle.choose_capability(spec)
    if spec.backend not in COMPILING_BACKENDS:
        if spec.compute_capabilities:
            raise PlanError(
                f"--sm names GPUs to compile for, and backend `{spec.backend}` compiles for none",
                hint=f"leave it out, or use --backend {' or '.join(COMPILING_BACKENDS)}",
            )
        return ()
    from peagle_trt.engine.tensorrt.support import choose_capabilities

    capabilities = choose_capabilities(spec.backend, spec.compute_capabilities, spec.precision, probe_machine())
    if capabilities != spec.compute_capabilities:
        choices.append(f"compiling for {', '.join(f'SM{each}' for each in capabilities)}")
    return capabilities


def _check_method(spec: BuildSpec, drafter: DrafterCheckpoint) -> None:
    from peagle_trt.engine.registry import require_method

    require_method(spec.backend, drafter.config)
    if spec.mask_token_id is not None and not drafter.config.is_parallel:
        raise PlanError(
            f"--mask-token-id is for masked slots, and `{drafter.path}` is a plain EAGLE-3 head without any",
            hint="leave it out, or use a P-EAGLE head",
        )


def _check_lengths(spec: BuildSpec, target: TargetCheckpoint, drafter: DrafterCheckpoint, report: Report) -> None:
    if target.config.max_positions < MIN_SEQUENCE_LENGTH:
        raise CheckpointError(
            f"the target was made for {target.config.max_positions} token(s); a build needs {MIN_SEQUENCE_LENGTH}",
            hint="look at `max_position_embeddings` in its config.json",
        )
    if spec.max_sequence_length > target.config.max_positions:
        raise PlanError(
            f"the sequence length {spec.max_sequence_length} exceeds the target's {target.config.max_positions}",
            hint="lower --max-sequence-length",
        )
    if spec.max_sequence_length > drafter.config.max_positions:
        report(f"note: the drafter was made for {drafter.config.max_positions} token(s); drafts past that may be poor")
    depths = drafter.config.num_depths
    if depths is not None and spec.draft_tokens > depths:
        report(f"note: the drafter was trained for K up to {depths}; slots past it may be poor")


def _plan_weights(spec: BuildSpec, checkpoints: Checkpoints, layers: stages.LayerChoice) -> stages.WeightBytes:
    if spec.backend not in BUNDLE_BACKENDS:
        return stages.plan_weights(spec, checkpoints, layers.left_out())
    written, in_place = bundle.written_bytes(spec, checkpoints.target, checkpoints.drafter)
    return stages.WeightBytes(written=written, in_place=in_place, memory=stages.BASE_MEMORY_BYTES)
