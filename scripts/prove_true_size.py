"""Proves that published sizes are handled on a small machine: what a build takes, and that the numbers are right.

    scripts/prove_true_size --work FOLDER [--model NAME]... [--step NAME]... [--threads N]

Every step runs in a process of its own, whose peak memory is the operating system's count, and prints a line of JSON.

build    `peagle-trt build --until graph` over a checkpoint of published shapes: time, memory, new bytes on the disk
graphs   the ONNX checker and strict shape inference over those graphs
pass     the whole target reads four tokens; its weights read as zeros, so only time and memory mean anything
layer    one decoder layer with random weights against transformers' own, in float32
drafter  the whole drafter with random weights against plain torch, in float64
compile  two layers of the target, with the whole vocabulary, and the whole drafter become TensorRT-RTX engines for
         SM120, in bfloat16, FP8 and NVFP4; needs `tensorrt_rtx` and no GPU
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from peagle_trt.build_folder import StagedBuild, staging_path
from peagle_trt.cli.script import positive, run_script
from peagle_trt.engine.protocol import DraftRows, TargetRows
from peagle_trt.engine.registry import open_engine
from peagle_trt.engine.tensorrt.build import read_engines
from peagle_trt.pipeline import read_checkpoints
from peagle_trt.spec import BuildSpec, EngineManifest
from peagle_trt.stages import describe, graph_roles
from scripts.synthesize_checkpoint import published_models, read_published, shorten, write_drafter, write_target

Result = dict[str, Any]
PEAGLE_TRT = (sys.executable, "-c", "import sys; from peagle_trt.cli.main import main; sys.exit(main())")
TABLE_ROWS = 4096
SEED = 20260201
# float32 over rows of up to 14,336 products, against float32 or float64; weights of a wrong place are off by 0.1.
TOLERANCE = 1e-3
NUM_TOKENS = 12
DRAFT_TOKENS = 5


def prove_build(model: str, work: Path, _: int) -> Result:
    """Build until the graphs are written."""
    synthesize(model, work)
    for earlier in (work / "build", staging_path(work / "build")):
        shutil.rmtree(earlier, ignore_errors=True)
    command = [*PEAGLE_TRT, "build", "--target", str(work / "target"), "--drafter", str(work / "drafter")]
    command += ["--until", "graph", "-o", str(work / "build")]
    before = disk_bytes(work)
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    checkpoint = sum(file.stat().st_size for name in ("target", "drafter") for file in (work / name).iterdir())
    return {
        "checkpoint_bytes": checkpoint,
        "checkpoint_on_disk_bytes": before,
        "seconds": round(seconds, 1),
        "peak_memory_bytes": peak,
        "new_on_disk_bytes": disk_bytes(work) - before,
        "within_limits": seconds <= 60 and peak <= 2 << 30 and disk_bytes(work) - before <= 200_000_000,
    }


def prove_graphs(model: str, work: Path, _: int) -> Result:
    """Check the graphs that `prove_build` left."""
    import onnx

    engine = staging_path(work / "build") / "engine"
    copy = work / "checked"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    # The checker refuses files with a second name, so stand-ins of the same size take the shards' places.
    for shard in engine.glob("*.safetensors"):
        with (copy / shard.name).open("wb") as file:
            file.truncate(shard.stat().st_size)
    sizes = {}
    for graph in sorted(engine.glob("*.onnx")):
        shutil.copyfile(graph, copy / graph.name)
        onnx.checker.check_model(copy / graph.name)
        inferred = copy / "inferred.onnx"
        onnx.shape_inference.infer_shapes_path(copy / graph.name, inferred, check_type=True, strict_mode=True)
        sizes[graph.name] = graph.stat().st_size
    shutil.rmtree(copy)
    return {"checked": sizes}


def prove_pass(model: str, work: Path, threads: int) -> Result:
    """One pass of the whole target."""
    manifest, folder = staged(model, work)
    engine = open_engine(folder, manifest, num_threads=threads)
    rows = TargetRows(slot=0, token_ids=np.arange(4, dtype=np.int32), start_position=0, num_logit_rows=1)
    start = time.monotonic()
    engine.run_target([rows])
    first = time.monotonic()
    engine.run_target([rows])
    return {
        "first_pass_seconds": round(first - start, 1),
        "second_pass_seconds": round(time.monotonic() - first, 1),
        **memory(),
    }


def prove_layer(model: str, work: Path, threads: int) -> Result:
    """The first of two layers is filled; the second, of zeros, passes the stream through."""
    from scripts.true_size_reference import layer_streams

    short = work / "short"
    synthesize(model, short, num_layers=2, fills="layer")
    manifest, folder = build_graphs_only(model, short)
    engine = open_engine(folder, manifest, num_threads=threads)
    token_ids = np.random.default_rng(SEED).integers(0, TABLE_ROWS, NUM_TOKENS).astype(np.int32)
    rows = TargetRows(slot=0, token_ids=token_ids, start_position=0, num_logit_rows=NUM_TOKENS)
    start = time.monotonic()
    (found,) = engine.run_target([rows])
    seconds, used = time.monotonic() - start, memory()
    streams, logits = layer_streams(short / "target", token_ids)
    width = manifest.target.hidden_size
    errors = [float(np.abs(found.hidden[:, width * index :][:, :width] - streams[index]).max()) for index in (1, 2)]
    logit_error = float(np.abs(found.logits[:, :TABLE_ROWS] - logits[:, :TABLE_ROWS]).max())
    engine.close()
    shutil.rmtree(short)
    result = {
        "stream_error": max(errors),
        "largest_entry": float(np.abs(streams[1]).max()),
        "change_by_layer": float(np.abs(streams[1] - streams[0]).max()),
        "logit_error": logit_error,
        "largest_logit": float(np.abs(logits).max()),
        "pass_seconds": round(seconds, 1),
        **used,
    }
    return require(result, max(*errors, logit_error))


def prove_drafter(model: str, work: Path, threads: int) -> Result:
    """The whole drafter, after a history of as many rows as the layer's proof reads."""
    from scripts.true_size_reference import draft_logits

    short = work / "short"
    synthesize(model, short, num_layers=2, fills="drafter")
    manifest, folder = build_graphs_only(model, short)
    engine = open_engine(folder, manifest, num_threads=threads)
    rng = np.random.default_rng(SEED)
    next_token_ids = rng.integers(0, TABLE_ROWS, NUM_TOKENS).astype(np.int32)
    hidden = rng.standard_normal((NUM_TOKENS, 3 * manifest.target.hidden_size)).astype(np.float32)
    rows = DraftRows(
        slot=0, next_token_ids=next_token_ids, hidden=hidden, num_accepted=NUM_TOKENS - 1, start_position=0
    )
    start = time.monotonic()
    found = engine.run_drafter([rows], DRAFT_TOKENS).logits[0].copy()
    seconds, used = time.monotonic() - start, memory()
    engine.close()
    expected = draft_logits(short / "drafter", next_token_ids.tolist(), hidden, DRAFT_TOKENS)
    shutil.rmtree(short)
    error = float(np.abs(found - expected).max())
    result = {
        "logit_error": error,
        "largest_logit": float(np.abs(expected).max()),
        "drafts_equal": bool(np.array_equal(found.argmax(-1), expected.argmax(-1))),
        "pass_seconds": round(seconds, 1),
        **used,
    }
    return require(result, error)


def prove_compile(model: str, work: Path, _: int, precisions: Sequence[str] = ("native", "fp8", "nvfp4")) -> Result:
    """Compile a shortened target and the whole drafter in every precision that a build can ask for."""
    short = work / "short"
    synthesize(model, short, num_layers=2, fills="layer")
    found = {precision: compile_pair(short, precision) for precision in precisions}
    shutil.rmtree(short)
    return found


def compile_pair(work: Path, precision: str) -> Result:
    """What `build --backend tensorrt-rtx --until engine` makes of a folder's checkpoints, and what it takes."""
    output = work / precision
    command = [*PEAGLE_TRT, "build", "--target", str(work / "target"), "--drafter", str(work / "drafter")]
    command += ["--backend", "tensorrt-rtx", "--sm", "120", "--precision", precision, "--until", "engine"]
    subprocess.run([*command, "-o", str(output)], check=True, stdout=subprocess.DEVNULL)
    engines = read_engines(staging_path(output))
    shutil.rmtree(staging_path(output))
    taken = ("size_bytes", "build_seconds", "peak_memory_bytes")
    return {role: {name: getattr(engine, name) for name in taken} for role, engine in engines.items()}


STEPS: dict[str, Callable[[str, Path, int], Result]] = {
    "build": prove_build,
    "graphs": prove_graphs,
    "pass": prove_pass,
    "layer": prove_layer,
    "drafter": prove_drafter,
    "compile": prove_compile,
}


def synthesize(model: str, folder: Path, *, num_layers: int | None = None, fills: str = "") -> None:
    """Write a checkpoint whose layer 0 or drafter is filled, with the first rows of its tables."""
    published = read_published(model)
    if num_layers is not None:
        published = shorten(published, num_layers)
    filled = {
        "layer": r"model\.layers\.0\..*|model\.(embed_tokens|norm)\.weight|lm_head\.weight",
        "drafter": ".*",
        "": "",
    }
    target_pattern = filled["layer"] if fills == "layer" else ""
    head_pattern = filled["drafter"] if fills == "drafter" else ""
    write_target(
        folder / "target",
        published,
        is_filled=lambda name: re.fullmatch(target_pattern, name) is not None,
        seed=SEED,
        table_rows=TABLE_ROWS,
    )
    write_drafter(
        folder / "drafter",
        published,
        is_filled=lambda name: re.fullmatch(head_pattern, name) is not None,
        seed=SEED + 1,
        table_rows=TABLE_ROWS,
    )


def build_graphs_only(model: str, work: Path) -> tuple[EngineManifest, Path]:
    """Build until the graphs are written, in this process."""
    from peagle_trt import pipeline

    pipeline.build(specify(model, work), until="graph", is_fresh=True)
    return staged(model, work)


def staged(model: str, work: Path) -> tuple[EngineManifest, Path]:
    """What waits in staging, with the manifest it would get."""
    spec = specify(model, work)
    manifest = describe(spec, read_checkpoints(spec))
    folder = StagedBuild(spec.output_path)
    return msgspec.structs.replace(manifest, graphs=graph_roles(folder)), folder.path


def specify(model: str, work: Path) -> BuildSpec:
    """The build that `peagle-trt build` would make of a folder's checkpoints."""
    return BuildSpec(
        name=model,
        target_path=work / "target",
        drafter_path=work / "drafter",
        tokenizer_path=work / "target",
        output_path=work / "build",
        precision="native",
    )


def disk_bytes(folder: Path) -> int:
    """What a folder takes on the disk, every file counted once however many names it has."""
    stats = {
        stat.st_ino: stat.st_blocks * 512 for path in folder.rglob("*") if (stat := path.lstat()) and path.is_file()
    }
    return sum(stats.values())


def memory() -> Result:
    """Peak of this process, and what of its memory now is its own rather than a file's.

    Source: proc_pid_status(5).
    """
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        name: int(fields[field].split()[0]) * 1024
        for name, field in (("peak_memory_bytes", "VmHWM"), ("own_memory_bytes", "RssAnon"))
    }


def require(result: Result, error: float) -> Result:
    """The result, if the error is within the tolerance."""
    if not error <= TOLERANCE:
        raise SystemExit(f"prove_true_size: off by {error:.2e}, limit {TOLERANCE:.0e}: {json.dumps(result)}")
    return result


def main() -> None:
    """Run the steps that the command line asks for, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints and builds")
    parser.add_argument("--model", action="append", choices=published_models(), help="all by default")
    parser.add_argument("--step", action="append", choices=list(STEPS), help="all by default, in order")
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--here", action="store_true", help="run the one step in this process")
    arguments = parser.parse_args()
    models, steps = arguments.model or published_models(), arguments.step or list(STEPS)
    if arguments.here:
        folder = (arguments.work / models[0]).resolve()
        result = STEPS[steps[0]](models[0], folder, arguments.threads)
        print(json.dumps({"model": models[0], "step": steps[0], **result}), flush=True)
        return
    for model in models:
        for step in steps:
            command = [sys.executable, "-m", "scripts.prove_true_size", "--here", "--work", str(arguments.work)]
            command += ["--model", model, "--step", step, "--threads", str(arguments.threads)]
            subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


if __name__ == "__main__":
    sys.exit(run_script(main))
