"""What `nvidia-smi` prints, taken for GPUs or not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peagle_trt.machine import probe_machine


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("NVIDIA B200, 10.0, 183359, 580.65.06", ("NVIDIA B200", "10.0", 183359 << 20)),
        ("NVIDIA GB10, 12.1, [N/A], 580.95.05", ("NVIDIA GB10", "12.1", 0)),
        ("NVIDIA Odd, [N/A], [N/A], 390.1", None),
        ("Failed to initialize NVML, Driver/library version mismatch, a, b", None),
        ("No devices were found", None),
    ],
)
def test_only_a_line_with_a_compute_capability_is_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, found: tuple[str, str, int] | None
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{line}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    gpus = probe_machine.__wrapped__().gpus
    assert [(gpu.name, gpu.compute_capability, gpu.memory_bytes) for gpu in gpus] == ([found] if found else [])
