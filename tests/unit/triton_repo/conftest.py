from __future__ import annotations

from typing import Any

import pytest

from tests.support import fake_triton


@pytest.fixture
def pb_utils(monkeypatch: pytest.MonkeyPatch) -> Any:
    return fake_triton.install(monkeypatch)
