"""`peagle-trt generate`: continue one prompt, to see a build at work."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click

from peagle_trt.cli.options import FOLDER, threads_option
from peagle_trt.cli.output import Output
from peagle_trt.decode.request import RequestMetrics, SamplingSettings
from peagle_trt.decode.session import open_build, require_method, stream
from peagle_trt.errors import UsageError
from peagle_trt.spec.build import MAX_DRAFT_TOKENS

# What the decode loop accepts; said here so that help shows it.
TEMPERATURE = click.FloatRange(0.0, 100.0)
TOP_K = click.IntRange(0, 2**31 - 1)
TOP_P = click.FloatRange(0.0, 1.0, min_open=True)
PENALTY = click.FloatRange(1e-3, 1e3)
SEED = click.IntRange(min=0)


@click.command("generate")
@click.argument("build_path", metavar="BUILD", type=FOLDER)
@click.argument("prompt")
@click.option("--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Longest answer.")
@click.option(
    "-k",
    "--draft-tokens",
    type=click.IntRange(0, MAX_DRAFT_TOKENS),
    help="K; the build's by default; 0 decodes without speculation.",
)
@click.option(
    "--method",
    type=click.Choice(["p-eagle", "eagle3", "none"]),
    help="How to decode; as the build's head does by default. none is -k 0.",
)
@click.option("--temperature", type=TEMPERATURE, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=TOP_K, default=0, show_default=True, help="Draw from this many tokens; 0 is all.")
@click.option("--top-p", type=TOP_P, default=1.0, show_default=True, help="Draw from this much of the probability.")
@click.option(
    "--repetition-penalty", type=PENALTY, default=1.0, show_default=True, help="Above 1 discourages used tokens."
)
@click.option("--seed", type=SEED, help="Seed of the sampling; drawn by default.")
@click.option("--stop", "stop_strings", multiple=True, metavar="TEXT", help="Ends the answer; may be given repeatedly.")
@click.option("--chat/--no-chat", "is_chat", default=None, help="Use the chat template; by default where there is one.")
@threads_option
@click.pass_obj
def command(
    output: Output,
    *,
    build_path: Path,
    prompt: str,
    max_tokens: int,
    draft_tokens: int | None,
    method: str | None,
    stop_strings: tuple[str, ...],
    is_chat: bool | None,
    num_threads: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    repetition_penalty: float,
    seed: int | None,
) -> None:
    """Continue PROMPT with BUILD; the answer streams to stdout.

    BUILD is a folder that `peagle-trt build` has written.
    """
    if method == "none" and draft_tokens:
        raise UsageError(f"--method none drafts nothing, and -k asks for {draft_tokens}")
    loaded = open_build(build_path, num_threads=num_threads)
    require_method(loaded.manifest, method or loaded.manifest.drafter.method)
    uses_chat = loaded.tokenizer.has_chat_template if is_chat is None else is_chat
    ask = loaded.chat_request if uses_chat else loaded.request
    request = replace(
        ask(prompt, max_tokens=max_tokens),
        draft_tokens=0 if method == "none" else draft_tokens,
        stop_strings=stop_strings,
        sampling=SamplingSettings(
            temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty, seed=seed
        ),
    )
    chunks = []
    for chunk in stream(loaded, request):
        output.stream(chunk.text)
        chunks.append(chunk)
    last = chunks[-1]
    assert last.metrics is not None, "the last chunk carries the metrics"
    text = "".join(chunk.text for chunk in chunks)
    document = {"text": text, "finish_reason": last.finish_reason, "metrics": _document(last.metrics)}
    output.progress(_summary(last.metrics))
    output.result(document, "")


def _document(metrics: RequestMetrics) -> dict[str, object]:
    return {**asdict(metrics), "acceptance_length": metrics.acceptance_length}


def _summary(metrics: RequestMetrics) -> str:
    rate = metrics.num_output_tokens / metrics.total_seconds if metrics.total_seconds else 0.0
    return (
        f"{metrics.num_output_tokens} tokens in {metrics.total_seconds:.2f} s ({rate:.1f} a second), "
        f"acceptance length {metrics.acceptance_length:.2f}"
    )
