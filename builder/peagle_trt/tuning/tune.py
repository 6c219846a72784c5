"""The whole of `peagle-trt tune`: sample, measure, model, measure again, choose, write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from peagle_trt.build_folder import MANIFEST_NAME, read_manifest
from peagle_trt.decode.session import LoadedBuild
from peagle_trt.errors import UsageError
from peagle_trt.files import write_text
from peagle_trt.spec import EngineManifest
from peagle_trt.tuning.acceptance import Traffic
from peagle_trt.tuning.choice import Choice, anchors, as_schedule, choose, passes_of, shortlist
from peagle_trt.tuning.model import FittedModel, fit_model
from peagle_trt.tuning.passes import measure_passes
from peagle_trt.tuning.stopwatch import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What was found.

    Attributes:
        traffic: What the requests were like.
        model: The machine model of this machine.
        worst_miss: Largest relative error of the model at the passes it was fitted to.
        choices: The best K at every load.
        schedule: The same as a build keeps it.
    """

    traffic: Traffic
    model: FittedModel
    worst_miss: float
    choices: tuple[Choice, ...]
    schedule: tuple[tuple[int, int], ...]


def tune(
    loaded: LoadedBuild,
    traffic: Traffic,
    loads: Sequence[int],
    *,
    turns: int,
    clock: Clock,
    report: Callable[[str], None],
) -> Tuning:
    """Choose K for every load.

    Args:
        loaded: The build.
        traffic: What requests are like.
        loads: Numbers of requests in flight.
        turns: How often a pass is measured.
        clock: Of the passes.
        report: Told of every stage.

    Raises:
        UsageError: The build's head is no P-EAGLE head, or a load is more than the build takes.
    """
    require_tunable(loaded.manifest, loads)
    context = traffic.context_tokens
    kinds = anchors(loads, traffic.acceptance.max_draft_tokens)
    report(f"measuring {len(kinds)} passes for the machine model")
    measured = measure_passes(loaded, kinds, context_tokens=context, turns=turns, clock=clock)
    model = fit_model(loaded.manifest, measured, context_tokens=context)
    worst = max(abs(model.seconds(kind) / seconds - 1) for kind, seconds in measured.items())
    chosen = {load: shortlist(traffic, load, model.seconds) for load in loads}
    final = [kind for load, counts in chosen.items() for count in counts for kind in passes_of(load, count)]
    report(f"measuring {len(final)} passes of the K that could be best")
    # Only passes of one measurement are compared: the machine may have changed since the first.
    last = measure_passes(loaded, final, context_tokens=context, turns=turns, clock=clock)
    choices = tuple(choose(traffic, load, model.seconds, last) for load in loads)
    return Tuning(traffic=traffic, model=model, worst_miss=worst, choices=choices, schedule=as_schedule(choices))


def require_tunable(manifest: EngineManifest, loads: Sequence[int]) -> None:
    """Refuse what cannot be tuned, before anything is measured.

    Raises:
        UsageError: See `tune`.
    """
    if not manifest.drafter.is_parallel:
        raise UsageError(
            f"build `{manifest.name}` holds a plain EAGLE-3 head, whose drafts take a pass each",
            hint="measure it with `bench -k 1,2,3,5`; `tune` is for P-EAGLE heads",
        )
    limit = manifest.shapes.max_batch_size
    if max(loads) > limit:
        raise UsageError(
            f"a load of {max(loads)} was asked for, and the build takes {limit} requests at a time",
            hint="build with a larger --max-batch-size, or leave that load out",
        )


def write_defaults(build_path: Path, schedule: tuple[tuple[int, int], ...]) -> EngineManifest:
    """Put a schedule into a build's manifest.

    Its `draft_tokens`, which must be at least 1, becomes the first K of the schedule that is.

    Args:
        build_path: The build, whose files `open_build` has checked.
        schedule: Loads and their K.
    """
    manifest = read_manifest(build_path)
    first = next((count for _, count in schedule if count), manifest.shapes.draft_tokens)
    shapes = msgspec.structs.replace(manifest.shapes, draft_tokens=first, draft_schedule=schedule)
    tuned = msgspec.structs.replace(manifest, shapes=shapes)
    write_text(build_path / MANIFEST_NAME, msgspec.json.format(msgspec.json.encode(tuned), indent=2).decode() + "\n")
    return tuned
