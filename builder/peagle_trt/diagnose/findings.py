"""Numbers to reasons: what the measured variants say about a head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from peagle_trt.diagnose.variants import PUBLISHED, Variant
from peagle_trt.diagnose.walk import Acceptance

NOTABLE_GAIN = 0.15
"""Drafts a step that a reading must add, beside the standard error of the difference, before it counts as better."""
MIN_STEPS = 50
"""Fewer steps say nothing: at 50 an acceptance length of 2 is known to about 0.2."""
POOR_LENGTH = 1.3
"""Below it a step of any head costs more than it yields."""
BLIND_RATE = 0.1
"""A slot accepted more seldom than this, although the slot before it is fine, guesses."""
SEEING_RATE = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One reason.

    Attributes:
        kind: A word for programs: `few`, `reading`, `template`, `mask`, `first-slot`, `poor` or `fine`.
        text: The reason with its numbers.
        remedy: What to do about it; may be empty.
    """

    kind: str
    text: str
    remedy: str = ""


def explain(
    variants: Mapping[str, Variant], measured: Mapping[str, Acceptance], *, other_format: tuple[str, Acceptance] | None
) -> list[Finding]:
    """Why acceptance is what it is; the likeliest reason first.

    Args:
        variants: Readings by name.
        measured: Their acceptance, on the prompts as they are meant to be sent.
        other_format: The other way to send prompts, "with the chat template" or "without the chat template", and the
            acceptance of the published reading under it; None for a target without a template.
    """
    published = measured[PUBLISHED]
    if published.num_steps < MIN_STEPS:
        return [
            Finding(
                kind="few",
                text=f"only {published.num_steps} verify steps were seen; {MIN_STEPS} are needed to tell a reason",
                remedy="give more prompts with --num-prompts, or longer answers with --max-tokens",
            )
        ]
    findings = _better_readings(variants, measured)
    if other_format is not None and _is_better(other_format[1], published):
        findings.append(
            Finding(
                kind="template",
                text=f"{other_format[0]} acceptance rises from {published.length:.2f} to {other_format[1].length:.2f}",
                remedy=f"send prompts {other_format[0]}",
            )
        )
    if not findings:
        findings = _faults_of_slots(published)
    if not findings and published.length < POOR_LENGTH:
        findings.append(
            Finding(
                kind="poor",
                text=f"acceptance length is {published.length:.2f}, and no other reading does better",
                remedy="the head was trained for another target or on other text than these prompts; train it on such",
            )
        )
    return findings or [
        Finding(kind="fine", text=f"nothing wrong was found; acceptance length is {published.length:.2f}")
    ]


def _better_readings(variants: Mapping[str, Variant], measured: Mapping[str, Acceptance]) -> list[Finding]:
    published = measured[PUBLISHED]
    base = published.length
    better = [name for name, found in measured.items() if _is_better(found, published)]
    better.sort(key=lambda name: -measured[name].length)
    return [
        Finding(
            kind="reading",
            text=f"with {name} acceptance rises from {base:.2f} to {measured[name].length:.2f}",
            remedy=variants[name].remedy,
        )
        for name in better
    ]


def _is_better(found: Acceptance, published: Acceptance) -> bool:
    """Whether a difference is neither small nor within the noise of so many steps."""
    noise = math.hypot(found.length_error, published.length_error)
    return found.length - published.length >= max(NOTABLE_GAIN, noise)


def _faults_of_slots(published: Acceptance) -> list[Finding]:
    rates = published.last_rates
    if rates[0] < BLIND_RATE:
        return [
            Finding(
                kind="first-slot",
                text=f"even the first slot, which reads real hidden states, is right in {rates[0]:.0%} of the steps",
                remedy="the head was trained for another target, or for another checkpoint of it",
            )
        ]
    if len(rates) > 1 and rates[0] >= SEEING_RATE and rates[1] < BLIND_RATE:
        return [
            Finding(
                kind="mask",
                text=f"the first slot is right in {rates[0]:.0%} of the steps, the masked one after it in "
                f"{rates[1]:.0%}: masked slots guess",
                remedy="`mask_hidden` or the mask token's embedding is untrained, or the mask token is another one; "
                "`peagle-trt inspect` looks at both",
            )
        ]
    return []
