"""What `inspect` says about recipes and about quantized folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from peagle_trt.cli.output import Output
from peagle_trt.errors import CheckpointError
from peagle_trt.readers import Finding
from peagle_trt.writers.loaders import judge_folder
from peagle_trt.writers.quantized import CheckpointPlan, LayerPlan

_MEGABYTE = 1e6


def judge(output: Output, path: Path) -> None:
    """Print every rule of the loaders, and fail where one is broken.

    Raises:
        CheckpointError: A loader would refuse the folder, or read it wrongly.
    """
    findings = judge_folder(path)
    refused = next((finding for finding in findings if finding.level == "refused"), None)
    error = None
    if refused is not None:
        error = CheckpointError(
            f"`{path}`: {refused.what}: expected {refused.expected}, found {refused.found}", hint=refused.hint
        )
    output.result(_judgement(path, findings, error), "\n".join(map(_line, findings)))
    if error is not None:
        raise error


def describe_plan(plan: CheckpointPlan) -> dict[str, object]:
    """A plan for `--json`."""
    return {
        "name": plan.recipe.name,
        "summary": plan.recipe.summary,
        "algorithm": plan.algorithm,
        "stored_bytes": sum(layer.stored_bytes for layer in plan.layers),
        "written_bytes": plan.written_bytes,
        "layers": [asdict(layer) for layer in plan.layers],
        "notes": list(plan.notes),
    }


def plan_text(plan: CheckpointPlan, *, shows_layers: bool) -> str:
    """A plan for people: a line for each kind of layer, or for each layer.

    Args:
        plan: The plan.
        shows_layers: List every layer.
    """
    lines = [f"recipe {plan.recipe.name}: {plan.recipe.summary}"]
    lines.append(f"  {'kind':<10} {'layers':>7}  {'weights':<8} {'activations':<11} {'MB now':>10} {'MB then':>10}")
    kinds: dict[tuple[str, str, str], list[LayerPlan]] = {}
    for layer in plan.layers:
        kinds.setdefault((layer.kind, layer.weights, layer.activations), []).append(layer)
    lines += [_row(key, layers) for key, layers in kinds.items()]
    stored = sum(layer.stored_bytes for layer in plan.layers)
    total = f"  {'in all':<10} {len(plan.layers):>7,}  {'':<8} {'':<11}"
    lines.append(f"{total} {stored / _MEGABYTE:>10,.1f} {plan.written_bytes / _MEGABYTE:>10,.1f}")
    if shows_layers:
        lines += [
            f"  {layer.module:<44} {layer.weights:<8} {layer.activations:<8} "
            f"{layer.stored_bytes:>14,} -> {layer.written_bytes:,}"
            for layer in plan.layers
        ]
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])


def _row(key: tuple[str, str, str], layers: Sequence[LayerPlan]) -> str:
    kind, weights, activations = key
    stored, written = (
        sum(sizes) / _MEGABYTE
        for sizes in zip(*((each.stored_bytes, each.written_bytes) for each in layers), strict=True)
    )
    return f"  {kind:<10} {len(layers):>7,}  {weights:<8} {activations:<11} {stored:>10,.1f} {written:>10,.1f}"


def _judgement(path: Path, findings: Sequence[Finding], error: CheckpointError | None) -> dict[str, object]:
    document: dict[str, object] = {
        "kind": "quantized folder",
        "path": path,
        "findings": [asdict(finding) for finding in findings],
    }
    if error is None:
        return document
    told = {"type": "CheckpointError", "message": error.message, "hint": error.hint, "exit_code": error.exit_code}
    return document | {"ok": False, "error": told}


def _line(finding: Finding) -> str:
    words = [f"{finding.what}: {finding.found}"]
    if finding.level in ("refused", "warning"):
        words += [f"expected {finding.expected}", finding.hint]
    return f"{finding.level:<8} {'; '.join(word for word in words if word)}"
