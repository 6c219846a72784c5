"""`peagle-trt plan`: what a pair would do on a device, from a machine model; nothing is run or downloaded."""

from __future__ import annotations

from dataclasses import asdict

import click

from peagle_trt import catalog
from peagle_trt.cli.acceptance_argument import acceptance_curve
from peagle_trt.cli.checkpoint_argument import NAME_OR_PATH, mask_token_option
from peagle_trt.cli.options import NumberList, config_option
from peagle_trt.cli.output import Output
from peagle_trt.cli.plan_model import Model, find_model
from peagle_trt.cli.plan_text import write_text
from peagle_trt.errors import MachineError, PeagleError, UsageError
from peagle_trt.roofline import (
    CACHE_FORMATS,
    PRECISIONS,
    AcceptanceCurve,
    Forecast,
    Load,
    Row,
    choose_formats,
    default_cache_format,
    find_device,
    forecast,
    list_devices,
)
from peagle_trt.spec.build import MAX_DRAFT_TOKENS, MIN_DRAFT_TOKENS

CONCURRENCY = NumberList(min=1, max=4096)
DRAFT_TOKENS = NumberList(min=MIN_DRAFT_TOKENS, max=MAX_DRAFT_TOKENS)
DEFAULT_DRAFT_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)


@click.command("plan")
@click.option("--target", required=True, type=NAME_OR_PATH, metavar="NAME|PATH", help="Catalog name, or a checkpoint.")
@click.option("--drafter", type=NAME_OR_PATH, metavar="PATH", help="The head, for a target given by path.")
@mask_token_option
@click.option("--gpu", "device_name", required=True, metavar="NAME|FILE", help="Device, such as b200; or a TOML file.")
@click.option("--concurrency", type=CONCURRENCY, default="1", show_default=True, help="Requests in flight, a list.")
@click.option("-k", "--draft-tokens", type=DRAFT_TOKENS, help="K, a list; by default all that acceptance is known for.")
@click.option("--precision", type=click.Choice(PRECISIONS), default="published", show_default=True, help="Weights.")
@click.option("--cache-precision", type=click.Choice(CACHE_FORMATS), help="Keys and values; by default as the weights.")
@click.option("--context", type=click.IntRange(min=1), default=1000, show_default=True, help="Tokens a request holds.")
@click.option(
    "--acceptance",
    metavar="NAME|FILE|SHARES",
    help="Prompts that a published acceptance is known for, a document of `bench`, or shares by position: 0.7,0.5,0.3.",
)
@config_option
@click.pass_obj
def command(
    output: Output,
    *,
    target: str,
    drafter: str | None,
    mask_token_id: int | None,
    device_name: str,
    concurrency: tuple[int, ...],
    draft_tokens: tuple[int, ...] | None,
    precision: str,
    cache_precision: str | None,
    context: int,
    acceptance: str | None,
) -> None:
    """Predict tokens a second, the best K, the memory and what bounds a step, for a device that need not be here.

    The machine model is a roofline with few fitted constants; docs/machine_model.md lays it against published tables
    and lists what it misses. A pair that does not fit the device's memory ends with exit code 3.
    """
    device = find_device(device_name)
    model = find_model(target, drafter, mask_token_id)
    _check_context(model, context)
    curve = acceptance_curve(acceptance, model.published)
    formats = choose_formats(precision, model.formats, has_experts=model.target.num_experts > 0)
    load = Load(
        batch_size=1,
        context_tokens=context,
        formats=formats,
        cache_format=cache_precision or default_cache_format(formats),
    )
    found = forecast(
        device,
        model.target,
        model.drafter,
        load,
        concurrency=concurrency,
        draft_tokens=_known(draft_tokens, curve),
        acceptance=curve,
        sequence_tokens=context,
    )
    misfit = _misfit(model.name, device.title, found)
    document = {
        "target": model.name,
        "gpu": {**_plain(device), "known": [each.name for each in list_devices()]},
        "precision": precision,
        "formats": _plain(load.formats),
        "cache_format": load.cache_format,
        "context_tokens": context,
        "acceptance": asdict(curve),
        **_answer(found, concurrency),
        **_verdict(misfit),
    }
    output.result(document, write_text(model.name, device.title, load, curve, found))
    if misfit is not None:
        raise misfit


def _check_context(model: Model, context: int) -> None:
    limit = model.target.max_positions
    if context > limit:
        raise UsageError(f"--context {context} is more than the {limit} tokens that `{model.name}` was made for")


def _known(draft_tokens: tuple[int, ...] | None, curve: AcceptanceCurve) -> tuple[int, ...]:
    limit = curve.max_draft_tokens
    if draft_tokens is None:
        return tuple(count for count in DEFAULT_DRAFT_TOKENS if count <= limit)
    if max(draft_tokens) > limit:
        raise UsageError(
            f"K = {max(draft_tokens)}, but acceptance is known for {limit} positions ({curve.source})",
            hint="give shares for as many positions with --acceptance, or a smaller K",
        )
    return tuple(sorted(set(draft_tokens)))


def _misfit(name: str, title: str, found: Forecast) -> PeagleError | None:
    memory = found.memory
    if memory.fits:
        return None
    needed, usable = catalog.size_words(memory.total_bytes), catalog.size_words(memory.usable_bytes)
    return MachineError(
        f"`{name}` needs {needed}, and {title} has {usable} for it",
        hint="take fewer requests, a shorter --context, a smaller --precision, or a larger device",
    )


def _answer(found: Forecast, concurrency: tuple[int, ...]) -> dict[str, object]:
    memory = found.memory
    best = [_row_document(found.best(count)) for count in concurrency]
    return {
        "best": best,
        "rows": [_row_document(row) for row in found.rows],
        "memory": {**asdict(memory), "total_bytes": memory.total_bytes},
        "fits": memory.fits,
    }


def _row_document(row: Row) -> dict[str, object]:
    step = row.step
    return {
        "concurrency": row.concurrency,
        "draft_tokens": row.draft_tokens,
        "acceptance_length": row.acceptance_length,
        "tokens_per_second": row.tokens_per_second,
        "tokens_per_second_per_request": row.tokens_per_second / row.concurrency,
        "speedup": row.speedup,
        "step_ms": 1e3 * step.seconds,
        "verify_ms": 1e3 * step.verify.seconds,
        "draft_ms": 1e3 * step.draft.seconds,
        "overhead_ms": 1e3 * step.overhead_seconds,
        "host_ms": 1e3 * step.host_seconds,
        "bound": step.bound,
    }


def _verdict(misfit: PeagleError | None) -> dict[str, object]:
    if misfit is None:
        return {}
    error = {
        "type": type(misfit).__name__,
        "message": misfit.message,
        "hint": misfit.hint,
        "exit_code": misfit.exit_code,
    }
    return {"ok": False, "error": error}


def _plain(value: object) -> dict[str, object]:
    import msgspec

    document: dict[str, object] = msgspec.to_builtins(value)
    return document
