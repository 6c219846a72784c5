"""`verify` on a build of rounded weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle_trt.cli.main import run
from tests.support.checkpoints import save_byte_tokenizer
from tests.support.models import save_drafter, save_target


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    save_target(folder / "target", tie_word_embeddings=True, initializer_range=0.05)
    save_byte_tokenizer(folder / "target")
    save_drafter(folder / "head")
    words = ["--target", folder / "target", "--drafter", folder / "head", "-o", folder / "build"]
    limits = ["--max-batch-size", "1", "--max-sequence-length", "64"]
    assert run(["-q", "build", *map(str, words), *limits, "--precision", "int4"]) == 0
    return folder / "build"


def test_the_worst_ten_are_shown(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(build)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("weights: ")
    shown = [line.split() for line in lines[2:]]
    errors = [float(words[0]) for words in shown]
    assert len(shown) == 10
    assert errors == sorted(errors, reverse=True)
    assert {words[1] for words in shown} == {"int4"}


def test_json_holds_every_matrix_as_the_build_recorded_it(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", "verify", str(build)]) == 0
    weights = json.loads(capsys.readouterr().out)["weights"]
    assert weights == json.loads((build / "verification.json").read_text())["weights"]
    forms = {(each["model"], each["name"]): each["form"] for each in weights}
    assert forms["target", "layers.5.down_proj"] == forms["drafter", "layers.1.qkv_proj"] == "int4"
    # The tied table is looked up in one form and multiplied with in another.
    assert (forms["target", "embed_tokens"], forms["target", "lm_head"]) == ("bf16", "int8")
