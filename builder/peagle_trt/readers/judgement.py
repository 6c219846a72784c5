"""A head against its target, point by point; cheap for heads of any size, since tables are only sampled."""

from __future__ import annotations

from peagle_trt.readers.checkpoint import DrafterCheckpoint, TargetCheckpoint
from peagle_trt.readers.findings import Finding, judged, listed
from peagle_trt.readers.judge_text import judge_text
from peagle_trt.readers.judge_weights import judge_mask_state, judge_tables
from peagle_trt.readers.pairing import judge_pair
from peagle_trt.readers.vocabulary_map import judge_end_tokens, judge_vocabulary_map
from peagle_trt.spec import DrafterConfig, TargetConfig
from peagle_trt.spec.target import default_aux_layer_ids

_USUAL_DEPTHS = 5
"""Slots a step where the head does not say for how many it was trained."""


def judge_head(drafter: DrafterCheckpoint, target: TargetCheckpoint | None) -> list[Finding]:
    """Everything that can be told about a head, and, with a target, whether it fits.

    Args:
        drafter: The head.
        target: Its target, or None to look at the head alone.

    Raises:
        CheckpointError: The target's tokenizer is damaged, or a weight holds values that are no numbers.
    """
    if target is None:
        return [*judge_vocabulary_map(drafter), _judge_numbering(drafter.config, None), *judge_mask_state(drafter)]
    findings = judge_pair(target.config, drafter)
    findings += [_judge_numbering(drafter.config, target.config), *_judge_reach(drafter.config, target.config)]
    findings += judge_mask_state(drafter)
    if any(finding.level == "refused" for finding in findings):
        return findings
    return [
        *findings,
        *judge_tables(drafter, target),
        *judge_end_tokens(drafter, target.config),
        *judge_text(drafter.config, target),
    ]


def _judge_numbering(drafter: DrafterConfig, target: TargetConfig | None) -> Finding:
    """What the numbers of layers would mean if the file counted the other way."""
    usual = _usual_layers(target)
    layers, what = drafter.aux_layer_ids, "numbering of auxiliary layers"
    if drafter.aux_numbering == "not said":
        hint = "a head trained with other layers drafts badly, and nothing else will tell"
        found = f"none named; {listed(layers)} taken, the usual ones"
        return Finding(level="note", what=what, found=found, expected="layers named in the file", hint=hint)
    step = 1 if drafter.aux_numbering == "inputs" else -1
    other = tuple(layer + step for layer in layers)
    found = (
        f"the file counts {drafter.aux_numbering}: streams entering {listed(layers)}; "
        f"counted the other way {listed(other)}"
    )
    expected = f"{listed(usual)}, the usual streams, or others on purpose" if usual else "as the head was trained"
    if other == usual:
        hint = "counted the other way they would be the usual ones; if drafts are poor, move every number by one"
        return Finding(level="warning", what=what, found=found, expected=expected, hint=hint)
    return judged(layers == usual or usual is None, what, found=found, expected=expected, otherwise="note")


def _usual_layers(target: TargetConfig | None) -> tuple[int, ...] | None:
    """The usual default, which makes no sense for a target of a few layers."""
    usual = default_aux_layer_ids(target.num_layers) if target else ()
    return usual if usual and sorted(set(usual)) == list(usual) else None


def _judge_reach(drafter: DrafterConfig, target: TargetConfig) -> list[Finding]:
    """Positions the head was made for, and its rotation beside the target's."""
    depths = drafter.num_depths or _USUAL_DEPTHS
    needed = target.max_positions + depths
    is_short = drafter.max_positions < target.max_positions
    reach = judged(
        drafter.max_positions >= needed,
        "reach of positions",
        found=f"{drafter.max_positions:,}",
        expected=f"{needed:,}: the target's {target.max_positions:,} and {depths} drafted",
        hint=f"drafts past {drafter.max_positions:,} tokens may be poor; answers stay the target's",
        otherwise="warning" if is_short else "note",
    )
    if drafter.rope == target.rope:
        return [reach]
    found, expected = f"theta {drafter.rope.theta:g}, {drafter.rope.scaling}", "the target's, or one of its own"
    return [reach, Finding(level="note", what="rotary embedding", found=found, expected=expected)]
