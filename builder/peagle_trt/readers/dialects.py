"""The spellings in which EAGLE-3 and P-EAGLE heads are published.

A dialect is recognised by what its files hold, never by a path: by how it names the fusion layer, and by keys of its
configuration that only one trainer writes. It settles how tensors are called and how the target's layers are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.json_file import Fields
from peagle_trt.readers.llama_names import llama_name
from peagle_trt.spec import TensorSpec
from peagle_trt.spec.drafter import AuxNumbering

_UNPREFIXED = ("mask_hidden", "d2t", "t2d", "lm_head")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One spelling.

    Attributes:
        name: For messages and `DrafterConfig.dialect`.
        first_layer: Prefix of the fusion layer's tensors.
        later_layers: Prefix of the other layers' tensors, before the layer's number.
        later_norm: What the other layers call the norm of their input.
        prefix: Prefix of all tensors but `lm_head`, `d2t` and `mask_hidden`.
        counts: Whether a number of a target's layer means the stream that enters it or the one that leaves it.
    """

    name: str
    first_layer: str = "layers.0."
    later_layers: str = "layers."
    later_norm: str = "input_layernorm"
    prefix: str = ""
    counts: AuxNumbering = "inputs"

    def foreign_name(self, name: str) -> str:
        """The dialect's spelling of one of our names."""
        if name in ("mask_hidden", "d2t"):
            return name
        if name in ("fc", "input_norm") or name.startswith("fc_norm."):
            return f"{self.prefix}{name}.weight"
        return llama_name(name) if name == "lm_head" else self.prefix + self._layer_name(name)

    def _layer_name(self, name: str) -> str:
        spelled = llama_name(name)
        if name.startswith("layers.0."):
            return self.first_layer + spelled.removeprefix("layers.0.")
        if name.startswith("layers."):
            later = self.later_layers + spelled.removeprefix("layers.")
            return later.replace(".input_layernorm.", f".{self.later_norm}.")
        return spelled


VLLM = Dialect(name="vllm")
"""This project's own, and vLLM's."""
SPECULATORS = Dialect(name="speculators")
AUTOMODEL = Dialect(name="automodel", prefix="model.", counts="outputs")
SPECFORGE = Dialect(name="specforge", counts="outputs")
ANGELSLIM = Dialect(name="angelslim", counts="outputs")
NVIDIA = Dialect(name="nvidia", counts="outputs")
TRTLLM = Dialect(
    name="trtllm",
    first_layer="midlayer.0.",
    later_layers="midlayer.",
    later_norm="hidden_norm",
    counts="outputs",
)
TRTLLM_ONE_LAYER = replace(TRTLLM, first_layer="midlayer.")
AMAZON = Dialect(name="amazon", first_layer="midlayer.")
SAFEAILAB = Dialect(name="safeailab", first_layer="midlayer.", counts="outputs")
"""Plain EAGLE-3 as its authors and SpecForge write it."""

_NVIDIA_KEYS = ("next_layer_regular", "use_last_layernorm", "use_input_layernorm_in_first_layer", "use_mtp_layernorm")
# How a head may call its fusion layer, by the tensor that only such a layer has.
_PREFIXED, _NUMBERED, _MIDLAYER, _LISTED = (
    f"{prefix}hidden_norm.weight" for prefix in ("model.layers.0.", "midlayer.0.", "midlayer.", "layers.0.")
)


def find_dialect(folder: Path, fields: Fields, found: Mapping[str, TensorSpec]) -> Dialect:
    """Recognise the spelling of a head.

    Args:
        folder: The head, for messages.
        fields: Its config.json.
        found: Its tensors by foreign name.

    Raises:
        CheckpointError: It is no EAGLE-3 head, or one in a spelling that is not known.

    Source: vLLM `llama_eagle3.py`, which reads `midlayer.` as `layers.0.`; TensorRT-LLM `modeling_speculative.py`;
        Model-Optimizer's export template for `_NVIDIA_KEYS`; NeMo Automodel `draft_llama.py`; AngelSlim's
        `aux_hidden_states_layer_ids`, read at `hidden_states[id + 1]`.
    """
    if _PREFIXED in found:
        return AUTOMODEL
    if _NUMBERED in found:
        return TRTLLM
    is_nvidia = any(fields.section("eagle_config").has(key) for key in _NVIDIA_KEYS)
    if _MIDLAYER in found:
        return _find_midlayer(found, is_nvidia=is_nvidia)
    if _LISTED in found:
        return _with_later_norm(_find_listed(fields, is_nvidia=is_nvidia), found)
    known = ", ".join(f"`{name}`" for name in (_LISTED, _MIDLAYER, _NUMBERED, _PREFIXED))
    raise CheckpointError(
        f"`{folder}` is not an EAGLE-3 or P-EAGLE head in a known spelling", hint=f"its fusion layer would have {known}"
    )


def _find_midlayer(found: Mapping[str, TensorSpec], *, is_nvidia: bool) -> Dialect:
    if is_nvidia:
        return TRTLLM_ONE_LAYER
    return AMAZON if "mask_hidden" in found else SAFEAILAB


def _find_listed(fields: Fields, *, is_nvidia: bool) -> Dialect:
    if fields.has("speculators_model_type"):
        return SPECULATORS
    if fields.has("aux_hidden_states_layer_ids"):
        return ANGELSLIM
    if is_nvidia:
        return NVIDIA
    return SPECFORGE if "PEagleDraftModel" in fields.texts("architectures") else VLLM


def _with_later_norm(dialect: Dialect, found: Mapping[str, TensorSpec]) -> Dialect:
    # TensorRT-LLM's layers after the first have no embedding to norm, so their one norm may be called `hidden_norm`.
    if "layers.1.hidden_norm.weight" in found and "layers.1.input_layernorm.weight" not in found:
        return replace(dialect, later_norm="hidden_norm")
    return dialect
