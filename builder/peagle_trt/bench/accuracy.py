"""What a build's precision costs against a reference build of the same pair, measured through both engines.

Letters: N rows of one pass, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from peagle_trt.bench.known_answers import last_number
from peagle_trt.decode.request import GenerationRequest
from peagle_trt.decode.request_check import check_request
from peagle_trt.decode.session import Generation, LoadedBuild, generate
from peagle_trt.engine.paired import PairedEngine
from peagle_trt.engine.protocol import Engine, TargetRows
from peagle_trt.errors import UsageError
from peagle_trt.spec import EngineManifest

Report = Callable[[str], None]
_ROWS_AT_ONCE = 64
"""Rows whose logits are in memory at once: 50 MB in float64 with a vocabulary of 100,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text that both targets read.

    Attributes:
        prompt_ids: What comes before it.
        token_ids: Its tokens, at least one.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFigures:
    """A target against the reference's, over the tokens of texts.

    Attributes:
        kl_nats: Mean Kullback-Leibler divergence of its next token from the reference's.
        top1_agreement: Share of tokens whose likeliest successor is the same.
        perplexity: Its perplexity.
        reference_perplexity: The reference's.
        num_tokens: Tokens.
        num_texts: Texts.
    """

    kl_nats: float
    top1_agreement: float
    perplexity: float
    reference_perplexity: float
    num_tokens: int
    num_texts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Problems whose answer is a number, answered greedily.

    Attributes:
        num_problems: How many.
        num_right: The build's right answers.
        reference_num_right: The reference's.
        num_same: Problems that both end with the same number, right or wrong.
    """

    num_problems: int
    num_right: int
    reference_num_right: int
    num_same: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Tokens that a verify step yields, bonus counted, over the same prompts.

    Attributes:
        reference: Of the reference build.
        target_only: Of the build's target behind the reference's drafter.
        drafter_only: Of the reference's target behind the build's drafter.
        both: Of the build.
    """

    reference: float
    target_only: float
    drafter_only: float
    both: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Everything that was measured.

    Attributes:
        texts: By what was read.
        score: None where no problems were asked for.
        same_answers: Share of prompts that both builds answer alike, token for token.
        num_prompts: Prompts.
        acceptance: Of the four pairs.
    """

    texts: dict[str, TextFigures]
    score: Score | None
    same_answers: float
    num_prompts: int
    acceptance: Acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What is read and answered.

    Attributes:
        prompts: User turns; the reference's answers to them are read too.
        written: Questions and what people answered.
        problems: Requests and the number that is right.
        max_tokens: Longest answer to a prompt.
        problem_tokens: Longest answer to a problem.
        draft_tokens: K.
    """

    prompts: tuple[str, ...]
    written: tuple[tuple[str, str], ...]
    problems: tuple[tuple[str, str], ...]
    max_tokens: int
    problem_tokens: int
    draft_tokens: int


def measure_accuracy(
    build: LoadedBuild, reference: LoadedBuild, material: Material, report: Report = lambda line: None
) -> Accuracy:
    """Compare a build with a reference.

    Args:
        build: The build.
        reference: Another of the same target and head; see `require_comparable`.
        material: What is read and answered.
        report: Told of every part.

    Raises:
        UsageError: The two cannot be compared, or there is no text.
        RequestError: A prompt or a problem is longer than the builds take.
    """
    require_comparable(build, reference, material.draft_tokens)
    _require_room(reference, [*material.prompts, *(request for request, _ in material.problems)])
    report(f"answers to {len(material.prompts)} prompts, by four pairs of target and drafter")
    asked = (material.prompts, material.max_tokens, material.draft_tokens)
    theirs, ours = _answer(reference, *asked), _answer(build, *asked)
    target_only = _answer(_paired(build, reference), *asked)
    drafter_only = _answer(_paired(reference, build), *asked)
    report("logits over those answers and over what people wrote")
    prompts = [_request(reference, prompt, 1).prompt_ids for prompt in material.prompts]
    answered = [
        Text(prompt_ids=ids, token_ids=found.token_ids)
        for ids, found in zip(prompts, theirs, strict=True)
        if found.token_ids
    ]
    texts = {"answers of the reference": compare_texts(build.engine, reference.engine, answered)}
    written = _written_texts(reference, material.written)
    if written:
        texts["answers of people"] = compare_texts(build.engine, reference.engine, written)
    return Accuracy(
        texts=texts,
        score=_score(build, reference, material, report) if material.problems else None,
        same_answers=sum(a.token_ids == b.token_ids for a, b in zip(ours, theirs, strict=True)) / len(theirs),
        num_prompts=len(theirs),
        acceptance=Acceptance(
            reference=_acceptance_length(theirs),
            target_only=_acceptance_length(target_only),
            drafter_only=_acceptance_length(drafter_only),
            both=_acceptance_length(ours),
        ),
    )


def require_comparable(build: LoadedBuild, reference: LoadedBuild, draft_tokens: int) -> None:
    """Refuse a pair of builds whose figures would not be about precision.

    Raises:
        UsageError: They differ in more, one has no drafter, or K is more than they take.
    """
    for each in (build, reference):
        if not any(role.startswith("drafter") for role in each.manifest.graphs):
            raise UsageError(f"`{each.path}` holds no drafter", hint="build it again with its head")
    ours, theirs = _terms(build.manifest), _terms(reference.manifest)
    for name, term in ours.items():
        if term != theirs[name]:
            raise UsageError(
                f"`{build.path}` cannot be compared with `{reference.path}`: {name} not the same"
                f"{_differing(term, theirs[name])}",
                hint="build both from the same target and head with the same limits; only --precision may differ",
            )
    most = build.manifest.shapes.max_draft_tokens
    if draft_tokens > most:
        raise UsageError(f"K is {draft_tokens}; these builds take at most {most}")


def compare_texts(engine: Engine, reference: Engine, texts: Sequence[Text]) -> TextFigures:
    """Both targets over the same texts, a few rows at a time.

    Raises:
        UsageError: There are no texts.
    """
    if not texts:
        raise UsageError("there is no text to compare over", hint="take more prompts, or longer answers")
    divergence = loss = reference_loss = 0.0
    num_tokens = num_agreed = 0
    for text in texts:
        wanted = np.array(text.token_ids, np.int64)
        first = 0
        for found, expected in zip(_read(engine, text), _read(reference, text), strict=True):
            places = np.arange(len(found)), wanted[first : first + len(found)]
            divergence += float((np.exp(expected) * (expected - found)).sum())
            num_agreed += int((expected.argmax(axis=1) == found.argmax(axis=1)).sum())
            loss -= float(found[places].sum())
            reference_loss -= float(expected[places].sum())
            first += len(found)
        num_tokens += len(wanted)
    return TextFigures(
        kl_nats=divergence / num_tokens,
        top1_agreement=num_agreed / num_tokens,
        perplexity=math.exp(loss / num_tokens),
        reference_perplexity=math.exp(reference_loss / num_tokens),
        num_tokens=num_tokens,
        num_texts=len(texts),
    )


def _read(engine: Engine, text: Text) -> Iterator[NDArray[np.float64]]:
    """Logarithms of the probabilities before each token of a text, [N, V] at a time."""
    token_ids = np.array([*text.prompt_ids, *text.token_ids[:-1]], np.int32)
    first_wanted = len(text.prompt_ids) - 1
    start = 0
    while start < len(token_ids):
        stop = min(max(start, first_wanted) + _ROWS_AT_ONCE, len(token_ids))
        rows = TargetRows(
            slot=0,
            token_ids=token_ids[start:stop],
            start_position=start,
            num_logit_rows=stop - max(start, first_wanted),
        )
        logits_NV = np.asarray(engine.run_target([rows])[0].logits, np.float64)
        logits_NV -= logits_NV.max(axis=1, keepdims=True)
        logits_NV -= np.log(np.exp(logits_NV).sum(axis=1, keepdims=True))
        yield logits_NV
        start = stop


def _score(build: LoadedBuild, reference: LoadedBuild, material: Material, report: Report) -> Score:
    report(f"{len(material.problems)} problems")
    requests, right = zip(*material.problems, strict=True)
    ours, theirs = (
        [last_number(found.text) for found in _answer(each, requests, material.problem_tokens, material.draft_tokens)]
        for each in (build, reference)
    )
    return Score(
        num_problems=len(right),
        num_right=sum(map(_is_same, ours, right)),
        reference_num_right=sum(map(_is_same, theirs, right)),
        num_same=sum(map(_is_same, ours, theirs)),
    )


def _answer(loaded: LoadedBuild, prompts: Sequence[str], max_tokens: int, draft_tokens: int) -> list[Generation]:
    """Greedy answers with drafts, which are the plain ones."""
    requests = [replace(_request(loaded, each, max_tokens), draft_tokens=draft_tokens) for each in prompts]
    return generate(loaded, requests)


def _require_room(loaded: LoadedBuild, prompts: Sequence[str]) -> None:
    for prompt in prompts:
        request = _request(loaded, prompt, 1)
        check_request(request, loaded.manifest.shapes, vocab_size=loaded.manifest.target.vocab_size, has_tokenizer=True)


def _request(loaded: LoadedBuild, prompt: str, max_tokens: int) -> GenerationRequest:
    """A user's turn, in the chat template where there is one."""
    ask = loaded.chat_request if loaded.tokenizer.has_chat_template else loaded.request
    return ask(prompt, max_tokens=max_tokens)


def _written_texts(loaded: LoadedBuild, pairs: Sequence[tuple[str, str]]) -> list[Text]:
    """Questions with people's answers as tokens; what runs past the builds' longest sequence is cut off."""
    longest = loaded.manifest.shapes.max_sequence_length
    texts = []
    for question, answer in pairs:
        prompt_ids = _request(loaded, question, 1).prompt_ids
        token_ids = loaded.tokenizer.encode(answer, add_special_tokens=False)[: max(0, longest - len(prompt_ids))]
        if token_ids:
            texts.append(Text(prompt_ids=prompt_ids, token_ids=tuple(token_ids)))
    return texts


def _acceptance_length(answers: Sequence[Generation]) -> float:
    steps = sum(answer.metrics.num_verify_steps for answer in answers)
    return 1.0 + sum(answer.metrics.num_accepted_tokens for answer in answers) / steps if steps else 1.0


def _is_same(number: str, other: str) -> bool:
    return number == other != ""


def _paired(target: LoadedBuild, drafter: LoadedBuild) -> LoadedBuild:
    return replace(target, engine=PairedEngine(target.engine, drafter.engine))


def _differing(ours: object, theirs: object) -> str:
    """Names of the fields that differ, in brackets."""
    if not (isinstance(ours, msgspec.Struct) and isinstance(theirs, msgspec.Struct)):
        return ""
    names = [name for name in ours.__struct_fields__ if getattr(ours, name) != getattr(theirs, name)]
    return f" ({', '.join(names)})"


def _terms(manifest: EngineManifest) -> dict[str, object]:
    """What must be equal."""
    digests = {Path(file.path): file.sha256 for file in manifest.files}
    text = manifest.tokenizer
    return {
        "the target is": manifest.target,
        "the drafter is": manifest.drafter,
        "the tokenizer is": digests.get(Path(text.tokenizer)),
        "the chat template is": digests.get(Path(text.chat_template)) if text.chat_template else None,
        "the largest K is": manifest.shapes.max_draft_tokens,
        "the limits are": msgspec.structs.replace(manifest.shapes, draft_tokens=1),
    }
