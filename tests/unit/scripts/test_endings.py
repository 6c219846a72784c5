"""How the programs in `scripts/` end: with a line that says what is wrong, and an exit code of `peagle-trt`'s."""

from __future__ import annotations

import errno
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from peagle_trt.cli.script import run_script
from peagle_trt.errors import CheckpointError

SCRIPTS = Path(__file__).parents[3] / "scripts"
ENDS = "    sys.exit(run_script(main))\n"
RUN_ELSEWHERE = {"gpu_check.py", "trtllm_check.py", "peer_worker.py", "vllm_worker.py"}
"""They run in environments of others, where this package may lack what it needs, and end themselves."""

OUT = ["-o", "out"]
NO_CHECKPOINT, NO_BUILD, NO_FILE = "`nowhere` does not exist", "give the folder that `peagle-trt build` wrote", "check"
WRONG_INPUT = {
    "ablations": (["--target", "nowhere", "--data", "nowhere", "--work", "out"], 4, NO_CHECKPOINT),
    "calibrate": (["nowhere", "--recipe", "fp8-kv", "--prompts", "gsm8k", *OUT], 2, "no folder with a config.json"),
    "compare_peers": (["--work", "out", "--target", "nowhere"], 2, "a target of your own needs a drafter"),
    "compare_precisions": (["nowhere"], 2, NO_BUILD),
    "compare_tune": (["nowhere", "nowhere"], 3, NO_FILE),
    "compare_vllm": (["--vllm-python", "x", "--target", "nowhere"], 2, "a target of your own needs a drafter"),
    "make_smollm2_drafter": (
        ["train", "--target", "nowhere", "--data", "nowhere", "--work", "out", "--output", "head"],
        4,
        NO_CHECKPOINT,
    ),
    "make_tiny_pair": (["--gsm8k", "nowhere", "--work", "out"], 3, NO_FILE),
    "measure_cpu": (["drafting", "nowhere"], 2, NO_BUILD),
    "measure_export": (["nowhere", "--recipe", "fp8"], 4, NO_CHECKPOINT),
    "measure_guides": (["nowhere"], 2, NO_BUILD),
    "measure_headline": (["nowhere", *OUT], 2, NO_BUILD),
    "measure_loop": (["nowhere", *OUT], 2, NO_BUILD),
    "measure_quantization": (["nowhere", "nowhere", *OUT], 2, "no folder with a config.json"),
    "measure_steps": (["nowhere", *OUT], 2, NO_BUILD),
    "measure_training": (["features", "--target", "nowhere"], 4, NO_CHECKPOINT),
    "prove_true_size": (["--here", "--work", "nowhere", "--step", "pass"], 4, "target` does not exist"),
    "quickstart": (["--target", "nowhere", "--builds", "out"], 2, "`nowhere` is no known target and no path"),
    "serve_load": (["nowhere"], 2, NO_BUILD),
    "simulate_burst": (["-k", "17"], 2, "`draft_tokens` is 17; expected 0..16"),
    "soak": (["nowhere", "--requests", "1"], 2, NO_BUILD),
    "synthesize_checkpoint": (["gpt-oss-20b", "--num-layers", "1", *OUT], 2, "a target needs 2 layers"),
}
WRONG_WORDS = {
    "ablations": ["--target", "tiny", "--data", "x", "--work", "out", "--aux-layers", "2,x"],
    "compare_peers": ["--work", "out", "--python", "vllm"],
    "compare_vllm": ["--vllm-python", "x", "-k", "0"],
    "make_smollm2_drafter": ["average", "--target", "x", "--data", "x", "--work", "out", "--output", "head"],
    "measure_headline": ["x", *OUT, "-k", "AUTO"],
    "measure_loop": ["x", *OUT, "--turns", "0"],
    "measure_training": ["speed", "--cases", "cached:0"],
    "serve_load": ["x", "--draft-tokens", "AUTO"],
    "soak": ["x", "--clients", "none"],
}


def end(name: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", [name, *words])
    return run_script(importlib.import_module(f"scripts.{name}").main)


def test_every_program_ends_in_the_same_way() -> None:
    programs = {path.name: path.read_text(encoding="utf-8") for path in SCRIPTS.glob("*.py")}
    others = {name for name, text in programs.items() if "\nif __name__ ==" in text and not text.endswith(ENDS)}
    assert others == RUN_ELSEWHERE


@pytest.mark.parametrize("name", WRONG_INPUT)
def test_what_is_missing_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words, code, message = WRONG_INPUT[name]
    monkeypatch.chdir(tmp_path)
    assert end(name, words, monkeypatch) == code
    said = capfd.readouterr().err
    assert "error: " in said and message in said
    assert "Traceback" not in said


@pytest.mark.parametrize("name", WRONG_WORDS)
def test_a_word_that_means_nothing_is_wrong_use(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        end(name, WRONG_WORDS[name], monkeypatch)
    assert f"{name}: error: " in capsys.readouterr().err


@pytest.mark.parametrize("step", ["lengthen", "train", "measure", "average"])
def test_a_step_without_its_folder_is_wrong_use(
    step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        end("make_smollm2_drafter", [step, "--target", "x", "--data", "x", "--work", "out"], monkeypatch)
    assert f"{step} needs --output" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "message"), [("{}", "holds no choices"), ("no JSON", "holds no choices")])
def test_a_file_of_another_kind_is_named(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tune.json").write_text(text)
    (tmp_path / "cells.jsonl").write_text("")
    assert end("compare_tune", [str(tmp_path / "tune.json"), str(tmp_path)], monkeypatch) == 2
    assert message in capsys.readouterr().err


def test_a_choice_that_no_sweep_measured_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tune.json").write_text('{"choices": [{"concurrency": 4, "draft_tokens": 2}]}')
    (tmp_path / "cells.jsonl").write_text("")
    assert end("compare_tune", [str(tmp_path / "tune.json"), str(tmp_path)], monkeypatch) == 2
    assert "no round of 4 requests at K = 2" in capsys.readouterr().err
    (tmp_path / "cells.jsonl").write_text("[]\n")
    assert end("compare_tune", [str(tmp_path / "tune.json"), str(tmp_path)], monkeypatch) == 2
    assert "holds no cells" in capsys.readouterr().err


def raising(error: BaseException) -> Callable[[], None]:
    def program() -> None:
        raise error

    return program


ENDINGS = [
    (lambda: None, 0, ""),
    (lambda: 5, 5, ""),
    (raising(CheckpointError("it is torn", hint="mend it")), 4, "error: it is torn\nhint: mend it\n"),
    (raising(FileNotFoundError(errno.ENOENT, "no", "a/b")), 3, "cannot use `a/b`: a part of the path does not exist"),
    (raising(subprocess.CalledProcessError(3, ["build", "x"])), 1, "error: a program ended with 3: `build x`"),
    (raising(KeyboardInterrupt()), 130, "error: stopped by SIGINT"),
    (raising(MemoryError()), 3, "error: this machine has too little memory"),
    (raising(ZeroDivisionError("by nought")), 70, "please report it"),
]


@pytest.mark.parametrize(("program", "code", "said"), ENDINGS)
def test_an_ending_has_its_code(
    program: Callable[[], int | None], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_script(program) == code
    assert said in capsys.readouterr().err


def test_a_missing_build_ends_a_program_as_it_is_started(tmp_path: Path) -> None:
    roots = [str(SCRIPTS.parent), *(str(SCRIPTS.parent / name) for name in ("builder", "plugins", "triton_repo"))]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.serve_load", "nowhere"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(roots)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: `nowhere` does not exist\nhint: give the folder that `peagle-trt build` wrote\n"
