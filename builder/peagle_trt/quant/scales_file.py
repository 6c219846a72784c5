"""Scales of activations and caches: from a file that calibration wrote, or constant where there is none.

The file is safetensors of float32 scalars, `MODULE.input_scale`, `MODULE.k_scale` and `MODULE.v_scale`, with the names
that modules have in the checkpoint to be written; where all experts are one tensor, `...experts.down_proj_input_scale`.
Its metadata names the recipe of the calibration: FP8 divides a maximum by 448, NVFP4 by 2688.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.json_file import parse_object
from peagle_trt.readers.safetensors_file import load_tensor, read_header

CONSTANT_SCALE = 1.0
"""Of what nobody measured: numbers up to 448 fit FP8, and up to 2688 NVFP4."""
_KINDS = ("input_scale", "k_scale", "v_scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationScales:
    """Scales by name; without a file every one is `CONSTANT_SCALE`.

    Attributes:
        path: The file, or None.
        values: What it holds.
        recipe: Name of the calibration; empty where the file does not say.
    """

    path: Path | None = None
    recipe: str = ""
    values: Mapping[str, float] = field(default_factory=dict)

    def shared(self, names: Sequence[str]) -> float:
        """The scale of several tensors that one number serves: the largest of theirs.

        Args:
            names: Such as `model.layers.0.self_attn.q_proj.input_scale`.

        Raises:
            CheckpointError: The file lacks one.
        """
        if self.path is None:
            return CONSTANT_SCALE
        for name in names:
            if name not in self.values:
                raise CheckpointError(
                    f"`{self.path}` lacks `{name}`", hint="calibrate with this recipe, or leave the file out"
                )
        return max(self.values[name] for name in names)


def read_scales(path: Path) -> ActivationScales:
    """Read a file of scales.

    Raises:
        CheckpointError: It is damaged, holds something else, or a scale is not a positive number.
    """
    values: dict[str, float] = {}
    for name, spec in read_header(path).items():
        module, _, kind = name.rpartition(".")
        is_input = kind in _KINDS and module
        if not (is_input or kind.endswith("_input_scale")) or spec.dtype != "F32" or spec.shape not in ((), (1,)):
            raise CheckpointError(
                f"`{path}`: `{name}` ({spec.dtype} {list(spec.shape)}) is none of "
                f"{', '.join(f'`MODULE.{each}`' for each in _KINDS)} as one F32 number",
                hint="write it with scripts/calibrate; scales of AWQ belong to the weights and are not taken",
            )
        values[name] = float(load_tensor(spec).reshape(()))
        if not 0 < values[name] < float("inf"):
            raise CheckpointError(
                f"`{path}`: `{name}` is {values[name]:g}, not a positive number",
                hint="calibration saw nothing there: give it more text",
            )
    return ActivationScales(path=path, values=values, recipe=_read_recipe(path))


def refuse_other_format(scales: ActivationScales, algorithm: str) -> None:
    """Refuse scales that were measured for another number format.

    Args:
        scales: What was read.
        algorithm: ModelOpt's name of what is to be written.

    Raises:
        CheckpointError: They were.
    """
    formats = [form for form in ("nvfp4", "fp8") if scales.recipe.lower().startswith(form)]
    if formats and not algorithm.lower().startswith(formats[0]):
        raise CheckpointError(
            f"`{scales.path}` was measured by recipe `{scales.recipe}`, whose scales are not those of {algorithm}",
            hint="calibrate with a recipe of the same number format",
        )


def _read_recipe(path: Path) -> str:
    """What the metadata says; the header has been checked."""
    with path.open("rb") as file:
        metadata = parse_object(file.read(int.from_bytes(file.read(8), "little"))).get("__metadata__")
    return str(metadata.get("recipe", "")) if isinstance(metadata, dict) else ""


def refuse_unknown(scales: ActivationScales, modules: Collection[str]) -> None:
    """Refuse scales of modules that a checkpoint does not have.

    Args:
        scales: What was read.
        modules: Every module of the checkpoint.

    Raises:
        CheckpointError: There is one.
    """
    for name in scales.values:
        module = name.rpartition(".")[0]
        if module not in modules and name.removesuffix("_input_scale") not in modules:
            raise CheckpointError(
                f"`{scales.path}`: `{name}` belongs to no layer of the checkpoint",
                hint="the scales were measured on another model",
            )
