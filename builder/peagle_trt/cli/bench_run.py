"""One call of `bench`: measures, in a run folder where one is asked for, and makes the document."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from peagle_trt.bench.cells import Cell
from peagle_trt.bench.clients import Client
from peagle_trt.bench.energy import Meter, find_meters
from peagle_trt.bench.measure import Result, Schedule, run_rounds, summarise
from peagle_trt.bench.provenance import find_sources, machine_document
from peagle_trt.bench.run_folder import open_run_folder
from peagle_trt.cli.bench_options import Measuring

NO_METER = "no meter can be read here: no RAPL counter, and no NVIDIA GPU that counts"
PLACES = ("build", "baseline_build")
"""Where builds lie does not matter: digests of their manifests tell which they are."""
ELSEWHERE = "the work is done by another process, whose machine has the meters"


def measure_into(
    client: Client,
    schedule: Schedule,
    measuring: Measuring,
    settings: Mapping[str, object],
    *,
    baseline: str,
    method: str,
    report: Callable[[str], None],
) -> tuple[dict[str, object], list[Result]]:
    """Measure what is left of a run and sum all of it up.

    Args:
        client: What answers.
        schedule: What is to be measured.
        measuring: How.
        settings: What the document says of the call.
        baseline: Name of what a speed-up is over.
        method: Name of what the document's own figures are of.
        report: Told of every round.

    Returns:
        The document, and the results that it holds.

    Raises:
        UsageError: The run folder holds another run.
    """
    meters = find_meters() if client.is_local else ()
    all_settings = {
        **settings,
        "repeats": schedule.repeats,
        "warm_up": schedule.warm_up,
        "round_prompts": schedule.width,
        "temperature": measuring.sampling.temperature,
        "seed": measuring.sampling.seed,
        "prompt_lookup": measuring.prompt_lookup,
        "categories": list(measuring.categories),
    }
    if measuring.run_path is None:
        cells = [cell for cells in run_rounds(client, schedule, meters=meters, report=report) for cell in cells]
        return _document(cells, schedule, measuring, all_settings, baseline, method, _energy(client, meters))
    identity = {name: value for name, value in all_settings.items() if name not in PLACES} | _identity(schedule)
    with open_run_folder(measuring.run_path, identity, cells_a_round=len(schedule.methods)) as run:
        if run.rounds:
            report(f"`{run.path}` holds {len(run.rounds)} finished rounds; going on")
        for round_cells in run_rounds(client, schedule, meters=meters, done=run.rounds, report=report):
            run.add(round_cells)
        answer = _document(run.cells, schedule, measuring, all_settings, baseline, method, _energy(client, meters))
        run.finish(_on_disk(answer[0]))
    return answer


def result_document(result: Result) -> dict[str, object]:
    """A result as documents hold it."""
    document = asdict(result)
    document.pop("method")
    method = result.method
    return {
        "method": method.name,
        "draft_tokens": method.draft_tokens,
        "concurrency": method.concurrency,
        "is_adaptive": method.is_adaptive,
        **document,
    }


def _document(
    cells: list[Cell],
    schedule: Schedule,
    measuring: Measuring,
    settings: Mapping[str, object],
    baseline: str,
    method: str,
    energy: str | None,
) -> tuple[dict[str, object], list[Result]]:
    is_greedy = measuring.sampling.temperature == 0.0
    results = summarise(cells, schedule.methods, baseline=baseline, is_greedy=is_greedy)
    best = max((item for item in results if item.method.name == method), key=lambda item: item.tokens_per_second)
    document: dict[str, object] = {
        **result_document(best),
        "settings": settings,
        "results": [result_document(item) for item in results],
        "energy_absent": energy,
        "sources": asdict(find_sources()),
        "machine": machine_document(),
    }
    return document, results


def _energy(client: Client, meters: tuple[Meter, ...]) -> str | None:
    """Why there is no energy."""
    if meters:
        return None
    return NO_METER if client.is_local else ELSEWHERE


def _identity(schedule: Schedule) -> dict[str, object]:
    """What makes cells comparable beyond the settings that are shown: the prompts themselves, and what ran where."""
    machine: dict[str, Any] = machine_document()
    return {
        "prompt_digests": {
            each.name: hashlib.sha256("\0".join(each.prompts).encode()).hexdigest() for each in schedule.prompt_sets
        },
        "methods": list(schedule.methods),
        "version": find_sources().version,
        "processor": machine["processor"],
        "num_usable_cores": machine["num_usable_cores"],
        "onnxruntime": machine["packages"].get("onnxruntime"),
    }


def _on_disk(document: Mapping[str, object]) -> dict[str, object]:
    return {"ok": True, **document}
