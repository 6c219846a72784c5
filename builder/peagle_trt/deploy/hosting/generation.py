"""From a client's request to the decode loop's."""

from __future__ import annotations

from peagle_trt.decode.request import DraftTokens, GenerationRequest, SamplingSettings
from peagle_trt.decode.text import TextTokenizer
from peagle_trt.spec import EngineManifest
from peagle_trt_repo.inputs import AUTO_DRAFT_TOKENS, RequestFields
from peagle_trt_repo.texts import encode_prompt

NO_END_ID = -1
"""What a client sends as `end_id` to generate to the limit. Source: TensorRT-LLM's runtime."""


def make_generation_request(
    request_id: str,
    fields: RequestFields,
    *,
    tokenizer: TextTokenizer,
    manifest: EngineManifest,
    default_draft_tokens: DraftTokens,
) -> GenerationRequest:
    """Translates a checked request.

    Args:
        request_id: Its id in the decode loop.
        fields: What the client sent.
        tokenizer: The build's.
        manifest: The build's.
        default_draft_tokens: K where the client does not say.

    Raises:
        InvalidRequestError: Nothing is left to continue.
    """
    prompt_ids = fields.prompt_ids or tuple(
        encode_prompt(tokenizer, fields.prompt_text or "", applies_chat_template=fields.applies_chat_template)
    )
    return GenerationRequest(
        request_id=request_id,
        prompt_ids=prompt_ids,
        max_tokens=fields.max_tokens,
        sampling=_sampling(fields),
        end_ids=_end_ids(fields, manifest),
        stop_strings=fields.stop_words,
        draft_tokens=_draft_tokens(fields, default_draft_tokens),
    )


def _draft_tokens(fields: RequestFields, default: DraftTokens) -> DraftTokens:
    if fields.draft_tokens is None:
        return default
    return "auto" if fields.draft_tokens == AUTO_DRAFT_TOKENS else fields.draft_tokens


def _sampling(fields: RequestFields) -> SamplingSettings:
    return SamplingSettings(
        temperature=fields.temperature,
        top_k=fields.top_k,
        top_p=fields.top_p,
        repetition_penalty=fields.repetition_penalty,
        frequency_penalty=fields.frequency_penalty,
        presence_penalty=fields.presence_penalty,
        min_tokens=fields.min_tokens,
        seed=fields.seed,
    )


def _end_ids(fields: RequestFields, manifest: EngineManifest) -> tuple[int, ...]:
    if fields.end_id is None:
        return manifest.target.eos_token_ids
    return () if fields.end_id == NO_END_ID else (fields.end_id,)
