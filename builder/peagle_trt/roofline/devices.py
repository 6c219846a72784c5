"""Processors as data: one TOML file each, every constant with its source."""

from __future__ import annotations

import difflib
import tomllib
from importlib import resources
from pathlib import Path

import msgspec

from peagle_trt.errors import UsageError

_OVERHEADS = (
    "layer_overhead_seconds",
    "step_overhead_seconds",
    "request_overhead_seconds",
    "host_pass_seconds",
)


class Constant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number and where it comes from.

    Attributes:
        value: In the unit that its name says.
        source: Datasheet, paper, or the measurement and the figures it was fitted to.
    """

    value: float
    source: str


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One processor, with the software that was measured on it.

    Attributes:
        name: As typed on the command line.
        title: As its maker calls it.
        memory_bytes: Memory that weights and caches can have.
        bandwidth_bytes_per_second: Peak bandwidth of that memory.
        operations_per_second: Peak dense matrix rate by format of the operands; a multiply-add counts two.
        computes_in: Format that operands of a stored format are multiplied in; one that is not named is multiplied in
            itself.
        overlaps: Memory traffic hides behind arithmetic or the reverse, so that the longer of them counts; otherwise
            both add up.
        bandwidth_efficiency: Share of the peak bandwidth that is reached.
        compute_efficiency: Share of the peak rate that is reached.
        layer_overhead_seconds: What a layer of any pass costs beyond bytes and arithmetic: launches, small kernels and
            waiting for the one before.
        step_overhead_seconds: The same of a whole step.
        request_overhead_seconds: The same of every request in a step.
        host_pass_seconds: What the host works for a pass while the device computes; it counts where the device is
            done sooner.
    """

    name: str
    title: str
    memory_bytes: Constant
    bandwidth_bytes_per_second: Constant
    operations_per_second: dict[str, Constant]
    overlaps: bool
    bandwidth_efficiency: Constant
    compute_efficiency: Constant
    layer_overhead_seconds: Constant
    step_overhead_seconds: Constant
    request_overhead_seconds: Constant
    host_pass_seconds: Constant
    computes_in: dict[str, str] = {}

    def memory_seconds(self, size_bytes: float) -> float:
        """Time to read or write that many bytes."""
        return size_bytes / (self.bandwidth_bytes_per_second.value * self.bandwidth_efficiency.value)

    def compute_seconds(self, operations: float, stored_format: str) -> float:
        """Time of that many operations on weights stored in a format."""
        rate = self.operations_per_second[self.computes_in.get(stored_format, stored_format)]
        return operations / (rate.value * self.compute_efficiency.value)


def list_devices() -> tuple[Device, ...]:
    """Every device, by name."""
    return tuple(_read(path) for path in sorted(_folder().glob("*.toml")))


def find_device(name_or_path: str) -> Device:
    """A device by name, or from a TOML file of the same fields.

    Raises:
        UsageError: It is neither, or the file is not such a file.
    """
    if name_or_path.endswith(".toml"):
        return _read(Path(name_or_path))
    names = [path.stem for path in sorted(_folder().glob("*.toml"))]
    if name_or_path not in names:
        close = difflib.get_close_matches(name_or_path, names, n=1)
        hint = f"did you mean `{close[0]}`? " if close else ""
        raise UsageError(
            f"`{name_or_path}` is no known device",
            hint=f"{hint}known: {', '.join(names)}; or give a .toml file with the fields of one of these",
        )
    return _read(_folder() / f"{name_or_path}.toml")


def _folder() -> Path:
    return Path(str(resources.files("peagle_trt.roofline"))) / "devices"


def _read(path: Path) -> Device:
    try:
        device = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Device)
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {(error.strerror or str(error)).lower()}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"`{path}` describes no device: {error}") from error
    _check(device, path)
    return device


def _check(device: Device, path: Path) -> None:
    positive = {
        "memory_bytes": device.memory_bytes,
        "bandwidth_bytes_per_second": device.bandwidth_bytes_per_second,
        "bandwidth_efficiency": device.bandwidth_efficiency,
        "compute_efficiency": device.compute_efficiency,
        **{f"operations_per_second.{name}": rate for name, rate in device.operations_per_second.items()},
    }
    for name, constant in positive.items():
        # Written so that not-a-number is refused as well.
        if not 0 < constant.value < float("inf"):
            raise UsageError(f"`{path}`: `{name}` is {constant.value}; expected a number above 0")
    for name in _OVERHEADS:
        value = getattr(device, name).value
        if not 0 <= value < float("inf"):
            raise UsageError(f"`{path}`: `{name}` is {value}; expected 0 or more")
    for name in ("fp32", "bf16", "fp8", "nvfp4", "mxfp4"):
        if device.computes_in.get(name, name) not in device.operations_per_second:
            raise UsageError(f"`{path}`: nothing says how fast `{name}` is multiplied; see `computes_in`")
