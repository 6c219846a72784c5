"""Copies from the text in place of drafts, asked of a real server: no answer changes, and some take fewer steps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from peagle_trt.cli.main import run
from peagle_trt.deploy.client import HttpClient, grpc_inputs
from peagle_trt.deploy.ports import choose_ports
from peagle_trt.deploy.server import TritonServer
from peagle_trt_repo.outputs import shaped
from peagle_trt_repo.tensors import DataType

from .conftest import Served
from .doors import over_grpc

REPEATING = "red apple, green pear, blue plum, red apple, green pear, blue plum, red apple, green pear,"
ASK = {"text_input": REPEATING, "max_tokens": 96, "end_id": -1, "draft_tokens": 5}
SAMPLED = {**ASK, "temperature": 0.8, "seed": 5}
MODELS = pytest.mark.parametrize("model", ["peagle", "ensemble", "tensorrt_llm_bls"])


@MODELS
def test_a_text_that_repeats_itself_takes_fewer_steps_to_the_same_answer(served: Served, model: str) -> None:
    plain = served.http.generate(ASK, model=model)
    found = served.http.generate({**ASK, "prompt_lookup": True}, model=model)
    assert found["text_output"] == plain["text_output"]
    assert found["num_verify_steps"] < 0.8 * plain["num_verify_steps"]
    assert 0 == plain["total_looked_up_tokens"] < found["total_looked_up_tokens"]
    assert found["total_looked_up_tokens"] <= found["total_accepted_draft_tokens"]


@MODELS
def test_a_sampled_answer_with_a_seed_stays_what_it_is(served: Served, model: str) -> None:
    plain = served.http.generate(SAMPLED, model=model)["text_output"]
    for draft_tokens in (5, 2, -1):
        sent = {**SAMPLED, "draft_tokens": draft_tokens, "prompt_lookup": True}
        assert served.http.generate(sent, model=model)["text_output"] == plain


def test_a_stream_over_grpc_is_the_same_answer(served: Served) -> None:
    with served.grpc({**ASK, "stream": True, "prompt_lookup": True}) as stream:
        pieces = list(stream)
    assert "".join(piece["text_output"] for piece in pieces) == served.http.generate(ASK)["text_output"]
    assert pieces[-1]["total_looked_up_tokens"] > 0


def test_answers_beside_each_other_and_several_to_a_prompt_stay_what_they_are(served: Served) -> None:
    asked = [{**SAMPLED, "seed": seed, "num_return_sequences": 3} for seed in (1, 20, 30)]
    plain = [served.http.generate(each)["text_output"] for each in asked]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(served.http.generate, [{**each, "prompt_lookup": True} for each in asked]))
    assert [answer["text_output"] for answer in found] == plain


def test_a_guided_answer_is_drafted_as_without(served: Served) -> None:
    guide = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "( (red|blue),){12}"}
    plain, found = (served.http.generate({**ASK, **guide, "prompt_lookup": lookup}) for lookup in (False, True))
    for name in ("text_output", "num_verify_steps", "accepted_by_position", "total_looked_up_tokens"):
        assert found[name] == plain[name]


def test_without_drafts_there_is_nothing_to_copy_into(served: Served) -> None:
    answer = served.http.generate({**ASK, "draft_tokens": 0, "prompt_lookup": True})
    assert (answer["total_draft_tokens"], answer["total_looked_up_tokens"]) == (0, 0)


@MODELS
@pytest.mark.parametrize(("values", "kind"), [([True, False], "BOOL"), ([1], "INT32"), ([b"true"], "BYTES")])
def test_what_is_no_single_flag_is_refused_by_name(served: Served, model: str, values: list[object], kind: str) -> None:
    import tritonclient.grpc as grpc_client

    flag = grpc_client.InferInput("prompt_lookup", [1, len(values)], kind)
    flag.set_data_from_numpy(shaped(values, cast(DataType, kind.replace("BYTES", "STRING"))))
    _, error = over_grpc(served, model, [*grpc_inputs({"text_input": REPEATING, "max_tokens": 4}), flag])
    assert "prompt_lookup" in str(error)


def test_a_repository_may_look_up_by_default(served: Served, tiny_build: Path, tmp_path: Path) -> None:
    path = tmp_path / "repository"
    assert run(["repo", str(tiny_build), "-o", str(path), "--prompt-lookup", "--check"]) == 0
    with TritonServer(path, choose_ports(), log_path=tmp_path / "tritonserver.log") as server:
        http = HttpClient(server.ports.http)
        by_default, declined = http.generate(ASK), http.generate({**ASK, "prompt_lookup": False})
    assert by_default["text_output"] == declined["text_output"] == served.http.generate(ASK)["text_output"]
    assert by_default["total_looked_up_tokens"] > 0 == declined["total_looked_up_tokens"]
