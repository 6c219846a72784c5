"""The script that proves a build on a GPU, as far as it can be run without one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from peagle_trt import catalog, pipeline
from peagle_trt.errors import PlanError
from peagle_trt.spec import BuildSpec
from tests.support.fake_trtllm import FakeLLM, installed

SCRIPT = Path(__file__).parents[3] / "scripts" / "trtllm_check.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("trtllm_check", SCRIPT)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def build_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    entry, path = catalog.find_entry("tiny"), tmp_path_factory.mktemp("check") / "build"
    target = catalog.target_path(entry)
    pipeline.build(
        BuildSpec(
            name="tiny",
            target_path=target,
            drafter_path=catalog.drafter_path(entry),
            tokenizer_path=target,
            output_path=path,
            backend="trtllm",
            precision="auto",
            max_sequence_length=512,
        )
    )
    return path


@pytest.mark.parametrize("release", ["1.2.1", "1.4"])
def test_both_modes_load_what_the_build_says(script: Any, build_path: Path, release: str) -> None:
    options = {"num_prompts": 5, "max_tokens": 4, "concurrency": 2}
    with installed(release):
        plain, drafted = (script.run_mode(build_path, drafts=drafts, **options) for drafts in (False, True))
    without, within = (engine.arguments for engine in FakeLLM.started[-2:])
    assert "speculative_config" not in without
    key = "speculative_model_dir" if release == "1.2.1" else "speculative_model"
    assert within["speculative_config"][key] == str(build_path / "drafter")
    assert within["model"] == str(build_path / "target")
    document = script.compare(plain, drafted)
    assert (document["num_answers"], document["num_equal"], document["first_differences"]) == (5, 5, [])
    assert document["acceptance_length"] is None


@pytest.mark.parametrize(("left", "right", "place"), [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 3], 1)])
def test_the_first_difference_is_found(script: Any, left: list[int], right: list[int], place: int | None) -> None:
    assert script.first_difference(left, right) == place


def test_without_the_container_it_says_what_is_missing(build_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(build_path)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 3
    assert "TensorRT-LLM is not installed" in finished.stderr


@pytest.mark.parametrize("text", [None, "a: [1", "speculative_config: 7", "max_batch_size: 8", "[]"])
def test_damaged_settings_are_named(script: Any, tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config-1.4.yaml").write_text(text)
    with pytest.raises(PlanError, match=r"cannot read .*config-1\.4\.yaml"):
        script.read_arguments(tmp_path, "1.4", drafts=True)


@pytest.mark.parametrize("option", ["--num-prompts", "--max-tokens", "--concurrency"])
def test_a_measurement_of_nothing_is_refused(script: Any, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.parse(["build", option, "0"])
    assert "0 is not in the range x>=1" in capsys.readouterr().err


def test_a_python_without_our_packages_is_named(build_path: Path) -> None:
    # Without `site` nothing that pip installed is found.
    command = [sys.executable, "-S", str(SCRIPT), str(build_path)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 3
    assert "has no `msgspec`" in finished.stderr
