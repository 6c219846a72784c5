"""An acceptance as typed: a set of prompts that something is published for, a document of `bench`, or shares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from peagle_trt.errors import UsageError
from peagle_trt.roofline import AcceptanceCurve, Pair, curve_from_shares
from peagle_trt.spec.build import MAX_DRAFT_TOKENS

_HINT = "give shares by position such as 0.7,0.5,0.3, or what `peagle-trt --json bench` printed"


def acceptance_curve(text: str | None, pair: Pair | None) -> AcceptanceCurve:
    """The curve that `--acceptance` means.

    Args:
        text: As typed; None takes the first that is published for the pair.
        pair: The catalog's data, or None for checkpoints given by path.

    Raises:
        UsageError: It means none, or nothing is published.
    """
    known = list(pair.acceptance.lengths) if pair is not None else []
    if text is None or text in known:
        if pair is None:
            raise UsageError("no acceptance is known for a head given by path", hint=_HINT)
        return _short(pair.curve(text or known[0]))
    shares = _shares(text)
    if shares is not None:
        return _curve(shares, "--acceptance", "shares given with --acceptance")
    if Path(text).is_file():
        return _from_document(Path(text))
    also = f"; published for: {', '.join(known)}" if known else ""
    raise UsageError(f"--acceptance `{text}` is no file and no list of shares", hint=_HINT + also)


def _short(curve: AcceptanceCurve) -> AcceptanceCurve:
    return AcceptanceCurve(shares=curve.shares[:MAX_DRAFT_TOKENS], source=curve.source)


def _shares(text: str) -> list[float] | None:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        return None


def _from_document(path: Path) -> AcceptanceCurve:
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read `{path}`: {error}", hint=_HINT) from error
    shares = _longest(document)
    if shares is None:
        raise UsageError(f"`{path}` holds no `acceptance_by_position`", hint=_HINT)
    return _curve(shares, f"`{path}`", f"measured, {path.name}")


def _longest(document: Any) -> list[Any] | None:
    """Shares of the largest K; they hold those of every smaller one."""
    if not isinstance(document, dict):
        return None
    results = document.get("results")
    each_result = results if isinstance(results, list) else [document]
    lists = [each.get("acceptance_by_position") for each in each_result if isinstance(each, dict)]
    return max((each for each in lists if isinstance(each, list) and each), key=len, default=None)


def _curve(shares: list[Any], where: str, source: str) -> AcceptanceCurve:
    if not all(isinstance(share, int | float) and not isinstance(share, bool) for share in shares):
        raise UsageError(f"{where}: a share is no number", hint=_HINT)
    if len(shares) > MAX_DRAFT_TOKENS:
        raise UsageError(f"{where}: {len(shares)} shares; expected at most {MAX_DRAFT_TOKENS}")
    try:
        return curve_from_shares(shares, source=source)
    except ValueError as error:
        raise UsageError(f"{where}: {error}", hint=_HINT) from error
