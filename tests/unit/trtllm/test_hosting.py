"""The Triton models of a build for TensorRT-LLM, with stand-ins for the server and for TensorRT-LLM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle_trt.bundle.triton import llmapi_repository
from peagle_trt.errors import PlanError
from peagle_trt.trtllm.hosting.classic import ClassicDoor
from peagle_trt.trtllm.hosting.llmapi import LlmApiHost
from peagle_trt.trtllm.hosting.settings import forget_launcher, read_llm_settings
from tests.support import fake_triton
from tests.support.fake_triton import Request, Response, Tensor
from tests.support.fake_trtllm import FakeLLM, installed

SETTINGS: dict[str, Any] = {
    "model": "../../../target",
    "max_batch_size": 3,
    "kv_cache_config": {"enable_block_reuse": False},
    "speculative_config": {"speculative_model_dir": "../../../drafter"},
}


@pytest.fixture
def pb_utils(monkeypatch: pytest.MonkeyPatch) -> Any:
    return fake_triton.install(monkeypatch)


@pytest.fixture
def host(tmp_path: Path, pb_utils: Any) -> Iterator[LlmApiHost]:
    write_model(tmp_path, SETTINGS)
    with installed("1.2.1"):
        host = LlmApiHost({"model_repository": str(tmp_path / "triton/tensorrt_llm"), "model_version": "1"})
        yield host
        host.close()
        assert FakeLLM.started[-1].is_down


@pytest.fixture
def door(host: LlmApiHost, pb_utils: Any) -> Iterator[ClassicDoor]:
    """The classic door, whose requests reach the host as the server would hand them on."""

    class Inner(Request):
        def __init__(self, *, model_name: str, requested_output_names: list[str], inputs: list[Tensor]) -> None:
            assert model_name == "tensorrt_llm"
            super().__init__(**{tensor.name(): tensor.as_numpy() for tensor in inputs})

        def exec(self, *, decoupled: bool) -> list[Response]:
            assert decoupled
            host.accept(self)
            return [*(response for response, _ in self.sender.wait()), Response([])]

    pb_utils.InferenceRequest = Inner
    door = ClassicDoor()
    yield door
    door.close()


def write_model(folder: Path, settings: dict[str, Any]) -> Path:
    for checkpoint in ("target", "drafter"):
        (folder / checkpoint).mkdir()
    for path, text in llmapi_repository(settings).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder / "triton/tensorrt_llm/1/model.yaml"


def text(value: str) -> Any:
    return np.array([value.encode()], np.object_)


def ask(host: Any, **arrays: Any) -> list[dict[str, Any]]:
    return [
        {name: array.reshape(-1)[0] for name, array in response.arrays.items()}
        for response in responses_of(host, Request(**arrays))
    ]


def error_of(host: Any, **arrays: Any) -> tuple[str, str]:
    error = responses_of(host, Request(**arrays))[-1].error()
    return error.code(), error.message()


def responses_of(host: Any, request: Request) -> list[Response]:
    host.accept(request)
    return [response for response, _ in request.sender.wait()]


def test_paths_mean_the_builds_folder(host: LlmApiHost, tmp_path: Path) -> None:
    arguments = FakeLLM.started[-1].arguments
    assert arguments["model"] == str(tmp_path / "target")
    assert arguments["speculative_config"]["speculative_model_dir"] == str(tmp_path / "drafter")
    assert "triton_config" not in arguments


def test_one_answer_is_one_response(host: LlmApiHost) -> None:
    (answer,) = ask(
        host,
        text_input=text("a b c d"),
        sampling_param_max_tokens=np.array([3], np.int32),
        return_finish_reason=np.array([True]),
    )
    assert (answer["text_output"], answer["finish_reason"]) == (b"a b c", b"length")
    assert (answer["num_input_tokens"], answer["num_output_tokens"]) == (3, 3)


def test_a_stream_repeats_the_text_as_nvidias_model_does(host: LlmApiHost) -> None:
    answers = ask(host, text_input=text("a b c"), streaming=np.array([True]))
    assert [answer["text_output"] for answer in answers] == [b"a", b"a b", b"a b c"]


@pytest.mark.parametrize(
    ("arrays", "code", "message"),
    [
        ({}, "invalid", "`text_input` holds 0 texts"),
        ({"text_input": np.array([b"a", b"b"], np.object_)}, "invalid", "holds 2 texts"),
        ({"text_input": np.array([b"\xff"], np.object_)}, "invalid", "UTF-8"),
        ({"text_input": text("a"), "sampling_param_best_of": np.array([2])}, "invalid", "sampling_param_best_of"),
        ({"text_input": text("a"), "sampling_param_top_k": np.array([2, 3])}, "invalid", "holds 2 values"),
        ({"text_input": text("fail")}, "internal", "the engine broke"),
    ],
)
def test_a_fault_is_answered(host: LlmApiHost, arrays: dict[str, Any], code: str, message: str) -> None:
    found = error_of(host, **arrays)
    assert found[0] == code
    assert message in found[1]


@pytest.mark.parametrize("kind", ["host", "door"])
@pytest.mark.parametrize(
    ("beside", "limit", "sequence", "name"),
    [
        ({"timeout": 5}, 0, 0, "timeout"),
        ({}, 5, 0, "timeout"),
        ({"priority": 2}, 0, 0, "priority"),
        ({}, 0, 7, "sequence_id"),
        ({"sequence_end": True}, 0, 0, "sequence_end"),
        ({"temprature": 0.5}, 0, 0, "temprature"),
    ],
)
def test_what_comes_beside_the_tensors_is_refused_by_name(
    request: pytest.FixtureRequest, kind: str, beside: dict[str, object], limit: int, sequence: int, name: str
) -> None:
    asked = Request(text_input=text("a b")[None], max_tokens=np.array([[2]], np.int32))
    asked.beside, asked.limit_microseconds, asked.sequence = beside | {"peagle_error_codes": True}, limit, sequence
    message = responses_of(request.getfixturevalue(kind), asked)[-1].error().message()
    assert message.startswith(f"INVALID_ARG: `{name}` is n")


def test_a_client_that_left_stops_the_answer(host: LlmApiHost) -> None:
    request = Request(text_input=text("a b c d e"), streaming=np.array([True]))
    request.sender.leaves_after = 2
    responses = responses_of(host, request)
    assert len(responses) == 3
    assert responses[-1].error().code() == "cancelled"


def test_a_classic_client_gets_the_prompt_and_the_answer(door: ClassicDoor) -> None:
    (answer,) = ask(door, text_input=text("x y z")[None], max_tokens=np.array([[2]], np.int32))
    assert answer["text_output"] == b"x y zx y"
    assert (answer["num_output_tokens"], answer["finish_reason"]) == (2, b"length")


def test_a_classic_stream_comes_in_pieces(door: ClassicDoor) -> None:
    pieces = ask(
        door,
        text_input=text("x y z")[None],
        max_tokens=np.array([[9]], np.int32),
        stream=np.array([[True]]),
        stop_words=np.array([[b""]], np.object_),
    )
    assert [piece["text_output"] for piece in pieces] == [b"x", b" y", b" z"]


def test_half_a_character_waits_for_its_other_half(door: ClassicDoor) -> None:
    # What a tokenizer shows of an emoji whose last byte is still to come.
    pieces = ask(
        door, text_input=text("\ufffd \U0001f600")[None], max_tokens=np.array([[9]]), stream=np.array([[True]])
    )
    assert b"".join(piece["text_output"] for piece in pieces).decode().endswith("\U0001f600")


IGNORED = ["repetition_penalty", "min_tokens", "draft_tokens", "prompt_lookup", "bad_words", "beam_width"]


@pytest.mark.parametrize("name", IGNORED)
def test_a_classic_option_that_would_be_ignored_is_refused(door: ClassicDoor, name: str) -> None:
    special = {"bad_words": np.array([[b"no"]], np.object_), "prompt_lookup": np.array([[True]])}
    value = special.get(name, np.array([[3]], np.int32))
    code, message = error_of(door, text_input=text("a")[None], max_tokens=np.array([[2]], np.int32), **{name: value})
    assert code == "invalid"
    assert f"`{name}` is not supported" in message


@pytest.mark.parametrize("name", ["repetition_penalty", "min_tokens", "presence_penalty", "return_log_probs"])
def test_a_classic_option_that_asks_for_nothing_is_harmless(door: ClassicDoor, name: str) -> None:
    value = np.array([[1.0 if name == "repetition_penalty" else 0]], np.float32)
    (answer,) = ask(door, text_input=text("a b")[None], max_tokens=np.array([[2]], np.int32), **{name: value})
    assert answer["text_output"] == b"a ba b"


def test_an_input_of_a_later_release_is_refused_as_well(door: ClassicDoor) -> None:
    arrays = {"text_input": text("a")[None], "max_tokens": np.array([[2]]), "guided_json": text("{}")[None]}
    assert "`guided_json` is not supported" in error_of(door, **arrays)[1]


def test_a_fault_behind_the_door_reaches_the_client(door: ClassicDoor) -> None:
    assert error_of(door, text_input=text("fail")[None], max_tokens=np.array([[2]]))[1] == "the engine broke"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_cache_config": {"enable_block_reuse": True}}, "enable_block_reuse` is on"),
        ({"kv_cache_config": {"dtype": "fp8"}}, "enable_block_reuse` is on"),
        ({"speculative_config": 3}, "no section `speculative_config`"),
        ({"speculative_config": {"max_draft_len": 5}}, "names no head"),
        ({"speculative_config": {"speculative_model": "../elsewhere"}}, "`speculative_model` is '../elsewhere', which"),
        ({"model": "../elsewhere"}, "`model` is '../elsewhere', which is no folder"),
        ({"model": ""}, "`model` is '', which is no folder"),
        ({"max_batch_size": 0}, "`max_batch_size` is 0; expected a number from 1 on"),
        ({"max_batch_size": "3"}, "`max_batch_size` is '3'"),
        ({"max_batch_size": True}, "`max_batch_size` is True"),
    ],
)
def test_settings_that_cannot_be_served_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_model(tmp_path, SETTINGS | changes)
    with pytest.raises(PlanError, match=message):
        read_llm_settings(path)


def test_damaged_settings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text("a: [1")
    with pytest.raises(PlanError, match="cannot read"):
        read_llm_settings(tmp_path / "model.yaml")


def test_the_launchers_traces_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "OMPI_MCA_orte_x", "OMPI_MCA_btl"):
        monkeypatch.setenv(name, "1")
    forget_launcher()
    assert "OMPI_MCA_btl" in os.environ
    assert not {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "OMPI_MCA_orte_x"} & set(os.environ)


@pytest.mark.parametrize(("folder", "attribute"), [("llmapi", "host"), ("classic", "door")])
def test_the_models_hand_requests_over(folder: str, attribute: str) -> None:
    from importlib import resources

    source = (resources.files("peagle_trt_repo") / "models" / folder / "1" / "model.py").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "model"}
    exec(compile(source, folder, "exec"), namespace)
    model, taken = namespace["TritonPythonModel"](), []
    stand_in = type("StandIn", (), {"accept": lambda self, request: taken.append(request), "close": lambda self: None})
    setattr(model, attribute, stand_in())
    assert model.execute(["a", "b"]) is None
    assert taken == ["a", "b"]
    model.finalize()
