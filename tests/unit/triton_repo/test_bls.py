"""The model `tensorrt_llm_bls` among members that do what a test tells them to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from peagle_trt_repo.bls import BlsHost, read_accumulates
from peagle_trt_repo.members import STOP_PARAMETER, MemberSender, is_stoppable
from peagle_trt_repo.outputs import shaped
from tests.support.fake_triton import FINAL, Request, Response, Sender, Tensor, TritonError


class Client(Sender):
    """A client that keeps texts and errors apart."""

    @property
    def texts(self) -> list[str]:
        answers = [response for response, _ in self.sent if response is not None and not response.has_error()]
        return [response.arrays["text_output"].item().decode() for response in answers]

    @property
    def errors(self) -> list[Any]:
        return [response.error() for response, _ in self.sent if response is not None and response.has_error()]

    @property
    def flags(self) -> list[int]:
        return [flags for _, flags in self.sent]


class Members:
    """The other models: an engine that gives pieces, and two ends that pass through."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces
        self.refusal: TritonError | None = None
        self.names: list[str] = []
        self.is_stopped = threading.Event()
        self.waits_for_stop = False
        self.asked: list[Any] = []

    def answer(self, request: Any) -> Any:
        self.asked.append(request)
        if request.model_name == "preprocessing":
            return answered({"INPUT_ID": shaped([1], "INT32")}, self.refusal)
        if request.model_name == "postprocessing":
            letters = bytes(request.arrays["TOKENS_BATCH"].reshape(-1).tolist())
            return answered({"OUTPUT": shaped([letters], "STRING")})
        return self.generate(request)

    def generate(self, request: Any) -> Iterator[Any]:
        if STOP_PARAMETER in request.parameters:
            assert request.parameters[STOP_PARAMETER] == self.names[-1].partition(":")[0]
            self.is_stopped.set()
            return
        self.names.append(request.request_id)
        for piece in self.pieces:
            ids = list(piece.encode())
            yield answered({"output_ids": shaped(ids, "INT32"), "sequence_length": shaped([len(ids)], "INT32")})
        if self.waits_for_stop:
            assert self.is_stopped.wait(5)
            told = {
                "finish_reason": shaped([b"error"], "STRING"),
                "text_output": shaped([b"CANCELLED:cancelled"], "STRING"),
            }
            yield answered(told)


def failure(code: str = TritonError.UNAVAILABLE) -> Response:
    """A response with an error, as a model makes it."""
    return Response([], TritonError("out of memory", code))


def answered(arrays: Mapping[str, NDArray[np.generic]], error: TritonError | None = None) -> Response:
    return Response([Tensor(name, array) for name, array in arrays.items()], error)


@pytest.fixture
def members(pb_utils: Any) -> Members:
    members = Members(["ab", "c"])

    class InferenceRequest:
        def __init__(self, *, inputs: list[Tensor], **fields: Any) -> None:
            self.__dict__ |= fields
            self.arrays = {tensor.name(): tensor.as_numpy() for tensor in inputs}

        def exec(self, decoupled: bool = False) -> Any:
            return members.answer(self)

    pb_utils.InferenceRequest = InferenceRequest
    return members


@pytest.fixture
def ask(members: Members) -> Iterator[Callable[..., Client]]:
    hosts: list[BlsHost] = []

    def ask_one(
        *,
        accumulates: bool = False,
        has_left: bool = False,
        limit: int = 0,
        sequence: int = 0,
        beside: dict[str, object] | None = None,
    ) -> Client:
        hosts.append(BlsHost(accumulates=accumulates))
        request = Request(text_input=shaped([b"hi"], "STRING"), max_tokens=shaped([6], "INT32"))
        request.sender = client = Client()
        client.has_left = has_left
        request.limit_microseconds, request.sequence, request.beside = limit, sequence, beside or {}
        hosts[-1].accept(request)  # type: ignore[arg-type]
        client.wait()
        return client

    yield ask_one
    for host in hosts:
        host.close()


def test_pieces_come_as_they_are_and_the_final_flag_after_them(ask: Callable[..., Client]) -> None:
    sender = ask()
    assert (sender.texts, sender.flags) == (["ab", "c"], [0, 0, FINAL])


def test_accumulated_pieces_repeat_what_came_before(ask: Callable[..., Client]) -> None:
    assert ask(accumulates=True).texts == ["ab", "abc"]


def test_a_members_refusal_reaches_the_client_as_it_is(ask: Callable[..., Client], members: Members) -> None:
    members.refusal = TritonError("`text_input` is empty", TritonError.INVALID_ARG)
    sender = ask()
    assert (sender.errors, sender.texts) == ([members.refusal], [])


def test_a_client_that_left_stops_the_engine(ask: Callable[..., Client], members: Members) -> None:
    members.waits_for_stop = True
    sender = ask(has_left=True)
    assert members.is_stopped.is_set()
    assert [(error.code(), str(error)) for error in sender.errors] == [(TritonError.CANCELLED, "cancelled")]


def test_a_request_can_be_stopped_by_a_name_that_nobody_guesses(ask: Callable[..., Client], members: Members) -> None:
    ask()
    name, _, client_name = members.names[0].partition(":")
    assert is_stoppable(name)
    assert client_name == "mine"
    assert not is_stoppable("mine")


def test_a_time_limit_of_either_protocol_reaches_the_engine(ask: Callable[..., Client], members: Members) -> None:
    ask(limit=250_000)
    ask(beside={"timeout": 500000})
    over_grpc, over_http = (request for request in members.asked if request.model_name == "peagle")
    assert (over_grpc.timeout, over_grpc.parameters) == (250_000, {})
    assert (over_http.timeout, over_http.parameters) == (0, {"timeout": 500_000})


def test_the_wish_for_error_codes_reaches_every_member_that_may_refuse(
    ask: Callable[..., Client], members: Members
) -> None:
    ask(beside={"peagle_error_codes": True})
    parameters = {request.model_name: request.parameters for request in members.asked}
    assert parameters["preprocessing"] == parameters["peagle"] == {"peagle_error_codes": True}


def test_a_sequence_is_refused_before_any_member_is_asked(ask: Callable[..., Client], members: Members) -> None:
    (error,) = ask(sequence=7, beside={"peagle_error_codes": True}).errors
    assert str(error).startswith("INVALID_ARG: `sequence_id` is not supported")
    assert members.asked == []


@pytest.mark.parametrize(("text", "accumulates"), [("true", True), ("false", False), ("${accumulate_tokens}", False)])
def test_a_placeholder_that_nobody_filled_is_false(text: str, accumulates: bool) -> None:
    assert read_accumulates({"parameters": {"accumulate_tokens": {"string_value": text}}}) is accumulates


def test_an_error_before_any_response_stays_an_error(members: Members) -> None:
    caller = Sender()
    sender = MemberSender(caller)
    response = failure()
    sender.send(response, flags=FINAL)
    assert caller.sent == [(response, FINAL)]


def test_an_error_after_a_response_travels_in_the_outputs(members: Members) -> None:
    caller = Sender()
    sender = MemberSender(caller)
    sender.send(answered({}), flags=0)
    sender.send(failure(), flags=FINAL)
    response, flags = caller.sent[1]
    assert flags == FINAL
    assert {name: array.item() for name, array in response.arrays.items()} == {
        "finish_reason": b"error",
        "text_output": b"UNAVAILABLE:out of memory",
    }


def test_an_error_after_a_response_keeps_its_code_to_the_client(ask: Callable[..., Client], members: Members) -> None:
    piece = answered({"output_ids": shaped([97], "INT32"), "sequence_length": shaped([1], "INT32")})

    def generate(request: Any) -> Iterator[Any]:
        caller = Sender()
        sender = MemberSender(caller)
        sender.send(piece)
        sender.send(failure(), flags=FINAL)
        return iter([piece, answered(caller.sent[1][0].arrays)])

    members.generate = generate  # type: ignore[method-assign]
    sender = ask()
    (error,) = sender.errors
    assert (sender.texts, error.code(), str(error)) == (["a"], TritonError.UNAVAILABLE, "out of memory")


def test_a_code_that_is_none_of_ours_is_internal(members: Members) -> None:
    caller = Sender()
    sender = MemberSender(caller)
    sender.send(answered({}), flags=0)
    sender.send(failure("not found"), flags=FINAL)
    assert caller.sent[1][0].arrays["text_output"].item() == b"INTERNAL:out of memory"
