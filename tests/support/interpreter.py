"""Triton's interpreter in a process of its own: it is chosen when a kernel is defined, for the whole process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from typing import Any

import numpy as np

from tests.support.plugin_cases import DraftCase, SelectCase


class Interpreter:
    """Runs cases one after the other; `close` ends the process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.interpreter"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TRITON_INTERPRET": "1"},
        )

    def run(self, case: DraftCase | SelectCase) -> list[np.ndarray]:
        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump(case, self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        assert not isinstance(answer, str), answer
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=30)


def _answer(case: Any) -> list[np.ndarray] | str:
    from peagle_trt_plugins import triton_launch
    from tests.support.plugin_torch import call

    try:
        return call(triton_launch, case)
    except Exception:
        return traceback.format_exc()


def _serve() -> None:
    while True:
        try:
            case = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(_answer(case), sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
