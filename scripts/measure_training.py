"""What sequence partition costs and saves: one training step, every case in its own process.

    python scripts/measure_training.py rows --length 8192 --depths 8
    python scripts/measure_training.py memory --length 8192 --depths 8 --layers 4 --segments 1,2,4,8,16
    python scripts/measure_training.py memory --length 8192 --depths 8 --layers 4 --cases dense:1 --limit-gib 8
    python scripts/measure_training.py speed --length 2048 --depths 8 --turns 5
    python scripts/measure_training.py features --target tiny --aux-layers 1,2,3 --length 150 --layers 2 --turns 5

A head of SmolLM2-135M's widths over random text. Methods: `cached` and `recomputed` are `peagle-trt train`'s own;
`dense` is one pass whose attention reads one mask of all rows by all rows, as trainers without blocks do. Memory is the
process's peak; times are the processor's, and ratios are taken within a turn, so that a busy machine slows all alike.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from peagle_trt import catalog
from peagle_trt.cli.script import positive, positives, run_script
from peagle_trt.spec import DrafterConfig
from peagle_trt.spec.rope import RopeConfig
from peagle_trt.train import head as head_module
from peagle_trt.train.acceptance import FrozenTables, freeze_tables
from peagle_trt.train.batches import sample_plans
from peagle_trt.train.features import AnswerText, TrainingSequence
from peagle_trt.train.gradients import LossSettings, Partition, StepSums, accumulate_gradients
from peagle_trt.train.head import PeagleHead
from peagle_trt.train.partition import paper_segments, peak_rows, rows_a_pass
from peagle_trt.train.row_attention import KeysValues, SequenceRows
from peagle_trt.train.sampling import DropSettings, RowPlan, sample_rows, visible_rows
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.start import auxiliary_scale, drafter_config, seeded_head
from peagle_trt.train.states import ComputedStates, StoredStates
from peagle_trt.train.step import step_gradients
from peagle_trt.train.target import read_torch_target

METHODS = ("cached", "recomputed", "dense")
HIDDEN, VOCABULARY, DRAFT_VOCABULARY = 576, 49152, 16384


def main() -> None:
    """Parse the command line and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rows", "memory", "speed", "features", "case"))
    parser.add_argument("--length", type=positive, default=8192)
    parser.add_argument("--depths", type=positive, default=8)
    parser.add_argument("--retention", type=float, default=0.8)
    parser.add_argument("--layers", type=positive, default=4)
    parser.add_argument("--segments", type=positives, default=(1, 2, 4, 8, 16))
    parser.add_argument("--cases", type=_cases, help="METHOD:SEGMENTS,...; both methods at all --segments by default")
    parser.add_argument("--limit-gib", type=float, help="address space of each case's process")
    parser.add_argument("--turns", type=positive, default=5)
    parser.add_argument("--target", help="features: a catalog name or a checkpoint's folder")
    parser.add_argument("--aux-layers", help="features: ID,ID,ID; 2, n/2 and n-3 by default")
    parser.add_argument("--texts", type=positive, default=8, help="features: texts of a step")
    options = parser.parse_args()
    if options.aux_layers and not all(part.isdecimal() for part in options.aux_layers.split(",")):
        parser.error(f"`{options.aux_layers}` is no list of layers, such as 2,15,27")
    if (options.what == "features" and not options.target) or (options.what == "case" and not options.cases):
        parser.error(f"{options.what} needs {'--target' if options.what == 'features' else '--cases'}")
    commands = {"rows": print_rows, "memory": print_memory, "speed": print_speed, "case": run_case}
    (commands | {"features": print_features})[options.what](options)


def print_rows(options: argparse.Namespace) -> None:
    """A table of rows against segments, without running a step."""
    drop = DropSettings(num_depths=options.depths, retention=options.retention)
    plan = sample_rows(options.length, np.ones(options.length, bool), drop, np.random.default_rng(0))
    print("| S | rows alive, cached | rows alive, Algorithm 1 | rows run, cached | rows run, Algorithm 1 |")
    print("|---|---|---|---|---|")
    for number in options.segments:
        alive = [peak_rows(plan, number, method) for method in ("cached", "recomputed")]
        again = sum(len(segment.rows) for segment in paper_segments(plan, number))
        print(f"| {number} | {alive[0]:,} | {alive[1]:,} | {len(plan.depths):,} | {again:,} |")


def print_memory(options: argparse.Namespace) -> None:
    """One line a case, each measured in a process of its own."""
    print("method      segments  rows of a pass  rows run  peak MiB  step MiB  CPU s  loss")
    for name in cases(options):
        command = [sys.executable, __file__, "case", "--cases", name]
        for option in ("length", "depths", "retention", "layers"):
            command += [f"--{option}", str(getattr(options, option))]
        limit = int(options.limit_gib * 2**30) if options.limit_gib else resource.RLIM_INFINITY
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        )
        method, segments = name.split(":")
        if done.returncode:
            print(f"{method:11} {segments:>8}  died: {_reason(done.stderr)}", flush=True)
            continue
        found = json.loads(done.stdout)
        print(
            f"{method:11} {segments:>8} {found['peak_rows']:15} {found['num_rows']:9} {found['peak_mib']:9.0f} "
            f"{found['step_mib']:9.0f} {found['cpu_seconds']:6.1f}  {found['loss']:.6f}",
            flush=True,
        )


def _reason(said: str) -> str:
    """Why a case died: its error, or the last it said."""
    lines = said.strip().splitlines() or ["without a word"]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines)[-1][:150]


def print_features(options: argparse.Namespace) -> None:
    """Processor time of a step with stored hidden states and with computed ones, in turns."""
    is_known = catalog.has_entry(options.target)
    path = catalog.target_path(catalog.find_entry(options.target)) if is_known else Path(options.target)
    layers = tuple(map(int, options.aux_layers.split(","))) if options.aux_layers else None
    target = read_torch_target(path, torch.float32, layers)
    sizes = (options.texts, options.length)
    token_ids = np.random.default_rng(0).integers(3, target.config.vocab_size, sizes).astype(np.int32)
    texts = [AnswerText(token_ids=torch.from_numpy(row), prompt_length=options.length // 3) for row in token_ids]
    computed = ComputedStates(target)
    stored = computed.complete(texts)
    config = drafter_config(
        target.config,
        aux_layer_ids=target.auxiliary_layers,
        num_layers=options.layers,
        draft_vocab_size=target.config.vocab_size,
        mask_token_id=2,
        num_depths=options.depths,
    )
    head = seeded_head(config, auxiliary_scale(stored), torch.float32, 0)
    vocabulary = np.arange(target.config.vocab_size)
    tables = freeze_tables(target.embeddings_VH, target.head_VH, vocabulary, torch.float32)
    settings = TrainingSettings(drop=DropSettings(num_depths=options.depths, retention=options.retention))
    times: dict[str, list[float]] = {"cached": [], "computed": []}
    for turn in range(options.turns + 1):
        for name, states, given in (("cached", StoredStates(), stored), ("computed", computed, texts)):
            began = time.process_time()
            step_gradients(head, tables, given, slice(None), settings, np.random.default_rng(0), states)
            if turn:
                times[name].append(time.process_time() - began)
    ratios = sorted(slow / fast for fast, slow in zip(times["cached"], times["computed"], strict=True))
    cached, slower = (statistics.median(times[name]) for name in times)
    print(f"cached {cached:.2f} CPU s a step, computed {slower:.2f}; ratio {statistics.median(ratios):.2f}, ", end="")
    print(f"{ratios[0]:.2f} to {ratios[-1]:.2f} in {options.turns} turns")


def print_speed(options: argparse.Namespace) -> None:
    """Processor time of a step in every case, in turns, against the first case."""
    head, tables, sequence, plan = make_step(options)
    names = cases(options)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(options.turns + 1):
        for name in names:
            began = time.process_time()
            run_step(head, tables, sequence, plan, name)
            if turn:
                times[name].append(time.process_time() - began)
    print("method      segments  peak rows  CPU s  tokens/s a core  against the first (quartiles)")
    for name in names:
        ratios = sorted(first / own for first, own in zip(times[names[0]], times[name], strict=True))
        method, segments = name.split(":")
        rows = peak_rows(plan, int(segments), "cached" if method == "dense" else method)
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
        seconds = statistics.median(times[name])
        print(
            f"{method:11} {segments:>8} {rows:10} {seconds:6.2f} {options.length / seconds:16.0f}  "
            f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"
        )


def run_case(options: argparse.Namespace) -> None:
    """One step in this process; its figures as JSON."""
    head, tables, sequence, plan = make_step(options)
    before = resident_mib()
    began = time.process_time()
    sums = run_step(head, tables, sequence, plan, options.cases[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = {
        "peak_rows": sums.peak_rows,
        "num_rows": sums.num_rows,
        "peak_mib": peak,
        "step_mib": peak - before,
        "cpu_seconds": time.process_time() - began,
        "loss": sums.loss,
    }
    print(json.dumps(figures))


def cases(options: argparse.Namespace) -> list[str]:
    """METHOD:SEGMENTS of each case, the unpartitioned one first."""
    if options.cases:
        return list(options.cases)
    numbers = options.segments
    return [f"cached:{n}" for n in numbers] + [f"recomputed:{n}" for n in numbers if n > 1]


def _cases(text: str) -> tuple[str, ...]:
    parts = [part.partition(":") for part in text.split(",")]
    if not all(method in METHODS and number.isdecimal() and int(number) for method, _, number in parts):
        raise argparse.ArgumentTypeError(f"`{text}` is no METHOD:SEGMENTS,... of {', '.join(METHODS)}")
    return tuple("".join(part) for part in parts)


def make_step(options: argparse.Namespace) -> tuple[PeagleHead, FrozenTables, TrainingSequence, RowPlan]:
    """A head, tables, a random sequence whose text is all answer, and its rows."""
    config = DrafterConfig(
        dialect="vllm",
        hidden_size=HIDDEN,
        target_hidden_size=HIDDEN,
        intermediate_size=1536,
        num_layers=options.layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=100000.0),
        max_positions=options.length + 64,
        vocab_size=VOCABULARY,
        draft_vocab_size=DRAFT_VOCABULARY,
        mask_token_id=2,
        aux_layer_ids=(2, 15, 27),
        has_vocabulary_map=True,
        num_depths=options.depths,
    )
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(VOCABULARY, HIDDEN, generator=generator) * 0.1
    tables = freeze_tables(embeddings, embeddings, np.arange(DRAFT_VOCABULARY), torch.float32)
    head = seeded_head(config, torch.ones(3 * HIDDEN), torch.float32, 0)
    sequence = TrainingSequence(
        token_ids=torch.randint(3, VOCABULARY, (options.length + 2,), generator=generator, dtype=torch.int32),
        prompt_length=1,
        auxiliary_NA=torch.randn(options.length + 1, 3 * HIDDEN, generator=generator).half(),
        normed_NH=torch.randn(options.length + 1, HIDDEN, generator=generator).half(),
    )
    drop = DropSettings(num_depths=options.depths, retention=options.retention)
    (plan,) = sample_plans([sequence], drop, np.random.default_rng(0))
    return head, tables, sequence, plan


def run_step(head: PeagleHead, tables: FrozenTables, sequence: TrainingSequence, plan: RowPlan, name: str) -> StepSums:
    """Forward and backward of one step; the gradients are dropped."""
    method, segments = name.split(":")
    own = head_module.attend_rows
    limit = None if segments == "1" else rows_a_pass(len(plan.depths), int(segments), plan)
    if method == "dense":
        head_module.attend_rows = dense_attention(plan)  # type: ignore[assignment]
    try:
        return accumulate_gradients(
            head,
            tables,
            [sequence],
            [plan],
            settings=LossSettings(),
            partition=Partition(method="cached" if method == "dense" else method, max_rows=limit),
        )
    finally:
        head_module.attend_rows = own
        for parameter in head.parameters():
            parameter.grad = None


def dense_attention(plan: RowPlan) -> Callable[..., torch.Tensor]:
    """Attention with one additive mask of all rows by all rows."""
    blocked = torch.from_numpy(~visible_rows(plan))
    mask = torch.zeros(blocked.shape).masked_fill_(blocked, -torch.inf)
    del blocked

    def attend(
        queries: torch.Tensor, own: KeysValues, layouts: list[SequenceRows], tables: object, dtype: torch.dtype, _: None
    ) -> torch.Tensor:
        group = queries.shape[1] // own.keys.shape[1]
        result = torch.nn.functional.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            own.keys.transpose(0, 1).repeat_interleave(group, dim=0)[None],
            own.values.transpose(0, 1).repeat_interleave(group, dim=0)[None],
            attn_mask=mask[None, None],
        )
        return result[0].transpose(0, 1).flatten(1)

    return attend


def resident_mib() -> float:
    """Memory of this process now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


if __name__ == "__main__":
    sys.exit(run_script(main))
