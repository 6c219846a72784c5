"""How far each layer of a target looks back, as configurations spell it."""

from __future__ import annotations

from typing import Literal

from peagle_trt.readers.json_file import Fields
from peagle_trt.readers.ranges import LAYER_ID, POSITIONS

WindowRule = Literal["none", "all", "upper", "by_type"]
"""Where `sliding_window` applies: nowhere, so that it is refused; to every layer; to layers from `max_window_layers`
on; to the layers that `layer_types` names, by turns where it is absent (gpt-oss).

Source: transformers 5 `configuration_{mistral,qwen2,qwen3,qwen3_moe,gpt_oss}.py`.
"""
_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_windows(config: Fields, rule: WindowRule, num_layers: int, *, has_flag: bool) -> tuple[int, ...]:
    """Tokens that each layer looks back at, the current one included, 0 for all; empty where every layer looks at all.

    Args:
        config: The configuration.
        rule: Where a window applies.
        num_layers: Layers of the target.
        has_flag: A window only counts while `use_sliding_window` is true.

    Raises:
        CheckpointError: There is a window where none is known to apply, or the layers' kinds contradict it.
    """
    if rule == "none":
        refuse_windows(config, has_flag=has_flag)
        return ()
    is_windowed = [kind == _SLIDING for kind in _layer_kinds(config, rule, num_layers, has_flag=has_flag)]
    if not any(is_windowed):
        return ()
    window = config.integer("sliding_window", within=POSITIONS)
    return tuple(window if each else 0 for each in is_windowed)


def refuse_windows(config: Fields, *, has_flag: bool) -> None:
    """Refuse a window.

    Raises:
        CheckpointError: There is one.
    """
    if config.has("sliding_window") and (not has_flag or config.flag("use_sliding_window")):
        raise config.refuse("sliding_window", "null", hint="sliding-window attention is not supported")
    others = sorted({kind for kind in config.texts("layer_types") if kind != _FULL})
    if others:
        raise config.refuse("layer_types", f"`{_FULL}` throughout", hint=f"`{others[0]}` is not supported")


def _layer_kinds(config: Fields, rule: WindowRule, num_layers: int, *, has_flag: bool) -> tuple[str, ...]:
    named = config.texts("layer_types")
    if named and (len(named) != num_layers or not set(named) <= {_FULL, _SLIDING}):
        raise config.refuse("layer_types", f"`{_FULL}` or `{_SLIDING}` for each of {num_layers} layers")
    if rule == "by_type":
        return named or tuple((_SLIDING, _FULL)[layer % 2] for layer in range(num_layers))
    is_used = config.has("sliding_window") and (not has_flag or config.flag("use_sliding_window"))
    first = config.integer("max_window_layers", within=LAYER_ID) if is_used and rule == "upper" and not named else 0
    kinds = tuple(_SLIDING if is_used and layer >= first else _FULL for layer in range(num_layers))
    if named and (rule == "all" or not is_used) and named != kinds:
        raise config.refuse("layer_types", f"`{kinds[0]}` throughout, by the other settings of the window")
    return named or kinds
