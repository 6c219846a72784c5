"""Reads what a client sent: every tensor is checked here, because the server checks only how many there are."""

from __future__ import annotations

from dataclasses import dataclass

from peagle_trt_repo.tensors import HARMLESS_VALUES, REFUSAL_ADVICE, REFUSED_INPUTS
from peagle_trt_repo.values import (
    Arrays,
    InvalidRequestError,
    read_either_integer,
    read_flag,
    read_integer,
    read_integers,
    read_positive,
    read_real,
    read_reals,
    read_required_integer,
    read_texts,
)

NO_END_ID = -1
"""What a client sends as `end_id` to generate to the limit. Source: TensorRT-LLM's runtime."""

AUTO_DRAFT_TOKENS = -1
"""What a client sends as `draft_tokens` to have K chosen at every step: as many drafts as pay for themselves."""

MAX_SEQUENCES = 16
"""Answers to one request; each has a slot of the engine, and they share its prompt."""

GUIDE_TYPE, GUIDE = "guided_decoding_guide_type", "guided_decoding_guide"
GUIDE_START = "guided_decoding_start_ids"
MAX_START_IDS = 16
"""Of gpt-oss there are three."""
ANY_JSON = "json"
GUIDE_TYPES = (ANY_JSON, "json_schema", "regex", "ebnf_grammar", "choice")
"""Source: TensorRT-LLM's guide types, less `structural_tag`; `choice`, a JSON list of texts, is ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFields:
    """One request, in plain values.

    Attributes:
        prompt_text: The prompt as text, or None when ids were sent.
        prompt_ids: The prompt as ids, or None when text was sent.
        max_tokens: Longest answer, in tokens.
        is_streaming: One response a step instead of one for the whole answer.
        temperature: 0 takes the most likely token.
        top_k: 0 keeps all.
        top_p: 1 keeps all.
        repetition_penalty: 1 is off.
        frequency_penalty: 0 is off.
        presence_penalty: 0 is off.
        min_tokens: Shortest answer, in tokens.
        seed: None draws one.
        end_ids: Replace the model's own end tokens; empty for none at all; None keeps the model's.
        stop_token_ids: End the answer too.
        stop_words: Texts that end the answer.
        bad_words: Texts that the answer must not hold.
        bias_words: Texts and what is added to the logits of each of their tokens.
        token_biases: Tokens and what is added to the logits of each.
        excludes_prompt: The answer alone, without the prompt before it; None takes the repository's default.
        draft_tokens: K; 0 decodes without speculation; `AUTO_DRAFT_TOKENS` has it chosen at every step; None takes the
            repository's default.
        prompt_lookup: Copies from the text may take the place of drafts; None takes the repository's default.
        applies_chat_template: `prompt_text` is a user's turn, to be put in the model's chat template.
        returns_text_bytes: Every response says how long its text is.
        num_sequences: Answers, each from a seed of its own.
        num_top_log_probs: 0 for log probabilities of the tokens, n for those of the n likeliest too; None for none.
        priority: The lowest goes first.
        guide_type: Kind of the grammar that the answer follows; empty for none.
        guide: The grammar; empty for the kind that needs none.
        guide_start_ids: Tokens after which the grammar holds; empty for the whole answer.
    """

    prompt_text: str | None
    prompt_ids: tuple[int, ...] | None
    max_tokens: int
    is_streaming: bool
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    min_tokens: int
    seed: int | None
    end_ids: tuple[int, ...] | None
    stop_token_ids: tuple[int, ...]
    stop_words: tuple[str, ...]
    bad_words: tuple[str, ...]
    bias_words: tuple[tuple[str, float], ...]
    token_biases: tuple[tuple[int, float], ...]
    excludes_prompt: bool | None
    draft_tokens: int | None
    prompt_lookup: bool | None
    applies_chat_template: bool
    returns_text_bytes: bool
    num_sequences: int
    num_top_log_probs: int | None
    priority: int
    guide_type: str
    guide: str
    guide_start_ids: tuple[int, ...]


def read_fields(arrays: Arrays) -> RequestFields:
    """Checks one request of the `peagle` model.

    Args:
        arrays: Tensors by name, as sent: [1, n], or [n] where the batch dimension is already gone.

    Returns:
        The request; ranges that depend on the build are left to the decode loop.

    Raises:
        InvalidRequestError: A required tensor is missing, a value is out of range, or an option is not honoured.
    """
    _refuse_unsupported(arrays)
    text, ids = read_texts(arrays, "text_input"), read_integers(arrays, "input_ids")
    if not text and not ids:
        raise InvalidRequestError("`text_input` is missing (or `input_ids`)")
    _refuse_beside_ids(arrays, text, ids)
    top_k, top_p = _top_k(arrays), _top_p(arrays)
    guide_type, guide = _guide(arrays)
    return RequestFields(
        prompt_text=text[0] if text else None,
        prompt_ids=ids or None,
        max_tokens=read_required_integer(arrays, "max_tokens", 1),
        is_streaming=read_flag(arrays, "stream") or False,
        temperature=_temperature(arrays, is_sampling=top_k > 1 or top_p < 1.0),
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=read_positive(arrays, "repetition_penalty", 1.0),
        frequency_penalty=read_real(arrays, "frequency_penalty", 0.0),
        presence_penalty=read_real(arrays, "presence_penalty", 0.0),
        min_tokens=read_either_integer(arrays, "min_tokens", "min_length") or 0,
        seed=read_either_integer(arrays, "seed", "random_seed"),
        end_ids=_end_ids(arrays),
        stop_token_ids=read_integers(arrays, "stop_token_ids"),
        stop_words=tuple(word for word in read_texts(arrays, "stop_words") if word),
        bad_words=tuple(word for word in read_texts(arrays, "bad_words") if word),
        bias_words=_bias_words(arrays),
        token_biases=_token_biases(arrays),
        excludes_prompt=read_flag(arrays, "exclude_input_in_output"),
        draft_tokens=read_integer(arrays, "draft_tokens", AUTO_DRAFT_TOKENS),
        prompt_lookup=read_flag(arrays, "prompt_lookup"),
        applies_chat_template=read_flag(arrays, "apply_chat_template") or False,
        returns_text_bytes=read_flag(arrays, "return_text_bytes") or False,
        num_sequences=_num_sequences(arrays),
        num_top_log_probs=_num_top_log_probs(arrays),
        priority=read_integer(arrays, "priority", -(2**31)) or 0,
        guide_type=guide_type,
        guide=guide,
        guide_start_ids=_guide_start_ids(arrays, guide_type),
    )


def _refuse_unsupported(arrays: Arrays) -> None:
    for field in REFUSED_INPUTS:
        values = arrays[field.name].reshape(-1).tolist() if field.name in arrays else []
        harmless = HARMLESS_VALUES.get(field.name, ())
        if any(value not in harmless for value in values):
            advice = REFUSAL_ADVICE.get(field.name)
            raise InvalidRequestError(
                f"`{field.name}` is not supported; leave it out{f' ({advice})' if advice else ''}"
            )


def _refuse_beside_ids(arrays: Arrays, text: tuple[str, ...], ids: tuple[int, ...]) -> None:
    if ids and any(text):
        raise InvalidRequestError("`text_input` and `input_ids` are both there; send one of them")
    if ids and read_flag(arrays, "apply_chat_template"):
        raise InvalidRequestError("`apply_chat_template` means nothing with `input_ids`; send `text_input`")


def _end_ids(arrays: Arrays) -> tuple[int, ...] | None:
    ids = read_integers(arrays, "end_id")
    if min(ids, default=0) < NO_END_ID or (NO_END_ID in ids and len(ids) > 1):
        raise InvalidRequestError(f"`end_id` is `{list(ids)}`, expected token ids, or -1 alone for none")
    if not ids:
        return None
    return () if ids == (NO_END_ID,) else ids


def _guide(arrays: Arrays) -> tuple[str, str]:
    kind, text = ("".join(read_texts(arrays, name)) for name in (GUIDE_TYPE, GUIDE))
    if kind and kind not in GUIDE_TYPES:
        raise InvalidRequestError(f"`{GUIDE_TYPE}` is `{kind[:100]}`, expected one of {', '.join(GUIDE_TYPES)}")
    if kind and not text and kind != ANY_JSON:
        raise InvalidRequestError(f"`{GUIDE}` is missing; `{GUIDE_TYPE}` is `{kind}`")
    if text and (not kind or kind == ANY_JSON):
        raise InvalidRequestError(f"`{GUIDE}` means nothing with the `{GUIDE_TYPE}` `{kind}`")
    return kind, text


def _guide_start_ids(arrays: Arrays, kind: str) -> tuple[int, ...]:
    ids = read_integers(arrays, GUIDE_START)
    if ids and not kind:
        raise InvalidRequestError(f"`{GUIDE_START}` means nothing without `{GUIDE_TYPE}`")
    if len(ids) > MAX_START_IDS:
        raise InvalidRequestError(f"`{GUIDE_START}` holds {len(ids)} tokens, expected at most {MAX_START_IDS}")
    return ids


def _num_sequences(arrays: Arrays) -> int:
    value = read_integer(arrays, "num_return_sequences", 0) or 1
    if value > MAX_SEQUENCES:
        raise InvalidRequestError(f"`num_return_sequences` is `{value}`, expected at most {MAX_SEQUENCES}")
    return value


def _num_top_log_probs(arrays: Arrays) -> int | None:
    value = read_integer(arrays, "num_top_log_probs", 0)
    return 0 if value is None and read_flag(arrays, "return_log_probs") else value


def _bias_words(arrays: Arrays) -> tuple[tuple[str, float], ...]:
    words, name = read_texts(arrays, "embedding_bias_words"), "embedding_bias_weights"
    weights = read_reals(arrays, name)
    if len(words) != len(weights) and any(words) | any(weights):
        raise InvalidRequestError(f"`{name}` holds {len(weights)} values, and `embedding_bias_words` {len(words)}")
    return tuple((word, weight) for word, weight in zip(words, weights, strict=False) if word and weight)


def _token_biases(arrays: Arrays) -> tuple[tuple[int, float], ...]:
    ids, name = read_integers(arrays, "logit_bias_ids"), "logit_bias_values"
    values = read_reals(arrays, name)
    if len(ids) != len(values):
        raise InvalidRequestError(f"`{name}` holds {len(values)} values, and `logit_bias_ids` {len(ids)}")
    return tuple(zip(ids, values, strict=True))


def _top_k(arrays: Arrays) -> int:
    return read_integer(arrays, "top_k", 0) or 0


def _top_p(arrays: Arrays) -> float:
    value = read_real(arrays, "top_p", 1.0)
    if not 0.0 <= value <= 1.0:
        raise InvalidRequestError(f"`top_p` is `{value:g}`, expected 0..1")
    # Classic clients send 0 for "off".
    return value or 1.0


def _temperature(arrays: Arrays, *, is_sampling: bool) -> float:
    # Without a temperature the answer is greedy, unless the client asks for top-k or top-p sampling by name.
    value = read_real(arrays, "temperature", 1.0 if is_sampling else 0.0)
    if value < 0.0:
        raise InvalidRequestError(f"`temperature` is `{value:g}`, expected 0 or more")
    return value
