"""The two ends of the ensemble: text in, text out; one response for every request, errors included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from peagle_trt_repo.outputs import shaped
from peagle_trt_repo.python_backend import (
    InferenceRequest,
    make_error,
    make_response,
    request_arrays,
    request_parameters,
)
from peagle_trt_repo.request_parameters import ERROR_CODES, refuse_sequence, refuse_unknown_parameters
from peagle_trt_repo.values import Arrays, InvalidRequestError, read_flag, read_integers, read_text


class Tokenizer(Protocol):
    """What the two ends need of a tokenizer."""

    @property
    def has_chat_template(self) -> bool:
        """Whether a conversation can be put into the model's own form."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids."""
        ...

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """A conversation as the model was trained to read it."""
        ...


def encode_prompt(tokenizer: Tokenizer, text: str, *, applies_chat_template: bool) -> list[int]:
    """Ids of a prompt.

    Args:
        tokenizer: The build's tokenizer.
        text: The prompt as it is, or a user's turn.
        applies_chat_template: Put the text into the chat template; it brings its own special tokens.

    Raises:
        InvalidRequestError: There is no chat template, or nothing is left to continue.
    """
    if applies_chat_template:
        if not tokenizer.has_chat_template:
            raise InvalidRequestError("`apply_chat_template` is set, but this model has no chat template")
        conversation = _render(tokenizer, text)
        ids = tokenizer.encode(conversation, add_special_tokens=False)
    else:
        ids = tokenizer.encode(text)
    if not ids:
        raise InvalidRequestError("`text_input` is empty")
    return ids


def _render(tokenizer: Tokenizer, text: str) -> str:
    try:
        return tokenizer.apply_chat_template([{"role": "user", "content": text}])
    except Exception as error:
        # What a template raises is of the builder's classes, which the served models do not import.
        raise InvalidRequestError(str(error)) from error


def preprocess(request: InferenceRequest, tokenizer: Tokenizer) -> object:
    """QUERY to INPUT_ID."""
    parameters = request_parameters(request)
    try:
        refuse_unknown_parameters(parameters)
        refuse_sequence(request.correlation_id(), request.flags())
        return _preprocess(request_arrays(request), tokenizer)
    except InvalidRequestError as error:
        return make_error("INVALID_ARG", str(error), names_code=bool(parameters.get(ERROR_CODES)))


def postprocess(request: InferenceRequest, tokenizer: Tokenizer) -> object:
    """TOKENS_BATCH to OUTPUT; the engine never cuts a character in two, so every piece decodes on its own."""
    arrays = request_arrays(request)
    token_ids, texts = read_integers(arrays, "TOKENS_BATCH"), []
    for count in read_integers(arrays, "SEQUENCE_LENGTH"):
        texts.append(tokenizer.decode(token_ids[:count]).encode("utf-8"))
        token_ids = token_ids[count:]
    kept_bytes = read_integers(arrays, "TEXT_BYTES") or (None,) * len(texts)
    kept = [text[:length] for text, length in zip(texts, kept_bytes, strict=True)]
    return make_response({"OUTPUT": shaped(kept, "STRING")})


def _preprocess(arrays: Arrays, tokenizer: Tokenizer) -> object:
    for name, name_in_ensemble in (("QUERY", "text_input"), ("REQUEST_OUTPUT_LEN", "max_tokens")):
        if name not in arrays:
            raise InvalidRequestError(f"`{name_in_ensemble}` is missing (`{name}` of this model)")
    text, max_tokens = read_text(arrays, "QUERY"), read_integers(arrays, "REQUEST_OUTPUT_LEN")
    ids = encode_prompt(tokenizer, text, applies_chat_template=read_flag(arrays, "APPLY_CHAT_TEMPLATE") or False)
    return make_response(
        {
            "INPUT_ID": shaped(ids, "INT32"),
            "REQUEST_INPUT_LEN": shaped([len(ids)], "INT32"),
            "REQUEST_OUTPUT_LEN": shaped(max_tokens, "INT32"),
            "RETURN_TEXT_BYTES": shaped([True], "BOOL"),
        }
    )
