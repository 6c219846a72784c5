"""The model `tensorrt_llm_bls` among members that do what a test tells them to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from peagle_trt_repo.bls import BlsHost, read_accumulates
from peagle_trt_repo.members import STOP_PARAMETER, MemberSender, is_stoppable
from peagle_trt_repo.outputs import shaped

from .conftest import Request, Response, Tensor, TritonError

FINAL = 1


class Sender:
    """A client."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.errors: list[Any] = []
        self.flags: list[int] = []
        self.has_left = False
        self.is_done = threading.Event()

    def send(self, response: Any = None, flags: int = 0) -> None:
        self.flags.append(flags)
        if response is not None and response.error is not None:
            self.errors.append(response.error)
        elif response is not None:
            self.texts.append(response.arrays["text_output"].item().decode())
        if flags == FINAL:
            self.is_done.set()

    def is_cancelled(self) -> bool:
        return self.has_left


class Asked(Request):
    """A request that can be answered."""

    def __init__(self, **arrays: NDArray[np.generic]) -> None:
        super().__init__(**arrays)
        self.sender = Sender()

    def request_id(self) -> str:
        return "mine"

    def get_response_sender(self) -> Sender:
        return self.sender


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


class Failure:
    """A response with an error, as a model makes it."""

    def __init__(self, code: str = TritonError.UNAVAILABLE) -> None:
        self._code = code

    def has_error(self) -> bool:
        return True

    def error(self) -> Any:
        class Error:
            code = staticmethod(lambda: self._code)
            message = staticmethod(lambda: "out of memory")

        return Error()


def answered(arrays: Mapping[str, NDArray[np.generic]], error: TritonError | None = None) -> Any:
    response = Response([Tensor(name, array) for name, array in arrays.items()], error)
    response.has_error = lambda: error is not None  # type: ignore[attr-defined]
    response.output_tensors = lambda: [Tensor(name, array) for name, array in arrays.items()]  # type: ignore[attr-defined]
    # The server's own object has its error behind a call here, and `make_error` hands one over as it is.
    response.error = lambda: error
    return response


@pytest.fixture
def members(pb_utils: ModuleType) -> Members:
    members = Members(["ab", "c"])

    class InferenceRequest:
        def __init__(self, *, inputs: list[Tensor], **fields: Any) -> None:
            self.__dict__ |= fields
            self.arrays = {tensor.name(): tensor.as_numpy() for tensor in inputs}

        def exec(self, decoupled: bool = False) -> Any:
            return members.answer(self)

    pb_utils.InferenceRequest = InferenceRequest  # type: ignore[attr-defined]
    return members


@pytest.fixture
def ask(members: Members) -> Iterator[Callable[..., Sender]]:
    hosts: list[BlsHost] = []

    def ask_one(
        *, accumulates: bool = False, has_left: bool = False, limit: int = 0, sequence: int = 0, beside: str = ""
    ) -> Sender:
        hosts.append(BlsHost(accumulates=accumulates))
        request = Asked(text_input=shaped([b"hi"], "STRING"), max_tokens=shaped([6], "INT32"))
        request.sender.has_left = has_left
        request.timeout = lambda: limit  # type: ignore[method-assign]
        request.correlation_id = lambda: sequence  # type: ignore[method-assign]
        request.parameters = lambda: beside  # type: ignore[method-assign]
        hosts[-1].accept(request)  # type: ignore[arg-type]
        assert request.sender.is_done.wait(5)
        return request.sender

    yield ask_one
    for host in hosts:
        host.close()


def test_pieces_come_as_they_are_and_the_final_flag_after_them(ask: Callable[..., Sender]) -> None:
    sender = ask()
    assert (sender.texts, sender.flags) == (["ab", "c"], [0, 0, FINAL])


def test_accumulated_pieces_repeat_what_came_before(ask: Callable[..., Sender]) -> None:
    assert ask(accumulates=True).texts == ["ab", "abc"]


def test_a_members_refusal_reaches_the_client_as_it_is(ask: Callable[..., Sender], members: Members) -> None:
    members.refusal = TritonError("`text_input` is empty", TritonError.INVALID_ARG)
    sender = ask()
    assert (sender.errors, sender.texts) == ([members.refusal], [])


def test_a_client_that_left_stops_the_engine(ask: Callable[..., Sender], members: Members) -> None:
    members.waits_for_stop = True
    sender = ask(has_left=True)
    assert members.is_stopped.is_set()
    assert [(error.code, str(error)) for error in sender.errors] == [(TritonError.CANCELLED, "cancelled")]


def test_a_request_can_be_stopped_by_a_name_that_nobody_guesses(ask: Callable[..., Sender], members: Members) -> None:
    ask()
    name, _, client_name = members.names[0].partition(":")
    assert is_stoppable(name)
    assert client_name == "mine"
    assert not is_stoppable("mine")


def test_a_time_limit_of_either_protocol_reaches_the_engine(ask: Callable[..., Sender], members: Members) -> None:
    ask(limit=250_000)
    ask(beside='{"timeout": 500000}')
    over_grpc, over_http = (request for request in members.asked if request.model_name == "peagle")
    assert (over_grpc.timeout, over_grpc.parameters) == (250_000, {})
    assert (over_http.timeout, over_http.parameters) == (0, {"timeout": 500_000})


def test_the_wish_for_error_codes_reaches_every_member_that_may_refuse(
    ask: Callable[..., Sender], members: Members
) -> None:
    ask(beside='{"peagle_error_codes": true}')
    parameters = {request.model_name: request.parameters for request in members.asked}
    assert parameters["preprocessing"] == parameters["peagle"] == {"peagle_error_codes": True}


def test_a_sequence_is_refused_before_any_member_is_asked(ask: Callable[..., Sender], members: Members) -> None:
    (error,) = ask(sequence=7, beside='{"peagle_error_codes": true}').errors
    assert str(error).startswith("INVALID_ARG: `sequence_id` is not supported")
    assert members.asked == []


@pytest.mark.parametrize(("text", "accumulates"), [("true", True), ("false", False), ("${accumulate_tokens}", False)])
def test_a_placeholder_that_nobody_filled_is_false(text: str, accumulates: bool) -> None:
    assert read_accumulates({"parameters": {"accumulate_tokens": {"string_value": text}}}) is accumulates


def test_an_error_before_any_response_stays_an_error(members: Members) -> None:
    sent: list[Any] = []
    sender = MemberSender(Recorder(sent))
    failure = Failure()
    sender.send(failure, flags=FINAL)
    assert sent == [(failure, FINAL)]


def test_an_error_after_a_response_travels_in_the_outputs(members: Members) -> None:
    sent: list[Any] = []
    sender = MemberSender(Recorder(sent))
    sender.send(answered({}), flags=0)
    sender.send(Failure(), flags=FINAL)
    response, flags = sent[1]
    assert flags == FINAL
    assert {name: array.item() for name, array in response.arrays.items()} == {
        "finish_reason": b"error",
        "text_output": b"UNAVAILABLE:out of memory",
    }


def test_an_error_after_a_response_keeps_its_code_to_the_client(ask: Callable[..., Sender], members: Members) -> None:
    piece = answered({"output_ids": shaped([97], "INT32"), "sequence_length": shaped([1], "INT32")})

    def generate(request: Any) -> Iterator[Any]:
        sent: list[Any] = []
        sender = MemberSender(Recorder(sent))
        sender.send(piece)
        sender.send(Failure(), flags=FINAL)
        return iter([piece, answered(sent[1][0].arrays)])

    members.generate = generate  # type: ignore[method-assign]
    sender = ask()
    (error,) = sender.errors
    assert (sender.texts, error.code, str(error)) == (["a"], TritonError.UNAVAILABLE, "out of memory")


def test_a_code_that_is_none_of_ours_is_internal(members: Members) -> None:
    sent: list[Any] = []
    sender = MemberSender(Recorder(sent))
    sender.send(answered({}), flags=0)
    sender.send(Failure("not found"), flags=FINAL)
    assert sent[1][0].arrays["text_output"].item() == b"INTERNAL:out of memory"


class Recorder:
    def __init__(self, sent: list[Any]) -> None:
        self._sent = sent

    def send(self, response: Any = None, flags: int = 0) -> None:
        self._sent.append((response, flags))

    def is_cancelled(self) -> bool:
        return False
