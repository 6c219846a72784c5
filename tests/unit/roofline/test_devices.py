"""Devices as data."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from peagle_trt.errors import UsageError
from peagle_trt.roofline import Constant, Device, find_device, list_devices

NAMES = [each.name for each in list_devices()]


def constants(device: Device) -> list[Constant]:
    named = [getattr(device, name) for name in device.__struct_fields__]
    return [each for each in named if isinstance(each, Constant)] + list(device.operations_per_second.values())


def shipped(name: str) -> str:
    return (Path(str(resources.files("peagle_trt.roofline"))) / "devices" / f"{name}.toml").read_text()


def test_the_promised_devices_are_there() -> None:
    assert {"b200", "h200", "rtx-pro-6000", "cpu"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_constant_says_where_it_comes_from(name: str) -> None:
    assert all(len(each.source) > 10 for each in constants(find_device(name)))


@pytest.mark.parametrize("name", NAMES)
def test_no_efficiency_is_above_one(name: str) -> None:
    device = find_device(name)
    assert device.bandwidth_efficiency.value <= 1
    assert device.compute_efficiency.value <= 1


def test_an_unknown_device_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="no known device") as caught:
        find_device("h20")
    assert "did you mean `h200`?" in caught.value.hint


def test_a_file_of_ones_own_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(shipped("h200").replace('name = "h200"', 'name = "mine"'))
    assert find_device(str(path)).name == "mine"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("value = 4.8e12", "value = 0", "bandwidth_bytes_per_second` is 0"),
        ("value = 4.8e12", "value = nan", "bandwidth_bytes_per_second` is nan"),
        ("value = 4.8e12", "value = inf", "bandwidth_bytes_per_second` is inf"),
        ("value = 4.8e12", 'value = "fast"', "describes no device"),
        ("value = 93e-6", "value = -1", "layer_overhead_seconds` is -1"),
        ('mxfp4 = "bf16"', 'mxfp4 = "fp6"', "how fast `mxfp4` is multiplied"),
        ("overlaps = true", "overlap = true", "unknown field `overlap`"),
        ("[memory_bytes]", "[memory_bytes", "describes no device"),
    ],
)
def test_a_file_with_a_fault_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "faulty.toml"
    text = shipped("h200")
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=message):
        find_device(str(path))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        find_device(str(tmp_path / "absent.toml"))
