"""A good head that is described wrongly: the diagnosis must name what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peagle_trt.catalog import drafter_path, find_entry
from peagle_trt.cli.main import run

Damage = Callable[[dict[str, Any]], None]


def wrong_layers(config: dict[str, Any]) -> None:
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 1, 2]


def wrong_residual(config: dict[str, Any]) -> None:
    config["norm_before_residual"] = True


def wrong_base(config: dict[str, Any]) -> None:
    config["rope_theta"] = 100.0


def diagnose(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code = run(["--json", "diagnose", *map(str, words), "--prompts", "gsm8k"])
    return code, json.loads(capsys.readouterr().out)


def damaged_head(folder: Path, damage: Damage) -> Path:
    shutil.copytree(drafter_path(find_entry("tiny")), folder)
    config = json.loads((folder / "config.json").read_text())
    damage(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("damage", "remedy"),
    [
        (wrong_layers, "set `eagle_aux_hidden_state_layer_ids` to [1, 2, 3]"),
        (wrong_residual, "set `norm_before_residual` to false"),
        (wrong_base, "copy the target's rotary settings"),
    ],
)
def test_a_wrong_setting_is_found_and_its_remedy_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Damage, remedy: str
) -> None:
    head = damaged_head(tmp_path / "head", damage)
    code, document = diagnose(capsys, "tiny", head, "--num-prompts", 8, "--max-tokens", 48)
    assert code == 0
    first = document["findings"][0]
    assert (first["kind"], remedy in first["remedy"]) == ("reading", True)


def test_a_good_head_is_found_fine(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = diagnose(capsys, "tiny", "tiny", "--num-prompts", 5, "--max-tokens", 48, "-k", 3)
    assert code == 0
    assert [finding["kind"] for finding in document["findings"]] == ["fine"]
    assert document["readings"][0]["reading"] == "as published"
    assert len(document["readings"][0]["acceptance_by_position"]) == 3


def test_few_steps_give_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = diagnose(capsys, "tiny", "tiny", "--num-prompts", 1, "--max-tokens", 16)
    assert code == 0
    assert [finding["kind"] for finding in document["findings"]] == ["few"]


def test_a_prompt_past_the_targets_reach_is_refused_by_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "many words " * 2000}))
    code = run(["--json", "diagnose", "tiny", "tiny", "--prompts", str(tmp_path / "long.jsonl")])
    document = json.loads(capsys.readouterr().out)
    assert (code, document["error"]["message"].startswith("prompt 1 has ")) == (2, True)


def test_answers_too_short_to_see_every_slot_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = diagnose(capsys, "tiny", "tiny", "--num-prompts", 1, "--max-tokens", 8, "-k", 16)
    assert code == 2
    assert "--max-tokens" in document["error"]["hint"]
