from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from peagle_trt_repo.inputs import read_fields
from peagle_trt_repo.outputs import shaped
from peagle_trt_repo.request_parameters import read_deadline, refuse_unknown_parameters
from peagle_trt_repo.tensors import PEAGLE_INPUTS, REFUSED_INPUTS
from peagle_trt_repo.values import InvalidRequestError

TYPES = {field.name: field.data_type for field in PEAGLE_INPUTS}


def arrays(**values: object) -> dict[str, NDArray[np.generic]]:
    """Tensors as a client would send them."""
    lists = {name: value if isinstance(value, list) else [value] for name, value in values.items()}
    return {name: shaped(entries, TYPES[name]) for name, entries in lists.items()}


def test_the_least_request_is_greedy_and_whole() -> None:
    fields = read_fields(arrays(text_input=b"hello", max_tokens=4))
    assert (fields.prompt_text, fields.max_tokens, fields.is_streaming, fields.temperature) == ("hello", 4, False, 0.0)
    assert (fields.top_k, fields.top_p, fields.seed, fields.end_ids, fields.draft_tokens) == (0, 1.0, None, None, None)


def test_ids_take_the_place_of_the_text() -> None:
    assert read_fields(arrays(input_ids=[5, 6, 7], max_tokens=4)).prompt_ids == (5, 6, 7)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"text_input": b"a"}, "`text_input` and `input_ids` are both there"),
        ({"apply_chat_template": True}, "`apply_chat_template` means nothing with `input_ids`"),
    ],
)
def test_what_means_nothing_beside_ids_is_refused(sent: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_fields(arrays(input_ids=[5], max_tokens=4, **sent))


def test_an_empty_text_and_a_false_template_ask_for_nothing_beside_ids() -> None:
    fields = read_fields(arrays(input_ids=[5], max_tokens=4, text_input=b"", apply_chat_template=False))
    assert fields.prompt_ids == (5,)


@pytest.mark.parametrize("sent", [{"max_tokens": 4}, {"max_tokens": 4, "temperature": 0.5}])
def test_a_missing_prompt_is_named(sent: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="`text_input` is missing"):
        read_fields(arrays(**sent))


def test_a_missing_limit_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="`max_tokens` is missing"):
        read_fields(arrays(text_input=b"hello", temperature=0.5))


@pytest.mark.parametrize("sent", [{"top_k": 40}, {"top_p": 0.9}])
def test_sampling_without_a_temperature_uses_one(sent: dict[str, object]) -> None:
    assert read_fields(arrays(text_input=b"a", max_tokens=1, **sent)).temperature == 1.0


@pytest.mark.parametrize("sent", [{"top_k": 1}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.0}])
def test_settings_that_choose_nothing_stay_greedy(sent: dict[str, object]) -> None:
    fields = read_fields(arrays(text_input=b"a", max_tokens=1, **sent))
    assert (fields.temperature, fields.top_p) == (0.0, 1.0)


@pytest.mark.parametrize(("old", "new", "value"), [("min_length", "min_tokens", 3), ("random_seed", "seed", 2**63)])
def test_old_names_are_read(old: str, new: str, value: int) -> None:
    assert getattr(read_fields(arrays(text_input=b"a", max_tokens=9, **{old: value})), new) == value


def test_an_old_and_a_new_name_that_differ_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"`min_tokens`.*`min_length`"):
        read_fields(arrays(text_input=b"a", max_tokens=9, min_tokens=1, min_length=2))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 1.5),
        ("top_p", -0.5),
        ("top_k", -1),
        ("repetition_penalty", 0.0),
        ("frequency_penalty", float("inf")),
        ("min_tokens", -1),
        ("end_id", -2),
        ("end_id", [3, -1]),
        ("num_return_sequences", 17),
        ("num_top_log_probs", -1),
        ("draft_tokens", -2),
        ("prompt_lookup", [True, False]),
        ("stream", [True, False]),
        ("text_input", [b"\xff"]),
    ],
)
def test_a_value_out_of_range_is_named(name: str, value: object) -> None:
    sent = {"text_input": b"a", "max_tokens": 1} | {name: value}
    with pytest.raises(InvalidRequestError, match=f"`{name}`"):
        read_fields(arrays(**sent))


# One value each that asks for something.
ASKING = {
    "beam_width": 2,
    "length_penalty": 0.5,
    "decoder_text_input": b"a",
    "return_context_logits": True,
    "return_generation_logits": True,
    "prompt_embedding_table": 0.0,
    "prompt_table_extra_id": 1,
    "prompt_vocab_size": 1,
    "lora_task_id": 1,
    "lora_weights": 0.0,
    "lora_config": [0, 0, 0],
}


@pytest.mark.parametrize("name", [field.name for field in REFUSED_INPUTS])
def test_an_option_that_is_not_honoured_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"`{name}` is not supported"):
        read_fields(arrays(text_input=b"a", max_tokens=1, **{name: ASKING[name]}))


def test_fillers_of_classic_clients_ask_for_nothing() -> None:
    fillers = {"bad_words": b"", "stop_words": b"", "beam_width": 1, "return_log_probs": False, "length_penalty": 1.0}
    assert read_fields(arrays(text_input=b"a", max_tokens=1, **fillers)).stop_words == ()


def test_bad_and_biased_words_lose_the_empty_ones() -> None:
    bias = {"embedding_bias_words": [b"b", b"", b"c"], "embedding_bias_weights": [1.5, 2.0, 0.0]}
    fields = read_fields(arrays(text_input=b"a", max_tokens=1, bad_words=[b"x", b""], **bias))
    assert (fields.bad_words, fields.bias_words) == (("x",), (("b", 1.5),))


@pytest.mark.parametrize("weights", [[1.0], [1.0, float("nan")], [1.0, 2.0, 3.0]])
def test_biases_that_do_not_fit_their_words_are_named(weights: list[float]) -> None:
    bias = {"embedding_bias_words": [b"b", b"c"], "embedding_bias_weights": weights}
    with pytest.raises(InvalidRequestError, match="`embedding_bias_weights`"):
        read_fields(arrays(text_input=b"a", max_tokens=1, **bias))


def test_stop_words_keep_their_order_and_lose_the_empty_ones() -> None:
    assert read_fields(arrays(text_input=b"a", max_tokens=1, stop_words=[b"b", b"", b"a"])).stop_words == ("b", "a")


def test_beams_are_refused_with_what_there_is_instead() -> None:
    with pytest.raises(InvalidRequestError, match=r"`beam_width` is not supported.*`num_return_sequences`"):
        read_fields(arrays(text_input=b"a", max_tokens=1, beam_width=2))


@pytest.mark.parametrize(("sent", "read"), [([5, 9], (5, 9)), ([-1], ()), ([], None), (7, (7,))])
def test_end_tokens_are_one_several_or_none(sent: object, read: object) -> None:
    assert read_fields(arrays(text_input=b"a", max_tokens=1, end_id=sent)).end_ids == read


@pytest.mark.parametrize(
    ("sent", "read"), [({}, None), ({"prompt_lookup": True}, True), ({"prompt_lookup": False}, False)]
)
def test_prompt_lookup_is_asked_for_declined_or_left_to_the_repository(sent: dict[str, object], read: object) -> None:
    assert read_fields(arrays(text_input=b"a", max_tokens=1, **sent)).prompt_lookup is read


@pytest.mark.parametrize(
    ("sent", "count"), [({}, None), ({"return_log_probs": False}, None), ({"return_log_probs": True}, 0)]
)
def test_log_probabilities_are_asked_for_by_their_classic_name(sent: dict[str, object], count: int | None) -> None:
    assert read_fields(arrays(text_input=b"a", max_tokens=1, **sent)).num_top_log_probs == count


def test_asking_for_the_likeliest_tokens_asks_for_log_probabilities() -> None:
    assert read_fields(arrays(text_input=b"a", max_tokens=1, num_top_log_probs=3)).num_top_log_probs == 3


@pytest.mark.parametrize("sent", [0, 1])
def test_no_or_one_sequence_is_one_answer(sent: int) -> None:
    assert read_fields(arrays(text_input=b"a", max_tokens=1, num_return_sequences=sent)).num_sequences == 1


def test_a_time_limit_comes_with_the_request_or_among_its_parameters() -> None:
    assert read_deadline({}, 0) is None
    assert read_deadline({}, 1_500_000) == 1.5
    assert read_deadline({"timeout": 250_000}, 0) == 0.25


@pytest.mark.parametrize("sent", [-1, 1.5, "10", True])
def test_a_time_limit_that_is_none_is_named(sent: object) -> None:
    with pytest.raises(InvalidRequestError, match="`timeout`"):
        read_deadline({"timeout": sent}, 0)


@pytest.mark.parametrize(("other", "ours"), [("runtime_top_k", "top_k"), ("streaming", "stream")])
def test_a_name_of_another_classic_model_leads_to_ours(other: str, ours: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"`{other}`.*did you mean `{ours}`"):
        refuse_unknown_parameters({other: 1})


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({}, ("", "")),
        ({"guided_decoding_guide_type": b"", "guided_decoding_guide": b""}, ("", "")),
        ({"guided_decoding_guide_type": b"json"}, ("json", "")),
        ({"guided_decoding_guide_type": b"regex", "guided_decoding_guide": b"a+"}, ("regex", "a+")),
    ],
)
def test_a_grammar_comes_under_its_classic_names(sent: dict[str, object], read: tuple[str, str]) -> None:
    fields = read_fields(arrays(text_input=b"a", max_tokens=1, **sent))
    assert (fields.guide_type, fields.guide) == read


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"guided_decoding_guide_type": b"structural_tag"}, "`guided_decoding_guide_type` is `structural_tag`"),
        ({"guided_decoding_guide_type": b"regex"}, "`guided_decoding_guide` is missing"),
        ({"guided_decoding_guide": b"a+"}, "`guided_decoding_guide` means nothing"),
        ({"guided_decoding_guide_type": b"json", "guided_decoding_guide": b"{}"}, "`guided_decoding_guide` means"),
    ],
)
def test_half_a_grammar_is_named(sent: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_fields(arrays(text_input=b"a", max_tokens=1, **sent))


def test_biases_of_tokens_are_pairs() -> None:
    bias = {"logit_bias_ids": [5, 7], "logit_bias_values": [1.5, -2.0]}
    assert read_fields(arrays(text_input=b"a", max_tokens=1, **bias)).token_biases == ((5, 1.5), (7, -2.0))


@pytest.mark.parametrize("values", [[1.0], [1.0, float("inf")]])
def test_biases_that_do_not_fit_their_tokens_are_named(values: list[float]) -> None:
    bias = {"logit_bias_ids": [5, 7], "logit_bias_values": values}
    with pytest.raises(InvalidRequestError, match="`logit_bias_values`"):
        read_fields(arrays(text_input=b"a", max_tokens=1, **bias))


def test_a_grammar_may_hold_from_a_mark_on() -> None:
    guide = {"guided_decoding_guide_type": b"json", "guided_decoding_start_ids": [5, 6]}
    assert read_fields(arrays(text_input=b"a", max_tokens=1, **guide)).guide_start_ids == (5, 6)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"guided_decoding_start_ids": [5]}, "means nothing without `guided_decoding_guide_type`"),
        ({"guided_decoding_start_ids": [5] * 17, "guided_decoding_guide_type": b"json"}, "holds 17 tokens"),
    ],
)
def test_a_mark_that_makes_no_sense_is_named(sent: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"`guided_decoding_start_ids` {message}"):
        read_fields(arrays(text_input=b"a", max_tokens=1, **sent))
