"""What a worker refuses before any weight is loaded, because it would run and be wrong, or never run."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from peagle_trt.errors import CheckpointError, MachineError, PlanError
from peagle_trt.readers import DrafterCheckpoint, read_drafter
from peagle_trt.spec import DrafterConfig
from peagle_trt.trtllm.served_settings import ServedSettings


class Mapping(Protocol):
    """How a model is spread over GPUs: TensorRT-LLM's `Mapping`."""

    pp_size: int
    cp_size: int
    enable_attention_dp: bool


class Speculation(Protocol):
    """TensorRT-LLM's `speculative_config`, as far as both releases have it."""

    max_draft_len: int | None
    max_concurrency: int | None
    spec_dec_mode: Mode


class Mode(Protocol):
    """`SpeculativeDecodingMode`."""

    def is_eagle3_one_model(self) -> bool:
        """Whether one engine holds target and drafter."""


class CacheSettings(Protocol):
    """`KvCacheConfig`."""

    enable_block_reuse: bool


class ServerArguments(Protocol):
    """`TorchLlmArgs`, as far as both releases have it."""

    kv_cache_config: CacheSettings
    cache_transceiver_config: object
    kv_connector_config: object
    guided_decoding_backend: object
    max_batch_size: int | None
    max_seq_len: int | None


class TargetSizes(Protocol):
    """The target's own configuration."""

    hidden_size: int
    vocab_size: int
    num_hidden_layers: int


KNOWN_CAPABILITIES = (90, 100, 103)
"""Compute capability times ten, where the settings of a build are known; `build --sm` takes the same."""
GIBBERISH_CAPABILITY = 120
"""Where TensorRT-LLM's own decoding with drafts gave gibberish (its issue 11125, 1.2.0rc8)."""
_NEWER_OPTIONS = (
    "draft_len_schedule",
    "use_rejection_sampling",
    "use_dynamic_tree",
    "sa_config",
    "eagle_choices",
    "acceptance_window",
    "acceptance_length_threshold",
)
"""Options of `speculative_config` that not every release has, and that a P-EAGLE worker cannot honour."""


def require_arguments(llm_args: ServerArguments, settings: ServedSettings) -> None:
    """Refuse a server that would hand the drafter what it never read, or what its cache has no room for.

    Raises:
        PlanError: Tokens may reach the target's cache from elsewhere, grammars are on, or a limit of the build is left
            behind.
    """
    if llm_args.guided_decoding_backend:
        raise PlanError(
            f"`guided_decoding_backend` is {llm_args.guided_decoding_backend!r}: a grammar is walked draft by draft, "
            "and the P-EAGLE worker drafts all K tokens at once",
            hint="leave `guided_decoding_backend` out, or serve answers with grammars without `speculative_config`",
        )
    foreign = {
        "kv_cache_config.enable_block_reuse": llm_args.kv_cache_config.enable_block_reuse,
        "cache_transceiver_config": llm_args.cache_transceiver_config,
        "kv_connector_config": llm_args.kv_connector_config,
    }
    for name, value in foreign.items():
        if value:
            raise PlanError(
                f"`{name}` is {value!r}: the target would take over tokens that never passed the drafter, whose cache "
                "is its own",
                hint=f"set `{name}` to false" if value is True else f"leave `{name}` out",
            )
    limits = (
        ("max_batch_size", llm_args.max_batch_size, settings.max_batch_size, "--max-batch-size"),
        ("max_seq_len", llm_args.max_seq_len, settings.max_sequence_length, "--max-sequence-length"),
    )
    for name, found, largest, option in limits:
        if found is None or found > largest:
            raise PlanError(
                f"`{name}` is {'not set' if found is None else found}; the build was made for {largest}",
                hint=f"set `{name}: {largest}`, or build again with a larger {option}",
            )


def require_gpu(name: str, compute_capability: tuple[int, int]) -> None:
    """Refuse a GPU whose answers would be wrong; others that are not known are left to `doctor --trtllm` to name.

    Args:
        name: The GPU's.
        compute_capability: Its compute capability, major and minor.

    Raises:
        MachineError: TensorRT-LLM decodes with drafts wrongly there.
    """
    major, minor = compute_capability
    if 10 * major + minor == GIBBERISH_CAPABILITY:
        known = ", ".join(f"SM{each}" for each in KNOWN_CAPABILITIES)
        raise MachineError(
            f"{name} is SM{GIBBERISH_CAPABILITY}, where TensorRT-LLM gave gibberish with drafts (its issue 11125)",
            hint=f"serve on {known}, or build with `--backend tensorrt-rtx --sm {GIBBERISH_CAPABILITY}`",
        )


def require_one_model(config: Speculation) -> None:
    """Refuse to leave a P-EAGLE head to a worker that would draft with it token by token, which it never learned.

    Raises:
        PlanError: Another way of decoding with drafts was asked for.
    """
    if not config.spec_dec_mode.is_eagle3_one_model():
        raise PlanError(
            "`speculative_config` names a P-EAGLE head and another way of drafting than Eagle3 in one model",
            hint="take `decoding_type` as the build's config file has it, and leave `eagle3_one_model` on",
        )


def require_parallelism(mapping: Mapping) -> None:
    """Refuse what spreads a sequence or its layers over GPUs.

    Raises:
        PlanError: Pipeline, context or attention-data parallelism is on.
    """
    found = (
        (mapping.pp_size > 1, f"pipeline_parallel_size is {mapping.pp_size}", "pipeline_parallel_size: 1"),
        (mapping.cp_size > 1, f"context_parallel_size is {mapping.cp_size}", "context_parallel_size: 1"),
        (mapping.enable_attention_dp, "enable_attention_dp is on", "enable_attention_dp: false"),
    )
    for is_on, what, remedy in found:
        if is_on:
            raise PlanError(
                f"{what}, and the P-EAGLE worker reads every layer's states of every request on every GPU",
                hint=f"set `{remedy}`; tensor and expert parallelism are fine",
            )


def require_speculation(config: Speculation) -> None:
    """Refuse options of `speculative_config` that a P-EAGLE worker cannot honour.

    Raises:
        PlanError: One is on.
    """
    found = {"max_concurrency": config.max_concurrency}
    found |= {name: value for name, value in vars(config).items() if name in _NEWER_OPTIONS}
    for name, value in found.items():
        if value:
            raise PlanError(
                f"`speculative_config.{name}` is {value!r}: the P-EAGLE worker drafts K tokens in one pass, every step",
                hint="leave it out",
            )


def read_fitting_head(head_path: Path, target: TargetSizes, layers_to_capture: object) -> DrafterCheckpoint:
    """Read a head and refuse one that does not fit the target it is served with.

    Args:
        head_path: Its folder.
        target: The target's sizes.
        layers_to_capture: `eagle3_layers_to_capture`, or None for TensorRT-LLM's default.

    Raises:
        CheckpointError: It is damaged, of another kind, or does not fit.
        PlanError: The captured layers are not those it was trained with.
    """
    head = read_drafter(head_path, num_target_layers=target.num_hidden_layers)
    config = head.config
    _require_sizes(head_path, config, target)
    _require_layers(config, target.num_hidden_layers, layers_to_capture)
    parts = {
        "norm_before_residual": config.norm_before_residual,
        "norms of queries and keys": config.has_qk_norm,
        "sliding windows": any(config.attention_windows),
        "quantized weights": any(tensor.packed is not None for tensor in head.weights.values()),
    }
    for what, is_there in parts.items():
        if is_there:
            raise CheckpointError(
                f"`{head_path}` has {what}, which the worker for TensorRT-LLM has no part for",
                hint="serve it with another backend",
            )
    return head


def _require_sizes(head_path: Path, config: DrafterConfig, target: TargetSizes) -> None:
    pairs = (
        ("target_hidden_size", config.target_hidden_size, "hidden_size", target.hidden_size),
        ("vocab_size", config.vocab_size, "vocab_size", target.vocab_size),
    )
    for name, found, other, expected in pairs:
        if found != expected:
            raise CheckpointError(
                f"the head `{head_path}` does not fit: its `{name}` is {found}, the target's `{other}` {expected}",
                hint="it was trained for another target",
            )
    if config.is_parallel and config.mask_token_id >= target.vocab_size:
        raise CheckpointError(
            f"the head `{head_path}` masks with token {config.mask_token_id}; the target has {target.vocab_size}",
            hint="build it again: its configuration was changed by hand",
        )
    if not config.has_own_embeddings and config.hidden_size != target.hidden_size:
        raise CheckpointError(
            f"the head `{head_path}` has no embeddings and is {config.hidden_size} wide; the target's are "
            f"{target.hidden_size}",
            hint="it lacks a tensor, or was trained for another target",
        )


def _require_layers(config: DrafterConfig, num_layers: int, layers_to_capture: object) -> None:
    outputs = [layer - 1 for layer in config.aux_layer_ids]
    default = [1, num_layers // 2 - 1, num_layers - 4]
    captured = default if layers_to_capture is None else sorted(set(map(int, layers_to_capture)))  # type: ignore[call-overload]
    if captured != outputs:
        raise PlanError(
            f"TensorRT-LLM would capture the outputs of layers {captured}; the head was trained with {outputs}",
            hint=f"set `speculative_config.eagle3_layers_to_capture: {outputs}`",
        )
