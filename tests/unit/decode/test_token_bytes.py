"""Bytes of single tokens, against the tokenizers' own decoders."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from peagle_trt.decode.token_bytes import TokenBytes


def bytewise() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|é|>", special=True)])
    return tokenizer


def test_the_tokens_of_a_text_are_its_bytes() -> None:
    tokenizer, text = bytewise(), "Grüße, 世界!\n\t\x00🎉"
    bytes_of = TokenBytes(tokenizer)
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text.encode())
    assert b"".join(bytes_of(token_id) for token_id in ids) == text.encode()


def test_every_byte_has_a_token() -> None:
    bytes_of = TokenBytes(bytewise())
    assert {bytes_of(token_id) for token_id in range(256)} == {bytes([byte]) for byte in range(256)}


def test_an_added_token_is_its_text() -> None:
    tokenizer = bytewise()
    assert TokenBytes(tokenizer)(tokenizer.token_to_id("<|é|>")) == "<|é|>".encode()


def test_padding_of_a_vocabulary_is_nothing() -> None:
    assert TokenBytes(bytewise())(9999) == b""


def test_sentencepiece_spells_bytes_and_spaces_in_its_own_way() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"<0xE4>": 0, "▁a": 1, "b": 2}, merges=[]))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    assert [TokenBytes(tokenizer)(token_id) for token_id in range(3)] == [b"\xe4", b" a", b"b"]
