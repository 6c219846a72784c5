"""What each stage of a build does: every function writes its files and returns their paths relative to the build."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from peagle_trt import __version__
from peagle_trt.build_folder import VERIFICATION_NAME, StagedBuild
from peagle_trt.errors import CheckpointError
from peagle_trt.files import write_text
from peagle_trt.quant import (
    StoredWeights,
    describe_kept_experts,
    find_recipe,
    open_stored,
    plan_storage,
    store_drafter,
    store_target,
)
from peagle_trt.quant.activation_scales import ActivationScales, read_build_scales
from peagle_trt.quant.in_place import bytes_to_copy, shards
from peagle_trt.quant.left_out import NOTHING_LEFT_OUT, LeftOut, choose_left_out, find_left_out
from peagle_trt.quant.packing import StoredTensor
from peagle_trt.quant.store import (
    largest_bytes,
    stored_bytes,
    stored_files,
)
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint, TokenizerSource
from peagle_trt.spec import ARTIFACT_FORMAT, BuildSpec, EngineManifest, TokenizerFiles

if TYPE_CHECKING:
    from peagle_trt.engine.protocol import Engine

ENGINE_FOLDER = "engine"
TARGET_WEIGHTS = f"{ENGINE_FOLDER}/target.safetensors"
DRAFTER_WEIGHTS = f"{ENGINE_FOLDER}/drafter.safetensors"
TOKENIZER_FILE = "tokenizer/tokenizer.json"
TEMPLATE_FILE = "tokenizer/chat_template.jinja"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """A pair that has been read and fits; `target.config` already names the layers the drafter reads."""

    target: TargetCheckpoint
    drafter: DrafterCheckpoint
    tokenizer: TokenizerSource


def describe(spec: BuildSpec, checkpoints: Checkpoints) -> EngineManifest:
    """The manifest of a build before its graphs and files are written."""
    from peagle_trt.graph import graph_shapes

    return EngineManifest(
        format=ARTIFACT_FORMAT,
        peagle_trt_version=__version__,
        name=spec.name,
        backend=spec.backend,
        precision=spec.precision,
        target=checkpoints.target.config,
        drafter=checkpoints.drafter.config,
        shapes=graph_shapes(spec),
        tokenizer=tokenizer_files(checkpoints),
        keep_above=spec.keep_above,
        graphs={},
        files=(),
        sources={
            "target": spec.target_source or spec.target_path.name,
            "drafter": spec.drafter_source or spec.drafter_path.name,
            **_describe_scales(spec),
            **_describe_experts(spec, checkpoints),
        },
    )


def tokenizer_files(checkpoints: Checkpoints) -> TokenizerFiles:
    """Where `write_tokenizer` puts the text side."""
    text = checkpoints.tokenizer
    return TokenizerFiles(
        tokenizer=TOKENIZER_FILE,
        chat_template=None if text.chat_template is None else TEMPLATE_FILE,
        bos_token=text.bos_token,
        eos_token=text.eos_token,
    )


def _describe_scales(spec: BuildSpec) -> dict[str, str]:
    """Which files of scales a build was made with, by name and calibration."""
    found = zip(("target_scales", "drafter_scales"), read_scales(spec), strict=True)
    return {role: f"{scales.path.name} ({scales.recipe})" for role, scales in found if scales.path is not None}


def _describe_experts(spec: BuildSpec, checkpoints: Checkpoints) -> dict[str, str]:
    kept = describe_kept_experts(spec.precision, checkpoints.target)
    return {"experts": kept} if kept else {}


BASE_MEMORY_BYTES = 220 << 20
"""Interpreter, libraries and graphs; 204 MB were measured for gpt-oss-120b's six graphs, which write no weights."""
COPIES_IN_MEMORY = 4
"""Of the tensor being written: 2.3 were measured for safetensors, 4.2 beside a smaller base for GGUF (SmolLM2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """What the weights of a build take.

    Attributes:
        written: Bytes that are new on the disk.
        in_place: Bytes of the checkpoints' own files that the build shares.
        memory: Most that the stages up to `graph` take, roughly.
    """

    written: int
    in_place: int
    memory: int


class LayerChoice:
    """Which matrices a build leaves as they are; measured when first asked for, which reads all of them.

    Args:
        spec: The build.
        checkpoints: What it is made of.
        report: Told what was found.
    """

    def __init__(self, spec: BuildSpec, checkpoints: Checkpoints, report: Callable[[str], None]) -> None:
        self._spec = spec
        self._checkpoints = checkpoints
        self._report = report
        self._chosen: LeftOut | None = None

    def left_out(self) -> LeftOut:
        """Them.

        Raises:
            UsageError: The limit leaves nothing quantized.
        """
        if self._spec.keep_above is None:
            return NOTHING_LEFT_OUT
        if self._chosen is None:
            # Whatever else is wrong shows with the headers, before all weights are read.
            plan_weights(self._spec, self._checkpoints)
            self._report("weighing every matrix for --keep-above ...")
            pair = self._checkpoints.target, self._checkpoints.drafter
            scales = read_scales(self._spec)
            self._chosen, line = choose_left_out(self._spec.precision, *pair, self._spec.keep_above, *scales)
            self._report(line)
        return self._chosen


def plan_weights(spec: BuildSpec, checkpoints: Checkpoints, left_out: LeftOut = NOTHING_LEFT_OUT) -> WeightBytes:
    """What `write_weights` will write and share.

    Raises:
        CheckpointError: The recipe cannot store a tensor, or leaves one in place that cannot be read there.
    """
    target_scales, drafter_scales = read_scales(spec)
    storage = plan_storage(
        spec.precision,
        checkpoints.target,
        checkpoints.drafter,
        target_scales=target_scales,
        drafter_scales=drafter_scales,
        left_out=left_out,
    )
    copied = sum(bytes_to_copy(each, spec.output_path) for each in storage.references)
    whole = sum(path.stat().st_size for each in storage.references for path in shards(each))
    written = copied + stored_bytes(storage.layout)
    return WeightBytes(written=written, in_place=whole - copied, memory=_memory_bytes(storage.layout))


def _memory_bytes(layout: Sequence[StoredTensor]) -> int:
    return BASE_MEMORY_BYTES + COPIES_IN_MEMORY * largest_bytes(layout)


def read_scales(spec: BuildSpec) -> tuple[ActivationScales, ActivationScales]:
    """Calibrated scales of target and drafter.

    Raises:
        CheckpointError: A file is damaged, or holds something else.
    """
    return read_build_scales(spec.scales_path), read_build_scales(spec.drafter_scales_path)


def write_tokenizer(checkpoints: Checkpoints, folder: Path) -> tuple[str, ...]:
    """read: the text side.

    Raises:
        CheckpointError: The tokenizer is damaged, or makes ids that the target does not know; or the chat template
            is no template.
    """
    source, text = checkpoints.tokenizer, checkpoints.tokenizer.tokenizer_json()
    _check_tokenizer(source, text, checkpoints.target.config.vocab_size)
    _check_template(source)
    write_text(folder / TOKENIZER_FILE, text)
    if source.chat_template is None:
        return (TOKENIZER_FILE,)
    write_text(folder / TEMPLATE_FILE, source.chat_template)
    return (TOKENIZER_FILE, TEMPLATE_FILE)


def _check_tokenizer(source: TokenizerSource, text: str, vocab_size: int) -> None:
    from tokenizers import Tokenizer

    try:
        vocabulary = Tokenizer.from_str(text).get_vocab(with_added_tokens=True)
    except Exception as error:
        # The library raises a bare Exception for a malformed file.
        raise CheckpointError(f"`{source.path}` is no tokenizer: {error}", hint="fetch the file again") from error
    largest = max(vocabulary.values(), default=0)
    if largest >= vocab_size:
        raise CheckpointError(
            f"`{source.path}` makes the token {largest}, but the target's vocabulary has {vocab_size}",
            hint="the tokenizer belongs to another model",
        )


def _check_template(source: TokenizerSource) -> None:
    from jinja2 import TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    try:
        ImmutableSandboxedEnvironment().parse(source.chat_template or "")
    except TemplateSyntaxError as error:
        raise CheckpointError(
            f"the chat template beside `{source.path}` is no template: line {error.lineno}: {error.message}",
            hint="mend it, or remove it if nobody chats with this model",
        ) from error


def write_weights(
    spec: BuildSpec, checkpoints: Checkpoints, folder: Path, left_out: LeftOut = NOTHING_LEFT_OUT
) -> tuple[str, ...]:
    """quantize: the weights of both models, written or left where the checkpoints have them."""
    target_path, drafter_path = folder / TARGET_WEIGHTS, folder / DRAFTER_WEIGHTS
    target_scales, drafter_scales = read_scales(spec)
    store_target(spec.precision, checkpoints.target, target_path, target_scales, left_out)
    store_drafter(spec.precision, checkpoints.drafter, checkpoints.target, drafter_path, drafter_scales, left_out)
    files = [*stored_files(target_path), *stored_files(drafter_path)]
    return tuple(file.relative_to(folder).as_posix() for file in files)


def list_left_out(spec: BuildSpec, checkpoints: Checkpoints, folder: Path) -> tuple[str, ...]:
    """What the quantize stage left as it was for `keep_above`, whether it ran now or before."""
    if spec.keep_above is None:
        return ()
    return tuple(find_left_out(spec.precision, checkpoints.target, checkpoints.drafter, *stored_weights(folder)))


def write_graphs(spec: BuildSpec, checkpoints: Checkpoints, folder: Path) -> tuple[str, ...]:
    """graph: every ONNX graph, pointing into the weights."""
    from peagle_trt.engine.registry import COMPILING_BACKENDS
    from peagle_trt.graph import build_graphs
    from peagle_trt.graph.batched import build_batched_graphs

    stored_target, stored_drafter = stored_weights(folder)
    pair = checkpoints.target.config, checkpoints.drafter.config, stored_target, stored_drafter
    if spec.backend in COMPILING_BACKENDS:
        _, graphs = build_batched_graphs(
            spec,
            *pair,
            folder / ENGINE_FOLDER,
            element=find_recipe(spec.precision).compute_element,
            uses_plugins=spec.backend == "tensorrt",
        )
    else:
        _, graphs = build_graphs(spec, *pair, folder / ENGINE_FOLDER)
    return tuple(f"{ENGINE_FOLDER}/{name}" for name in graphs.values())


def stored_weights(folder: Path) -> tuple[StoredWeights, StoredWeights]:
    """Weights of target and drafter, as a build stores them."""
    return open_stored(folder / TARGET_WEIGHTS), open_stored(folder / DRAFTER_WEIGHTS)


def graph_roles(folder: StagedBuild) -> dict[str, str]:
    """Role to path of the graphs that are written: a graph's file is named after its role."""
    record = folder.steps.get("graph")
    paths = [file.path for file in record.outputs] if record else []
    return {Path(path).name.removesuffix(".onnx"): path for path in paths}


class EngineStages:
    """The stages that need the engine, which is loaded only if one of them runs.

    Args:
        folder: The build so far.
        manifest: Its manifest so far.
    """

    def __init__(self, folder: Path, manifest: EngineManifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._engine: Engine | None = None

    def __enter__(self) -> EngineStages:
        return self

    def __exit__(self, *_: object) -> None:
        if self._engine is not None:
            self._engine.close()

    def make(self, spec: BuildSpec, report: Callable[[str], None]) -> tuple[str, ...]:
        """engine: compile every graph; ONNX Runtime compiles at load, which is done once and leaves no file."""
        from peagle_trt.engine.registry import COMPILING_BACKENDS, check_engine

        if spec.backend not in COMPILING_BACKENDS:
            check_engine(self._folder, self._manifest)
            return ()
        from peagle_trt.engine.tensorrt.build import compile_engines
        from peagle_trt.engine.tensorrt.compile import CompileOptions

        options = CompileOptions(
            compute_capabilities=spec.compute_capabilities, timing_cache_path=_timing_cache_path(spec)
        )
        return compile_engines(self._folder, self._manifest, options, report)

    def verify(self, checkpoints: Checkpoints, report: Callable[[str], None]) -> tuple[str, ...]:
        """verify: compare with the reference, which reads the checkpoints, so that a fault of any stage shows.

        Raises:
            VerificationError: They disagree.
        """
        from peagle_trt.quant.weight_errors import measure_build
        from peagle_trt.verify import checkpoint_source, compare_subject, rounded_source
        from peagle_trt.verify.subject import open_subject

        manifest = with_engines(self._manifest, self._folder)
        pair, stored = (checkpoints.target, checkpoints.drafter), stored_weights(self._folder)
        is_rounded = find_recipe(manifest.precision).is_judged_by_own_weights
        source = rounded_source(*pair, *stored) if is_rounded else checkpoint_source(*pair)
        subject = open_subject(self._folder, manifest, source)
        self._engine = subject.engine
        if subject.note:
            report(f"note: {subject.note}")
        outcome = compare_subject(subject, manifest, source)
        report(outcome.summary())
        outcome = msgspec.structs.replace(outcome, weights=tuple(measure_build(manifest.precision, *pair, *stored)))
        if outcome.weights:
            report(outcome.weights_summary())
        text = msgspec.json.format(msgspec.json.encode(outcome), indent=2).decode()
        write_text(self._folder / VERIFICATION_NAME, text + "\n")
        return (VERIFICATION_NAME,)


def with_engines(manifest: EngineManifest, folder: Path) -> EngineManifest:
    """The manifest with the engines that were compiled, if any were."""
    from peagle_trt.engine.registry import COMPILING_BACKENDS

    if manifest.backend not in COMPILING_BACKENDS:
        return manifest
    from peagle_trt.engine.tensorrt.build import read_engines

    return msgspec.structs.replace(manifest, engines=read_engines(folder))


def list_files(manifest: EngineManifest, folder: StagedBuild) -> EngineManifest:
    """assemble: the manifest with every engine and file, as the step that wrote it noted it."""
    manifest = with_engines(manifest, folder.path)
    return msgspec.structs.replace(manifest, files=tuple(folder.outputs()))


def _timing_cache_path(spec: BuildSpec) -> Path | None:
    """Where full TensorRT keeps what it measured; beside the build, so that the next one of it is quicker."""
    return spec.output_path.with_name(f".{spec.output_path.name}.timing") if spec.backend == "tensorrt" else None
