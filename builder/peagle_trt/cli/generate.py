"""`peagle-trt generate`: continue one prompt, to see a build at work."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click

from peagle_trt.cli.options import FOLDER, threads_option
from peagle_trt.cli.output import Output
from peagle_trt.decode.request import RequestMetrics, SamplingSettings
from peagle_trt.decode.session import LoadedBuild, open_build, stream


@click.command("generate")
@click.argument("build_path", metavar="BUILD", type=FOLDER)
@click.argument("prompt")
@click.option("--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Longest answer.")
@click.option("-k", "--draft-tokens", type=click.IntRange(min=0), help="K; 0 decodes without speculation.")
@click.option("--temperature", type=click.FloatRange(min=0.0), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--seed", type=int, help="Seed of the sampling.")
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
    temperature: float,
    seed: int | None,
    is_chat: bool | None,
    num_threads: int | None,
) -> None:
    """Continue PROMPT with BUILD; the answer streams to stdout."""
    loaded = open_build(build_path, num_threads=num_threads)
    request = replace(
        loaded.request(_render(loaded, prompt, is_chat), max_tokens=max_tokens),
        draft_tokens=draft_tokens,
        sampling=SamplingSettings(temperature=temperature, seed=seed),
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


def _render(loaded: LoadedBuild, prompt: str, is_chat: bool | None) -> str:
    if is_chat or (is_chat is None and loaded.tokenizer.has_chat_template):
        return loaded.tokenizer.apply_chat_template([{"role": "user", "content": prompt}])
    return prompt


def _document(metrics: RequestMetrics) -> dict[str, object]:
    return {**asdict(metrics), "acceptance_length": metrics.acceptance_length}


def _summary(metrics: RequestMetrics) -> str:
    rate = metrics.num_output_tokens / metrics.total_seconds if metrics.total_seconds else 0.0
    return (
        f"{metrics.num_output_tokens} tokens in {metrics.total_seconds:.2f} s ({rate:.1f} a second), "
        f"acceptance length {metrics.acceptance_length:.2f}"
    )
