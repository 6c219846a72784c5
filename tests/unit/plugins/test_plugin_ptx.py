"""How scripts/gpu_check hands a kernel to CUDA's driver, with a driver that only listens."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from peagle_trt_plugins.kernel_launches import Launch
from scripts.plugin_ptx import Driver, PreparedPlugin


class Listener:
    """A driver that notes what it is told; `status` is what every call answers."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.loaded: list[bytes] = []

    def cuModuleLoadData(self, module: Any, image: ctypes.c_char_p) -> int:
        self.loaded.append(image.value or b"")
        return self.status

    def cuModuleGetFunction(self, function: Any, module: ctypes.c_void_p, name: ctypes.c_char_p) -> int:
        self.loaded.append(name.value or b"")
        return self.status

    def cuLaunchKernel(self, function: ctypes.c_void_p, *arguments: Any) -> int:
        *numbers, _stream, pointers, _extra = arguments
        self.numbers = [each.value for each in numbers]
        # One pointer, two integers, one pointer: as the test launches.
        kinds = (ctypes.c_uint64, ctypes.c_int32, ctypes.c_int32, ctypes.c_uint64)
        self.values = [kind.from_address(address).value for kind, address in zip(kinds, pointers, strict=True)]
        return self.status

    def cuGetErrorString(self, status: int, text: Any) -> int:
        text._obj.value = b"invalid argument"
        return 0


def test_a_kernel_is_loaded_by_its_name() -> None:
    listener = Listener()
    Driver(listener).load("ptx text", "a_kernel")
    assert listener.loaded == [b"ptx text", b"a_kernel"]


def test_inputs_integers_and_outputs_arrive_in_tensorrts_order() -> None:
    listener = Listener()
    given, made = torch.zeros(3), torch.zeros(2)
    launch = Launch(grid=(5, 7), scalars=(11, 13))
    plugin = PreparedPlugin(function=ctypes.c_void_p(1), launch=launch, threads=128, shared_bytes=1000, outputs=(made,))
    assert plugin.run(Driver(listener), [given]) == (made,)
    assert listener.numbers == [5, 7, 1, 128, 1, 1, 1000]
    assert listener.values == [given.data_ptr(), 11, 13, made.data_ptr()]


def test_a_refusal_of_the_driver_is_told_in_words() -> None:
    with pytest.raises(RuntimeError, match="cuModuleLoadData: error 218, invalid argument"):
        Driver(Listener(status=218)).load("ptx text", "a_kernel")
