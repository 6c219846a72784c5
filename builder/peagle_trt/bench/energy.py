"""Meters of energy that can be read here: Intel's and AMD's RAPL counters, and NVIDIA's through NVML."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

POWERCAP_PATH = Path("/sys/class/powercap")
NVML_LIBRARY = "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """A counter of energy.

    Attributes:
        name: Such as "package-0" or "gpu-0".
        read_joules: What it shows now.
        wraps_at_joules: Where it starts again from 0; 0 for a counter that never does.
    """

    name: str
    read_joules: Callable[[], float]
    wraps_at_joules: float = 0.0


def find_meters() -> tuple[Meter, ...]:
    """All that can be read here; none in most virtual machines, and RAPL needs root on most others."""
    return (*find_rapl_meters(POWERCAP_PATH), *find_nvml_meters())


def find_rapl_meters(folder: Path) -> tuple[Meter, ...]:
    """Whole processors; their parts would be counted twice.

    Source: Linux, `Documentation/power/powercap/powercap.rst`: `energy_uj` counts microjoules up to
        `max_energy_range_uj`.
    """
    meters = []
    for zone in sorted(folder.glob("*-rapl:*")):
        # A part of a processor is called `intel-rapl:0:0`.
        if zone.name.count(":") != 1:
            continue
        try:
            name = (zone / "name").read_text(encoding="ascii").strip()
            _microjoules(zone / "energy_uj")
            wraps_at = _microjoules(zone / "max_energy_range_uj")
        except (OSError, ValueError):
            continue
        meters.append(Meter(name=name, read_joules=_rapl_reader(zone / "energy_uj"), wraps_at_joules=wraps_at))
    return tuple(meters)


def find_nvml_meters() -> tuple[Meter, ...]:
    """GPUs, through the driver's own library.

    Source: NVIDIA's NVML reference, `nvmlDeviceGetTotalEnergyConsumption`: millijoules since the driver was loaded,
        on Volta and newer.
    """
    try:
        library = ctypes.CDLL(NVML_LIBRARY)
    except OSError:
        return ()
    count = ctypes.c_uint()
    if library.nvmlInit_v2() != 0 or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return ()
    meters = []
    for index in range(count.value):
        device = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != 0:
            continue
        if library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(ctypes.c_ulonglong())) == 0:
            meters.append(Meter(name=f"gpu-{index}", read_joules=_nvml_reader(library, device)))
    return tuple(meters)


def read_all(meters: tuple[Meter, ...]) -> dict[str, float]:
    """What every meter shows now, in joules."""
    return {meter.name: meter.read_joules() for meter in meters}


def joules_between(
    meters: tuple[Meter, ...], before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, float]:
    """Energy between two readings; a counter may have started again once."""
    used = {}
    for meter in meters:
        difference = after[meter.name] - before[meter.name]
        used[meter.name] = difference + meter.wraps_at_joules if difference < 0 else difference
    return used


def _microjoules(path: Path) -> float:
    return int(path.read_text(encoding="ascii")) / 1e6


def _rapl_reader(path: Path) -> Callable[[], float]:
    return lambda: _microjoules(path)


def _nvml_reader(library: ctypes.CDLL, device: ctypes.c_void_p) -> Callable[[], float]:
    def read() -> float:
        millijoules = ctypes.c_ulonglong()
        library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules))
        return millijoules.value / 1e3

    return read
