"""Scales of a drafter's activations: the largest input of every linear over verify steps, mask slots among the rows.

The drafter is run by a function from outside; what it multiplies by is watched through the weights that it is given.
Letters: T rows of a text, A*H width of the auxiliary states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.quant.calibration.names import fused_groups
from peagle_trt.quant.calibration.recipes import CACHE_LARGEST, LARGEST, find_calibration
from peagle_trt.quant.scales_file import INPUT_SCALE, Scales
from peagle_trt.readers.llama_names import llama_name
from peagle_trt.spec import DrafterConfig

Load = Callable[[str], NDArray[np.generic]]
OnCache = Callable[[int, NDArray[np.float64], NDArray[np.float64]], None]
"""Told a layer, its keys as they were rotated, and its values."""


class DrafterText(Protocol):
    """A text of the target's and the hidden states that the drafter reads of it."""

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """[T]."""
        ...

    @property
    def hidden_TA(self) -> NDArray[np.float32]:  # noqa: N802
        """[T, A*H]."""
        ...


class DraftOnce(Protocol):
    """Drafts once after a text by multiplying with what `load` gives, `rows @ weight.T`; `verify.run_drafter` does."""

    def __call__(
        self,
        config: DrafterConfig,
        load: Load,
        next_token_ids: NDArray[np.int64],
        hidden_TA: NDArray[np.float64],
        draft_tokens: int,
        on_cache: OnCache | None = None,
        /,
    ) -> NDArray[np.float64]:
        """See `verify.run_drafter`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterMaxima:
    """What flowed into one linear.

    Attributes:
        first: Magnitude in a text's first row, where many targets gather what attention should ignore.
        real: Largest magnitude in the other rows that carry a token.
        masked: Largest magnitude in mask slots.
    """

    first: float
    real: float
    masked: float


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Maxima while a drafter runs.

    Attributes:
        num_rows: Rows of the text that is being read, which precede the mask slots.
        first: Largest magnitudes by our names of the weights, in first rows.
        real: The same in the other rows of the text.
        masked: The same in mask slots.
        cached: Largest magnitudes of keys and values, by the names of their scales.
    """

    num_rows: int = 0
    first: dict[str, float] = field(default_factory=dict)
    real: dict[str, float] = field(default_factory=dict)
    masked: dict[str, float] = field(default_factory=dict)
    cached: dict[str, float] = field(default_factory=dict)

    def take_cache(self, layer: int, keys: NDArray[np.float64], values: NDArray[np.float64]) -> None:
        """Note what a layer keeps of every row, those of mask slots among them."""
        for part, kept in (("k", keys), ("v", values)):
            _raise_to(self.cached, f"{_module(f'layers.{layer}.{part}_proj')}.{part}_scale", kept)

    def take(self, name: str, rows: NDArray[np.floating[Any]]) -> None:
        """Note what a weight was multiplied with."""
        # `fc` reads the mask's vector on its own; the output layer reads the last row of the text and the mask slots.
        first_masked = {"fc": 0 if len(rows) == 1 else len(rows), "lm_head": 1}.get(name, self.num_rows)
        first_real = min(first_masked, 0 if name == "lm_head" else 1)
        _raise_to(self.first, name, rows[:first_real])
        _raise_to(self.real, name, rows[first_real:first_masked])
        _raise_to(self.masked, name, rows[first_masked:])


class _Watched(np.ndarray[Any, Any]):
    """A weight that tells what is multiplied with it. Parts, transposes and copies of it tell too."""

    watch: _Watch | None
    name: str

    def __array_finalize__(self, source: object) -> None:
        self.watch, self.name = getattr(source, "watch", None), getattr(source, "name", "")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **settings: Any) -> Any:
        if ufunc is np.matmul and self.watch is not None and inputs[1] is self:
            self.watch.take(self.name, np.asarray(inputs[0]))
        plain = [np.asarray(value) if isinstance(value, _Watched) else value for value in inputs]
        return getattr(ufunc, method)(*plain, **settings)


def calibrate_drafter(
    config: DrafterConfig,
    load: Load,
    texts: Sequence[DrafterText],
    *,
    recipe_name: str,
    draft: DraftOnce,
    draft_tokens: int,
    stride: int = 16,
) -> tuple[Scales, dict[str, DrafterMaxima]]:
    """Draft at many places of the target's texts and keep the largest input of every linear.

    A decode loop's verify step hands the drafter the accepted rows, the bonus token's and K-1 mask slots; with the text
    before them, that is what `draft` reads here.

    Args:
        config: The drafter.
        load: Its weights by our names, `embed_tokens` and `lm_head` among them.
        texts: Texts with hidden states.
        recipe_name: One of `CALIBRATIONS`.
        draft: Runs the drafter.
        draft_tokens: K; at least 2, or there are no mask slots.
        stride: Tokens from one step to the next.

    Returns:
        Scales by module of a checkpoint in vLLM's spelling, and the maxima they come from, those of an output layer
        that is the target's among them.

    Raises:
        UsageError: There are no texts, or a recipe or setting that makes no sense.
        CheckpointError: A linear reads nothing but zeros, or values that are nan or infinite.
    """
    recipe = find_calibration(recipe_name)
    if draft_tokens < 2:
        raise UsageError(
            f"{draft_tokens} draft token(s) a step leave no mask slots to calibrate with", hint="at least 2"
        )
    watch, num_steps = _Watch(), 0
    watched = _watched_weights(load, watch)
    on_cache = (watch.take_cache,) if recipe.cache_preset else ()
    for text in texts:
        # Row p carries the token after it, so the last token is nobody's row.
        for watch.num_rows in range(len(text.token_ids) - 1, 1, -stride):
            rows = watch.num_rows
            hidden_TA = np.asarray(text.hidden_TA[:rows], np.float64)
            draft(config, watched, text.token_ids[1 : rows + 1], hidden_TA, draft_tokens, *on_cache)
            num_steps += 1
    if num_steps == 0:
        raise UsageError("no texts to calibrate the drafter on", hint="name a set of prompts or a file of them")
    maxima = {
        _module(name): DrafterMaxima(
            first=watch.first.get(name, 0.0), real=watch.real[name], masked=watch.masked.get(name, 0.0)
        )
        for name in watch.real
    }
    scales = Scales(
        values=_scales(_own(config, maxima), LARGEST[recipe.scheme]) | _cache_scales(watch.cached),
        recipe=recipe.name,
        num_texts=len(texts),
        num_tokens=sum(len(text.token_ids) for text in texts),
        tool="peagle-trt drafter maxima",
        notes={"draft_tokens": str(draft_tokens), "verify_steps": str(num_steps)},
    )
    return scales, maxima


def _watched_weights(load: Load, watch: _Watch) -> Load:
    cached: dict[str, NDArray[np.generic]] = {}

    def read(name: str) -> NDArray[np.generic]:
        if name not in cached:
            weight = load(name)
            if weight.ndim == 2 and name != "embed_tokens":
                watched = weight.view(_Watched)
                watched.watch, watched.name = watch, name
                weight = watched
            cached[name] = weight
        return cached[name]

    return read


def _own(config: DrafterConfig, maxima: dict[str, DrafterMaxima]) -> dict[str, DrafterMaxima]:
    """Modules that the head's checkpoint has: an output layer of the target's is not among them."""
    return {module: found for module, found in maxima.items() if module != "lm_head" or config.has_own_lm_head}


def _scales(maxima: Mapping[str, DrafterMaxima], largest: float) -> dict[str, NDArray[np.float32]]:
    values: dict[str, NDArray[np.float32]] = {}
    for module, found in maxima.items():
        peak = max(found.first, found.real, found.masked)
        if not 0 < peak < np.inf:
            raise CheckpointError(
                f"the drafter's `{module}` reads nothing but {peak}", hint="the head or its target is damaged"
            )
        values[f"{module}{INPUT_SCALE}"] = np.array(np.float32(peak) / np.float32(largest))
    for group in fused_groups(set(maxima)):
        shared = max(values[f"{module}{INPUT_SCALE}"] for module in group)
        values.update({f"{module}{INPUT_SCALE}": shared for module in group})
    return values


def _cache_scales(maxima: Mapping[str, float]) -> dict[str, NDArray[np.float32]]:
    for name, peak in maxima.items():
        if not 0 < peak < np.inf:
            raise CheckpointError(f"the drafter's `{name}` would hold {peak}", hint="the head or its target is damaged")
    return {name: np.array(np.float32(peak) / np.float32(CACHE_LARGEST)) for name, peak in maxima.items()}


def _module(name: str) -> str:
    """A drafter's module as checkpoints in vLLM's spelling call it."""
    return name if name == "fc" else llama_name(name).removesuffix(".weight")


def _raise_to(largest: dict[str, float], name: str, rows: NDArray[np.floating[Any]]) -> None:
    if len(rows):
        # A nan would lose every comparison; as infinity it is found at the end.
        peak = float(np.abs(rows).max())
        largest[name] = max(largest.get(name, 0.0), peak if np.isfinite(peak) else np.inf)
