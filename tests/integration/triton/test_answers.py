"""What clients get from a real server, compared with the same build in this process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from peagle_trt.decode.session import LoadedBuild, generate
from peagle_trt.errors import RequestError
from tests.support.servers import wait_until

from .conftest import LASTING, Served

PROMPT = "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\nAnswer:"
ASK = {"text_input": PROMPT, "max_tokens": 48}
WILD = {"text_input": PROMPT, "max_tokens": 100, "temperature": 3.0, "seed": 7, "end_id": -1}
"""So hot that the tokens are nearly random bytes: characters of several tokens, and broken ones."""


def expected_text(loaded: LoadedBuild, **changes: Any) -> str:
    request = replace(loaded.request(PROMPT, max_tokens=48), **changes)
    return generate(loaded, [request])[0].text


@pytest.mark.parametrize("model", ["peagle", "ensemble"])
def test_generate_gives_the_answer_of_the_build_itself(served: Served, loaded: LoadedBuild, model: str) -> None:
    assert served.http.generate(ASK, model=model)["text_output"] == expected_text(loaded)


@pytest.mark.parametrize("model", ["peagle", "ensemble"])
def test_the_pieces_of_a_stream_are_the_answer(served: Served, loaded: LoadedBuild, model: str) -> None:
    pieces = list(served.http.generate_stream(ASK, model=model))
    assert len(pieces) > 1
    assert "".join(piece["text_output"] for piece in pieces) == expected_text(loaded)


@pytest.mark.parametrize("model", ["peagle", "ensemble"])
def test_a_grpc_stream_is_the_answer_with_the_final_flag_on_the_last_piece(
    served: Served, loaded: LoadedBuild, model: str
) -> None:
    with served.grpc({**ASK, "stream": True}, model) as stream:
        pieces = list(stream)
    assert "".join(piece["text_output"] for piece in pieces) == expected_text(loaded)
    assert [piece["is_final"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1]["finish_reason"] in ("stop", "length")


def test_accepted_drafts_arrive_together(served: Served) -> None:
    with served.grpc({**ASK, "stream": True}) as stream:
        pieces = list(stream)
    assert max(piece["sequence_length"] for piece in pieces) > 1
    assert sum(piece["sequence_length"] for piece in pieces) == pieces[-1]["num_output_tokens"]


def test_speculation_changes_the_speed_and_not_the_answer(served: Served) -> None:
    fast, plain = served.http.generate(ASK), served.http.generate({**ASK, "draft_tokens": 0})
    assert fast["output_ids"] == plain["output_ids"]
    assert plain["total_draft_tokens"] == 0
    assert fast["num_verify_steps"] < plain["num_output_tokens"]


def test_the_metrics_of_an_answer_fit_together(served: Served, loaded: LoadedBuild) -> None:
    answer = served.http.generate(ASK)
    assert answer["num_input_tokens"] == len(loaded.tokenizer.encode(PROMPT))
    assert answer["num_output_tokens"] == answer["sequence_length"] == len(answer["output_ids"])
    rate = answer["total_accepted_draft_tokens"] / answer["total_draft_tokens"]
    assert answer["acceptance_rate"] == pytest.approx(rate)
    length = 1 + answer["total_accepted_draft_tokens"] / answer["num_verify_steps"]
    assert answer["acceptance_length"] == pytest.approx(length)
    assert sum(answer["accepted_by_position"]) == answer["total_accepted_draft_tokens"]
    assert len(answer["accepted_by_position"]) == loaded.manifest.shapes.draft_tokens


def test_ids_may_take_the_place_of_the_text(served: Served, loaded: LoadedBuild) -> None:
    answer = served.http.generate({"input_ids": loaded.tokenizer.encode(PROMPT), "max_tokens": 48})
    assert answer["text_output"] == expected_text(loaded)


def test_requests_in_flight_share_steps(served: Served) -> None:
    before = served.settled_metrics()
    payload = {**ASK, "draft_tokens": 0, "end_id": -1, "max_tokens": 100}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(served.http.generate, [payload] * 4))
    assert wait_until(lambda: served.metrics()["peagle_requests_total"] == before["peagle_requests_total"] + 4)
    steps = served.metrics()["peagle_engine_steps_total"] - before["peagle_engine_steps_total"]
    assert steps < 0.75 * sum(answer["num_output_tokens"] for answer in answers)


def test_eight_clients_at_once_get_the_answers_they_get_alone(served: Served) -> None:
    prompts = [PROMPT.replace("3", str(number)) for number in range(8)]
    payloads = [{"text_input": prompt, "max_tokens": 32} for prompt in prompts]
    alone = [served.http.generate(payload)["text_output"] for payload in payloads]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda payload: served.http.generate(payload)["text_output"], payloads))
    assert together == alone


def test_more_clients_than_slots_wait_their_turn(served: Served) -> None:
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(served.http.generate, [{**ASK, "max_tokens": 12}] * 20))
    assert len({answer["text_output"] for answer in answers}) == 1


def test_a_stream_that_its_client_leaves_is_cancelled(served: Served) -> None:
    before = served.settled_metrics()["peagle_cancelled_requests_total"]
    stream = served.grpc({**LASTING, "stream": True})
    next(iter(stream))
    stream.cancel()
    assert wait_until(
        lambda: served.metrics()["peagle_cancelled_requests_total"] == before + LASTING["num_return_sequences"]
    )


def test_an_http_stream_that_its_client_leaves_is_cancelled(served: Served) -> None:
    before = served.settled_metrics()["peagle_cancelled_requests_total"]
    stream = served.http.generate_stream(LASTING)
    next(stream)
    stream.close()
    assert wait_until(
        lambda: served.metrics()["peagle_cancelled_requests_total"] == before + LASTING["num_return_sequences"]
    )


def test_a_stop_word_ends_the_answer_and_is_cut_from_it(served: Served, loaded: LoadedBuild) -> None:
    whole = expected_text(loaded)
    stop = whole[len(whole) // 2 :][:4]
    for model in ("peagle", "ensemble"):
        pieces = list(served.http.generate_stream({**ASK, "stop_words": [stop]}, model=model))
        assert "".join(piece["text_output"] for piece in pieces) == whole[: whole.index(stop)]
        assert pieces[-1]["finish_reason"] == "stop"


def test_characters_stay_whole_in_every_piece(served: Served) -> None:
    whole = served.http.generate(WILD)["text_output"]
    assert not whole.isascii()
    for model in ("peagle", "ensemble"):
        pieces = [piece["text_output"] for piece in served.http.generate_stream(WILD, model=model)]
        assert "".join(pieces) == whole


def test_the_prompt_comes_back_where_it_is_asked_for(served: Served, loaded: LoadedBuild) -> None:
    payload = {**ASK, "text_input": "Grüße, 世界!", "exclude_input_in_output": False, "max_tokens": 4}
    for model in ("peagle", "ensemble"):
        assert served.http.generate(payload, model=model)["text_output"].startswith("Grüße, 世界!")


def test_a_seed_makes_sampling_repeatable(served: Served) -> None:
    answers = [served.http.generate({**WILD, "seed": seed})["output_ids"] for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


def test_a_users_turn_goes_into_the_chat_template(served: Served, loaded: LoadedBuild) -> None:
    conversation = loaded.tokenizer.apply_chat_template([{"role": "user", "content": "What is 2 + 3?"}])
    ids = loaded.tokenizer.encode(conversation, add_special_tokens=False)
    payload = {"text_input": "What is 2 + 3?", "max_tokens": 4, "apply_chat_template": True}
    for model in ("peagle", "ensemble"):
        assert served.http.generate(payload, model=model)["num_input_tokens"] == len(ids)


REFUSED = {
    "no prompt": ({"max_tokens": 4, "temperature": 0.5}, "`text_input` is missing"),
    "no limit": ({"text_input": "a", "temperature": 0.5}, "`max_tokens` is missing"),
    # The server itself refuses to start an ensemble whose first member would get no input.
    "nothing at all": ({"stream": False}, "`text_input` is missing|request has 0 inputs"),
    "an empty prompt": ({"text_input": "", "max_tokens": 4}, "`text_input` is empty"),
    "beams": ({**ASK, "beam_width": 4}, "`beam_width` is not supported"),
    "too hot": ({**ASK, "temperature": -1.0}, "`temperature` is `-1`"),
    "too many drafts": ({**ASK, "draft_tokens": 99}, "`draft_tokens` is 99"),
    "a long prompt": ({"text_input": "word " * 3000, "max_tokens": 4}, "the prompt has"),
}


@pytest.mark.parametrize("model", ["peagle", "ensemble"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_request_that_cannot_be_honoured_is_answered_with_the_reason(served: Served, name: str, model: str) -> None:
    payload, message = REFUSED[name]
    with pytest.raises(RequestError, match=message):
        served.http.generate(payload, model=model)
    with pytest.raises(RequestError, match=message), served.grpc(dict(payload), model) as stream:
        list(stream)


@pytest.mark.parametrize("model", ["peagle", "ensemble"])
def test_a_misspelt_input_is_refused_by_name(served: Served, model: str) -> None:
    with pytest.raises(RequestError, match="`temprature` is no input of this model; did you mean `temperature`"):
        served.http.generate({**ASK, "temprature": 1.0}, model=model)


def test_a_request_id_is_no_input_and_no_fault(served: Served) -> None:
    assert served.http.generate({**ASK, "id": "42", "max_tokens": 2})["text_output"]


def test_classic_fillers_are_taken(served: Served, loaded: LoadedBuild) -> None:
    fillers = {"bad_words": "", "stop_words": "", "pad_id": 2, "beam_width": 1, "return_log_probs": False}
    fillers |= dict.fromkeys(("return_num_input_tokens", "return_num_output_tokens", "return_perf_metrics"), True)
    assert served.http.generate({**ASK, **fillers}, model="ensemble")["text_output"] == expected_text(loaded)


def test_the_server_keeps_serving_while_clients_come_and_go(served: Served) -> None:
    def leave_early(number: int) -> None:
        stream = served.http.generate_stream({**ASK, "max_tokens": 200, "end_id": -1})
        for _ in range(number):
            next(stream)
        stream.close()

    leavers = [threading.Thread(target=leave_early, args=(number,)) for number in range(1, 7)]
    for leaver in leavers:
        leaver.start()
    answer = served.http.generate(ASK)["text_output"]
    for leaver in leavers:
        leaver.join()
    assert served.http.generate(ASK)["text_output"] == answer
    served.server.require_alive()
