"""Log probabilities in the forms of OpenAI's two kinds of answers."""

from __future__ import annotations

import pytest

from peagle_trt.openai_door.dialects import AnswerPiece, PlainReader
from peagle_trt.openai_door.documents import ChatDocuments, Choice, CompletionDocuments
from peagle_trt.openai_door.engine_stream import EnginePiece, _piece
from peagle_trt.openai_door.log_probs import TokenEntry

TEXTS = {1: b"a", 2: "é".encode()[:1], 3: "é".encode()[1:], 4: b"<end>"}
ENTRIES = (
    TokenEntry(token_id=1, log_prob=-0.5, top=((1, -0.5), (2, -1.0))),
    TokenEntry(token_id=2, log_prob=-2.0, top=((1, -0.25), (2, -2.0))),
    TokenEntry(token_id=3, log_prob=-0.125, top=((3, -0.125), (1, -4.0))),
)
PIECE = EnginePiece(text="aé", token_ids=(1, 2, 3), finish_reason="length", num_output_tokens=3, entries=ENTRIES)


def choice(piece: EnginePiece = PIECE) -> Choice:
    found = Choice()
    found.add(piece, PlainReader().read(piece.text, piece.token_ids))
    return found


def test_a_chat_has_an_entry_a_token_with_its_bytes() -> None:
    document = ChatDocuments(TEXTS.__getitem__).whole(0, choice())
    first, second, _ = document["logprobs"]["content"]  # type: ignore[index]
    assert first["token"] == "a"
    assert first["logprob"] == -0.5
    assert [entry["logprob"] for entry in first["top_logprobs"]] == [-0.5, -1.0]
    assert (second["token"], second["bytes"]) == ("bytes:\\xc3", [0xC3])


def test_a_completion_has_columns_and_places_in_the_text() -> None:
    document = CompletionDocuments(TEXTS.__getitem__).whole(0, choice())
    written: dict[str, object] = document["logprobs"]  # type: ignore[assignment]
    assert written["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert written["token_logprobs"] == [-0.5, -2.0, -0.125]
    assert written["text_offset"] == [0, 1, 1]
    assert written["top_logprobs"][0] == {"a": -0.5, "bytes:\\xc3": -1.0}  # type: ignore[index]


@pytest.mark.parametrize("kind", [ChatDocuments, CompletionDocuments])
def test_the_pieces_of_a_stream_have_what_the_whole_has(kind: type[ChatDocuments | CompletionDocuments]) -> None:
    streaming, pieces = kind(TEXTS.__getitem__), []
    for part, text in ((slice(0, 1), "a"), (slice(1, 3), "é")):
        ids, entries = PIECE.token_ids[part], ENTRIES[part]
        piece = EnginePiece(text=text, token_ids=ids, finish_reason=None, num_output_tokens=0, entries=entries)
        document = streaming.piece(0, PlainReader().read(text, ids), piece)
        assert document is not None
        pieces.append(document["logprobs"])
    whole: dict[str, object] = kind(TEXTS.__getitem__).whole(0, choice())["logprobs"]  # type: ignore[assignment]
    for name, value in whole.items():
        assert value is None or value == [entry for piece in pieces for entry in piece[name]]  # type: ignore[index]


def test_a_token_without_a_text_is_told_too() -> None:
    piece = EnginePiece(
        text="", token_ids=(4,), finish_reason=None, num_output_tokens=0, entries=(TokenEntry(token_id=4, log_prob=-1),)
    )
    assert CompletionDocuments(TEXTS.__getitem__).piece(0, PlainReader().read("", (4,)), piece) is not None


def test_thoughts_have_no_place_among_the_contents_log_probabilities() -> None:
    found = Choice()
    found.add(PIECE, AnswerPiece(content="é", reasoning="a", content_places=(1, 2)))
    assert [entry.token_id for entry in found.entries] == [2, 3]


def test_without_the_wish_there_are_none() -> None:
    assert ChatDocuments().whole(0, choice())["logprobs"] is None


def test_the_servers_flat_numbers_are_sorted_to_their_tokens() -> None:
    flat = {
        "output_ids": [5, 6],
        "output_log_probs": [-1.0, -2.0],
        "top_token_ids": [5, 7, 8, 6],
        "top_log_probs": [-1.0, -3.0, -0.5, -2.0],
    }
    assert [entry.top for entry in _piece(flat).entries] == [((5, -1.0), (7, -3.0)), ((8, -0.5), (6, -2.0))]


def test_a_late_answer_is_cut_off_and_says_why() -> None:
    late = EnginePiece(text="a", token_ids=(1,), finish_reason="deadline", num_output_tokens=1)
    document = ChatDocuments().whole(0, choice(late))
    assert (document["finish_reason"], document["stop_reason"]) == ("length", "deadline")
