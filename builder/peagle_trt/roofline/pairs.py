"""Sizes of the catalog's pairs, as data, so that a plan needs no download; one TOML file each."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

import msgspec

from peagle_trt.roofline.acceptance import P_EAGLE_DECAY, AcceptanceCurve, curve_from_length
from peagle_trt.roofline.formats import WeightFormats
from peagle_trt.roofline.geometry import Geometry


class PublishedAcceptance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Acceptance lengths that someone measured with one K.

    Attributes:
        draft_tokens: K.
        lengths: Tokens a step yields, bonus counted, by set of prompts.
        source: Who.
    """

    draft_tokens: int
    lengths: dict[str, float]
    source: str


class Pair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A target and its drafter.

    Attributes:
        source: Where the sizes come from.
        target: Sizes of the target.
        drafter: Sizes of the drafter.
        formats: What the published checkpoints are stored in.
        num_depths: Slots the drafter was trained to fill; no acceptance is known beyond.
        acceptance: What was measured.
    """

    source: str
    target: Geometry
    drafter: Geometry
    formats: WeightFormats
    num_depths: int
    acceptance: PublishedAcceptance

    def curve(self, prompts: str) -> AcceptanceCurve:
        """The curve through the length measured on a set of prompts.

        Raises:
            KeyError: Nothing was measured on them.
        """
        published = self.acceptance
        return curve_from_length(
            published.lengths[prompts],
            draft_tokens=published.draft_tokens,
            max_draft_tokens=self.num_depths,
            decay=P_EAGLE_DECAY,
            source=f"{prompts}: {published.source}",
        )


def has_pair(name: str) -> bool:
    """Whether the sizes of a catalog entry are known."""
    return (_folder() / f"{name}.toml").is_file()


def find_pair(name: str) -> Pair:
    """Sizes of a catalog entry for which `has_pair` holds."""
    return msgspec.convert(tomllib.loads((_folder() / f"{name}.toml").read_text(encoding="utf-8")), Pair)


def _folder() -> Path:
    return Path(str(resources.files("peagle_trt.roofline"))) / "pairs"
