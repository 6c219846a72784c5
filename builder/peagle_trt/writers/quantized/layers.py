"""What becomes of one layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """What becomes of one layer.

    Attributes:
        module: Its name in the checkpoint.
        kind: A key of a recipe.
        weights: Form of its weights: a form of the recipe, or the type they are stored in.
        activations: Form of its input.
        stored_bytes: Bytes it takes now.
        written_bytes: Bytes it will take, scales included.
    """

    module: str
    kind: str
    weights: str
    activations: str
    stored_bytes: int
    written_bytes: int
