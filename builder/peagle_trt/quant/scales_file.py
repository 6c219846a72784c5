"""The file of scales: what calibration hands on to whoever packs weights.

A safetensors file of float32: scalars `MODULE.input_scale`, `MODULE.k_scale`, `MODULE.v_scale`, and vectors
`MODULE.pre_quant_scale` [columns] that activations are multiplied by, and the weight's columns divided by. MODULE is
the module's name in the quantized checkpoint, `...experts.7.gate_proj` for an expert of its own. Where a checkpoint
keeps all experts in one tensor, it is `...experts.gate_up_proj_input_scale`. Activations are rounded as
`x / input_scale`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError
from peagle_trt.files import replacing
from peagle_trt.readers.safetensors_file import load_tensor, read_header

INPUT_SCALE, PRE_QUANT_SCALE = ".input_scale", ".pre_quant_scale"
CACHE_SCALES = (".k_scale", ".v_scale")
STACKED_INPUT_SCALE = "_input_scale"
_SUFFIXES = (INPUT_SCALE, STACKED_INPUT_SCALE, PRE_QUANT_SCALE, *CACHE_SCALES)
_AGAIN = "calibrate again"
_MAX_DIGITS = 18
"""Of a count; Python refuses to read numbers of thousands of digits, and text of no length has that many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Scales by tensor name, and where they come from.

    Attributes:
        values: float32, of no dimensions or, for `pre_quant_scale`, [columns]; all finite and above 0, and so are
            their reciprocals.
        recipe: Name of the calibration.
        num_texts: Texts that were read.
        num_tokens: Their tokens.
        tool: What found the maxima, with its version.
        notes: Anything else that a person may want to know, by topic.
        path: The file it was read from, or None.
    """

    values: Mapping[str, NDArray[np.float32]]
    recipe: str
    num_texts: int
    num_tokens: int
    tool: str
    notes: Mapping[str, str] = field(default_factory=dict)
    path: Path | None = None


def write_scales(scales: Scales, path: Path) -> None:
    """Write a file of scales.

    Raises:
        MachineError: The disk is full, or the folder cannot be written.
    """
    fixed = {
        "recipe": scales.recipe,
        "samples": str(scales.num_texts),
        "tokens": str(scales.num_tokens),
        "tool": scales.tool,
    }
    entries: dict[str, object] = {"__metadata__": {**scales.notes, **fixed}}
    end, names = 0, sorted(scales.values)
    for name in names:
        value = scales.values[name]
        begin, end = end, end + value.nbytes
        entries[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [begin, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with replacing(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in names:
            file.write(np.ascontiguousarray(scales.values[name], "<f4").tobytes())


def read_scales(path: Path) -> Scales:
    """Read a file of scales and check every value.

    Raises:
        CheckpointError: It is no such file, or a scale is of another type or shape, or is no positive number.
    """
    values: dict[str, NDArray[np.float32]] = {}
    for name, spec in read_header(path).items():
        suffix = next((known for known in _SUFFIXES if name.endswith(known)), "")
        if not suffix:
            raise CheckpointError(
                f"`{path}` holds `{name}`, which is no scale", hint=f"names end in one of {', '.join(_SUFFIXES)}"
            )
        dimensions = 1 if suffix == PRE_QUANT_SCALE else 0
        if spec.dtype != "F32" or len(spec.shape) != dimensions:
            raise CheckpointError(
                f"`{path}`: `{name}` is {spec.dtype} {list(spec.shape)}, expected F32 of {dimensions} dimension(s)",
                hint=_AGAIN,
            )
        value = load_tensor(spec).astype(np.float32)
        if not (np.isfinite(value) & (value >= np.finfo(np.float32).tiny)).all():
            raise CheckpointError(
                f"`{path}`: `{name}` holds a number that is no positive scale",
                hint="calibration saw nothing there: give it more text",
            )
        values[name] = value
    metadata = _read_metadata(path)
    counts = [metadata.pop(key, "0") for key in ("samples", "tokens")]
    if not all(count.isdecimal() and len(count) <= _MAX_DIGITS for count in counts):
        raise CheckpointError(f"`{path}`: `samples` and `tokens` are `{counts}`, expected numbers", hint=_AGAIN)
    return Scales(
        values=values,
        recipe=metadata.pop("recipe", ""),
        num_texts=int(counts[0]),
        num_tokens=int(counts[1]),
        tool=metadata.pop("tool", ""),
        notes=metadata,
        path=path,
    )


def _read_metadata(path: Path) -> dict[str, str]:
    # `read_header` has checked the file: a whole header, and an object of strings.
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    metadata: dict[str, str] = header.get("__metadata__", {})
    return metadata
