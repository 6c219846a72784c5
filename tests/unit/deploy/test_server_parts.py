from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from peagle_trt.deploy import installation, ports, server_log, shared_memory
from peagle_trt.errors import MachineError

LOG = r"""
I1129 16:06:34.8 5850 model_lifecycle.cc:469] "loading: peagle:1"
W1129 16:06:34.8 5850 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory"
E1129 16:06:34.8 5850 cuda_memory_manager.cc:40] "CudaDriverHelper has not been initialized."
E1129 16:06:34.9 5850 backend_model.cc:692] "ERROR: Failed to create instance: UsageError: no build\n\nAt:\n  x.py\n"
E1129 16:06:34.9 5850 model_lifecycle.cc:642] "failed to load 'peagle' version 1: UsageError: no build\n\nAt:\n  x.py\n"
error: creating server: Internal - failed to load all models
"""


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shared_memory, "SHARED_MEMORY_PATH", tmp_path)
    return tmp_path


def test_the_reason_of_a_failed_start_is_the_one_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG)
    assert server_log.failure_reasons(tmp_path / "log") == ["failed to load 'peagle' version 1: UsageError: no build"]


def test_a_log_without_a_reason_gives_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("first\nlast\n")
    assert server_log.failure_reasons(tmp_path / "log") == ["last"]


def test_a_missing_log_gives_no_reason(tmp_path: Path) -> None:
    assert server_log.failure_reasons(tmp_path / "log") == []


def test_free_ports_are_three_different_ones() -> None:
    chosen = ports.choose_ports()
    assert len({chosen.http, chosen.grpc, chosen.metrics}) == 3


def test_a_taken_port_is_named_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(MachineError, match=f"grpc port `{port}`"):
            ports.choose_ports(grpc=port)


def test_regions_of_a_dead_starter_are_swept_and_those_of_a_living_one_stay(shm: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (shm / f"peagle-{dead.pid}-0123abcd_region_1").touch()
    (shm / f"peagle-{os.getpid()}-0123abcd_region_1").touch()
    (shm / "somebody_else").touch()
    assert shared_memory.sweep_stale_regions() == 1
    assert sorted(entry.name for entry in shm.iterdir()) == [f"peagle-{os.getpid()}-0123abcd_region_1", "somebody_else"]


def test_the_sweep_knows_the_names_that_are_given(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shm / f"{shared_memory.new_prefix()}region").touch()
    monkeypatch.setattr(shared_memory, "is_process_alive", lambda pid: pid != os.getpid())
    assert shared_memory.sweep_stale_regions() == 1


def test_regions_of_another_server_of_ours_stay(shm: Path) -> None:
    first, second = shared_memory.new_prefix(), shared_memory.new_prefix()
    (shm / f"{first}a").touch()
    (shm / f"{second}a").touch()
    shared_memory.remove_regions(first)
    assert [entry.name for entry in shm.iterdir()] == [f"{second}a"]


def test_numpy_2_is_refused_for_the_embedded_server_and_taken_for_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    monkeypatch.setattr(np, "__version__", "2.1.0")
    path = Path("/nowhere")
    with pytest.raises(MachineError, match=r"numpy 2\.1\.0"):
        installation.require_numpy_1(
            installation.ServerInstallation(binary_path=path, origin="nvidia-pytriton", embedded_root=path)
        )
    installation.require_numpy_1(installation.ServerInstallation(binary_path=path, origin="PATH", embedded_root=None))


def test_a_server_on_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = tmp_path / "tritonserver"
    server.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert installation.find_server().binary_path == server


def test_a_python_without_a_stub_is_told_which_ones_there_are(tmp_path: Path) -> None:
    (tmp_path / "python_backend_stubs/2.6").mkdir(parents=True)
    embedded = installation.ServerInstallation(binary_path=tmp_path, origin="x", embedded_root=tmp_path)
    with pytest.raises(MachineError, match=r"Python 2\.6"):
        installation.find_stub(embedded)
