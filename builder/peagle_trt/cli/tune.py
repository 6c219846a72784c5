"""`peagle-trt tune`: choose K for a build on this machine, say why, and keep it in the build."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from peagle_trt.bench.prompt_sets import SHIPPED, read_prompts
from peagle_trt.build_folder import MANIFEST_NAME
from peagle_trt.cli.options import FOLDER, NumberList, config_option, threads_option
from peagle_trt.cli.output import Output
from peagle_trt.cli.tune_text import write_text
from peagle_trt.decode.session import open_build
from peagle_trt.errors import UsageError
from peagle_trt.files import require_writable
from peagle_trt.machine import probe_machine
from peagle_trt.spec.build import MAX_DRAFT_TOKENS, MIN_DRAFT_TOKENS
from peagle_trt.tuning.acceptance import sample_traffic
from peagle_trt.tuning.stopwatch import clock_for
from peagle_trt.tuning.tune import Tuning, require_tunable, tune, write_defaults

DEFAULT_MAX_DRAFT_TOKENS = 8


@click.command("tune")
@click.argument("build_path", metavar="BUILD", type=FOLDER)
@click.option(
    "--load",
    "loads",
    type=NumberList(min=1, max=1024),
    default="1,2,4,8",
    show_default=True,
    help="Requests in flight, a list.",
)
@click.option("--prompts", default="gsm8k", show_default=True, help=f"{', '.join(SHIPPED)}, or a JSONL file.")
@click.option("--num-prompts", type=click.IntRange(min=1), default=8, show_default=True, help="Prompts to take.")
@click.option("--max-tokens", type=click.IntRange(min=2), default=64, show_default=True, help="Longest answer.")
@click.option(
    "-k",
    "--max-draft-tokens",
    type=click.IntRange(MIN_DRAFT_TOKENS, MAX_DRAFT_TOKENS),
    default=DEFAULT_MAX_DRAFT_TOKENS,
    show_default=True,
    help="Largest K to look at.",
)
@click.option("--turns", type=click.IntRange(min=3), default=9, show_default=True, help="How often a pass is measured.")
@click.option("--chat/--no-chat", "is_chat", default=None, help="Use the chat template; by default where there is one.")
@click.option("--dry-run", is_flag=True, help="Choose and explain, and leave the build as it is.")
@threads_option
@config_option
@click.pass_obj
def command(
    output: Output,
    *,
    build_path: Path,
    loads: tuple[int, ...],
    prompts: str,
    num_prompts: int,
    max_tokens: int,
    max_draft_tokens: int,
    turns: int,
    is_chat: bool | None,
    dry_run: bool,
    num_threads: int | None,
) -> None:
    """Find the K that serves BUILD best at every load, and make it what requests get that leave K open.

    Acceptance is sampled on prompts, a few passes are measured, a machine model fitted to them predicts all the others,
    and the K that could be best are measured again. Building again forgets what was chosen.
    """
    chosen = read_prompts(prompts, num_prompts)
    loaded = open_build(build_path, num_threads=num_threads)
    loads = tuple(sorted(set(loads)))
    require_tunable(loaded.manifest, loads)
    limit = loaded.engine.shapes.max_draft_tokens
    if max_draft_tokens > limit and max_draft_tokens != DEFAULT_MAX_DRAFT_TOKENS:
        raise UsageError(f"K = {max_draft_tokens} was asked for, and the build takes {limit}")
    if not dry_run:
        require_writable(build_path / MANIFEST_NAME)
    clock = clock_for(loaded.manifest.backend)
    output.progress(f"sampling acceptance on {len(chosen.prompts)} prompts")
    traffic = sample_traffic(
        loaded,
        chosen.prompts,
        draft_tokens=min(max_draft_tokens, limit),
        max_tokens=max_tokens,
        is_chat=loaded.tokenizer.has_chat_template if is_chat is None else is_chat,
        source=f"measured on {len(chosen.prompts)} prompts of {prompts}",
        clock=clock,
    )
    found = tune(loaded, traffic, loads, turns=turns, clock=clock, report=output.progress)
    if not dry_run:
        write_defaults(build_path, found.schedule)
    document = {**_document(found), "written": not dry_run, "machine": asdict(probe_machine())}
    output.result({"build": build_path, **document}, write_text(found, is_written=not dry_run))


def _document(found: Tuning) -> dict[str, object]:
    return {
        "schedule": [{"up_to_requests": load, "draft_tokens": count} for load, count in found.schedule],
        "choices": [
            {
                "concurrency": choice.best.batch_size,
                "draft_tokens": choice.best.draft_tokens,
                "speedup": choice.speedup,
                "candidates": [asdict(candidate) for candidate in choice.candidates],
            }
            for choice in found.choices
        ],
        "acceptance": asdict(found.traffic.acceptance),
        "num_verify_steps": found.traffic.num_steps,
        "context_tokens": found.traffic.context_tokens,
        "output_tokens": found.traffic.output_tokens,
        "loop_ms": 1e3 * found.traffic.loop_seconds,
        "prompt_ms": 1e3 * found.traffic.prompt_seconds,
        "drafter_prompt_ms": 1e3 * found.traffic.drafter_prompt_seconds,
        "model": {
            model: {"seconds_a_byte": constants[0], "seconds_an_operation": constants[1]}
            for model, constants in found.model.constants.items()
        },
        "worst_miss": found.worst_miss,
    }
