"""The diagnosis: record the target's answers once, then walk every reading of the head over them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from peagle_trt.decode.text import TextTokenizer
from peagle_trt.diagnose.findings import Finding, explain
from peagle_trt.diagnose.record import record
from peagle_trt.diagnose.variants import PUBLISHED, Variant, list_variants
from peagle_trt.diagnose.walk import Acceptance, Recording, walk
from peagle_trt.diagnose.workbench import Workbench
from peagle_trt.errors import UsageError
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint

WITH_TEMPLATE, WITHOUT_TEMPLATE = "with the chat template", "without the chat template"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisRequest:
    """What to look at.

    Attributes:
        target: The target.
        drafter: The head; already found to fit in sizes.
        tokenizer: The target's text side.
        prompts: User turns.
        draft_tokens: K.
        max_tokens: Longest answer that is recorded for a prompt.
        num_threads: Threads of the engines; None takes every core.
    """

    target: TargetCheckpoint
    drafter: DrafterCheckpoint
    tokenizer: TextTokenizer
    prompts: tuple[str, ...]
    draft_tokens: int = 5
    max_tokens: int = 64
    num_threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was measured, and what it means.

    Attributes:
        prompt_format: How the prompts were sent for `measured`.
        measured: Acceptance of every reading, the published one first.
        other_format: The other way to send them with the published reading's acceptance, or None.
        findings: Reasons, the likeliest first.
    """

    prompt_format: str
    measured: dict[str, Acceptance]
    other_format: tuple[str, Acceptance] | None
    findings: tuple[Finding, ...]


def diagnose(request: DiagnosisRequest, *, report: Callable[[str], None] = lambda line: None) -> Diagnosis:
    """Measure every reading of a head on a few prompts.

    Args:
        request: What to look at.
        report: Told of every measurement as it is done.

    Raises:
        UsageError: The answers are too short to see every slot.
        PeagleError: The engines cannot be built or run here.
    """
    variants = list_variants(request.target.config, request.drafter.config)
    formats = (WITH_TEMPLATE, WITHOUT_TEMPLATE) if request.tokenizer.has_chat_template else (WITHOUT_TEMPLATE,)
    prompts = {name: [_encode(request, prompt, name) for prompt in request.prompts] for name in formats}
    _check_lengths(request, prompts)
    with tempfile.TemporaryDirectory(prefix="peagle-trt-diagnose-") as folder:
        bench = _workbench(Path(folder), request, variants, prompts)
        report(f"precision {bench.precision}: {bench.reason}")
        recorded = _record(bench, request, prompts, report)
        measured: dict[str, Acceptance] = {}
        other = None
        for number, variant in enumerate(variants):
            engine = bench.open_drafter(f"drafter-{number}", variant.config)
            layers = variant.config.aux_layer_ids
            measured[variant.name] = walk(engine, recorded[formats[0]], layers, request.draft_tokens)
            report(f"{variant.name}: {measured[variant.name].length:.2f}")
            if variant.name == PUBLISHED and len(formats) > 1:
                other = (formats[1], walk(engine, recorded[formats[1]], layers, request.draft_tokens))
                report(f"{variant.name}, {other[0]}: {other[1].length:.2f}")
            engine.close()
    findings = explain({variant.name: variant for variant in variants}, measured, other_format=other)
    return Diagnosis(prompt_format=formats[0], measured=measured, other_format=other, findings=tuple(findings))


def _check_lengths(request: DiagnosisRequest, prompts: dict[str, list[list[int]]]) -> None:
    reach = request.target.config.max_positions - request.max_tokens
    for number, lengths in enumerate(zip(*(map(len, each) for each in prompts.values()), strict=True), start=1):
        if max(lengths) > reach:
            raise UsageError(
                f"prompt {number} has {max(lengths)} tokens; with --max-tokens {request.max_tokens} the target takes "
                f"{reach} of its {request.target.config.max_positions}",
                hint="leave it out, or shorten it",
            )


def _encode(request: DiagnosisRequest, prompt: str, prompt_format: str) -> list[int]:
    if prompt_format == WITHOUT_TEMPLATE:
        return request.tokenizer.encode(prompt)
    text = request.tokenizer.apply_chat_template([{"role": "user", "content": prompt}])
    return request.tokenizer.encode(text, add_special_tokens=False)


def _workbench(
    folder: Path, request: DiagnosisRequest, variants: Sequence[Variant], prompts: dict[str, list[list[int]]]
) -> Workbench:
    longest = max(len(ids) for format_prompts in prompts.values() for ids in format_prompts)
    return Workbench(
        folder,
        request.target,
        request.drafter,
        layer_ids=sorted({layer for variant in variants for layer in variant.config.aux_layer_ids}),
        max_sequence_length=longest + request.max_tokens,
        num_threads=request.num_threads,
    )


def _record(
    bench: Workbench,
    request: DiagnosisRequest,
    prompts: dict[str, list[list[int]]],
    report: Callable[[str], None],
) -> dict[str, list[Recording]]:
    engine = bench.open_target()
    recorded: dict[str, list[Recording]] = {}
    for name, token_lists in prompts.items():
        end_ids = request.target.config.eos_token_ids
        recorded[name] = [
            record(engine, ids, max_tokens=request.max_tokens, end_ids=end_ids) for ids in token_lists if ids
        ]
        report(f"{len(recorded[name])} answers recorded {name}")
    engine.close()
    lengths = [len(each.token_ids_T) - each.prompt_length for each in next(iter(recorded.values()))]
    if max(lengths, default=0) <= request.draft_tokens + 1:
        raise UsageError(
            f"the longest answer has {max(lengths, default=0)} token(s); K of {request.draft_tokens} needs more",
            hint="give prompts that get longer answers, or a larger --max-tokens",
        )
    return recorded
