"""`peagle-trt generate`: continue one prompt, to see a build at work."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from peagle_trt.cli.answer_options import AnswerOptions, answer_options
from peagle_trt.cli.options import FOLDER, NumberOrWord, prompt_lookup_option, threads_option
from peagle_trt.cli.output import Output
from peagle_trt.decode.request import DraftTokens, GenerationChunk, GenerationRequest, RequestMetrics, SamplingSettings
from peagle_trt.decode.session import LoadedBuild, open_build, require_method, stream
from peagle_trt.decode.several import sequence_requests
from peagle_trt.errors import PeagleError, UsageError
from peagle_trt.spec.build import MAX_DRAFT_TOKENS

# What the decode loop accepts; said here so that help shows it.
TEMPERATURE = click.FloatRange(0.0, 100.0)
TOP_K = click.IntRange(0, 2**31 - 1)
TOP_P = click.FloatRange(0.0, 1.0, min_open=True)
PENALTY = click.FloatRange(1e-3, 1e3)
SEED = click.IntRange(min=0)
DRAFT_TOKENS = NumberOrWord(min=0, max=MAX_DRAFT_TOKENS, words=["auto"])


@click.command("generate")
@click.argument("build_path", metavar="BUILD", type=FOLDER)
@click.argument("prompt")
@click.option("--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Longest answer.")
@click.option(
    "-k",
    "--draft-tokens",
    type=DRAFT_TOKENS,
    help="K or auto; the build's by default; 0 decodes without speculation.",
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
@prompt_lookup_option
@answer_options
@click.option("--chat/--no-chat", "is_chat", default=None, help="Use the chat template; by default where there is one.")
@threads_option
@click.pass_obj
def command(
    output: Output,
    /,
    *,
    build_path: Path,
    prompt: str,
    max_tokens: int,
    draft_tokens: DraftTokens,
    method: str | None,
    prompt_lookup: bool,
    stop_strings: tuple[str, ...],
    is_chat: bool | None,
    num_threads: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    repetition_penalty: float,
    seed: int | None,
    **more: Any,
) -> None:
    """Continue PROMPT with BUILD; the answer streams to stdout.

    BUILD is a folder that `peagle-trt build` has written. Several answers come one after the other, with the seeds that
    follow --seed.
    """
    options = AnswerOptions(**more)
    if method == "none" and draft_tokens:
        raise UsageError(f"--method none drafts nothing, and -k asks for {draft_tokens}")
    if prompt_lookup and (method == "none" or draft_tokens == 0):
        raise UsageError("--prompt-lookup takes the place of drafts, and none are made", hint="leave one of both out")
    if prompt_lookup and options.guide is not None:
        raise UsageError("--prompt-lookup does nothing to drafts that follow a grammar", hint="leave one of both out")
    loaded = open_build(build_path, num_threads=num_threads)
    require_method(loaded.manifest, method or loaded.manifest.drafter.method)
    uses_chat = loaded.tokenizer.has_chat_template if is_chat is None else is_chat
    ask = loaded.chat_request if uses_chat else loaded.request
    request = replace(
        ask(prompt, max_tokens=max_tokens),
        draft_tokens=0 if method == "none" else draft_tokens,
        prompt_lookup=prompt_lookup,
        stop_strings=stop_strings,
        sampling=SamplingSettings(
            temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty, seed=seed
        ),
    )
    answers = []
    for place, each in enumerate(sequence_requests(options.apply(request, loaded), options.num_answers)):
        output.stream("\n" if place else "")
        answers.append(_answer(output, loaded, each))
    text = "" if options.num_top_log_probs is None else "\n".join(line for answer in answers for line in _table(answer))
    output.result(answers[0] if len(answers) == 1 else {"answers": answers}, text)


def _answer(output: Output, loaded: LoadedBuild, request: GenerationRequest) -> dict[str, Any]:
    chunks = []
    for chunk in stream(loaded, request):
        output.stream(chunk.text)
        chunks.append(chunk)
    last = chunks[-1]
    if last.metrics is None:
        raise PeagleError("the time was up before the answer began")
    output.progress(_summary(last.metrics))
    document: dict[str, Any] = {
        "text": "".join(chunk.text for chunk in chunks),
        "finish_reason": last.finish_reason,
        "metrics": {**asdict(last.metrics), "acceptance_length": last.metrics.acceptance_length},
    }
    if request.num_top_log_probs is not None:
        document["log_probs"] = _log_probs(loaded, chunks)
    return document


def _log_probs(loaded: LoadedBuild, chunks: list[GenerationChunk]) -> list[dict[str, object]]:
    bytes_of = loaded.tokenizer.token_bytes()
    tokens = [token_id for chunk in chunks for token_id in chunk.token_ids]
    entries = [entry for chunk in chunks for entry in chunk.log_probs]

    def token(token_id: int, log_prob: float) -> dict[str, object]:
        return {"token_id": token_id, "text": bytes_of(token_id).decode(errors="replace"), "log_prob": log_prob}

    return [
        {**token(token_id, entry.log_prob), "top": [token(*likely) for likely in entry.top]}
        for token_id, entry in zip(tokens, entries, strict=True)
    ]


def _table(answer: dict[str, Any]) -> list[str]:
    lines = [""]
    for entry in answer["log_probs"]:
        top = "  ".join(f"{likely['text']!r} {likely['log_prob']:.4f}" for likely in entry["top"])
        lines.append(f"{entry['log_prob']:9.4f}  {entry['text']!r:16}  {top}".rstrip())
    return lines


def _summary(metrics: RequestMetrics) -> str:
    rate = metrics.num_output_tokens / metrics.total_seconds if metrics.total_seconds else 0.0
    return (
        f"{metrics.num_output_tokens} tokens in {metrics.total_seconds:.2f} s ({rate:.1f} a second), "
        f"acceptance length {metrics.acceptance_length:.2f}"
        + (f", {metrics.num_looked_up_tokens} tokens copied" if metrics.num_looked_up_tokens else "")
    )
