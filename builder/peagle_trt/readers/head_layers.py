"""What a head's configuration says about its layers: the layers' own section, their windows and their rotation."""

from __future__ import annotations

from dataclasses import replace

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.json_file import Fields
from peagle_trt.readers.ranges import POSITIONS
from peagle_trt.readers.rope import read_rope
from peagle_trt.spec import RopeConfig

_NESTED = "transformer_layer_config"
_MODEL_TYPES = ("llama", "qwen3")
_KINDS = ("full_attention", "sliding_attention")


def layer_fields(fields: Fields) -> Fields:
    """Where the sizes of the layers stand: a section of their own in speculators' files, else the configuration itself.

    Raises:
        CheckpointError: The section describes layers of another family.
    """
    if not fields.has(_NESTED):
        return fields
    section = fields.section(_NESTED)
    if section.text("model_type", "llama") not in _MODEL_TYPES:
        raise section.refuse("model_type", " or ".join(f"`{name}`" for name in _MODEL_TYPES))
    return section


def without_windows(layers: Fields) -> Fields:
    """The same settings as if no window were named, for the checks that layers share with targets."""
    names = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")
    return replace(layers, values={key: value for key, value in layers.values.items() if key not in names})


def read_windows(layers: Fields, num_layers: int) -> tuple[int, ...]:
    """Tokens that each layer looks back at, the current one included; empty where all look at all.

    Args:
        layers: Settings of the layers.
        num_layers: How many there are.

    Raises:
        CheckpointError: It stays open which layers have a window, or how wide it is.

    Source: transformers 5 `masking_utils.py`: a key is seen while `query - key < sliding_window`. vLLM `llama.py`:
        windows come from `layer_types` alone.
    """
    kinds = layers.texts("layer_types")
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown:
        raise layers.refuse("layer_types", " or ".join(f"`{kind}`" for kind in _KINDS))
    if kinds and len(kinds) != num_layers:
        raise layers.refuse("layer_types", f"one entry for each of {num_layers} layers")
    if not kinds:
        return _refuse_unplaced(layers)
    if "sliding_attention" not in kinds:
        return ()
    if not layers.flag("use_sliding_window", default=True):
        raise layers.refuse(
            "use_sliding_window",
            "true while `layer_types` names sliding layers",
            hint="set it to true, or `layer_types` to `full_attention`, whichever the head was trained with",
        )
    window = layers.integer("sliding_window", within=POSITIONS)
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _refuse_unplaced(layers: Fields) -> tuple[int, ...]:
    """A window that no layer is said to have; serving engines differ in what they make of it."""
    # A head has no architecture to say whether the flag counts, so it counts where it is there.
    is_used = layers.flag("use_sliding_window", default=not layers.has("use_sliding_window"))
    if layers.has("sliding_window") and is_used:
        raise layers.refuse(
            "sliding_window",
            "null, or `layer_types` beside it",
            hint="say with `layer_types` which layers the window belongs to, as the trainer set it",
        )
    return ()


def read_head_rope(layers: Fields) -> RopeConfig:
    """The rotary embedding, in either spelling.

    Raises:
        CheckpointError: It is not supported, or the two spellings contradict each other.
    """
    rope = read_rope(layers)
    if not (layers.has("rope_parameters") and layers.has("rope_scaling")):
        return rope
    older = replace(layers, values={key: value for key, value in layers.values.items() if key != "rope_parameters"})
    if read_rope(older) != rope:
        raise CheckpointError(
            f"`{layers.source}`: `{layers.path}rope_scaling` and `{layers.path}rope_parameters` disagree",
            hint="keep the one the head was trained with",
        )
    return rope
