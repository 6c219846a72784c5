"""P-EAGLE heads: configuration and weights in any known dialect."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.accounting import INVERSE_FREQUENCIES, Ignorable, account_for
from peagle_trt.readers.architectures import read_heads, refuse_unsupported_parts
from peagle_trt.readers.checkpoint import DrafterCheckpoint
from peagle_trt.readers.dialects import Dialect, find_dialect
from peagle_trt.readers.json_file import Fields, read_object
from peagle_trt.readers.ranges import DEPTHS, EPSILON, LAYER_ID, LAYERS, POSITIONS, SIZE, TOKEN_ID
from peagle_trt.readers.rope import read_rope
from peagle_trt.readers.safetensors_file import lazy_tensor
from peagle_trt.readers.shards import read_folder_tensors
from peagle_trt.readers.tensors import Weights
from peagle_trt.spec import DrafterConfig, TensorSpec
from peagle_trt.spec.names import drafter_shapes
from peagle_trt.spec.target import default_aux_layer_ids

logger = logging.getLogger(__name__)

_IGNORABLE = (
    INVERSE_FREQUENCIES,
    Ignorable(pattern=r"t2d", reason="the inverse of d2t; only training reads it"),
)
# Source: vLLM `_init_parallel_drafting_params`, in its order of preference.
_MASK_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")


def read_drafter(path: Path, *, num_target_layers: int | None = None) -> DrafterCheckpoint:
    """Read a P-EAGLE head and check it in full; no tensor is loaded.

    Args:
        path: Folder with config.json and safetensors.
        num_target_layers: Layers of the target, to find the default of a head that does not name its
            auxiliary layers.

    Raises:
        CheckpointError: It is no P-EAGLE head, or it is damaged, incomplete or not supported.
    """
    if not path.is_dir():
        raise CheckpointError(f"`{path}` is not a folder", hint="give the folder that holds the head's config.json")
    fields = read_object(path / "config.json")
    found = _flatten_mask(read_folder_tensors(path))
    dialect = find_dialect(path, found)
    _refuse_sequential_head(path, found)
    config = _read_config(fields, found, dialect, num_target_layers)
    used = account_for(
        path, found, expected_shapes=drafter_shapes(config), foreign_name=dialect.foreign_name, ignorable=_IGNORABLE
    )
    weights = Weights({name: lazy_tensor(spec) for name, spec in used.items()})
    return DrafterCheckpoint(path=path, config=config, weights=weights)


def is_drafter(path: Path) -> bool:
    """Whether a folder looks like an EAGLE head rather than a target: its tensors include the `fc` that fuses states.

    Raises:
        CheckpointError: The folder's weights are absent or damaged.
    """
    return path.is_dir() and any(name.removeprefix("model.") == "fc.weight" for name in read_folder_tensors(path))


def _flatten_mask(found: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    # Heads store it as [1, 1, A*Ht]; the leading axes carry nothing.
    result = dict(found)
    mask = found.get("mask_hidden")
    if mask is not None and len(mask.shape) == 3 and mask.shape[:2] == (1, 1):
        result["mask_hidden"] = replace(mask, shape=mask.shape[2:])
    return result


def _refuse_sequential_head(path: Path, found: Mapping[str, TensorSpec]) -> None:
    if "mask_hidden" not in found:
        raise CheckpointError(
            f"`{path}` lacks `mask_hidden`: it is a plain EAGLE-3 head, which drafts one token a pass",
            hint="use a P-EAGLE head, or train one for this target",
        )


def _read_config(
    fields: Fields, found: Mapping[str, TensorSpec], dialect: Dialect, num_target_layers: int | None
) -> DrafterConfig:
    eagle = fields.section("eagle_config")
    # A head has no architecture to say whether the flag counts, so it counts where it is there.
    refuse_unsupported_parts(fields, has_sliding_window_flag=fields.has("use_sliding_window"))
    if not fields.flag("parallel_drafting", default=True):
        raise fields.refuse("parallel_drafting", "true", hint="a head that drafts one token a pass is not supported")
    if not eagle.flag("use_aux_hidden_state", default=True):
        raise eagle.refuse("use_aux_hidden_state", "true", hint="heads without auxiliary states are not supported")
    hidden, vocab_size = fields.integer("hidden_size", within=SIZE), fields.integer("vocab_size", within=SIZE)
    heads = read_heads(fields, hidden)
    config = DrafterConfig(
        dialect=dialect.name,
        hidden_size=hidden,
        target_hidden_size=fields.integer("target_hidden_size", hidden, within=SIZE),
        intermediate_size=fields.integer("intermediate_size", within=SIZE),
        num_layers=fields.integer("num_hidden_layers", within=LAYERS),
        num_attention_heads=heads.num_query,
        num_key_value_heads=heads.num_key_value,
        head_dim=heads.width,
        vocab_size=vocab_size,
        draft_vocab_size=fields.integer("draft_vocab_size", vocab_size, within=SIZE),
        rms_norm_eps=fields.number("rms_norm_eps", within=EPSILON),
        rope=read_rope(fields),
        max_positions=fields.integer("max_position_embeddings", within=POSITIONS),
        mask_token_id=_read_mask_token(fields),
        aux_layer_ids=_read_aux_layers(fields, eagle, num_target_layers),
        norm_before_residual=fields.flag("norm_before_residual"),
        norm_before_fc=eagle.flag("norm_before_fc") or fields.flag("norm_before_fc"),
        has_fc_norm=fields.flag("fc_norm"),
        attention_windows=(),
        num_depths=fields.optional_integer("num_depths", within=DEPTHS),
        **_read_presence(
            found, dialect, has_attention_bias=fields.flag("attention_bias"), has_mlp_bias=fields.flag("mlp_bias")
        ),
    )
    _check_consistency(fields, config)
    return config


def _read_presence(
    found: Mapping[str, TensorSpec], dialect: Dialect, *, has_attention_bias: bool, has_mlp_bias: bool
) -> dict[str, bool]:
    """What a head says by carrying a tensor or not."""
    carried = {
        "has_output_bias": "layers.0.o_bias",
        "has_qk_norm": "layers.0.q_norm",
        "has_own_embeddings": "embed_tokens",
        "has_own_lm_head": "lm_head",
        "has_vocabulary_map": "d2t",
    }
    presence = {attribute: dialect.foreign_name(name) in found for attribute, name in carried.items()}
    return presence | {"has_attention_bias": has_attention_bias, "has_mlp_bias": has_mlp_bias}


def _read_mask_token(fields: Fields) -> int:
    values = {key: fields.integer(key, within=TOKEN_ID) for key in _MASK_KEYS if fields.has(key)}
    if not values:
        raise CheckpointError(
            f"`{fields.source}` names no mask token", hint=f"add one of {', '.join(_MASK_KEYS)}; the trainer knows it"
        )
    if len(set(values.values())) > 1:
        listed = ", ".join(f"`{key}` = {value}" for key, value in values.items())
        raise CheckpointError(
            f"`{fields.source}` names several mask tokens: {listed}", hint="keep the one it was trained with"
        )
    return next(iter(values.values()))


def _read_aux_layers(fields: Fields, eagle: Fields, num_target_layers: int | None) -> tuple[int, ...]:
    key = "eagle_aux_hidden_state_layer_ids"
    layers = eagle.integers(key, within=LAYER_ID) or fields.integers(key, within=LAYER_ID)
    if layers:
        return layers
    if num_target_layers is None:
        raise CheckpointError(
            f"`{fields.source}` does not name the target's layers that feed it",
            hint=f"give the target too, or add `{key}`",
        )
    default = default_aux_layer_ids(num_target_layers)
    logger.warning("`%s` does not name its auxiliary layers; taking the usual %s", fields.source, default)
    return default


def _check_consistency(fields: Fields, config: DrafterConfig) -> None:
    if config.norm_before_fc and config.has_fc_norm:
        raise fields.refuse("fc_norm", "false while `norm_before_fc` is true")
    if config.draft_vocab_size > config.vocab_size:
        raise fields.refuse("draft_vocab_size", f"at most `vocab_size`, {config.vocab_size}")
    if config.draft_vocab_size < config.vocab_size and not config.has_vocabulary_map:
        raise CheckpointError(
            f"`{fields.source}`: `draft_vocab_size` is {config.draft_vocab_size} of {config.vocab_size}, "
            "but there is no `d2t`",
            hint="without the map nobody can tell which tokens the head proposes; fetch the head again",
        )
