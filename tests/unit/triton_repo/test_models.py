"""The `model.py` files of a repository, without a server."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pytest


def load_model(folder: str) -> Any:
    """The model of a folder, as the server makes one."""
    source = (resources.files("peagle_trt_repo") / "models" / folder / "1" / "model.py").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "model"}
    exec(compile(source, folder, "exec"), namespace)
    return namespace["TritonPythonModel"]()


class Host:
    def __init__(self) -> None:
        self.taken: list[Any] = []

    def accept(self, request: Any) -> None:
        self.taken.append(request)


@pytest.mark.parametrize("folder", ["peagle", "tensorrt_llm_bls"])
def test_a_decoupled_model_takes_every_request_and_returns_nothing(folder: str) -> None:
    model = load_model(folder)
    model.host = Host()
    assert model.execute(["a", "b"]) is None
    assert model.host.taken == ["a", "b"]
