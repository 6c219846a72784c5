"""Meters: a folder like the kernel's, and counters that start again."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from peagle_trt.bench.energy import Meter, find_nvml_meters, find_rapl_meters, joules_between, read_all


def make_zone(folder: Path, zone: str, name: str, microjoules: str) -> Path:
    path = folder / zone
    path.mkdir()
    (path / "name").write_text(name + "\n")
    (path / "energy_uj").write_text(microjoules)
    (path / "max_energy_range_uj").write_text("5000000\n")
    return path


def test_whole_processors_are_metered_and_their_parts_are_not(tmp_path: Path) -> None:
    zone = make_zone(tmp_path, "intel-rapl:0", "package-0", "1000000\n")
    make_zone(tmp_path, "intel-rapl:0:0", "core", "900000\n")
    meters = find_rapl_meters(tmp_path)
    assert [meter.name for meter in meters] == ["package-0"]
    before = read_all(meters)
    (zone / "energy_uj").write_text("3500000\n")
    assert joules_between(meters, before, read_all(meters)) == {"package-0": 2.5}


def test_a_counter_that_started_again_is_followed(tmp_path: Path) -> None:
    zone = make_zone(tmp_path, "intel-rapl:0", "package-0", "4500000\n")
    meters = find_rapl_meters(tmp_path)
    before = read_all(meters)
    (zone / "energy_uj").write_text("500000\n")
    assert joules_between(meters, before, read_all(meters)) == {"package-0": 1.0}


def test_what_cannot_be_read_is_no_meter(tmp_path: Path) -> None:
    make_zone(tmp_path, "intel-rapl:0", "package-0", "no number\n")
    (tmp_path / "intel-rapl:1").mkdir()
    assert find_rapl_meters(tmp_path) == ()
    assert find_rapl_meters(tmp_path / "missing") == ()


def test_without_meters_nothing_is_said() -> None:
    no_meters: tuple[Meter, ...] = ()
    assert joules_between(no_meters, read_all(no_meters), read_all(no_meters)) == {}


class FakeNvml:
    """A driver with two GPUs, of which the second counts no energy."""

    def __init__(self) -> None:
        self.millijoules = 5_000

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, device: Any) -> int:
        device._obj.value = 100 + index
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, device: Any, energy: Any) -> int:
        if device.value == 101:
            return 3
        energy._obj.value = self.millijoules
        return 0


def test_a_gpu_that_counts_is_metered(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    meters = find_nvml_meters()
    assert [meter.name for meter in meters] == ["gpu-0"]
    before = read_all(meters)
    library.millijoules = 12_500
    assert joules_between(meters, before, read_all(meters)) == {"gpu-0": 7.5}


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert find_nvml_meters() == ()
