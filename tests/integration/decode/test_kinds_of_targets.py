"""Targets with windows, sinks, experts and packed weights: built, verified, decoded as transformers decodes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from peagle_trt.decode.session import LoadedBuild, generate, open_build
from peagle_trt.engine import ort_graph
from peagle_trt.engine.onnxruntime import OnnxRuntimeEngine
from tests.support.checkpoints import save_byte_tokenizer
from tests.support.models import save_drafter, save_target
from tests.support.quantized import FORMS, quantize_folder, to_mxfp4

MAX_TOKENS = 40
SETTINGS: dict[str, Any] = {"eos_token_id": 298}
TEXTS = ("a", "A text that is longer than any window.", "Mixed lengths, " * 5)


@dataclass(frozen=True)
class Built:
    """A build, and the folder that transformers reads the same numbers from."""

    path: Path
    plain: Path


def make_gpt_oss(folder: Path) -> Path:
    save_target(folder, "GptOssForCausalLM", **SETTINGS)
    return folder


def make_gpt_oss_mxfp4(folder: Path) -> Path:
    save_target(folder, "GptOssForCausalLM", seed=2, **SETTINGS)
    to_mxfp4(folder, folder.with_name("plain"))
    return folder.with_name("plain")


def make_qwen3_moe(folder: Path) -> Path:
    save_target(folder, "Qwen3MoeForCausalLM", **SETTINGS)
    return folder


def make_qwen3_moe_nvfp4(folder: Path) -> Path:
    save_target(folder, "Qwen3MoeForCausalLM", seed=3, **SETTINGS)
    quantize_folder(folder, folder.with_name("plain"), FORMS["modelopt_nvfp4"])
    return folder.with_name("plain")


def make_mistral(folder: Path) -> Path:
    save_target(folder, "MistralForCausalLM", sliding_window=9, **SETTINGS)
    return folder


MAKERS = (make_gpt_oss, make_gpt_oss_mxfp4, make_qwen3_moe, make_qwen3_moe_nvfp4, make_mistral)


@pytest.fixture(scope="module", params=MAKERS, ids=[make.__name__.removeprefix("make_") for make in MAKERS])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    from peagle_trt.cli.main import run

    folder = tmp_path_factory.mktemp("kinds")
    plain = request.param(folder / "target")
    save_byte_tokenizer(folder / "target")
    save_drafter(folder / "head")
    arguments = ["--target", str(folder / "target"), "--drafter", str(folder / "head"), "-k", "4"]
    assert run(["--quiet", "build", *arguments, "-o", str(folder / "build")]) == 0
    return Built(path=folder / "build", plain=plain)


@pytest.fixture(scope="module")
def loaded_kind(built: Built) -> Iterator[LoadedBuild]:
    loaded = open_build(built.path, num_threads=1)
    yield loaded
    loaded.engine.close()


def test_a_build_verifies_by_itself(built: Built) -> None:
    from peagle_trt.cli.main import run

    assert run(["--quiet", "verify", str(built.path)]) == 0


def test_greedy_decoding_is_what_transformers_generates(built: Built, loaded_kind: LoadedBuild) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(built.plain, dtype=torch.float32, attn_implementation="eager")
    requests = [loaded_kind.request(text, max_tokens=MAX_TOKENS) for text in TEXTS]
    for text, answer in zip(TEXTS, generate(loaded_kind, requests), strict=True):
        ids = torch.tensor([loaded_kind.tokenizer.encode(text)])
        with torch.no_grad():
            full = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False, pad_token_id=0
            )
        expected = [token for token in full[0, ids.shape[1] :].tolist() if token != SETTINGS["eos_token_id"]]
        assert list(answer.token_ids) == expected


def test_speculation_changes_no_token(loaded_kind: LoadedBuild) -> None:
    requests = [loaded_kind.request(text, max_tokens=MAX_TOKENS) for text in TEXTS]
    alone = generate(loaded_kind, [replace(request, draft_tokens=0) for request in requests])
    together = generate(loaded_kind, requests)
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]


def test_plain_steps_together_change_no_bit(loaded_kind: LoadedBuild, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [
        replace(loaded_kind.request(text, max_tokens=MAX_TOKENS, request_id=text), draft_tokens=0, num_top_log_probs=2)
        for text in TEXTS
    ]
    expected = [(answer.token_ids, answer.log_probs) for answer in generate(loaded_kind, requests)]
    monkeypatch.setattr(ort_graph, "STEPS_BEFORE_LOADING", 0)
    found = [(answer.token_ids, answer.log_probs) for answer in generate(loaded_kind, requests)]
    assert all(log_probs for _, log_probs in found)
    assert found == expected
    engine = loaded_kind.engine
    assert isinstance(engine, OnnxRuntimeEngine)
    assert engine._targets._step_graph is not None
