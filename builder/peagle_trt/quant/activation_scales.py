"""Scales of activations and caches for whoever writes them: from a file of calibration, or constant without one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError, UsageError
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
        columns: Scales of a weight's columns by name, [columns] float32 each; see `quant.scales_file`.
    """

    path: Path | None = None
    recipe: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

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

    def shared_columns(self, names: Sequence[str], num_columns: int) -> NDArray[np.float32]:
        """The scales of columns of several matrices that are multiplied as one: the mean of theirs.

        A number scaled by it is no larger than the largest of what each matrix's own would make, so that `shared` of
        their input scales still holds it.

        Args:
            names: Such as `model.layers.0.self_attn.q_proj.pre_quant_scale`.
            num_columns: Columns of the matrices.

        Raises:
            CheckpointError: The file lacks one, or it is for another number of columns.
        """
        for name in names:
            if name not in self.columns:
                raise CheckpointError(
                    f"`{self.path}` lacks `{name}`", hint="calibrate with recipe `nvfp4-awq`, or build with `nvfp4`"
                )
            if self.columns[name].shape != (num_columns,):
                raise CheckpointError(
                    f"`{self.path}`: `{name}` is for {self.columns[name].shape[0]} columns, and the matrix has "
                    f"{num_columns}",
                    hint="the scales were measured on another model",
                )
        mean: NDArray[np.float32] = np.mean([self.columns[name] for name in names], axis=0, dtype=np.float32)
        return mean


NO_SCALES = ActivationScales()


def read_activation_scales(path: Path | None) -> ActivationScales:
    """Read a file of scales, if there is one, for a checkpoint.

    Raises:
        CheckpointError: It is damaged, or holds scales of weights' columns, which no checkpoint has.
    """
    scales = read_build_scales(path)
    refuse_columns(scales)
    return scales


def read_build_scales(path: Path | None) -> ActivationScales:
    """Read a file of scales, if there is one, for a build.

    Raises:
        CheckpointError: It is damaged.
    """
    if path is None:
        return NO_SCALES
    scales = read_scales(path)
    columns = {name: value for name, value in scales.values.items() if name.endswith(PRE_QUANT_SCALE)}
    values = {name: float(value.reshape(())) for name, value in scales.values.items() if name not in columns}
    return ActivationScales(path=path, recipe=scales.recipe, values=values, columns=columns)


def refuse_columns(scales: ActivationScales) -> None:
    """Refuse scales of columns where weights are stored unscaled.

    Raises:
        CheckpointError: There is one.
    """
    for name in scales.columns:
        raise CheckpointError(
            f"`{scales.path}` holds `{name}`, by which AWQ scales a weight's columns, and weights are written unscaled",
            hint="calibrate with recipe `nvfp4`, or build with --precision nvfp4-awq",
        )


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


def refuse_no_format(scales: ActivationScales) -> None:
    """Refuse scales of an unknown number format where layers differ and each needs its own.

    Raises:
        CheckpointError: They are.
    """
    if scales.path is not None and not scales.format:
        raise CheckpointError(
            f"`{scales.path}` does not say which number format its scales were measured for (recipe "
            f"`{scales.recipe}`), and layers of this recipe differ",
            hint="calibrate again; scripts/calibrate notes it",
        )


def refuse_any(scales: ActivationScales, recipe: str) -> None:
    """Refuse scales where nothing is rounded that they are for.

    Args:
        scales: What was read.
        recipe: Name of the recipe.

    Raises:
        UsageError: There are some.
    """
    if scales.path is not None:
        raise UsageError(
            f"`{scales.path}` holds scales of activations and caches, which recipe `{recipe}` leaves alone",
            hint="leave --scales out, or take a recipe that rounds them, such as fp8 or nvfp4",
        )


def refuse_unknown(scales: ActivationScales, modules: Collection[str]) -> None:
    """Refuse scales of modules that a checkpoint does not have.

    Args:
        scales: What was read.
        modules: Every module of the checkpoint.

    Raises:
        CheckpointError: There is one.
    """
    for name in (*scales.values, *scales.columns):
        module = name.rpartition(".")[0]
        if module not in modules and name.removesuffix(STACKED_INPUT_SCALE) not in modules:
            raise CheckpointError(
                f"`{scales.path}`: `{name}` belongs to no layer of the checkpoint",
                hint="the scales were measured on another model",
            )
