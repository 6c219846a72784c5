"""Which choice a piece of the server's belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from peagle_trt.openai_door.engine_stream import Answers, EnginePiece, _piece


class Client:
    """Sends two answers a request, piece by piece in turns."""

    async def answer(
        self, inputs: Mapping[str, object], request_id: str, max_seconds: float | None = None
    ) -> AsyncGenerator[EnginePiece, None]:
        for index in (0, 1, 1, 0):
            text = f"{inputs['name']}{index}"
            yield _piece({"text_output": text, "sequence_index": index, "output_ids": [1]})


async def collect(answers: Answers) -> list[tuple[int, str]]:
    async with answers:
        return [(index, piece.text) async for index, piece in answers.pieces()]


def test_the_answers_of_every_request_are_choices_of_their_own() -> None:
    client: Any = Client()
    found = asyncio.run(collect(Answers(client, [{"name": "a"}, {"name": "b"}], "r", num_choices=2)))
    assert sorted(found) == sorted([(0, "a0"), (1, "a1"), (2, "b0"), (3, "b1")] * 2)
