"""What each stage of a build for another project's server does; see `stages` for the builds that run here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from peagle_trt import __version__
from peagle_trt.bundle.gpus import DEFAULT_CAPABILITY, require_capability
from peagle_trt.bundle.registry import AS_STORED, SERVERS
from peagle_trt.errors import CheckpointError, PlanError, VerificationError
from peagle_trt.files import link_or_copy, naming_os_errors, shares_file_system, write_text
from peagle_trt.quant.activation_scales import ActivationScales
from peagle_trt.quant.layer_recipes import load_layer_recipe
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint, check_pair, checkpoint_files, read_head, read_target
from peagle_trt.spec import ARTIFACT_FORMAT, BuildSpec, EngineManifest, GraphShapes, TokenizerFiles
from peagle_trt.trtllm.served_settings import SECTION, read_served_settings
from peagle_trt.writers import convert_head
from peagle_trt.writers.quantized import quantize_target

Report = Callable[[str], None]
TARGET, DRAFTER = "target", "drafter"
VERIFICATION_FILE = "verification.json"
_SCRIPTS = ("serve", "serve-triton")
# What lies beside a target's weights and is no code.
_TEXTS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*")


def require_buildable(spec: BuildSpec, target: TargetCheckpoint) -> None:
    """Refuse a build that a server would not load, before anything is written.

    Raises:
        CheckpointError: The target is a GGUF file, or is of a kind that no P-EAGLE worker knows.
        PlanError: The precision does not suit the target, or there is nothing that a limit could keep.
    """
    if spec.keep_above is not None and spec.precision == AS_STORED:
        raise PlanError(
            f"--keep-above keeps layers from being quantized, and precision `{AS_STORED}` quantizes none",
            hint="leave it out, or name a precision such as fp8",
        )
    if not spec.target_path.is_dir():
        raise CheckpointError(
            f"`{spec.target_path}` is a file; {SERVERS[spec.backend]} loads a checkpoint's folder",
            hint="give the folder of the safetensors checkpoint",
        )
    if spec.backend == "trtllm" and target.config.architecture not in TRTLLM_TARGETS:
        raise CheckpointError(
            f"the worker for TensorRT-LLM takes {', '.join(TRTLLM_TARGETS)}; found `{target.config.architecture}`",
            hint="use --backend vllm, or another backend",
        )
    is_packed = any(tensor.packed is not None or tensor.parts for tensor in target.weights.values())
    if spec.precision != AS_STORED and target.config.has_sinks and is_packed:
        raise PlanError(
            f"gpt-oss's experts come in MXFP4, which both servers run as they are; precision `{spec.precision}` would "
            "round them a second time",
            hint=f"use --precision {AS_STORED}",
        )


TRTLLM_TARGETS = ("GptOssForCausalLM", "Qwen3MoeForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM")
"""Targets whose classes the plugin replaces; see `trtllm/adapters/targets.py`."""


def describe(
    spec: BuildSpec, target: TargetCheckpoint, drafter: DrafterCheckpoint, tokenizer: TokenizerFiles
) -> EngineManifest:
    """The manifest before its files are listed."""
    return EngineManifest(
        format=ARTIFACT_FORMAT,
        peagle_trt_version=__version__,
        name=spec.name,
        backend=spec.backend,
        precision=spec.precision,
        target=target.config,
        drafter=drafter.config,
        shapes=GraphShapes(
            draft_tokens=spec.draft_tokens,
            max_draft_tokens=spec.draft_tokens,
            max_batch_size=spec.max_batch_size,
            max_sequence_length=spec.max_sequence_length,
            cache_capacity=spec.max_sequence_length + 2 * spec.draft_tokens,
        ),
        tokenizer=tokenizer,
        keep_above=spec.keep_above,
        graphs={},
        files=(),
        sources={
            "target": spec.target_source or spec.target_path.name,
            "drafter": spec.drafter_source or spec.drafter_path.name,
        },
    )


def write_target(
    spec: BuildSpec, target: TargetCheckpoint, scales: ActivationScales, folder: Path, report: Report
) -> tuple[str, ...]:
    """quantize: the target's folder, linked or quantized."""
    if spec.precision == AS_STORED:
        _link_target(spec.target_path, folder / TARGET)
    else:
        recipe = load_layer_recipe(spec.precision)
        written = quantize_target(
            target, recipe, folder / TARGET, scales=scales, keep_above=spec.keep_above, progress=report
        )
        for note in written.notes:
            report(f"note: {note}")
    return _files_under(folder, TARGET)


def write_server_files(
    spec: BuildSpec, target: TargetCheckpoint, drafter: DrafterCheckpoint, folder: Path
) -> tuple[str, ...]:
    """engine: the head in the server's dialect, settings, launch lines and the Triton repository.

    Raises:
        PlanError: A setting is none of the server's.
    """
    convert_head(drafter, target, spec.backend, folder / DRAFTER)
    if spec.backend == "trtllm":
        from peagle_trt.bundle.trtllm import trtllm_files

        _write_limits(folder / DRAFTER / "config.json", spec)
        texts = trtllm_files(spec, target.config, drafter.config, spec.compute_capabilities[0])
    else:
        from peagle_trt.bundle.vllm import vllm_files

        texts = vllm_files(spec)
    for path, text in texts.items():
        write_text(folder / path, text)
    for path in _SCRIPTS:
        with naming_os_errors(folder / path):
            if (folder / path).exists():
                (folder / path).chmod(0o755)
    return (*texts, *_files_under(folder, DRAFTER))


def check_written(spec: BuildSpec, target: TargetCheckpoint, folder: Path) -> tuple[str, ...]:
    """verify: read both checkpoints back; what a server makes of them, only the server can say.

    Raises:
        VerificationError: They are not what was read first.
    """
    again, head = read_target(folder / TARGET), read_head(folder / DRAFTER)
    check_pair(again, head)
    if again.config.vocab_size != target.config.vocab_size or again.config.num_layers != target.config.num_layers:
        raise VerificationError("the target that was written is another one", hint="build it again")
    if spec.backend == "trtllm" and read_served_settings(folder / DRAFTER).draft_tokens != spec.draft_tokens:
        raise VerificationError("the head that was written names other limits", hint="build it again")
    document = {
        "backend": spec.backend,
        "checked": ["both checkpoints read back and fit", "every setting is one of the server's"],
        "not_run": f"no token was made: {SERVERS[spec.backend]} runs this build, see scripts/trtllm_check",
    }
    write_text(folder / VERIFICATION_FILE, json.dumps(document, indent=2) + "\n")
    return (VERIFICATION_FILE,)


def choose_capability(spec: BuildSpec) -> tuple[str, ...]:
    """The GPU that settings are written for.

    Raises:
        PlanError: It is none that is known, or the server asks for none.
    """
    if spec.backend != "trtllm":
        if spec.compute_capabilities:
            raise PlanError("--sm names a GPU, and vLLM finds its own", hint="leave it out")
        return ()
    if len(spec.compute_capabilities) > 1:
        raise PlanError("a build for TensorRT-LLM is for one GPU", hint="give one number with --sm")
    return (require_capability((spec.compute_capabilities or (DEFAULT_CAPABILITY,))[0]),)


def written_bytes(spec: BuildSpec, target: TargetCheckpoint, drafter: DrafterCheckpoint) -> tuple[int, int]:
    """Bytes that are new on the disk, at most, and bytes that are shared with the checkpoint."""
    whole = sum(path.stat().st_size for path in checkpoint_files(spec.target_path))
    head = sum(path.stat().st_size for path in checkpoint_files(spec.drafter_path))
    # Bytes are shared by links, which do not leave a disk.
    is_shared = spec.precision == AS_STORED and shares_file_system(spec.target_path, spec.output_path)
    return (head, whole) if is_shared else (head + whole, 0)


def _link_target(source: Path, destination: Path) -> None:
    texts = {path for pattern in _TEXTS for path in source.glob(pattern) if path.is_file()}
    for path in sorted({*texts, *checkpoint_files(source)}):
        link_or_copy(path, destination / path.name)


def _write_limits(path: Path, spec: BuildSpec) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    document[SECTION] = {
        "draft_tokens": spec.draft_tokens,
        "max_batch_size": spec.max_batch_size,
        "max_sequence_length": spec.max_sequence_length,
    }
    write_text(path, json.dumps(document, indent=2) + "\n")


def _files_under(folder: Path, *names: str) -> tuple[str, ...]:
    found = (path for name in names for path in sorted((folder / name).rglob("*")) if path.is_file())
    return tuple(path.relative_to(folder).as_posix() for path in found)
