"""Reads out of a server's log why it did not start."""

from __future__ import annotations

import re
from pathlib import Path

MAX_REASONS = 6

_REASON = re.compile(r"^E\d{4} |^error: |^\[libprotobuf|pb_stub\.cc")
# A machine without a GPU always logs these; they say nothing about the failure.
_NOISE = re.compile(
    r"CudaDriverHelper|unable to create stream|DCGM|NVML|pinned system memory|pinned_memory|cuda_memory|CUDA memory"
    # These repeat the fault of a member, or of the line before.
    r"|which has no loaded version|Failed to create instance|Failed to initialize Python stub|failed to load all models"
)
_PREFIX = re.compile(r"^[EWI]\d{4} [\d:.]+ \d+ [\w.]+:\d+\] *")
HANG = "Python model file not found"
"""The server would wait for this model for ever. Source: triton-inference-server/server#8766."""


def failure_reasons(log_path: Path) -> list[str]:
    """The last lines of a log that name a fault, cleaned of time stamps; the log's last line when none does."""
    lines = _lines(log_path)
    reasons = [_clean(line) for line in lines if _REASON.search(line) and not _NOISE.search(line)]
    distinct = list(dict.fromkeys(reason for reason in reasons if reason))
    return distinct[-MAX_REASONS:] or lines[-1:]


def will_hang(log_path: Path) -> bool:
    """Whether a model without a model.py keeps the server from ever getting ready."""
    return any(HANG in line for line in _lines(log_path))


def _clean(line: str) -> str:
    # A Python traceback follows in the same line.
    return _PREFIX.sub("", line).split(r"\n\nAt:")[0].strip().strip('"')


def _lines(log_path: Path) -> list[str]:
    if not log_path.is_file():
        return []
    return log_path.read_text(encoding="utf-8", errors="replace").splitlines()
