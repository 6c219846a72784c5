"""Commands on catalog entries that come from the hub, against a hub that runs here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from peagle_trt.cli.main import run
from tests.support.hub import FakeHub, serve_hub

MAIN = "from peagle_trt.cli.main import main; main()"
BUILD = ["build", "--target", "gpt-oss-20b"]
WEIGHTS = bytes(range(256)) * 1024
TARGET, DRAFTER = "openai/gpt-oss-20b", "amazon/GPT-OSS-20B-P-EAGLE"


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    drafter = {"config.json": b"{}", "model.safetensors": b"not really"}
    config = json.dumps(CONFIG).encode()
    target = {"config.json": config, "model.safetensors": WEIGHTS, "original/model.safetensors": b"another copy"}
    with serve_hub(FakeHub(repositories={TARGET: target, DRAFTER: drafter})) as served:
        yield served


def start(hub: FakeHub, home: Path, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", MAIN, *words]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def document_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    run(["--json", *words])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_targets_says_what_is_still_to_be_downloaded(empty_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = {entry["name"]: entry for entry in document_of(capsys, "targets")["targets"]}
    assert entries["tiny"]["is_here"]
    assert entries["gpt-oss-120b"]["downloads"] == [
        {"role": "target", "source": "openai/gpt-oss-120b at main", "size_bytes": 65_248_815_744},
        {"role": "drafter", "source": "amazon/gpt-oss-120b-p-eagle at main", "size_bytes": 3_400_000_000},
    ]
    assert run(["targets"]) == 0
    assert "to download: 65.2 GB + 3.4 GB" in capsys.readouterr().out


def test_a_dry_run_says_what_would_be_downloaded(empty_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(capsys, *BUILD, "--dry-run", "--revision", "v2")
    assert (document["ok"], document["is_complete"], document["steps"]) == (True, False, [])
    assert [part["source"] for part in document["downloads"]] == [f"{TARGET} at v2", f"{DRAFTER} at main"]
    assert not empty_cache.exists()


def test_inspect_describes_what_is_not_here(empty_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(capsys, "inspect", "gpt-oss-20b")
    assert (document["kind"], document["is_here"], document["downloads"][0]["role"]) == (
        "catalog entry",
        False,
        "target",
    )
    assert run(["inspect", "gpt-oss-20b"]) == 0
    assert "to download: about 13.8 GB, openai/gpt-oss-20b at main" in capsys.readouterr().out


def test_offline_the_error_holds_every_command(empty_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = document_of(capsys, *BUILD, "--drafter-revision", "v2")["error"]
    assert error["exit_code"] == 3
    for command in (
        f'`hf download {TARGET} --revision main --exclude "*/*" --local-dir gpt-oss-20b`',
        f'`hf download {DRAFTER} --revision v2 --exclude "*/*" --local-dir GPT-OSS-20B-P-EAGLE`',
        "`peagle-trt build --target gpt-oss-20b --target-path gpt-oss-20b --drafter GPT-OSS-20B-P-EAGLE`",
    ):
        assert command in error["hint"]


@pytest.mark.parametrize(
    "words",
    [
        ["build", "--target", "tiny", "--revision", "main"],
        ["build", "--target", "tiny", "--drafter-revision", "main"],
        ["build", "--target", "gpt-oss-20b", "--target-path", ".", "--drafter", ".", "--revision", "main"],
        ["build", "--target", ".", "--drafter", ".", "--drafter-revision", "main"],
        ["inspect", ".", "--revision", "main"],
        ["inspect", "gpt-oss-20b", "--revision", "../../evil"],
    ],
)
def test_a_revision_of_what_has_none_is_wrong_use(words: list[str], empty_cache: Path) -> None:
    assert run(words) == 2


def test_both_parts_are_downloaded_and_then_read(hub: FakeHub, tmp_path: Path) -> None:
    finished = start(hub, tmp_path, *BUILD)
    _, errors = finished.communicate(timeout=60)
    assert finished.returncode == 4, errors
    assert "Traceback" not in errors
    assert f"downloading `{DRAFTER}` at main" in errors
    assert f"downloading `{TARGET}` at main" in errors
    assert not any("original" in path for _, path, _ in hub.requests)


def test_a_model_that_is_not_supported_costs_no_download(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories[TARGET]["config.json"] = b'{"architectures": ["StrangeForCausalLM"]}'
    process = start(hub, tmp_path, *BUILD)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "`StrangeForCausalLM`, which is not supported" in errors
    assert not any(path.endswith("model.safetensors") for _, path, _ in hub.requests if path.startswith(f"/{TARGET}"))


def test_an_interrupted_download_goes_on_later(hub: FakeHub, tmp_path: Path) -> None:
    # The library writes ten million bytes at a time.
    hub.repositories[TARGET]["model.safetensors"] = bytes(32_000_000)
    hub.seconds_a_chunk = 0.02
    first = start(hub, tmp_path, *BUILD)
    partial = wait_for_partial(tmp_path)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "Traceback" not in errors
    kept = partial.stat().st_size
    assert 0 < kept < 32_000_000
    hub.requests.clear()
    hub.seconds_a_chunk = 0.0
    second = start(hub, tmp_path, *BUILD)
    second.communicate(timeout=60)
    assert hub.ranges_of("model.safetensors") == [f"bytes={kept}-"]


def wait_for_partial(home: Path) -> Path:
    folder = home / "hub" / "models--openai--gpt-oss-20b" / "blobs"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in folder.glob("*.incomplete"):
            # Small files come first, and may be caught half way too.
            if path.stat().st_size > 1_000_000:
                return path
        time.sleep(0.01)
    raise AssertionError("nothing arrived")


def test_two_processes_download_each_file_once(hub: FakeHub, tmp_path: Path) -> None:
    hub.seconds_a_chunk = 0.01
    processes = [start(hub, tmp_path, *BUILD) for _ in range(2)]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [4, 4], errors
    asked = [path for method, path, _ in hub.requests if "/resolve/" in path]
    assert len(asked) == len(set(asked))
