"""`peagle-trt bench`: how much speculation gains, here, on these prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from peagle_trt.bench.baseline import open_baseline
from peagle_trt.bench.cells import Method
from peagle_trt.bench.clients import Client, InProcessClient
from peagle_trt.bench.measure import Schedule
from peagle_trt.bench.patience import REQUEST_TIMEOUT_SECONDS
from peagle_trt.bench.prompt_sets import SHIPPED
from peagle_trt.bench.served import ServedClient, open_served
from peagle_trt.build_folder import MANIFEST_NAME
from peagle_trt.cli.bench_accuracy import accuracy_options, compare
from peagle_trt.cli.bench_options import Measuring, measuring_options
from peagle_trt.cli.bench_run import measure_into
from peagle_trt.cli.bench_text import write_table
from peagle_trt.cli.options import FOLDER, NumberList, config_option, threads_option
from peagle_trt.cli.output import Output
from peagle_trt.decode.session import open_build, require_method
from peagle_trt.errors import UsageError
from peagle_trt.files import sha256_of
from peagle_trt.spec.build import MAX_DRAFT_TOKENS, MIN_DRAFT_TOKENS

METHODS = ("p-eagle", "eagle3", "none")
# What a server of others does is its own affair.
SERVED = "served"
# A served build is asked by one thread a request.
CONCURRENCY = NumberList(min=1, max=1024)
# What a comparison of two builds looks at; `--url` it refuses itself, with a reason.
WITH_AGAINST = (
    "build_path",
    "against_path",
    "num_problems",
    "url",
    "prompts",
    "num_prompts",
    "max_tokens",
    "draft_tokens",
    "num_threads",
)
DRAFT_TOKENS = NumberList(min=MIN_DRAFT_TOKENS, max=MAX_DRAFT_TOKENS, words=["auto"])


@click.command("bench")
@click.argument("build_path", metavar="[BUILD]", type=FOLDER, required=False)
@click.option(
    "--url",
    help="Measure a served build instead: http://HOST:PORT or grpc://HOST:PORT of Triton, http://HOST:PORT/v1 of an "
    "OpenAI door.",
)
@click.option("--prompts", default="mt-bench", show_default=True, help=f"{', '.join(SHIPPED)}, or JSONL files; a list.")
@click.option(
    "--num-prompts", type=click.IntRange(min=1), default=20, show_default=True, help="Prompts to take of each set."
)
@click.option("--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Longest answer.")
@click.option("--concurrency", type=CONCURRENCY, default="1", show_default=True, help="Requests in flight, a list.")
@click.option("-k", "--draft-tokens", type=DRAFT_TOKENS, default="5", show_default=True, help="K or auto, a list.")
@click.option(
    "--method",
    type=click.Choice(METHODS),
    help="How to decode: by default as the build's head does, of which a server of ours tells.",
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
@measuring_options
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
    draft_tokens: tuple[int | Literal["auto"], ...],
    method: str | None,
    baseline: str,
    baseline_path: Path | None,
    is_chat: bool | None,
    ignore_eos: bool,
    num_threads: int | None,
    measuring: Measuring,
) -> None:
    """Measure BUILD, or a served one: tokens a second, acceptance, and the speed-up over a baseline.

    Methods take turns on the same prompts, so that a busy machine slows all of them alike. `bench report RUN...` makes
    a page of what was measured; a build in a folder named `report` is measured as ./report. With --against, what
    BUILD's precision costs in answers and accepted drafts, and no speed.
    """
    if against_path is not None:
        _refuse_beside_against()
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
    prompt_sets = measuring.read_sets(prompts, num_prompts)
    _check_sides(build_path, url, baseline, baseline_path)
    if measuring.prompt_lookup and method == "none":
        raise UsageError("--prompt-lookup takes the place of drafts, and none are made", hint="leave one of both out")
    if url is None and measuring.timeout_seconds is not None:
        raise UsageError("--timeout is of requests to a server", hint="leave it out, or give a --url")
    client: Client
    if url is not None:
        # The server does not tell whether its model has a template; it refuses if there is none.
        client = open_served(
            url,
            is_chat=is_chat is not False,
            ends=not ignore_eos,
            sampling=measuring.sampling,
            prompt_lookup=measuring.prompt_lookup,
            api_key=measuring.api_key,
            timeout_seconds=measuring.timeout_seconds or REQUEST_TIMEOUT_SECONDS,
        )
        if measuring.prompt_lookup and not client.served.takes_prompt_lookup:
            raise UsageError(
                f"--prompt-lookup cannot be asked for: the server at `{url}` takes no `prompt_lookup`",
                hint="leave it out, or serve the build with this version",
            )
        own = _served_method(client, method, draft_tokens, output)
    else:
        assert build_path is not None, "one of the two was given"
        local, own = _open(
            build_path,
            method,
            baseline,
            baseline_path,
            is_chat=is_chat,
            ends=not ignore_eos,
            num_threads=num_threads,
            concurrency=concurrency,
            measuring=measuring,
        )
        for each in prompt_sets:
            local.require_fit(each, max_tokens)
        client = local
    method = own if own == SERVED else method or own
    methods = _methods(method, baseline, concurrency, draft_tokens, client.max_adaptive_drafts)
    schedule = Schedule(
        prompt_sets=prompt_sets,
        methods=tuple(methods),
        max_tokens=max_tokens,
        repeats=measuring.repeats,
        warm_up=measuring.warm_up,
        round_prompts=measuring.round_prompts,
    )
    for each in prompt_sets:
        count = min(len(each.prompts), schedule.width)
        if count < schedule.max_concurrency:
            output.progress(f"a round of `{each.name}` has {count} prompts: no more than that are ever in flight")
    settings = {
        "build": build_path,
        "manifest_sha256": sha256_of(build_path / MANIFEST_NAME) if build_path else None,
        "url": url,
        "prompts": prompts,
        "num_prompts": sum(len(each.prompts) for each in prompt_sets),
        "max_tokens": max_tokens,
        "chat": is_chat,
        "ignore_eos": ignore_eos,
        "baseline": baseline,
        "baseline_build": baseline_path,
        "baseline_manifest_sha256": sha256_of(baseline_path / MANIFEST_NAME) if baseline_path else None,
        "threads": num_threads,
        "timeout_seconds": measuring.timeout_seconds,
    }
    document, results = measure_into(
        client, schedule, measuring, settings, baseline=baseline, method=method, report=output.progress
    )
    output.result(document, write_table(results))


def _refuse_beside_against() -> None:
    """Refuse what was typed beside --against and means nothing there."""
    context = click.get_current_context()
    for option in context.command.params:
        is_typed = context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
        if is_typed and option.name not in WITH_AGAINST:
            raise UsageError(f"{option.opts[-1]} says nothing beside --against", hint="leave it out")


def _check_sides(build_path: Path | None, url: str | None, baseline: str, baseline_path: Path | None) -> None:
    if (build_path is None) == (url is None):
        raise UsageError("give a BUILD or a --url, one of the two")
    if (baseline == "none") != (baseline_path is None):
        raise UsageError(
            "--baseline eagle3 and --baseline-build go together", hint="a build holds one head; name the other build"
        )
    if url is not None and baseline_path is not None:
        raise UsageError("--baseline eagle3 is measured on builds, not on a served one", hint="leave --url out")


def _served_method(
    client: ServedClient, method: str | None, draft_tokens: tuple[int | Literal["auto"], ...], output: Output
) -> str:
    """Method of what a server decodes with."""
    if not client.served.takes_draft_tokens:
        if method is not None:
            raise UsageError(
                f"`{client.served.name}` is served by a server that no request tells how to decode",
                hint="leave --method out; it is measured as it is",
            )
        return SERVED
    if "auto" in draft_tokens and client.served.method is None:
        raise UsageError(
            "-k auto cannot be asked for through an OpenAI door", hint="ask Triton itself: http://HOST:8000"
        )
    found = client.served.method
    if found is None:
        output.progress("the server does not tell the method of its head: taken for p-eagle; --method says otherwise")
        return "p-eagle"
    if method not in (None, "none", found):
        raise UsageError(f"method `{method}` was asked for, and the server's head is `{found}`", hint="leave it out")
    return found


def _open(
    path: Path,
    method: str | None,
    baseline: str,
    baseline_path: Path | None,
    *,
    is_chat: bool | None,
    ends: bool,
    num_threads: int | None,
    concurrency: tuple[int, ...],
    measuring: Measuring,
) -> tuple[InProcessClient, str]:
    """What answers, and the method of the build's head."""
    loaded = open_build(path, num_threads=num_threads)
    limit = loaded.manifest.shapes.max_batch_size
    if max(concurrency) > limit:
        raise UsageError(
            f"{max(concurrency)} requests in flight were asked for, and the build takes {limit} at a time",
            hint="build with a larger --max-batch-size, or leave that number out",
        )
    # Otherwise the first round of every number of requests would pay for loading its graphs.
    loaded.engine.preload()
    own = loaded.manifest.drafter.method
    require_method(loaded.manifest, method or own)
    other = None
    if baseline_path is not None:
        other = open_baseline(baseline_path, baseline, loaded, num_threads=num_threads)
        other.engine.preload()
    uses_chat = loaded.tokenizer.has_chat_template if is_chat is None else is_chat
    return InProcessClient(
        loaded,
        is_chat=uses_chat,
        ends=ends,
        baseline=other,
        sampling=measuring.sampling,
        prompt_lookup=measuring.prompt_lookup,
    ), own


def _methods(
    name: str,
    baseline: str,
    concurrency: tuple[int, ...],
    draft_tokens: tuple[int | Literal["auto"], ...],
    max_adaptive_drafts: int,
) -> list[Method]:
    """The baseline and the method at every concurrency and K; plain decoding has no K."""
    if name == SERVED:
        return [Method(name=name, draft_tokens=0, concurrency=count) for count in dict.fromkeys(concurrency)]
    methods = []
    for count in concurrency:
        for each in dict.fromkeys([baseline, name]):
            if each == "none":
                methods.append(Method(name=each, draft_tokens=0, concurrency=count))
                continue
            methods += [
                Method(
                    name=each,
                    draft_tokens=max_adaptive_drafts if slots == "auto" else slots,
                    concurrency=count,
                    is_adaptive=slots == "auto",
                )
                for slots in draft_tokens
            ]
    # A number that was given twice is measured once.
    return list(dict.fromkeys(methods))
