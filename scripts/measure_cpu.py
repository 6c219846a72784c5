"""The CPU figures of the README: step time against cache capacity, plain decoding against other CPU engines, and one
parallel draft pass against as many sequential passes as there are drafts.

    python scripts/measure_cpu.py capacity BUILD_512 BUILD_8192
    python scripts/measure_cpu.py peers BUILD HUGGINGFACE_FOLDER [--genai GENAI_FOLDER]
    python scripts/measure_cpu.py drafting BUILD [BUILD ...]

HUGGINGFACE_FOLDER holds the same target for transformers; GENAI_FOLDER what
`python -m onnxruntime_genai.models.builder -i HUGGINGFACE_FOLDER -o GENAI_FOLDER -p fp32 -e cpu` makes of it.
Everything runs in turns, and ratios are taken within a turn, so that a busy machine slows all alike.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from peagle_trt.cli.script import positive, run_script
from peagle_trt.decode.session import LoadedBuild, open_build
from peagle_trt.engine.protocol import DraftRows, TargetRows

TURNS = 40
TOKENS_PRESENT = 300
PROMPT = "The history of computing began long before the electronic machines that we know today, when"


def main() -> None:
    """Parse the command line and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    capacity = commands.add_parser("capacity")
    capacity.add_argument("builds", nargs=2, type=Path)
    capacity.set_defaults(run=lambda options: measure_capacity(options.builds))
    peers = commands.add_parser("peers")
    peers.add_argument("build", type=Path)
    peers.add_argument("huggingface", type=Path)
    peers.add_argument("--genai", type=Path)
    peers.add_argument("--tokens", type=positive, default=48)
    peers.set_defaults(run=lambda options: measure_peers(options))
    drafting = commands.add_parser("drafting")
    drafting.add_argument("builds", nargs="+", type=Path)
    drafting.set_defaults(run=lambda options: measure_drafting(options.builds))
    options = parser.parse_args()
    options.run(options)


def measure_capacity(paths: list[Path]) -> None:
    """Time one verify step and one draft pass at the same length in caches of two capacities."""
    builds = [open_build(path) for path in paths]
    for rows in (1, 6):
        steps = [lambda build=build, rows=rows: verify_and_draft(build, rows) for build in builds]
        for step in steps:
            step()
        times = take_turns(steps, TURNS)
        ratios = [second / first for first, second in zip(*times, strict=True)]
        medians = [1e3 * statistics.median(values) for values in times]
        capacities = [build.manifest.shapes.max_sequence_length for build in builds]
        print(f"{rows} rows at {TOKENS_PRESENT} tokens: ", end="")
        print(", ".join(f"capacity {size}: {ms:.2f} ms" for size, ms in zip(capacities, medians, strict=True)), end="")
        print(f"; ratio {statistics.median(ratios):.3f} (quartiles {quartiles(ratios)})")


def verify_and_draft(build: LoadedBuild, rows: int) -> None:
    """One step of the decode loop's two passes, past `TOKENS_PRESENT` tokens that the cache is taken to hold."""
    token_ids = np.arange(100, 100 + rows, dtype=np.int32)
    item = TargetRows(slot=0, token_ids=token_ids, start_position=TOKENS_PRESENT, num_logit_rows=rows)
    (output,) = build.engine.run_target([item])
    draft = DraftRows(
        slot=0,
        next_token_ids=token_ids,
        hidden=output.hidden,
        num_accepted=rows - 1,
        start_position=TOKENS_PRESENT,
    )
    build.engine.run_drafter([draft], 5)


def measure_drafting(paths: list[Path]) -> None:
    """Time K drafts of one parallel pass against K passes of the same layers, each of which waits for the one before.

    Both begin with the rows of a verify step that accepted two drafts. A sequential pass after the first reads one row,
    as EAGLE-3's does; unlike EAGLE-3's it runs `fc` as well, so its time without `fc` would be a little lower.
    """
    for path in paths:
        build = open_build(path)
        width = len(build.manifest.drafter.aux_layer_ids) * build.manifest.drafter.target_hidden_size
        for draft_tokens in (3, 5, 7):
            runs: list[Callable[[], object]] = [
                lambda width=width, build=build, count=draft_tokens: draft(build, 3, count, 0, width),
                lambda width=width, build=build, count=draft_tokens: draft_in_sequence(build, count, width),
            ]
            for run in runs:
                run()
            parallel, sequential = take_turns(runs, TURNS)
            ratios = [second / first for first, second in zip(parallel, sequential, strict=True)]
            one, several = (1e3 * statistics.median(times) for times in (parallel, sequential))
            print(
                f"{path.name} K={draft_tokens}: one pass {one:.2f} ms, {draft_tokens} passes {several:.2f} ms; ", end=""
            )
            print(f"ratio {statistics.median(ratios):.2f} (quartiles {quartiles(ratios)})")


def draft_in_sequence(build: LoadedBuild, draft_tokens: int, width: int) -> None:
    """K passes that draft one token each."""
    draft(build, 3, 1, 0, width)
    for index in range(1, draft_tokens):
        draft(build, 1, 1, 2 + index, width)


def draft(build: LoadedBuild, rows: int, draft_tokens: int, offset: int, width: int) -> None:
    """One pass of the drafter over `rows` real rows, past the tokens that the cache is taken to hold."""
    hidden = np.full((rows, width), 0.5, np.float32)
    item = DraftRows(
        slot=0,
        next_token_ids=np.arange(100, 100 + rows, dtype=np.int32),
        hidden=hidden,
        num_accepted=rows - 1,
        start_position=TOKENS_PRESENT + offset,
    )
    build.engine.run_drafter([item], draft_tokens)


def measure_peers(options: argparse.Namespace) -> None:
    """Time plain greedy decoding of every engine that is given, each in a process of its own.

    In one process their thread pools would spin against each other.
    """
    engines: dict[str, tuple[Callable[..., Callable[[], list[int]]], tuple[object, ...]]] = {
        "peagle-trt": (ours, (options.build, options.tokens)),
        "transformers": (transformers, (options.huggingface, options.tokens)),
    }
    if options.genai:
        engines["onnxruntime-genai"] = (genai, (options.genai, options.huggingface, options.tokens))
    context = multiprocessing.get_context("spawn")
    doors = {}
    for name, engine in engines.items():
        doors[name], theirs = context.Pipe()
        context.Process(target=answer_calls, args=(theirs, *engine), daemon=True).start()
    answers = {name: call(door)[1] for name, door in doors.items()}
    times: dict[str, list[float]] = {name: [] for name in doors}
    for _ in range(7):
        for name, door in doors.items():
            times[name].append(call(door)[0])
    for name, values in times.items():
        ratios = [value / ours_value for value, ours_value in zip(values, times["peagle-trt"], strict=True)]
        per_token = 1e3 * statistics.median(values) / options.tokens
        same = "same tokens" if answers[name] == answers["peagle-trt"] else "other tokens"
        print(f"{name:18s} {per_token:7.2f} ms/token  {statistics.median(ratios):.2f}x our time  {same}")


def answer_calls(door: Connection, make: Callable[..., Callable[[], list[int]]], settings: tuple[object, ...]) -> None:
    """The other side of `call`."""
    run = make(*settings)
    with contextlib.suppress(EOFError):
        while door.recv():
            started = time.perf_counter()
            tokens = run()
            door.send((time.perf_counter() - started, tokens))


def call(door: Connection) -> tuple[float, list[int]]:
    """Let an engine answer once: seconds and tokens."""
    # Idle threads of the engine before spin a little while.
    time.sleep(0.5)
    door.send(True)
    return door.recv()


def ours(path: Path, tokens: int) -> Callable[[], list[int]]:
    """Plain decoding in our engine."""
    from dataclasses import replace

    from peagle_trt.decode.session import generate

    build = open_build(path)
    request = replace(build.request(PROMPT, max_tokens=tokens), draft_tokens=0, end_ids=())
    return lambda: list(generate(build, [request])[0].token_ids)


def transformers(folder: Path, tokens: int) -> Callable[[], list[int]]:
    """Plain decoding in transformers, float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = AutoTokenizer.from_pretrained(folder)(PROMPT, return_tensors="pt").input_ids

    def run() -> list[int]:
        with torch.no_grad():
            full = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                pad_token_id=0,
            )
        return full[0, ids.shape[1] :].tolist()

    return run


def genai(folder: Path, tokenizer_folder: Path, tokens: int) -> Callable[[], list[int]]:
    """Plain decoding in onnxruntime-genai."""
    import onnxruntime_genai
    from transformers import AutoTokenizer

    model = onnxruntime_genai.Model(str(folder))
    ids = AutoTokenizer.from_pretrained(tokenizer_folder)(PROMPT).input_ids

    def run() -> list[int]:
        settings = onnxruntime_genai.GeneratorParams(model)
        settings.set_search_options(
            do_sample=False, max_length=len(ids) + tokens, min_length=len(ids) + tokens, batch_size=1
        )
        generator = onnxruntime_genai.Generator(model, settings)
        generator.append_tokens(ids)
        while not generator.is_done():
            generator.generate_next_token()
        return list(generator.get_sequence(0))[len(ids) :]

    return run


def take_turns(runs: list[Callable[[], object]], turns: int) -> list[list[float]]:
    """Seconds of every run, in turns."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(turns):
        for run, values in zip(runs, times, strict=True):
            started = time.perf_counter()
            run()
            values.append(time.perf_counter() - started)
    return times


def quartiles(values: list[float]) -> str:
    """The middle half of the values."""
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.3f}-{high:.3f}"


if __name__ == "__main__":
    sys.exit(run_script(main))
