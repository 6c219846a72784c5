"""A grammar over a model that speaks in harmony's channels: gpt-oss in miniature, with the whole of its vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest

from peagle_trt.deploy.ports import choose_ports
from peagle_trt.deploy.repository import assemble_repository
from peagle_trt.deploy.server import TritonServer
from peagle_trt.openai_door.app import make_app
from peagle_trt.openai_door.listener import DoorListener, bind
from peagle_trt.openai_door.opening import describe
from peagle_trt.openai_door.settings import DoorSettings
from tests.support.harmony_vocabulary import bytewise_tokenizer, vocabulary
from tests.support.models import save_drafter, save_target

VOCAB_SIZE = 201_088
TURNS: Any = [{"role": "user", "content": "Is the sky blue?"}]
ASK: dict[str, Any] = {"model": "target", "messages": TURNS, "temperature": 0, "max_tokens": 24}


def save_gpt_oss(folder: Path) -> None:
    """A target that goes on with `<|channel|>final` after `assistant`, whatever came before, and then with anything."""
    import torch

    model = save_target(
        folder, "GptOssForCausalLM", vocab_size=VOCAB_SIZE, initializer_range=0.02, eos_token_id=200_002
    )
    tokenizer = bytewise_tokenizer(vocabulary())
    chain = [tokenizer.token_to_id(token) for token in ("assistant", "<|channel|>", "final", "<|message|>")]
    with torch.no_grad():
        # What a token's own state points at comes next: the layers add little to a state that is large.
        for index, (token, following) in enumerate(pairwise(chain)):
            direction = torch.zeros(model.config.hidden_size)
            direction[index] = 1.0
            model.model.embed_tokens.weight[token] = 200.0 * direction
            model.lm_head.weight[following] = 10.0 * direction
        model.model.norm.weight.fill_(1.0)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    from peagle_trt.cli.main import run

    folder = tmp_path_factory.mktemp("harmony")
    save_gpt_oss(folder / "target")
    save_drafter(folder / "head", vocab_size=VOCAB_SIZE, draft_vocab_size=VOCAB_SIZE, mask_token_id=200_100)
    arguments = ["--target", str(folder / "target"), "--drafter", str(folder / "head"), "-k", "3"]
    assert run(["--quiet", "build", *arguments, "-o", str(folder / "build")]) == 0
    repository = assemble_repository(folder / "build", folder / "repository").path
    settings = DoorSettings(port=choose_ports().http)
    with TritonServer(repository, choose_ports(), log_path=folder / "tritonserver.log") as server:
        served = describe(folder / "build", grpc_port=server.ports.grpc, is_alive=lambda: True)
        with DoorListener(make_app(served, settings), settings, bind(settings)):
            yield openai.OpenAI(base_url=f"http://127.0.0.1:{settings.port}/v1", api_key="none", max_retries=0)


def test_the_content_follows_the_grammar_and_the_channels_do_not(client: openai.OpenAI) -> None:
    guide = {"structured_outputs": {"choice": ["yes", "no"]}}
    answer = client.chat.completions.create(**ASK, extra_body=guide).choices[0]
    assert answer.message.content in ("yes", "no")
    assert answer.finish_reason == "stop"


def test_a_stream_of_it_is_the_same(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"blue": {"type": "boolean"}}, "required": ["blue"]}
    form = {"type": "json_schema", "json_schema": {"name": "sky", "schema": {**schema, "additionalProperties": False}}}
    whole = client.chat.completions.create(**ASK, response_format=form).choices[0]
    pieces = list(client.chat.completions.create(**ASK, response_format=form, stream=True))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole.message.content
    assert whole.message.content is not None
    assert "".join(whole.message.content.split()) in ('{"blue":true}', '{"blue":false}')
