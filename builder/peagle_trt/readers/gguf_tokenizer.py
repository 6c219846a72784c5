"""The tokenizer inside a GGUF file, rebuilt for the tokenizers library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.checkpoint import TokenizerSource
from peagle_trt.readers.gguf_fields import GgufFields
from peagle_trt.readers.ranges import token_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

# Source: `llama_token_attr` types of llama.cpp, as gguf.TokenType numbers them.
_CONTROL, _USER_DEFINED = 3, 4
PRE_TOKENIZERS = ("smollm",)


def read_gguf_tokenizer(fields: GgufFields) -> TokenizerSource:
    """Describe the tokenizer; it is built when its text is asked for.

    Raises:
        CheckpointError: It is not a byte-level BPE with a known way of splitting text.
    """
    model, splitter = fields.text("tokenizer.ggml.model"), fields.text("tokenizer.ggml.pre", "default")
    if model != "gpt2" or splitter not in PRE_TOKENIZERS:
        raise CheckpointError(
            f"`{fields.path}`: the tokenizer `{model}` with splitter `{splitter}` is not supported",
            hint=f"supported: gpt2 with {', '.join(PRE_TOKENIZERS)}",
        )
    tokens = fields.texts("tokenizer.ggml.tokens")
    return TokenizerSource(
        path=fields.path,
        tokenizer_json=lambda: str(_build(fields, tokens).to_str()),
        chat_template=fields.text("tokenizer.chat_template", "") or None,
        bos_token=_token(fields, tokens, "bos"),
        eos_token=_token(fields, tokens, "eos"),
    )


def _token(fields: GgufFields, tokens: list[str], kind: str) -> str:
    token_id = fields.optional_integer(f"tokenizer.ggml.{kind}_token_id", within=token_ids(len(tokens)))
    return "" if token_id is None else tokens[token_id]


def _build(fields: GgufFields, tokens: list[str]) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models

    # A merge is two tokens around the first space; neither can hold one, spaces being spelled as another letter.
    pairs = (merge.partition(" ") for merge in fields.texts("tokenizer.ggml.merges"))
    merges = [(left, right) for left, _, right in pairs]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    kinds = fields.integers("tokenizer.ggml.token_type")
    if len(vocabulary) != len(tokens):
        raise fields.refuse("tokenizer.ggml.tokens", "tokens that differ", f"{len(vocabulary)} of {len(tokens)}")
    if len(kinds) != len(tokens):
        raise fields.refuse("tokenizer.ggml.token_type", f"one for each of {len(tokens)} tokens", len(kinds))
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False, byte_fallback=False))
    except Exception as error:
        # The library raises a bare Exception where a merge names a token that is not there.
        raise CheckpointError(f"`{fields.path}`: `tokenizer.ggml.merges` do not fit the tokens: {error}") from error
    tokenizer.pre_tokenizer = _smollm_splitter()
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, kinds, strict=True):
        if kind == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
    if fields.flag("tokenizer.ggml.add_bos_token", default=False):
        bos_token_id = fields.integer("tokenizer.ggml.bos_token_id", within=token_ids(len(tokens)))
        _prepend_bos(tokenizer, tokens, bos_token_id)
    return tokenizer


def _smollm_splitter() -> PreTokenizer:
    """Every digit on its own, then GPT-2's rule.

    Source: SmolLM2's own tokenizer.json (Digits, then ByteLevel), and llama.cpp's two expressions for `smollm`.
    """
    from tokenizers import pre_tokenizers

    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


def _prepend_bos(tokenizer: Tokenizer, tokens: list[str], bos_token_id: int) -> None:
    from tokenizers import processors

    bos = tokens[bos_token_id]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, bos_token_id)]
    )
