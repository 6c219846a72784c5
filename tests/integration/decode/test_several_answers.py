"""Several answers to one prompt on a real build: read once, and each is what it is alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from peagle_trt.decode.request import SamplingSettings
from peagle_trt.decode.session import LoadedBuild, generate
from peagle_trt.decode.several import sequence_requests
from peagle_trt.engine.protocol import TargetOutput, TargetRows

PROMPT = "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\nAnswer:"
GREEDY, SAMPLED = SamplingSettings(), SamplingSettings(temperature=1.2, seed=11)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft_tokens", [0, 5])
def test_every_answer_is_what_it_is_alone(loaded: LoadedBuild, sampling: SamplingSettings, draft_tokens: int) -> None:
    request = replace(loaded.request(PROMPT, max_tokens=40), sampling=sampling, draft_tokens=draft_tokens)
    requests = sequence_requests(request, 4)
    together = generate(loaded, requests)
    alone = [generate(loaded, [replace(each, prompt_group=None)])[0] for each in requests]
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    counts = [[answer.metrics.accepted_by_position for answer in each] for each in (together, alone)]
    assert counts[0] == counts[1]


def test_the_prompt_is_read_once(loaded: LoadedBuild, monkeypatch: pytest.MonkeyPatch) -> None:
    num_rows = 0
    run = loaded.engine.run_target

    def count(rows: Sequence[TargetRows]) -> list[TargetOutput]:
        nonlocal num_rows
        num_rows += sum(len(item.token_ids) for item in rows)
        return run(rows)

    monkeypatch.setattr(loaded.engine, "run_target", count)
    generate(loaded, sequence_requests(loaded.request(PROMPT, max_tokens=1), 4))
    assert num_rows == len(loaded.tokenizer.encode(PROMPT)) + 3
