"""Many requests at once through the decode loop, to compare engines token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationRequest, SamplingSettings
from peagle_trt.engine.protocol import Engine


def make_requests(
    engine: Engine, lengths: Sequence[int], *, max_tokens: int = 20, temperature: float = 0.0
) -> list[GenerationRequest]:
    """Random prompts of these lengths; every request asks for another K."""
    rng = np.random.default_rng(7)
    return [
        GenerationRequest(
            request_id=str(index),
            prompt_ids=tuple(rng.integers(0, engine.target.vocab_size, length).tolist()),
            max_tokens=max_tokens + index,
            draft_tokens=(engine.shapes.draft_tokens, 0, 1, engine.shapes.max_draft_tokens)[index % 4],
            sampling=SamplingSettings(temperature=temperature, seed=index),
        )
        for index, length in enumerate(lengths)
    ]


def generate_all(engine: Engine, requests: Sequence[GenerationRequest]) -> dict[str, tuple[list[int], int]]:
    """Tokens and number of accepted drafts of every request."""
    loop = DecodeLoop(engine, None)
    for request in requests:
        loop.submit(request)
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    accepted = {}
    while loop.has_work:
        for chunk in loop.step():
            assert not chunk.error, chunk.error
            tokens[chunk.request_id] += chunk.token_ids
            if chunk.metrics is not None:
                accepted[chunk.request_id] = chunk.metrics.num_accepted_tokens
    return {name: (tokens[name], accepted[name]) for name in tokens}


def penalised(request: GenerationRequest) -> GenerationRequest:
    """The same request with a penalty, for which an argmax is not enough."""
    return replace(request, sampling=replace(request.sampling, repetition_penalty=1.3))
