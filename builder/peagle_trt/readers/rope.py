"""Rotary embeddings as checkpoints spell them: the older `rope_theta` + `rope_scaling`, and `rope_parameters`.

Source: transformers 5 `modeling_rope_utils.py` for keys, defaults and types.
"""

from __future__ import annotations

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.json_file import Fields
from peagle_trt.readers.ranges import POSITIONS, ROPE_FACTOR, ROPE_THETA, SHARE
from peagle_trt.spec import RopeConfig

DEFAULT_THETA = 10000.0
_KEYS = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset(
        {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "truncate"}
    ),
}
# Read apart (the type, theta, the rotated share of a head), or a mere label (`finetuned`, in old YaRN files).
_COMMON_KEYS = frozenset({"rope_type", "type", "rope_theta", "finetuned", "partial_rotary_factor"})


def read_rope(config: Fields, *, default_theta: float = DEFAULT_THETA) -> RopeConfig:
    """Translate a configuration's rotary embedding.

    Args:
        config: The configuration.
        default_theta: Base of the wavelengths where the configuration is silent.

    Raises:
        CheckpointError: The type is unknown, a key is missing, or a key is there whose meaning is not known.
    """
    scaling = config.section("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    theta = _read_theta(config, scaling, default_theta)
    for fields in (config, scaling):
        if fields.number("partial_rotary_factor", 1.0, within=SHARE) != 1.0:
            raise fields.refuse("partial_rotary_factor", "1.0", hint="only whole heads can be rotated")
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind not in _KEYS:
        known = ", ".join(f"`{name}`" for name in _KEYS)
        raise CheckpointError(
            f"`{config.source}`: `{scaling.path}rope_type` is `{kind}`, which is not supported",
            hint=f"supported: {known}",
        )
    _refuse_unknown_keys(scaling, kind)
    match kind:
        case "linear":
            return RopeConfig(theta=theta, scaling="linear", factor=scaling.number("factor", within=ROPE_FACTOR))
        case "llama3":
            return _read_llama3(scaling, theta)
        case "yarn":
            return _read_yarn(scaling, theta, config)
    return RopeConfig(theta=theta)


def _read_theta(config: Fields, scaling: Fields, default: float) -> float:
    outer = config.number("rope_theta", default, within=ROPE_THETA)
    inner = scaling.number("rope_theta", outer, within=ROPE_THETA)
    if config.has("rope_theta") and inner != outer:
        raise scaling.refuse("rope_theta", f"equal to the outer `rope_theta`, {outer}")
    return inner


def _refuse_unknown_keys(scaling: Fields, kind: str) -> None:
    allowed = _KEYS[kind] | _COMMON_KEYS
    unknown = sorted(key for key in scaling.values if key not in allowed and scaling.has(key))
    if unknown:
        raise CheckpointError(
            f"`{scaling.source}`: `{scaling.path}{unknown[0]}` is not understood for the rotary type `{kind}`",
            hint=f"understood: {', '.join(sorted(_KEYS[kind])) or 'rope_theta only'}",
        )


def _read_llama3(scaling: Fields, theta: float) -> RopeConfig:
    low, high = (scaling.number(f"{end}_freq_factor", within=ROPE_FACTOR) for end in ("low", "high"))
    if high <= low:
        raise scaling.refuse("high_freq_factor", f"above `low_freq_factor`, {low}")
    return RopeConfig(
        theta=theta,
        scaling="llama3",
        factor=scaling.number("factor", within=ROPE_FACTOR),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=scaling.integer("original_max_position_embeddings", within=POSITIONS),
    )


def _read_yarn(scaling: Fields, theta: float, config: Fields) -> RopeConfig:
    # Older files leave the original length out and mean the model's own.
    original = config.optional_integer("max_position_embeddings", within=POSITIONS)
    fast = scaling.number("beta_fast", 32.0, within=ROPE_FACTOR)
    slow = scaling.number("beta_slow", 1.0, within=ROPE_FACTOR)
    if fast <= slow:
        raise scaling.refuse("beta_fast", f"above `beta_slow`, {slow}")
    attention_factor = scaling.number("attention_factor", 1.0, within=ROPE_FACTOR)
    return RopeConfig(
        theta=theta,
        scaling="yarn",
        factor=scaling.number("factor", within=ROPE_FACTOR),
        original_max_positions=scaling.integer("original_max_position_embeddings", original, within=POSITIONS),
        beta_fast=fast,
        beta_slow=slow,
        attention_factor=attention_factor if scaling.has("attention_factor") else None,
        truncates_ramp=scaling.flag("truncate", default=True),
    )
