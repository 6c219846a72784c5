"""Scales of activations and caches for whoever writes them: from a file of calibration, or constant without one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peagle_trt.errors import CheckpointError
from peagle_trt.quant.scales_file import PRE_QUANT_SCALE, STACKED_INPUT_SCALE, read_scales

CONSTANT_SCALE = 1.0
"""Of what nobody measured: numbers up to 448 fit FP8, and up to 2688 NVFP4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationScales:
    """Scales by name; without a file every one is `CONSTANT_SCALE`.

    Attributes:
        path: The file, or None.
        recipe: Name of the calibration; empty where the file does not say.
        values: What it holds.
    """

    path: Path | None = None
    recipe: str = ""
    values: Mapping[str, float] = field(default_factory=dict)

    @property
    def format(self) -> str:
        """Number format that activations were measured for, `fp8` or `nvfp4`; empty where that is not known."""
        return next((form for form in ("nvfp4", "fp8") if self.recipe.lower().startswith(form)), "")

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


NO_SCALES = ActivationScales()


def read_activation_scales(path: Path | None) -> ActivationScales:
    """Read a file of scales, if there is one.

    Raises:
        CheckpointError: It is damaged, or holds scales of weights' columns, which nobody here folds into weights.
    """
    if path is None:
        return NO_SCALES
    scales = read_scales(path)
    for name in scales.values:
        if name.endswith(PRE_QUANT_SCALE):
            raise CheckpointError(
                f"`{path}` holds `{name}`, by which AWQ scales a weight's columns, and weights are written unscaled",
                hint="calibrate with recipe `nvfp4`; AWQ is measured by scripts/measure_quantization alone",
            )
    values = {name: float(value.reshape(())) for name, value in scales.values.items()}
    return ActivationScales(path=path, recipe=scales.recipe, values=values)


def refuse_other_format(scales: ActivationScales, algorithm: str) -> None:
    """Refuse scales that were measured for another number format.

    Args:
        scales: What was read.
        algorithm: ModelOpt's name of what is to be written.

    Raises:
        CheckpointError: They were.
    """
    if scales.format and not algorithm.lower().startswith(scales.format):
        raise CheckpointError(
            f"`{scales.path}` was measured by recipe `{scales.recipe}`, whose scales are not those of {algorithm}",
            hint="calibrate with a recipe of the same number format",
        )


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
        if module not in modules and name.removesuffix(STACKED_INPUT_SCALE) not in modules:
            raise CheckpointError(
                f"`{scales.path}`: `{name}` belongs to no layer of the checkpoint",
                hint="the scales were measured on another model",
            )
