"""`peagle-trt bench`: how much speculation gains, here, on these prompts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from peagle_trt.bench.baseline import open_baseline
from peagle_trt.bench.clients import Client, InProcessClient, TritonClient
from peagle_trt.bench.measure import Method, Result, measure
from peagle_trt.bench.prompt_sets import SHIPPED, read_prompts
from peagle_trt.cli.bench_accuracy import accuracy_options, compare
from peagle_trt.cli.options import FOLDER, NumberList, config_option, threads_option
from peagle_trt.cli.output import Output
from peagle_trt.decode.session import open_build, require_method
from peagle_trt.errors import UsageError
from peagle_trt.machine import probe_machine
from peagle_trt.spec.build import MAX_DRAFT_TOKENS, MIN_DRAFT_TOKENS

METHODS = ("p-eagle", "eagle3", "none")
# A served build is asked by one thread a request.
CONCURRENCY = NumberList(min=1, max=1024)
AUTO = 0
DRAFT_TOKENS = NumberList(min=MIN_DRAFT_TOKENS, max=MAX_DRAFT_TOKENS, words={"auto": AUTO})


@click.command("bench")
@click.argument("build_path", metavar="[BUILD]", type=FOLDER, required=False)
@click.option("--url", help="Measure a served build instead, such as http://127.0.0.1:8000.")
@click.option("--prompts", default="mt-bench", show_default=True, help=f"{', '.join(SHIPPED)}, or a JSONL file.")
@click.option("--num-prompts", type=click.IntRange(min=1), default=20, show_default=True, help="Prompts to take.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Longest answer.")
@click.option("--concurrency", type=CONCURRENCY, default="1", show_default=True, help="Requests in flight, a list.")
@click.option("-k", "--draft-tokens", type=DRAFT_TOKENS, default="5", show_default=True, help="K or auto, a list.")
@click.option(
    "--method",
    type=click.Choice(METHODS),
    help="How to decode: by default as the build's head does. A server does not tell; it is taken for p-eagle.",
)
@click.option(
    "--baseline",
    type=click.Choice(["none", "eagle3"]),
    default="none",
    show_default=True,
    help="What a speed-up is over: plain decoding, or an EAGLE-3 head of the same target at the same K.",
)
@click.option("--baseline-build", "baseline_path", type=FOLDER, help="The build that holds the EAGLE-3 head.")
@click.option("--chat/--no-chat", "is_chat", default=None, help="Use the chat template; by default where there is one.")
@click.option("--ignore-eos", is_flag=True, help="Give every answer its full length.")
@accuracy_options
@threads_option
@config_option
@click.pass_obj
def command(
    output: Output,
    *,
    build_path: Path | None,
    against_path: Path | None,
    num_problems: int | None,
    url: str | None,
    prompts: str,
    num_prompts: int,
    max_tokens: int,
    concurrency: tuple[int, ...],
    draft_tokens: tuple[int, ...],
    method: str | None,
    baseline: str,
    baseline_path: Path | None,
    is_chat: bool | None,
    ignore_eos: bool,
    num_threads: int | None,
) -> None:
    """Measure BUILD, or a served one: tokens a second, acceptance, and the speed-up over a baseline.

    Methods take turns on the same prompts, so that a busy machine slows all of them alike. With --against, what BUILD's
    precision costs in answers and accepted drafts, and no speed.
    """
    if against_path is not None:
        compare(
            output,
            build_path,
            against_path,
            url=url,
            prompts=prompts,
            num_prompts=num_prompts,
            max_tokens=max_tokens,
            draft_tokens=draft_tokens,
            num_problems=num_problems,
            num_threads=num_threads,
        )
        return
    if num_problems is not None:
        raise UsageError("--problems belongs to --against", hint="name a reference build")
    chosen = read_prompts(prompts, num_prompts)
    _check_sides(build_path, url, baseline, baseline_path)
    client: Client
    if url is not None:
        # The server does not tell whether its model has a template; it refuses if there is none.
        client, own = TritonClient(url, is_chat=is_chat is not False, ends=not ignore_eos), "p-eagle"
    else:
        assert build_path is not None, "one of the two was given"
        client, own = _open(
            build_path, method, baseline, baseline_path, is_chat=is_chat, ends=not ignore_eos, num_threads=num_threads
        )
    method = method or own
    methods = _methods(method, baseline, concurrency, draft_tokens, client.max_adaptive_drafts)
    results = measure(client, chosen.prompts, methods, max_tokens=max_tokens, baseline=baseline, report=output.progress)
    settings = {
        "build": build_path,
        "url": url,
        "prompts": chosen.name,
        "num_prompts": len(chosen.prompts),
        "max_tokens": max_tokens,
        "chat": is_chat,
        "ignore_eos": ignore_eos,
        "baseline": baseline,
        "baseline_build": baseline_path,
    }
    best = max((item for item in results if item.method.name == method), key=lambda item: item.tokens_per_second)
    machine = asdict(probe_machine())
    document = {**_document(best), "settings": settings, "results": [_document(item) for item in results]}
    output.result({**document, "machine": machine}, _table(results))


def _check_sides(build_path: Path | None, url: str | None, baseline: str, baseline_path: Path | None) -> None:
    if (build_path is None) == (url is None):
        raise UsageError("give a BUILD or a --url, one of the two")
    if (baseline == "none") != (baseline_path is None):
        raise UsageError(
            "--baseline eagle3 and --baseline-build go together", hint="a build holds one head; name the other build"
        )
    if url is not None and baseline_path is not None:
        raise UsageError("--baseline eagle3 is measured on builds, not on a served one", hint="leave --url out")


def _open(
    path: Path,
    method: str | None,
    baseline: str,
    baseline_path: Path | None,
    *,
    is_chat: bool | None,
    ends: bool,
    num_threads: int | None,
) -> tuple[Client, str]:
    """What answers, and the method of the build's head."""
    loaded = open_build(path, num_threads=num_threads)
    own = loaded.manifest.drafter.method
    require_method(loaded.manifest, method or own)
    other = None
    if baseline_path is not None:
        other = open_baseline(baseline_path, baseline, loaded, num_threads=num_threads)
    uses_chat = loaded.tokenizer.has_chat_template if is_chat is None else is_chat
    return InProcessClient(loaded, is_chat=uses_chat, ends=ends, baseline=other), own


def _methods(
    name: str,
    baseline: str,
    concurrency: tuple[int, ...],
    draft_tokens: tuple[int, ...],
    max_adaptive_drafts: int,
) -> list[Method]:
    """The baseline and the method at every concurrency and K; plain decoding has no K."""
    methods = []
    for count in concurrency:
        for each in dict.fromkeys([baseline, name]):
            if each == "none":
                methods.append(Method(name=each, draft_tokens=0, concurrency=count))
                continue
            methods += [
                Method(
                    name=each,
                    draft_tokens=max_adaptive_drafts if slots == AUTO else slots,
                    concurrency=count,
                    is_adaptive=slots == AUTO,
                )
                for slots in draft_tokens
            ]
    return methods


def _document(result: Result) -> dict[str, object]:
    document = asdict(result)
    method = document.pop("method")
    return {
        "method": method["name"],
        **{key: method[key] for key in ("draft_tokens", "concurrency", "is_adaptive")},
        **document,
    }


def _table(results: list[Result]) -> str:
    header = ("method", "K", "concurrency", "tokens/s", "speed-up", "acceptance", "by position", "same answer")
    rows = [header, *(_row(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(result: Result) -> tuple[str, ...]:
    equal = result.is_equal_to_baseline
    return (
        result.method.name,
        f"0..{result.method.draft_tokens}" if result.method.is_adaptive else str(result.method.draft_tokens or "-"),
        str(result.method.concurrency),
        f"{result.tokens_per_second:.1f}",
        _speedup(result),
        f"{result.acceptance_length:.2f}" if result.method.draft_tokens else "-",
        " ".join(f"{share:.2f}" for share in result.acceptance_by_position) or "-",
        "-" if equal is None else f"{equal:.0%}",
    )


def _speedup(result: Result) -> str:
    if result.speedup is None:
        return "-"
    if result.speedup_low is None or result.speedup_high is None:
        return f"{result.speedup:.2f}x"
    return f"{result.speedup:.2f}x ({result.speedup_low:.2f}-{result.speedup_high:.2f})"
