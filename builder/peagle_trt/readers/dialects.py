"""The spellings in which P-EAGLE heads are published.

A dialect is recognised by what its files hold, never by a path. Each row says how to tell it and how it names tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.llama_names import llama_name
from peagle_trt.spec import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One spelling.

    Attributes:
        name: For messages and `DrafterConfig.dialect`.
        telltale: Tensor that only this spelling has.
        first_layer: Prefix of the fusion layer's tensors.
        prefix: Prefix of all tensors but `lm_head`, `d2t` and `mask_hidden`.
    """

    name: str
    telltale: str
    first_layer: str
    prefix: str = ""

    def foreign_name(self, name: str) -> str:
        """The dialect's spelling of one of our names."""
        if name in ("mask_hidden", "d2t"):
            return name
        if name in ("fc", "input_norm") or name.startswith("fc_norm."):
            return f"{self.prefix}{name}.weight"
        spelled = llama_name(name)
        if name.startswith("layers.0."):
            spelled = self.first_layer + spelled.removeprefix("layers.0.")
        return spelled if name == "lm_head" else self.prefix + spelled


DIALECTS = (
    Dialect(name="peagle-trt", telltale="layers.0.hidden_norm.weight", first_layer="layers.0."),
    Dialect(name="amazon", telltale="midlayer.hidden_norm.weight", first_layer="midlayer."),
)
"""Source: facts of the published heads; vLLM `llama_eagle3.py` reads both, renaming `midlayer.` to `layers.0.`."""


def find_dialect(folder: Path, found: Mapping[str, TensorSpec]) -> Dialect:
    """Recognise the spelling of a head.

    Raises:
        CheckpointError: It is no EAGLE-3 head, or one in a spelling that is not known.
    """
    for dialect in DIALECTS:
        if dialect.telltale in found:
            return dialect
    known = ", ".join(f"{dialect.name} (`{dialect.telltale}`)" for dialect in DIALECTS)
    raise CheckpointError(f"`{folder}` is not a P-EAGLE head in a known spelling", hint=f"known, by telltale: {known}")
