"""A head's config.json, in every dialect, as a `DrafterConfig`."""

from __future__ import annotations

from collections.abc import Mapping

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.architectures import read_heads, refuse_unsupported_parts
from peagle_trt.readers.dialects import SPECULATORS, Dialect
from peagle_trt.readers.head_aux import check_fusion_width, read_aux_layers
from peagle_trt.readers.head_layers import layer_fields, read_head_rope, read_windows, without_windows
from peagle_trt.readers.json_file import Fields
from peagle_trt.readers.ranges import DEPTHS, EPSILON, LAYERS, POSITIONS, SIZE, TOKEN_ID
from peagle_trt.spec import DrafterConfig, TensorSpec
from peagle_trt.spec.drafter import NO_MASK_TOKEN

# Source: vLLM `_init_parallel_drafting_params`, in its order of preference.
_MASK_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")
_DEPTH_KEYS = ("num_depths", "para_depths")
_PARALLEL_TYPE = "peagle"


def read_head_config(
    fields: Fields,
    found: Mapping[str, TensorSpec],
    dialect: Dialect,
    *,
    num_target_layers: int | None,
    mask_token_id: int | None,
) -> DrafterConfig:
    """Normalise a head's configuration.

    Args:
        fields: Its config.json.
        found: Its tensors by foreign name.
        dialect: Its spelling.
        num_target_layers: Layers of the target, or None where it is not known.
        mask_token_id: Token of a masked slot as the user says, or None.

    Raises:
        CheckpointError: A setting is missing, contradicts another one, or is not supported.
    """
    layers = layer_fields(fields)
    _refuse_unsupported(fields, layers)
    is_parallel = _read_kind(fields, found)
    hidden, vocab_size = layers.integer("hidden_size", within=SIZE), layers.integer("vocab_size", within=SIZE)
    target_hidden = fields.integer("target_hidden_size", hidden, within=SIZE)
    heads, num_layers = read_heads(layers, hidden), layers.integer("num_hidden_layers", within=LAYERS)
    aux_layer_ids, numbering = read_aux_layers(fields, dialect, num_target_layers)
    config = DrafterConfig(
        dialect=dialect.name,
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        intermediate_size=layers.integer("intermediate_size", within=SIZE),
        num_layers=num_layers,
        num_attention_heads=heads.num_query,
        num_key_value_heads=heads.num_key_value,
        head_dim=heads.width,
        vocab_size=vocab_size,
        draft_vocab_size=fields.integer("draft_vocab_size", vocab_size, within=SIZE),
        rms_norm_eps=layers.number("rms_norm_eps", within=EPSILON),
        rope=read_head_rope(layers),
        max_positions=layers.integer("max_position_embeddings", within=POSITIONS),
        mask_token_id=_read_mask_token(fields, mask_token_id) if is_parallel else NO_MASK_TOKEN,
        aux_layer_ids=aux_layer_ids,
        aux_numbering=numbering,
        is_parallel=is_parallel,
        attention_windows=read_windows(layers, num_layers),
        num_depths=_read_depths(fields),
        **_read_norms(fields, dialect),
        **_read_presence(found, dialect),
        has_attention_bias=layers.flag("attention_bias"),
        has_mlp_bias=layers.flag("mlp_bias"),
    )
    _check_consistency(fields, config)
    _check_fusion(fields, found, dialect, config)
    return config


def _refuse_unsupported(fields: Fields, layers: Fields) -> None:
    if layers is not fields and layers.has("quantization_config"):
        raise layers.refuse("quantization_config", "absent", hint="whether weights are quantized is said outside of it")
    for part in (fields, layers) if layers is not fields else (fields,):
        refuse_unsupported_parts(without_windows(part), has_sliding_window_flag=False)
    eagle = fields.section("eagle_config")
    if not eagle.flag("use_aux_hidden_state", default=True):
        raise eagle.refuse("use_aux_hidden_state", "true", hint="heads without auxiliary states are not supported")
    if eagle.flag("eh_proj_before_attn"):
        raise eagle.refuse("eh_proj_before_attn", "false", hint="another fusion than EAGLE-3's is not supported")
    if not eagle.flag("next_layer_regular", default=True) and layers.integer("num_hidden_layers", within=LAYERS) > 1:
        raise eagle.refuse("next_layer_regular", "true", hint="later layers that read embeddings are not supported")


def _read_kind(fields: Fields, found: Mapping[str, TensorSpec]) -> bool:
    """Whether the head is parallel: it carries the state of a masked slot, and nothing says otherwise."""
    has_mask = "mask_hidden" in found
    speculators = fields.text("speculators_model_type", "")
    is_said = fields.flag("parallel_drafting", default=speculators == _PARALLEL_TYPE if speculators else has_mask)
    if has_mask and not is_said:
        key = "parallel_drafting" if fields.has("parallel_drafting") else "speculators_model_type"
        expected = "true" if key == "parallel_drafting" else f"`{_PARALLEL_TYPE}`"
        raise fields.refuse(key, f"{expected} in a head that carries `mask_hidden`")
    if is_said and not has_mask:
        raise CheckpointError(
            f"`{fields.source}` says that the head is parallel, but it carries no `mask_hidden`",
            hint="the state of a masked slot is learned and cannot be made up; fetch the head again",
        )
    return has_mask


def _read_norms(fields: Fields, dialect: Dialect) -> dict[str, bool]:
    # vLLM takes the default of an EAGLE-3 head in speculators' dialect to be true, of every other one false.
    is_true_by_default = dialect is SPECULATORS and fields.text("speculators_model_type") == "eagle3"
    eagle = fields.section("eagle_config")
    return {
        "norm_before_residual": fields.flag("norm_before_residual", default=is_true_by_default),
        "norm_before_fc": eagle.flag("norm_before_fc") or fields.flag("norm_before_fc"),
        "has_fc_norm": fields.flag("fc_norm"),
        "norm_output": fields.flag("norm_output") or eagle.flag("return_hidden_post_norm"),
    }


def _read_presence(found: Mapping[str, TensorSpec], dialect: Dialect) -> dict[str, bool]:
    """What a head says by carrying a tensor or not."""
    carried = {
        "has_output_bias": "layers.0.o_bias",
        "has_qk_norm": "layers.0.q_norm",
        "has_own_embeddings": "embed_tokens",
        "has_own_lm_head": "lm_head",
        "has_vocabulary_map": "d2t",
    }
    return {attribute: dialect.foreign_name(name) in found for attribute, name in carried.items()}


def _read_mask_token(fields: Fields, said: int | None) -> int:
    values = {f"`{key}`": fields.integer(key, within=TOKEN_ID) for key in _MASK_KEYS if fields.has(key)}
    if said is not None:
        values["--mask-token-id"] = said
    if not values:
        raise CheckpointError(
            f"`{fields.source}` names no mask token",
            hint=f"give it with --mask-token-id, or add one of {', '.join(_MASK_KEYS)}; the trainer knows it",
        )
    if len(set(values.values())) > 1:
        listed = ", ".join(f"{key} = {value}" for key, value in values.items())
        raise CheckpointError(
            f"`{fields.source}` names several mask tokens: {listed}", hint="keep the one it was trained with"
        )
    return next(iter(values.values()))


def _read_depths(fields: Fields) -> int | None:
    for key in _DEPTH_KEYS:
        if fields.has(key):
            return fields.integer(key, within=DEPTHS)
    proposals = fields.section("speculators_config").values.get("proposal_methods")
    first = proposals[0] if isinstance(proposals, list) and proposals else None
    if not isinstance(first, dict):
        return None
    path = "speculators_config.proposal_methods[0]."
    return Fields(source=fields.source, values=first, path=path).optional_integer("speculative_tokens", within=DEPTHS)


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


def _check_fusion(fields: Fields, found: Mapping[str, TensorSpec], dialect: Dialect, config: DrafterConfig) -> None:
    fc = found.get(dialect.foreign_name("fc"))
    # Two codes of NVFP4 share a byte; packed, `fc` is checked with the other tensors.
    if fc is not None and len(fc.shape) == 2 and fc.dtype != "U8":
        check_fusion_width(fields, config.aux_layer_ids, fc.shape[1], config.target_hidden_size)
