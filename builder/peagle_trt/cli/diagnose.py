"""`peagle-trt diagnose`: why a head is accepted as seldom as it is."""

from __future__ import annotations

import click

from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.cli.checkpoint_argument import NAME_OR_PATH, find_drafter, find_target, mask_token_option
from peagle_trt.cli.options import threads_option
from peagle_trt.cli.output import Output
from peagle_trt.decode.text import TextTokenizer
from peagle_trt.diagnose import Acceptance, Diagnosis, DiagnosisRequest, diagnose
from peagle_trt.readers import check_pair, read_drafter, read_target, read_tokenizer
from peagle_trt.spec.build import MAX_DRAFT_TOKENS


@click.command("diagnose")
@click.argument("target", type=NAME_OR_PATH, metavar="TARGET")
@click.argument("drafter", type=NAME_OR_PATH, metavar="DRAFTER")
@click.option("--prompts", default="mt-bench", show_default=True, help="A shipped set, or a file of JSON lines.")
@click.option("--num-prompts", type=click.IntRange(min=1), default=8, show_default=True, help="From the start.")
@click.option("--max-tokens", type=click.IntRange(min=8), default=64, show_default=True, help="Longest answer.")
@click.option("-k", "--draft-tokens", type=click.IntRange(1, MAX_DRAFT_TOKENS), default=5, show_default=True, help="K.")
@mask_token_option
@threads_option
@click.pass_obj
def command(
    output: Output,
    *,
    target: str,
    drafter: str,
    prompts: str,
    num_prompts: int,
    max_tokens: int,
    draft_tokens: int,
    mask_token_id: int | None,
    num_threads: int | None,
) -> None:
    """Find out why DRAFTER is accepted as seldom as it is by TARGET.

    Answers a few prompts with the target, then reads the head in every way its tensors allow (the other numbering of
    layers, its flags, other rotary embeddings, with and without the chat template) and says which is accepted most.
    Both are folders or catalog names; a catalog name as DRAFTER means its drafter. Works in a temporary folder; set
    TMPDIR to one on the checkpoints' file system, so that weights of large models can be linked instead of copied.
    """
    chosen = read_prompts(prompts, num_prompts)
    target_checkpoint = read_target(find_target(target))
    head = read_drafter(
        find_drafter(drafter),
        num_target_layers=target_checkpoint.config.num_layers,
        mask_token_id=mask_token_id,
    )
    check_pair(target_checkpoint, head)
    source = target_checkpoint.tokenizer or read_tokenizer(target_checkpoint.path)
    request = DiagnosisRequest(
        target=target_checkpoint,
        drafter=head,
        tokenizer=TextTokenizer.from_text(
            source.path, source.tokenizer_json(), source.chat_template, source.bos_token, source.eos_token
        ),
        prompts=chosen.prompts,
        draft_tokens=draft_tokens,
        max_tokens=max_tokens,
        num_threads=num_threads,
    )
    found = diagnose(request, report=output.progress)
    output.result(_document(found), _text(found))


def _document(found: Diagnosis) -> dict[str, object]:
    other = None
    if found.other_format is not None:
        other = {"format": found.other_format[0], **_numbers(found.other_format[1])}
    return {
        "prompt_format": found.prompt_format,
        "readings": [{"reading": name, **_numbers(each)} for name, each in found.measured.items()],
        "other_format": other,
        "findings": [
            {"kind": finding.kind, "text": finding.text, "remedy": finding.remedy} for finding in found.findings
        ],
    }


def _numbers(found: Acceptance) -> dict[str, object]:
    return {
        "acceptance_length": round(found.length, 4),
        "acceptance_by_position": [round(rate, 4) for rate in found.rates],
        "num_steps": found.num_steps,
    }


def _text(found: Diagnosis) -> str:
    rows = [(name, each) for name, each in found.measured.items()]
    if found.other_format is not None:
        rows.insert(1, (f"as published, {found.other_format[0]}", found.other_format[1]))
    width = max(len(name) for name, _ in rows)
    positions = len(rows[0][1].rates)
    numbers = " ".join(f"{k + 1:>4}" for k in range(positions))
    head = f"{'reading, ' + found.prompt_format:<{width}}  steps  length  {numbers}"
    lines = [head.rstrip()]
    for name, each in rows:
        by_position = " ".join(f"{rate:>4.0%}" for rate in each.rates)
        lines.append(f"{name:<{width}}  {each.num_steps:>5}  {each.length:>6.2f}  {by_position}")
    lines.append("")
    for finding in found.findings:
        lines.append(finding.text)
        if finding.remedy:
            lines.append(f"  -> {finding.remedy}")
    return "\n".join(lines)
