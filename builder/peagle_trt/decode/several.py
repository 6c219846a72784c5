"""Several answers to one prompt."""

from __future__ import annotations

from dataclasses import replace

from peagle_trt.decode.request import GenerationRequest

SEED_RANGE = 2**64


def sequence_requests(request: GenerationRequest, count: int) -> list[GenerationRequest]:
    """As many requests for one prompt as it wants answers, each with its own id and seed.

    Answer i has the seed that a request for one answer would have with `seed + i`. The prompt is read once for all.
    """
    if count == 1:
        return [request]
    seed = request.sampling.seed
    return [
        replace(
            request,
            request_id=f"{request.request_id}.{index}",
            prompt_group=request.request_id,
            sampling=replace(request.sampling, seed=None if seed is None else (seed + index) % SEED_RANGE),
        )
        for index in range(count)
    ]
