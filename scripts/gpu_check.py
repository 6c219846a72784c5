"""Runs the Triton kernels and the TensorRT plugins on a GPU: equal to plain torch, and how fast beside a plain copy?

Exit codes: 0 equal everywhere, 1 not, 2 wrong use, 3 this machine lacks a GPU, torch or Triton.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import itertools
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

# Run as a script, this folder is on the path; imported by a test, the folder above is.
if __package__:
    from scripts import plugin_ptx
else:
    import plugin_ptx

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-5
# Largest |difference| / (1 + |value|): one unit in the last place of the two short types, a sum's order in float32.
TOLERANCES = {"float32": 4e-6, "float16": 2**-10, "bfloat16": 2**-7}
COPY_BYTES = 1 << 30
# B, K and H that are compared.
SHAPES = ((1, 1, 577), (3, 5, 2880), (64, 7, 2880), (2, 16, 8192))
# The plugins have more variants of a kernel to compile, at a second or two each.
PLUGIN_SHAPES = SHAPES[:3]
COMPARED_IDS = 1003
Bench = Callable[[Callable[[], object]], float]
"""Seconds that a call takes."""


class MissingError(Exception):
    """The machine lacks something; the message says what."""


def main(words: list[str]) -> int:
    """Check, report, and return the exit code."""
    settings = parse_arguments(words)
    try:
        report = check(settings)
    except MissingError as error:
        report = {"ok": False, "error": {"message": str(error), "exit_code": 3}}
    text = json.dumps(report, indent=2)
    if settings.output:
        settings.output.write_text(text + "\n", encoding="utf-8")
    print(text)
    if "error" in report:
        print(f"error: {report['error']['message']}", file=sys.stderr)
        return 3
    return 0 if report["ok"] else 1


def parse_arguments(words: list[str]) -> argparse.Namespace:
    """Read the command line; argparse ends the process with 2 on wrong use."""
    parser = argparse.ArgumentParser(prog="scripts/gpu_check", description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=_counts, default=(1, 8, 64), help="sequences, such as 1,8,64")
    parser.add_argument("--slots", type=_counts, default=(3, 5, 7), help="K, drafted slots, such as 3,5,7")
    parser.add_argument("--hidden", type=int, default=2880, help="hidden size of the drafter; gpt-oss has 2880")
    parser.add_argument("--vocabulary", type=int, default=201_088, help="ids of the draft vocabulary")
    parser.add_argument("--dtype", choices=list(TOLERANCES), default="bfloat16", help="type that is timed")
    parser.add_argument("--seconds", type=float, default=480, help="after which whatever is left is left out")
    parser.add_argument("--copy-bytes", type=int, default=COPY_BYTES, help="that are copied to learn the bandwidth")
    parser.add_argument("--output", type=Path, help="also write the JSON here")
    return parser.parse_args(words)


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(word) for word in text.split(","))
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` holds a number below 1")
    return counts


def check(settings: argparse.Namespace) -> dict[str, Any]:
    """The whole report, which says how far it was measured: versions, equality, bandwidth, times.

    Raises:
        MissingError: torch, Triton or a GPU is not there.
    """
    require_gpu()
    import torch
    import triton

    from peagle_trt_plugins import triton_launch

    started = time.perf_counter()
    properties = torch.cuda.get_device_properties(0)
    report: dict[str, Any] = {
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "errors": [],
    }
    deadline = started + settings.seconds
    collect(report, "equality", compare(triton_launch, "cuda"), deadline)
    collect(report, "plugins", compare_plugins((properties.major, properties.minor), "cuda"), deadline)
    collect(report, "timings", measure(triton_launch, settings, _bench_in_graph, "cuda"), deadline)
    entries = report["equality"] + report["plugins"]
    report["ok"] = not report["errors"] and all(entry["is_equal"] for entry in entries)
    report["seconds"] = time.perf_counter() - started
    return report


def collect(report: dict[str, Any], section: str, entries: Iterator[dict[str, Any]], deadline: float) -> None:
    """Add a section; what stops it is told beside what it found so far, for the card may not be there again.

    Args:
        report: Gains the section, and a line in `errors` if it is not whole.
        section: Its name.
        entries: What it holds.
        deadline: When to stop, by `time.perf_counter`.
    """
    report[section] = []
    try:
        for entry in entries:
            report[section].append(entry)
            if time.perf_counter() > deadline:
                raise TimeoutError("the time is over; see --seconds")
    except Exception as error:
        _say(traceback.format_exc())
        report["errors"].append(f"{section}: {type(error).__name__}: {error}")


def require_gpu() -> None:
    """Refuse before anything is loaded that takes long.

    Raises:
        MissingError: torch, Triton or a GPU is not there.
    """
    for package in ("torch", "triton"):
        if importlib.util.find_spec(package) is None:
            raise MissingError(f"the package `{package}` is not installed: use a Python with torch for CUDA")
    if not importlib.import_module("torch").cuda.is_available():
        raise MissingError("torch finds no CUDA GPU: run this on the machine that has one")


def _bench_in_graph(call: Callable[[], object]) -> float:
    # A captured graph is replayed without Python between its launches, which would cover kernels of microseconds.
    from triton.testing import do_bench_cudagraph

    return float(do_bench_cudagraph(call, rep=50, return_mode="median")) / 1e3


def compare(forms: ModuleType, device: str) -> Iterator[dict[str, Any]]:
    """Each kernel in each type against plain torch on the CPU; whatever must not be read is NaN."""
    from peagle_trt_plugins import torch_forms

    for dtype in TOLERANCES:
        for batch, slots, hidden in SHAPES:
            embedding, lm_head = make_tables(COMPARED_IDS, hidden, dtype)
            given = draft_inputs(batch, slots, embedding)
            settings = {"epsilon": EPSILON, "norm_before_residual": slots == 5}
            expected = torch_forms.parallel_draft(*given, **settings)
            found = forms.parallel_draft(*(tensor.to(device) for tensor in given), **settings)
            yield _entry("parallel_draft", batch, slots, hidden, dtype, expected, found)
            selected = select_inputs(batch, slots, lm_head)
            expected = torch_forms.select_draft(*selected)
            found = forms.select_draft(*(tensor.to(device) for tensor in selected))
            yield _entry("select_draft", batch, slots, hidden, dtype, (expected,), (found,))
            selected.append(_floats(batch).abs() + 0.5)
            expected = torch_forms.select_draft_top_k(*selected, candidates=4)
            found = forms.select_draft_top_k(*(tensor.to(device) for tensor in selected), candidates=4)
            yield _entry("select_draft_top_k", batch, slots, hidden, dtype, expected, found)


def compare_plugins(
    capability: tuple[int, int], device: str, driver: plugin_ptx.Driver | None = None
) -> Iterator[dict[str, Any]]:
    """Each TensorRT plugin under each of its tactics, launched as TensorRT would, against plain torch on the CPU.

    Raises:
        MissingError: The plugins are not compiled for this kind of GPU.
    """
    from peagle_trt_plugins import torch_forms
    from peagle_trt_plugins.kernel_targets import find_architecture
    from peagle_trt_plugins.plugin_forms import FORMS

    architecture = find_architecture(*capability)
    if architecture is None:
        raise MissingError(f"the plugins are not compiled for compute capability {capability}")
    driver = driver or plugin_ptx.Driver()
    draft = FORMS[0]
    for dtype, (batch, slots, hidden), choice in itertools.product(TOLERANCES, PLUGIN_SHAPES, range(3)):
        embedding, lm_head = make_tables(COMPARED_IDS, hidden, dtype)
        if choice < 2:
            given = draft_inputs(batch, slots, embedding)
            expected = torch_forms.parallel_draft(*given, epsilon=EPSILON, norm_before_residual=True)
            placed = [tensor.to(device) for tensor in given]
            attributes = {"epsilon": EPSILON, "norm_before_residual": 1}
            plugin = plugin_ptx.prepare(driver, architecture, draft, placed, attributes, choice)
            found = plugin.run(driver, placed)
            yield _entry(f"ParallelDraft, tactic {choice}", batch, slots, hidden, dtype, expected, found)
        given = select_inputs(batch, slots, lm_head)
        given.append(_floats(batch).abs() + 0.5)
        for candidates in (0, 5):
            used = given if candidates else given[:4]
            placed, found = [tensor.to(device) for tensor in used], ()
            for plugin, inputs in plugin_ptx.select(driver, architecture, placed, candidates, choice):
                found = plugin.run(driver, inputs)
            if candidates:
                expected = torch_forms.select_draft_top_k(*used, candidates=candidates)
            else:
                expected = (torch_forms.select_draft(*used),)
            name = f"SelectBlocks, tactic {choice}, and {'MergeCandidates' if candidates else 'MergeBest'}"
            yield _entry(name, batch, slots, hidden, dtype, expected, found)


def _entry(
    name: str,
    batch: int,
    slots: int,
    hidden: int,
    dtype: str,
    expected: tuple[Tensor, ...],
    found: tuple[Tensor, ...],
) -> dict[str, Any]:
    differences = [
        ((want.double() - got.cpu().double()).abs() / (1 + want.double().abs())).max().item()
        for want, got in zip(expected, found, strict=True)
    ]
    limits = [TOLERANCES[dtype] if want.is_floating_point() else 0 for want in expected]
    _say(f"{name} {dtype} B={batch} K={slots} H={hidden}: differences {differences}")
    return {
        "kernel": name,
        "dtype": dtype,
        "batch": batch,
        "slots": slots,
        "hidden": hidden,
        "largest_differences": differences,
        # A NaN is not at most anything, and so counts as different.
        "is_equal": all(difference <= limit for difference, limit in zip(differences, limits, strict=True)),
    }


def copy_bandwidth(bench: Bench, device: str, num_bytes: int) -> float:
    """Bytes a second that a plain copy reads and writes together."""
    import torch

    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * num_bytes / bench(lambda: target.copy_(source))
    _say(f"copy bandwidth {bandwidth / 1e9:.0f} GB/s")
    return bandwidth


def measure(forms: ModuleType, settings: argparse.Namespace, bench: Bench, device: str) -> Iterator[dict[str, Any]]:
    """Time of each kernel and of plain torch, and the time a copy of the same bytes would take."""
    from peagle_trt_plugins import torch_forms

    bandwidth = copy_bandwidth(bench, device, settings.copy_bytes)
    yield {"kernel": "copy", "bytes_per_second": bandwidth}
    tables = [table.to(device) for table in make_tables(settings.vocabulary, settings.hidden, settings.dtype)]
    for batch, slots in itertools.product(settings.batches, settings.slots):
        draft = [tensor.to(device) for tensor in draft_inputs(batch, slots, tables[0])]
        select = [tensor.to(device) for tensor in select_inputs(batch, slots, tables[1])]
        pairs: dict[str, tuple[int, Callable[[], object], Callable[[], object]]] = {
            "parallel_draft": (
                draft_bytes(batch, slots, draft[1]),
                functools.partial(forms.parallel_draft, *draft, epsilon=EPSILON, norm_before_residual=False),
                functools.partial(torch_forms.parallel_draft, *draft, epsilon=EPSILON, norm_before_residual=False),
            ),
            "select_draft": (
                tables[1].numel() * tables[1].element_size(),
                functools.partial(forms.select_draft, *select),
                functools.partial(select_with_logits, *select),
            ),
        }
        for name, (num_bytes, kernel, plain) in pairs.items():
            seconds, plain_seconds = bench(kernel), bench(plain)
            _say(f"{name} B={batch} K={slots}: {seconds * 1e6:.1f} us, plain torch {plain_seconds * 1e6:.1f} us")
            yield {
                "kernel": name,
                "dtype": settings.dtype,
                "batch": batch,
                "slots": slots,
                "hidden": settings.hidden,
                "vocabulary": settings.vocabulary,
                "seconds": seconds,
                "plain_torch_seconds": plain_seconds,
                "bytes": num_bytes,
                "share_of_copy_bandwidth": num_bytes / seconds / bandwidth,
            }


def select_with_logits(hidden: Tensor, sample_rows: Tensor, lm_head: Tensor, draft_to_target: Tensor) -> Tensor:
    """What one would write without the kernel: the logits in the type of `lm_head`, then their argmax."""
    indices = sample_rows.long()[:, :, None].expand(-1, -1, hidden.shape[2])
    return draft_to_target[(hidden.gather(1, indices) @ lm_head.T).argmax(dim=-1)]


def draft_bytes(batch: int, slots: int, fused_hidden: Tensor) -> int:
    """Bytes `parallel_draft` must move: a token row and a hidden row in, three rows out, for each of W = 2K rows."""
    width = 2 * slots
    return batch * width * 5 * fused_hidden.shape[2] * fused_hidden.element_size()


def make_tables(vocabulary: int, hidden: int, dtype: str) -> tuple[Tensor, Tensor]:
    """Embedding and output layer; the latter of whole numbers, which add up to the same logits in any order."""
    import torch

    generator, real = torch.Generator().manual_seed(hidden), getattr(torch, dtype)
    whole = torch.randint(-2, 3, (vocabulary, hidden), generator=generator, dtype=torch.int8)
    return _floats(vocabulary, hidden).to(real), whole.to(real)


def draft_inputs(batch: int, slots: int, embedding: Tensor) -> list[Tensor]:
    """Ports of contract.py: every second sequence accepted all drafts, the others none."""
    import torch

    (vocabulary, hidden), real, rows = embedding.shape, embedding.dtype, slots + 1
    accepted = torch.where(torch.arange(batch) % 2 == 0, slots, 0).int()
    is_rejected = torch.arange(rows)[None, :] > accepted[:, None]
    tokens = torch.randint(0, vocabulary, (batch, rows), generator=torch.Generator().manual_seed(slots))
    return [
        tokens.masked_fill(is_rejected, 2**31 - 1).int(),
        _floats(batch, rows, hidden).masked_fill(is_rejected[:, :, None], float("nan")).to(real),
        accepted,
        torch.arange(batch).int() * 1000,
        torch.full((slots,), vocabulary - 1).int(),
        embedding,
        *(_floats(hidden + index).to(real)[:hidden] for index in range(3)),
    ]


def select_inputs(batch: int, slots: int, lm_head: Tensor) -> list[Tensor]:
    """Ports of contract_select_draft.py; rows that are not sampled are NaN."""
    import torch

    vocabulary, hidden = lm_head.shape
    generator = torch.Generator().manual_seed(batch)
    rows = torch.full((batch, 2 * slots, hidden), float("nan"), dtype=lm_head.dtype)
    rows[:, slots:] = torch.randint(-2, 3, (batch, slots, hidden), generator=generator).to(lm_head.dtype)
    return [rows, torch.arange(slots, 2 * slots).int().repeat(batch, 1), lm_head, torch.arange(vocabulary) * 2]


def _floats(*shape: int) -> Tensor:
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
