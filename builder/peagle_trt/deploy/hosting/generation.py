"""From a client's request to the decode loop's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from peagle_trt.decode.guidance import GuideCompiler, GuideKind, GuideSettings
from peagle_trt.decode.guide import Guide
from peagle_trt.decode.late_guide import LateGuide
from peagle_trt.decode.request import DraftTokens, GenerationRequest, SamplingSettings
from peagle_trt.decode.sampling import MAX_BIAS
from peagle_trt.decode.text import TextTokenizer
from peagle_trt.spec import EngineManifest
from peagle_trt_repo.inputs import AUTO_DRAFT_TOKENS, GUIDE, GUIDE_START, RequestFields
from peagle_trt_repo.texts import encode_prompt
from peagle_trt_repo.values import InvalidRequestError


def make_generation_request(
    request_id: str,
    fields: RequestFields,
    *,
    tokenizer: TextTokenizer,
    manifest: EngineManifest,
    guides: GuideCompiler,
    default_draft_tokens: DraftTokens,
    default_prompt_lookup: bool,
    deadline_seconds: float | None = None,
) -> GenerationRequest:
    """Translates a checked request.

    Args:
        request_id: Its id in the decode loop.
        fields: What the client sent.
        tokenizer: The build's.
        manifest: The build's.
        guides: For its tokenizer.
        default_draft_tokens: K where the client does not say.
        default_prompt_lookup: Whether copies may take the place of drafts where the client does not say.
        deadline_seconds: When its time is up.

    Raises:
        InvalidRequestError: Nothing is left to continue, a token is none of the target's, or a bias is out of range.
        RequestError: The grammar is none.
    """
    prompt_ids = fields.prompt_ids or tuple(
        encode_prompt(tokenizer, fields.prompt_text or "", applies_chat_template=fields.applies_chat_template)
    )
    biased = tuple(token_id for token_id, _ in fields.token_biases)
    named = {
        "input_ids": fields.prompt_ids or (),
        "end_id": fields.end_ids or (),
        "stop_token_ids": fields.stop_token_ids,
        "logit_bias_ids": biased,
        GUIDE_START: fields.guide_start_ids,
    }
    for name, ids in named.items():
        _check_ids(name, ids, manifest.target.vocab_size)
    _check_biases("embedding_bias_weights", fields.bias_words)
    _check_biases("logit_bias_values", fields.token_biases)
    return GenerationRequest(
        request_id=request_id,
        prompt_ids=prompt_ids,
        max_tokens=fields.max_tokens,
        sampling=_sampling(fields, tokenizer),
        end_ids=_end_ids(fields, manifest),
        stop_strings=fields.stop_words,
        draft_tokens=_draft_tokens(fields, default_draft_tokens),
        prompt_lookup=default_prompt_lookup if fields.prompt_lookup is None else fields.prompt_lookup,
        # The engine's highest goes first, as its own callers have it.
        priority=-fields.priority,
        deadline_seconds=deadline_seconds,
        num_top_log_probs=fields.num_top_log_probs,
        guide=_guide(fields, guides, manifest.target.vocab_size),
    )


def _check_ids(name: str, ids: tuple[int, ...], vocab_size: int) -> None:
    if not 0 <= min(ids, default=0) <= max(ids, default=0) < vocab_size:
        raise InvalidRequestError(f"`{name}` holds a token id outside 0..{vocab_size - 1}")


def _check_biases(name: str, biases: Sequence[tuple[object, float]]) -> None:
    for _, bias in biases:
        if abs(bias) > MAX_BIAS:
            raise InvalidRequestError(f"`{name}` holds {bias:g}, expected {-MAX_BIAS:g}..{MAX_BIAS:g}")


def _guide(fields: RequestFields, guides: GuideCompiler, vocab_size: int) -> Guide | None:
    if not fields.guide_type:
        return None
    guide = guides.compile(GuideSettings(kind=cast(GuideKind, fields.guide_type), text=fields.guide), field=GUIDE)
    return LateGuide(guide, fields.guide_start_ids, vocab_size) if fields.guide_start_ids else guide


def _draft_tokens(fields: RequestFields, default: DraftTokens) -> DraftTokens:
    if fields.draft_tokens is None:
        return default
    return "auto" if fields.draft_tokens == AUTO_DRAFT_TOKENS else fields.draft_tokens


def _sampling(fields: RequestFields, tokenizer: TextTokenizer) -> SamplingSettings:
    space = tokenizer.encode(" ", add_special_tokens=False)
    biased = [(ids, bias) for word, bias in fields.bias_words for ids in word_spellings(tokenizer, word)]
    return SamplingSettings(
        temperature=fields.temperature,
        top_k=fields.top_k,
        top_p=fields.top_p,
        repetition_penalty=fields.repetition_penalty,
        frequency_penalty=fields.frequency_penalty,
        presence_penalty=fields.presence_penalty,
        min_tokens=fields.min_tokens,
        bad_words=tuple(ids for word in fields.bad_words for ids in word_spellings(tokenizer, word)),
        # A token that both spellings share is biased once, and a space of its own never.
        logit_bias=(
            *{token_id: bias for ids, bias in biased for token_id in ids if token_id not in space}.items(),
            *fields.token_biases,
        ),
        seed=fields.seed,
    )


def word_spellings(tokenizer: TextTokenizer, word: str) -> list[tuple[int, ...]]:
    """A word's tokens at the start of a text and after a space, which tokenizers spell differently.

    A word can come about from other tokens still, as from its single letters.
    """
    texts = (word, f" {word}") if not word.startswith(" ") else (word,)
    spellings = {tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts}
    return sorted(ids for ids in spellings if ids)


def _end_ids(fields: RequestFields, manifest: EngineManifest) -> tuple[int, ...]:
    end_ids = manifest.target.eos_token_ids if fields.end_ids is None else fields.end_ids
    return tuple(dict.fromkeys((*end_ids, *fields.stop_token_ids)))
