"""K chosen at every step and prefixes that are reused, on a trained pair."""

from __future__ import annotations

from dataclasses import replace

from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationChunk
from peagle_trt.decode.session import LoadedBuild, generate

NUM_PROMPTS = 12
MAX_TOKENS = 64


def run(loop: DecodeLoop) -> dict[str, list[GenerationChunk]]:
    chunks: dict[str, list[GenerationChunk]] = {}
    while loop.has_work:
        for chunk in loop.step():
            chunks.setdefault(chunk.request_id, []).append(chunk)
    return chunks


def tokens(chunks: list[GenerationChunk]) -> tuple[int, ...]:
    return tuple(token for chunk in chunks for token in chunk.token_ids)


def test_every_token_is_the_targets_whatever_k_is_chosen(loaded: LoadedBuild) -> None:
    prompts = read_prompts("gsm8k", NUM_PROMPTS).prompts
    requests = [
        replace(loaded.request(prompt, max_tokens=MAX_TOKENS, request_id=str(index)), draft_tokens="auto")
        for index, prompt in enumerate(prompts)
    ]
    loop = DecodeLoop(loaded.engine, None)
    for request in requests:
        loop.submit(request)
    found = run(loop)
    expected = generate(loaded, [replace(request, draft_tokens=0) for request in requests])
    assert [tokens(found[str(index)]) for index in range(NUM_PROMPTS)] == [answer.token_ids for answer in expected]


def test_a_reused_prefix_changes_neither_the_answer_nor_the_acceptance(loaded: LoadedBuild) -> None:
    loop = DecodeLoop(loaded.engine, None, reuses_prefixes=True)
    prompt = read_prompts("gsm8k", 1).prompts[0]
    outcomes = []
    for ending in ("", "", " Then,", ""):
        loop.submit(loaded.request(prompt + ending, max_tokens=MAX_TOKENS))
        (chunks,) = run(loop).values()
        metrics = chunks[-1].metrics
        assert metrics is not None
        outcomes.append((tokens(chunks), metrics.accepted_by_position))
    assert loop.statistics.num_reused_tokens > 100
    assert outcomes[0] == outcomes[1] == outcomes[3]
