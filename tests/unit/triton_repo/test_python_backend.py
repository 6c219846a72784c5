from __future__ import annotations

import numpy as np
import pytest

from peagle_trt_repo.python_backend import require_working_numpy


@pytest.fixture
def numpy_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "__version__", "2.2.6")


@pytest.mark.usefixtures("numpy_2")
def test_numpy_2_is_refused_in_an_old_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_TRITON_SERVER_VERSION", "24.10")
    with pytest.raises(RuntimeError, match="numpy<2"):
        require_working_numpy()


@pytest.mark.usefixtures("numpy_2")
@pytest.mark.parametrize("release", ["24.11", "26.09"])
def test_numpy_2_is_taken_in_a_newer_one(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setenv("NVIDIA_TRITON_SERVER_VERSION", release)
    require_working_numpy()


def test_numpy_1_is_taken_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "__version__", "1.26.4")
    monkeypatch.setenv("NVIDIA_TRITON_SERVER_VERSION", "24.10")
    require_working_numpy()


@pytest.mark.usefixtures("numpy_2")
def test_a_parent_whose_program_is_hidden_is_not_the_old_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVIDIA_TRITON_SERVER_VERSION", raising=False)
    monkeypatch.setattr("os.getppid", lambda: 0)
    require_working_numpy()
