from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from peagle_trt.deploy.check import check_repository
from peagle_trt.deploy.repository import assemble_repository
from peagle_trt.errors import UsageError

Damage = Callable[[Path], None]
ENSEMBLE = "ensemble/config.pbtxt"


@pytest.fixture
def repository(build_path: Path, tmp_path: Path) -> Path:
    return assemble_repository(build_path, tmp_path / "repo").path


def _edit(name: str, old: str, new: str) -> Damage:
    def damage(repository: Path) -> None:
        path = repository / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return damage


def _rewire(tensor: str, old: str, new: str) -> Damage:
    """Joins a member's tensor to another tensor of the ensemble."""
    return _edit(ENSEMBLE, f'key: "{tensor}"\n      value: "{old}"', f'key: "{tensor}"\n      value: "{new}"')


def _append(name: str, text: str) -> Damage:
    def damage(repository: Path) -> None:
        with (repository / name).open("a") as file:
            file.write(text)

    return damage


def _remove(name: str) -> Damage:
    def damage(repository: Path) -> None:
        path = repository / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def _spoil(name: str) -> Damage:
    def damage(repository: Path) -> None:
        (repository / name).write_bytes(b"\xff\xfe")

    return damage


CASES: dict[str, tuple[Damage, str, str]] = {
    "no model.py": (_remove("peagle/1/model.py"), "peagle", "model.py` is missing"),
    "no version": (_remove("ensemble/1"), "ensemble", "no version folder"),
    "no configuration": (_remove("peagle/config.pbtxt"), "peagle", "`config.pbtxt` is missing"),
    "no build": (_remove("peagle/1/build/manifest.json"), "peagle", "manifest.json` is missing"),
    "broken source": (_append("peagle/1/model.py", "\ndef ("), "peagle", "not valid Python"),
    "another name": (_edit("peagle/config.pbtxt", '"peagle"', '"eagle"'), "peagle", "its folder `peagle`"),
    "no text at all": (_spoil("peagle/config.pbtxt"), "peagle", "cannot be read: 'utf-8' codec"),
    "a spoilt tokenizer": (_spoil("preprocessing/1/build/tokenizer/tokenizer.json"), "preprocessing", "tokenizer"),
    "half an engine": (_spoil("peagle/1/build/engine/target.b8.onnx"), "peagle", "is missing or not of"),
    "no manifest": (_remove("postprocessing/1/build/manifest.json"), "postprocessing", "not a finished build"),
    "no number": (_edit("peagle/config.pbtxt", '"256"', '"NaN"'), "peagle", "`max_pending_requests` is `NaN`"),
    "a placeholder": (_append("peagle/config.pbtxt", "${backend}"), "peagle", "unfilled `${backend}`"),
    "an unknown field": (_append("peagle/config.pbtxt", "max_speed: 9"), "peagle", "max_speed"),
    "a GPU": (_edit("peagle/config.pbtxt", "KIND_CPU", "KIND_GPU"), "peagle", "KIND_GPU"),
    "no backend": (_edit("peagle/config.pbtxt", 'backend: "python"', ""), "peagle", "neither `backend`"),
    "an older input": (_edit("peagle/config.pbtxt", '"top_k"', '"topk"'), "peagle", "assemble the repository again"),
    "a cache": (_append("peagle/config.pbtxt", "response_cache { enable: true }"), "peagle", "response_cache"),
    "an input twice": (_edit("peagle/config.pbtxt", '"top_k"', '"top_p"'), "peagle", "`top_p` is declared twice"),
    "a missing member": (_edit(ENSEMBLE, 'model_name: "peagle"', 'model_name: "beagle"'), "ensemble", "`beagle`"),
    "an unknown input": (_edit(ENSEMBLE, 'key: "QUERY"', 'key: "QUESTION"'), "ensemble", "no input `QUESTION`"),
    "an unknown output": (_edit(ENSEMBLE, 'key: "INPUT_ID"', 'key: "INPUTS"'), "ensemble", "no output `INPUTS`"),
    "an unwritten tensor": (
        _rewire("INPUT_ID", "_INPUT_ID", "_IDS"),
        "ensemble",
        "`_INPUT_ID`, read by `peagle`, is written by nothing",
    ),
    "another type": (
        _edit(ENSEMBLE, '"max_tokens"\n  data_type: TYPE_INT32', '"max_tokens"\n  data_type: TYPE_INT64'),
        "ensemble",
        "tensor `max_tokens` does not fit",
    ),
    "a larger batch": (_edit(ENSEMBLE, "max_batch_size: 1", "max_batch_size: 4"), "ensemble", "`max_batch_size` is 4"),
    "an unused input": (
        _append(ENSEMBLE, 'input { name: "zz" data_type: TYPE_BOOL dims: 1 }'),
        "ensemble",
        "input `zz` is not used",
    ),
    "an unwritten output": (
        _append(ENSEMBLE, 'output { name: "zz" data_type: TYPE_BOOL dims: 1 }'),
        "ensemble",
        "output `zz` is not written",
    ),
    "a branch around the engine": (
        _rewire("SEQUENCE_LENGTH", "_SEQUENCE_LENGTH", "_REQUEST_OUTPUT_LEN"),
        "ensemble",
        "before and after a decoupled member",
    ),
    "a circle": (_rewire("QUERY", "text_input", "text_output"), "ensemble", "wait for one another"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_would_keep_a_repository_from_loading_is_found(repository: Path, name: str) -> None:
    damage, model_name, message = CASES[name]
    damage(repository)
    findings = check_repository(repository)
    assert any(
        finding.is_fatal and finding.model_name == model_name and message in finding.message for finding in findings
    ), findings


def test_what_an_openai_frontend_sends_and_nobody_declares_is_a_note(repository: Path) -> None:
    _edit(ENSEMBLE, '"return_num_input_tokens"', '"return_num_tokens"')(repository)
    notes = [finding for finding in check_repository(repository) if not finding.is_fatal]
    assert ["return_num_input_tokens" in finding.message for finding in notes] == [True]


def test_a_misspelt_parameter_is_a_note(repository: Path) -> None:
    _edit("peagle/config.pbtxt", '"reuse_prefixes"', '"reuse_prefix"')(repository)
    (note,) = check_repository(repository)
    assert (note.is_fatal, "did you mean `reuse_prefixes`?" in note.message) == (False, True)


def test_an_empty_folder_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no models"):
        check_repository(tmp_path / "nothing")
