"""What a comparison of peers found: a table to read, and a document to keep."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from peagle_trt.bench.provenance import find_sources, machine_document
from scripts.peer_process import Engine
from scripts.peers import OURS, PEERS

BASE = (OURS, "plain")
"""What ratios are over, and whose answers the others are compared with."""
Failures = Mapping[tuple[str, str], str]
"""Why an engine is missing, by peer and method."""


def table(engines: Sequence[Engine], failures: Failures) -> str:
    """A part for every set of prompts and number in flight."""
    keys = dict.fromkeys(key for engine in engines for key in engine.rounds)
    parts = [_part(engines, prompts, concurrency) for prompts, concurrency in keys]
    lost = [f"* {name}, {method}: failed: {reason}" for (name, method), reason in failures.items()]
    return "\n\n".join([*parts, *(["\n".join(lost)] if lost else [])]) or "nothing was measured"


def document(engines: Sequence[Engine], failures: Failures, settings: Mapping[str, object]) -> dict[str, object]:
    """All of it, with what every engine answered."""
    return {
        "settings": dict(settings),
        "machine": json.loads(json.dumps(machine_document(), default=str)),
        "sources": asdict(find_sources()),
        "cells": [
            _figures(engine, engines, key) | {"rounds": rounds}
            for engine in engines
            for key, rounds in engine.rounds.items()
        ],
        "failures": [
            {"engine": name, "method": method, "reason": reason} for (name, method), reason in failures.items()
        ],
    }


def first_difference(tokens: Sequence[int], others: Sequence[int]) -> int | None:
    """Place of the first token that differs, or None where both are equal."""
    pairs = itertools.zip_longest(tokens, others)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), None)


def _part(engines: Sequence[Engine], prompts: str, concurrency: int) -> str:
    lines = [
        f"{prompts}, {concurrency} in flight:",
        "",
        "| engine | method | tokens/s | tokens a CPU second | over ours, plain (quartiles) | by the clock | "
        "same tokens (first that differs) | note |",
        "|---|---|---|---|---|---|---|---|",
    ]
    key = (prompts, concurrency)
    lines += [_row(_figures(engine, engines, key)) for engine in engines if engine.rounds.get(key)]
    alone = [f"{engine.name} {engine.method}" for engine in engines if not _is_batching(engine) and concurrency > 1]
    if alone:
        lines += ["", f"Do not batch: {', '.join(alone)}."]
    return "\n".join(lines)


def _is_batching(engine: Engine) -> bool:
    return engine.method in PEERS[engine.name].batching


def _figures(engine: Engine, engines: Sequence[Engine], key: tuple[str, int]) -> dict[str, Any]:
    """Figures of one engine on one set of prompts; those over ours are None where ours did not answer."""
    rounds = engine.rounds[key]
    base = next((each.rounds.get(key, []) for each in engines if each.key == BASE), [])
    # An engine that failed half way has fewer rounds.
    pairs = list(zip(rounds, base, strict=False))
    ratios = {
        name: [_rate(mine, name) / _rate(theirs, name) for mine, theirs in pairs] for name in ("seconds", "cpu_seconds")
    }
    differences = [
        first_difference(mine, theirs)
        for one, other in pairs
        for mine, theirs in zip(one["tokens"], other["tokens"], strict=True)
    ]
    tokens = sum(_count(each) for each in rounds)
    in_cpu_time = ratios["cpu_seconds"]
    return {
        "engine": engine.name,
        "version": engine.version,
        "method": engine.method,
        "prompts": key[0],
        "concurrency": key[1],
        "tokens_per_second": tokens / sum(each["seconds"] for each in rounds),
        "tokens_per_cpu_second": tokens / sum(each["cpu_seconds"] for each in rounds),
        "ratio": statistics.median(ratios["seconds"]) if pairs else None,
        "ratio_cpu": statistics.median(in_cpu_time) if pairs else None,
        "ratio_cpu_quartiles": statistics.quantiles(in_cpu_time, n=4)[::2] if len(pairs) > 1 else None,
        "num_answers": len(differences),
        "num_equal": differences.count(None),
        "first_differences": differences,
    }


def _count(answer: Mapping[str, Any]) -> int:
    return sum(len(tokens) for tokens in answer["tokens"])


def _rate(answer: Mapping[str, Any], clock: str) -> float:
    return float(_count(answer) / answer[clock])


def _row(figures: Mapping[str, Any]) -> str:
    over = clock = same = "-"
    if figures["ratio"] is not None:
        quartiles = figures["ratio_cpu_quartiles"]
        over = f"{figures['ratio_cpu']:.2f}" + (f" ({quartiles[0]:.2f}-{quartiles[1]:.2f})" if quartiles else "")
        clock = f"{figures['ratio']:.2f}"
        same = f"{figures['num_equal']} of {figures['num_answers']}"
        places = [str(place) for place in figures["first_differences"] if place is not None]
        same += f" ({', '.join(places)})" if places else ""
    name = figures["engine"]
    return (
        f"| {name} {figures['version']} | {figures['method']} | {figures['tokens_per_second']:.1f} | "
        f"{figures['tokens_per_cpu_second']:.1f} | {over} | {clock} | {same} | {PEERS[name].note} |"
    )
