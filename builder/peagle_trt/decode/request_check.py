"""Refuses requests that cannot be honoured, before they wait for anything."""

from __future__ import annotations

from itertools import chain

from peagle_trt.decode.log_probs import MAX_TOP_LOG_PROBS
from peagle_trt.decode.request import GenerationRequest
from peagle_trt.decode.sampling import check_sampling
from peagle_trt.errors import RequestError
from peagle_trt.spec import GraphShapes


def check_request(request: GenerationRequest, shapes: GraphShapes, *, vocab_size: int, has_tokenizer: bool) -> None:
    """Refuse what has no meaning, or what this engine cannot do.

    Args:
        request: The request.
        shapes: Limits of the engine.
        vocab_size: Vocabulary of the target.
        has_tokenizer: Whether texts can be made of tokens.

    Raises:
        RequestError: An empty or too long prompt, ids outside the vocabulary, settings outside their range, stop
            strings without a tokenizer.
    """
    check_sampling(request.sampling)
    if not request.prompt_ids:
        raise RequestError("the prompt is empty", hint="send at least one token")
    if len(request.prompt_ids) >= shapes.max_sequence_length:
        raise RequestError(
            f"the prompt has {len(request.prompt_ids)} tokens; at most {shapes.max_sequence_length - 1} fit",
            hint="shorten it, or build with a larger --max-sequence-length",
        )
    if request.max_tokens < 1:
        raise RequestError(f"`max_tokens` is {request.max_tokens}; expected 1 or more")
    if isinstance(request.draft_tokens, int) and not 0 <= request.draft_tokens <= shapes.max_draft_tokens:
        raise RequestError(f"`draft_tokens` is {request.draft_tokens}; expected 0..{shapes.max_draft_tokens}")
    if request.deadline_seconds is not None and not request.deadline_seconds > 0.0:
        raise RequestError(f"`deadline_seconds` is {request.deadline_seconds}; expected more than 0")
    if request.num_top_log_probs is not None and not 0 <= request.num_top_log_probs <= MAX_TOP_LOG_PROBS:
        raise RequestError(f"`num_top_log_probs` is {request.num_top_log_probs}; expected 0..{MAX_TOP_LOG_PROBS}")
    if request.guide is not None and (request.sampling.bad_words or request.sampling.min_tokens):
        name = "bad_words" if request.sampling.bad_words else "min_tokens"
        raise RequestError(
            f"`{name}` and a grammar together may leave nothing to choose", hint="write it into the grammar"
        )
    if request.stop_strings and not has_tokenizer:
        raise RequestError("stop strings need a tokenizer, and this loop has none")
    sampling = request.sampling
    if not all(sampling.bad_words):
        raise RequestError("`bad_words` holds a word of no tokens")
    ids_of = (
        ("prompt", request.prompt_ids),
        ("end_ids", request.end_ids),
        ("bad_words", tuple(chain.from_iterable(sampling.bad_words))),
        ("logit_bias", tuple(token_id for token_id, _ in sampling.logit_bias)),
    )
    for name, ids in ids_of:
        if not 0 <= min(ids, default=0) <= max(ids, default=0) < vocab_size:
            raise RequestError(f"`{name}` holds a token id outside 0..{vocab_size - 1}")
    barred = {word[-1] for word in sampling.bad_words} | set(request.end_ids if sampling.min_tokens else ())
    if len(barred) == vocab_size:
        raise RequestError("`bad_words` may bar every token there is", hint="leave at least one that can always follow")
