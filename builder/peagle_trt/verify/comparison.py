"""Drives an engine through a short speculative decode and compares every number with the reference.

Letters: T rows, R rows of a verify step, K drafted slots, D draft vocabulary, M candidates of a slot.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from peagle_trt.engine.protocol import Engine, SteppingEngine, TargetRows
from peagle_trt.errors import VerificationError
from peagle_trt.quant.weight_errors import WeightError, worst
from peagle_trt.spec import EngineManifest
from peagle_trt.verify.decoding import (
    Decoded,
    Drafted,
    HostOutput,
    copy_output,
    decode,
    draft,
    rows_to_draft,
)
from peagle_trt.verify.reference import TargetReference, run_head, run_target
from peagle_trt.verify.sources import ReferenceSource
from peagle_trt.verify.subject import THE_ENGINE, Subject, open_subject
from peagle_trt.verify.tolerances import TOLERANCES, Tolerance, recipe_tolerance

logger = logging.getLogger(__name__)

CLOSEST_ROUTING = 1e-5
"""Distance between a chosen expert's logit and the next, as a share of the largest, below which float32 may choose the
other: ten times the error measured on a row of 30 layers."""
_SEED = 20260201
_MAX_PROMPTS = 5
_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How close an engine came.

    Attributes:
        max_logit_error: Largest absolute error over all logits of the target.
        max_hidden_error: Largest error of an auxiliary state, as a share of its row's largest entry.
        max_draft_logit_error: Largest absolute error over all logits of the drafter; over the probabilities of its
            candidates, which are off by half of that at most, from an engine that gives no logits.
        num_drafts_compared: Drafted tokens that were compared one by one.
        logit_tolerance: Limit of both logit errors, or None for none.
        draft_logit_tolerance: Limit of the drafter's, where it has one of its own.
        hidden_tolerance: Limit of the hidden error, or None for none.
        seed: Seed of the prompt.
        subject: What was run.
        weights: How far the build's matrices are from the checkpoints', as measured when it was made.
    """

    max_logit_error: float
    max_hidden_error: float
    max_draft_logit_error: float
    num_drafts_compared: int
    logit_tolerance: float | None
    hidden_tolerance: float | None
    seed: int
    subject: str = THE_ENGINE
    weights: tuple[WeightError, ...] = ()
    draft_logit_tolerance: float | None = None

    def summary(self) -> str:
        """One line for people."""
        error, drafts = max(self.max_logit_error, self.max_draft_logit_error), ""
        if self.draft_logit_tolerance is not None:
            error = self.max_logit_error
            drafts = f"drafts' {self.max_draft_logit_error:.1e} (limit {self.draft_logit_tolerance:g}), "
        if self.logit_tolerance is None:
            found = f"measured, not judged: logits stray {error:.1e} from those of the unrounded model"
        else:
            found = (
                f"verified: logits within {error:.1e} (limit {self.logit_tolerance:g}), {drafts}"
                f"{self.num_drafts_compared} drafted tokens equal"
            )
        return found if self.subject == THE_ENGINE else f"{found} (of {self.subject}; the engine did not run)"

    def weights_summary(self) -> str:
        """One line for people about the matrices; there are some."""
        (largest,) = worst(self.weights, 1)
        return (
            f"weights: {len(self.weights)} matrices are not float32; the worst, {largest.model} `{largest.name}`, "
            f"is {largest.error:.2g} off ({largest.form})"
        )


@dataclass(slots=True, kw_only=True)
class _Findings:
    """Errors seen so far."""

    logit: float = 0.0
    hidden: float = 0.0
    draft_logit: float = 0.0
    num_drafts: int = 0
    faults: list[str] = field(default_factory=list)


def compare_with_reference(build_path: Path, manifest: EngineManifest, source: ReferenceSource) -> Outcome:
    """Open a build's engine, or what stands for it on this machine, and compare it with the reference.

    Raises:
        VerificationError: A number is further off than its tolerance, or a draft differs.
    """
    subject = open_subject(build_path, manifest, source)
    if subject.note:
        logger.warning("%s", subject.note)
    try:
        return compare_subject(subject, manifest, source)
    finally:
        subject.engine.close()


def compare_engine(engine: Engine, manifest: EngineManifest, source: ReferenceSource) -> Outcome:
    """Compare an engine that computes in float32.

    Raises:
        VerificationError: A number is further off than its tolerance, or a draft differs.
    """
    tolerance = recipe_tolerance(manifest.precision, has_experts=manifest.target.experts is not None)
    return compare_subject(Subject(engine=engine, description=THE_ENGINE, tolerance=tolerance), manifest, source)


def compare_subject(subject: Subject, manifest: EngineManifest, source: ReferenceSource) -> Outcome:
    """Prompt, draft, verify step with two accepted drafts, draft again, two sequences at once, a plain step of both.

    Raises:
        VerificationError: A number is further off than its tolerance, or a draft differs.
    """
    for seed in range(_SEED, _SEED + _MAX_PROMPTS):
        run = decode(subject.engine, manifest, seed)
        # The reference and the graph of several sequences follow; none of them needs what is loaded now.
        subject.engine.close()
        expected = run_target(manifest.target, source.load_target, run.text)
        if expected.routing_margin > CLOSEST_ROUTING:
            return _compare(subject, manifest, source, run, expected)
        logger.info("seed %d: a router's choice is too close to call, taking another prompt", seed)
    raise VerificationError(
        f"the target cannot be verified: in each of {_MAX_PROMPTS} prompts some router's choice is too close to call",
        hint="a router that tells its experts apart by rounding errors alone is damaged or untrained",
    )


def _compare(
    subject: Subject, manifest: EngineManifest, source: ReferenceSource, run: Decoded, expected: TargetReference
) -> Outcome:
    tolerance = subject.tolerance
    length, text = run.num_prompt_tokens, run.text
    findings = _Findings()
    _compare_rows(findings, tolerance, "prompt", run.prompt, expected, slice(0, length))
    _compare_rows(findings, tolerance, "verify step", run.step, expected, slice(length, len(text)))
    next_ids = np.append(text[1:], run.bonus)
    for name, found, rows in (
        ("draft", run.drafts, length),
        ("second draft", run.again, length + run.num_accepted + 1),
    ):
        hidden = expected.hidden[:rows]
        logits = run_head(manifest.drafter, source.load_drafter, next_ids[:rows], hidden, found.token_ids)
        _compare_drafts(findings, tolerance, name, found, logits, source.draft_to_target)
    if manifest.shapes.max_batch_size > 1:
        _compare_together(subject, findings, manifest, source, text, expected)
    return _conclude(findings, subject, manifest.precision, run.seed)


def _compare_rows(
    findings: _Findings,
    tolerance: Tolerance,
    name: str,
    found: HostOutput,
    expected: TargetReference,
    rows: slice,
) -> None:
    logit_error = _largest(found.logits - expected.logits[rows])
    # A row of zeros, as weights of zero make it, has no share to be off by.
    scale = np.maximum(np.abs(expected.hidden[rows]).max(axis=1, keepdims=True), _SMALLEST_SCALE)
    hidden_error = _largest((found.hidden - expected.hidden[rows]) / scale)
    findings.logit = max(findings.logit, logit_error)
    findings.hidden = max(findings.hidden, hidden_error)
    if not logit_error <= tolerance.logits:
        findings.faults.append(f"{name}: target logits are off by {logit_error:.2e}, limit {tolerance.logits:.0e}")
    if not hidden_error <= tolerance.hidden:
        findings.faults.append(f"{name}: hidden states are off by {hidden_error:.2e}, limit {tolerance.hidden:.0e}")
    if found.greedy_token_ids is not None:
        _compare_best(findings, tolerance, name, found.greedy_token_ids, expected.logits[rows])


def _compare_best(
    findings: _Findings,
    tolerance: Tolerance,
    name: str,
    best_T: NDArray[np.int32],
    logits_TV: NDArray[np.float64],
) -> None:
    """The argmax that the engine took itself; two logits closer than the tolerance may change places."""
    chosen_T = logits_TV[np.arange(len(best_T)), best_T]
    for row in np.flatnonzero(chosen_T < logits_TV.max(axis=1) - tolerance.logits).tolist():
        expected = int(logits_TV[row].argmax())
        findings.faults.append(f"{name}: row {row} is followed by token {best_T[row]}, after the reference {expected}")


def _compare_drafts(
    findings: _Findings,
    tolerance: Tolerance,
    name: str,
    found: Drafted,
    logits: NDArray[np.float64],
    draft_to_target: NDArray[np.int64],
) -> None:
    token_ids, kind = found.token_ids, "logits"
    if found.logits is not None:
        error = _largest(found.logits - logits)
    else:
        error, kind = _candidate_error(found, tolerance, logits, draft_to_target), "candidates"
    findings.draft_logit = max(findings.draft_logit, error)
    findings.num_drafts += len(token_ids)
    if not error <= tolerance.draft_logits:
        findings.faults.append(f"{name}: drafter {kind} are off by {error:.2e}, limit {tolerance.draft_logits:.0e}")
    # Two logits closer than the tolerance may change places.
    best = logits.max(axis=1)
    for slot, token_id in enumerate(token_ids):
        chosen = np.flatnonzero(draft_to_target == token_id)
        if len(chosen) != 1 or logits[slot, chosen[0]] < best[slot] - tolerance.draft_logits:
            expected = int(draft_to_target[logits[slot].argmax()])
            findings.faults.append(f"{name}: slot {slot} drafted token {token_id}, the reference {expected}")


def _candidate_error(
    found: Drafted, tolerance: Tolerance, logits_KD: NDArray[np.float64], draft_to_target_D: NDArray[np.int64]
) -> float:
    """Largest error of a candidate's probability; infinite where one has no business among the likeliest.

    A softmax is off by half of what its logits are off by, at most.
    """
    assert found.candidate_ids is not None and found.probabilities is not None
    num_candidates = found.candidate_ids.shape[1]
    best_KM = -np.sort(-logits_KD, axis=1)[:, :num_candidates]
    draft_ids = {int(target): draft for draft, target in enumerate(draft_to_target_D.tolist())}
    worst = 0.0
    for slot, ids_M in enumerate(found.candidate_ids.tolist()):
        chosen = [draft_ids.get(token, -1) for token in ids_M]
        logits_M = logits_KD[slot, chosen]
        if (
            -1 in chosen
            or len(set(chosen)) < num_candidates
            or (logits_M < best_KM[slot] - tolerance.draft_logits).any()
        ):
            return math.inf
        weights_M = np.exp(logits_M - logits_M.max())
        worst = max(worst, _largest(found.probabilities[slot] - weights_M / weights_M.sum()))
    return worst


def _compare_together(
    subject: Subject,
    findings: _Findings,
    manifest: EngineManifest,
    source: ReferenceSource,
    text: NDArray[np.int64],
    expected: TargetReference,
) -> None:
    """Two sequences of different lengths in one pass, through the graphs for the largest batch."""
    engine, tolerance, draft_tokens = subject.engine, subject.tolerance, manifest.shapes.draft_tokens
    lengths = (len(text) - 1, len(text) // 2)
    rows = [
        TargetRows(slot=slot, token_ids=text[:length].astype(np.int32), start_position=0, num_logit_rows=length)
        for slot, length in enumerate(lengths)
    ]
    outputs = [copy_output(each) for each in engine.run_target(rows)]
    draft_rows = [
        rows_to_draft(slot, text[1 : length + 1], output.hidden, length - 1, 0)
        for slot, (length, output) in enumerate(zip(lengths, outputs, strict=True))
    ]
    drafted = draft(engine, draft_rows, draft_tokens)
    engine.close()
    stepped = _step_together(engine, text, lengths)
    for slot, length in enumerate(lengths):
        name = f"batch of two, {length} rows"
        _compare_rows(findings, tolerance, name, outputs[slot], expected, slice(0, length))
        hidden, next_ids = expected.hidden[:length], text[1 : length + 1]
        logits = run_head(manifest.drafter, source.load_drafter, next_ids, hidden, drafted[slot].token_ids)
        _compare_drafts(findings, tolerance, name, drafted[slot], logits, source.draft_to_target)
    for slot, output in enumerate(stepped):
        length = lengths[slot]
        name = f"plain step of two, after {length} rows"
        _compare_rows(findings, tolerance, name, output, expected, slice(length, length + 1))


def _step_together(engine: Engine, text: NDArray[np.int64], lengths: Sequence[int]) -> list[HostOutput]:
    """The next row of every sequence, where the engine has something of its own for that, which is all it loads."""
    if not isinstance(engine, SteppingEngine) or not engine.preload_steps():
        return []
    rows = [
        TargetRows(
            slot=slot,
            token_ids=text[length : length + 1].astype(np.int32),
            start_position=length,
            num_logit_rows=1,
        )
        for slot, length in enumerate(lengths)
    ]
    outputs = [copy_output(each) for each in engine.run_target(rows)]
    engine.close()
    return outputs


def _conclude(findings: _Findings, subject: Subject, precision: str, seed: int) -> Outcome:
    if findings.faults:
        more = f", and {len(findings.faults) - 1} more" if len(findings.faults) > 1 else ""
        hint = "the build is not published; this is a fault of the backend or of peagle-trt, please report it"
        if subject.tolerance is not TOLERANCES["fp32"]:
            hint = f"{precision} may be too coarse for these weights; if --precision fp32 fails too, please report it"
        verb = "disagrees" if subject.description == THE_ENGINE else "disagree"
        raise VerificationError(
            f"{subject.description} {verb} with the reference: {findings.faults[0]}{more}", hint=hint
        )
    return Outcome(
        max_logit_error=findings.logit,
        max_hidden_error=findings.hidden,
        max_draft_logit_error=findings.draft_logit,
        num_drafts_compared=findings.num_drafts,
        logit_tolerance=_finite(subject.tolerance.logits),
        hidden_tolerance=_finite(subject.tolerance.hidden),
        draft_logit_tolerance=subject.tolerance.own_draft_logits,
        seed=seed,
        subject=subject.description,
    )


def _finite(limit: float) -> float | None:
    return limit if math.isfinite(limit) else None


def _largest(errors: NDArray[np.float64]) -> float:
    # nan must come out as nan, so that it fails every comparison.
    return float(np.abs(errors).max())
