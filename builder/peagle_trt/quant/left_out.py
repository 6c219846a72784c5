"""Which matrices a build leaves as they are because rounding would move them too far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from peagle_trt.errors import PlanError, UsageError
from peagle_trt.quant.activation_scales import NO_SCALES, ActivationScales
from peagle_trt.quant.layout import drafter_entries, target_entries
from peagle_trt.quant.packing import is_packed_by
from peagle_trt.quant.registry import find_recipe
from peagle_trt.quant.store import StoredWeights
from peagle_trt.quant.weight_errors import WeightError, form_of, predict_errors, worst
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Stored names of matrices that are not quantized, whatever the recipe says.

    What a graph multiplies as one, queries with keys and values and gate with up, is one matrix here.

    Attributes:
        target: Of the target.
        drafter: Of the drafter.
    """

    target: frozenset[str] = frozenset()
    drafter: frozenset[str] = frozenset()


NOTHING_LEFT_OUT = LeftOut()


def check_limit(keep_above: float | None) -> None:
    """Refuse a limit that is none.

    Raises:
        PlanError: It is no number above 0.
    """
    if keep_above is not None and not 0 < keep_above < math.inf:
        raise PlanError(
            f"--keep-above is {keep_above}; expected a number above 0",
            hint="it is the largest relative error of a matrix, such as 0.1; `verify BUILD` shows those of a build",
        )


def choose_left_out(
    precision: str,
    target: TargetCheckpoint,
    drafter: DrafterCheckpoint,
    keep_above: float,
    target_scales: ActivationScales = NO_SCALES,
    drafter_scales: ActivationScales = NO_SCALES,
) -> tuple[LeftOut, str]:
    """The matrices that a recipe would move further than a limit, and a line about them.

    Every matrix is read and rounded once, one in memory at a time.

    Args:
        precision: The recipe.
        target: The target.
        drafter: The drafter.
        keep_above: The limit.
        target_scales: See `predict_errors`.
        drafter_scales: The same.

    Raises:
        UsageError: The recipe quantizes nothing, or nothing would be left that it quantizes.
        CheckpointError: A matrix holds a value that is no number.
    """
    pair = target, drafter, target_scales, drafter_scales
    errors = predict_errors(precision, *pair) if find_recipe(precision).weight_type else []
    if not errors:
        raise UsageError(
            f"precision `{precision}` quantizes nothing of these, so --keep-above has nothing to leave out",
            hint="leave it out, or take int8, int4, fp8 or nvfp4",
        )
    above = [each for each in errors if each.error > keep_above]
    if len(above) == len(errors):
        smallest = min(each.error for each in errors)
        raise UsageError(
            f"--keep-above {keep_above:g} leaves nothing quantized: precision `{precision}` moves every matrix by "
            f"{smallest:.2g} or more",
            hint="take a larger limit, or a precision of more bits",
        )
    chosen = LeftOut(
        target=frozenset(each.name for each in above if each.model == "target"),
        drafter=frozenset(each.name for each in above if each.model == "drafter"),
    )
    return chosen, _describe(errors, above, keep_above)


def find_left_out(
    precision: str,
    target: TargetCheckpoint,
    drafter: DrafterCheckpoint,
    stored_target: StoredWeights,
    stored_drafter: StoredWeights,
) -> list[str]:
    """What a build left out that its recipe quantizes, such as `target.layers.0.o_proj`, by what it stores."""
    recipe = find_recipe(precision)
    parts = (
        ("target", target_entries(target, precision), recipe.target_scheme, stored_target),
        ("drafter", drafter_entries(drafter, target), recipe.drafter_scheme, stored_drafter),
    )
    return [
        f"{model}.{entry.name}"
        for model, entries, scheme_of, stored in parts
        for entry in entries
        if is_packed_by(scheme_of(entry.name))
        # A tied output layer that was left out is the table.
        and (entry.name not in stored or form_of(stored, entry.name) != scheme_of(entry.name).weights)
    ]


def _describe(errors: Sequence[WeightError], above: Sequence[WeightError], keep_above: float) -> str:
    if not above:
        (largest,) = worst(errors, 1)
        return (
            f"note: --keep-above {keep_above:g} leaves nothing out: the worst of {len(errors)} matrices, "
            f"{largest.model} `{largest.name}`, is {largest.error:.2g} off"
        )
    shown = ", ".join(f"{each.model} `{each.name}` ({each.error:.2g})" for each in worst(above, _SHOWN))
    more = f" and {len(above) - _SHOWN} more" if len(above) > _SHOWN else ""
    return f"left out for an error above {keep_above:g}: {len(above)} of {len(errors)} matrices: {shown}{more}"
