"""The TensorRT plugins on a real GPU without TensorRT: their PTX and their launches, through CUDA's driver.

What runs here is what TensorRT would store and launch, byte for byte: PTX without Triton's hidden parameters, grids and
integers from the plugins' own formulas, the shared memory that every launch is given.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from peagle_trt_plugins.kernel_launches import Launch
    from peagle_trt_plugins.kernel_targets import Architecture
    from peagle_trt_plugins.plugin_forms import PluginForm

TORCH_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "i32": "int32", "i64": "int64"}
ELEMENTS = {f"torch.{name}": element for element, name in TORCH_TYPES.items()}
_WARP = 32


class Driver:
    """CUDA's driver, in the context that torch made."""

    def __init__(self, library: Any = None) -> None:
        """`library` stands in for the driver in tests."""
        self._library = library or ctypes.CDLL("libcuda.so.1")
        self.loaded: dict[str, tuple[ctypes.c_void_p, int]] = {}

    def load(self, ptx: str, name: str) -> ctypes.c_void_p:
        """Compile PTX for the current GPU, and find its kernel."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx.encode()))
        self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(name.encode()))
        return function

    def launch(
        self,
        function: ctypes.c_void_p,
        grid: Sequence[int],
        threads: int,
        shared_bytes: int,
        stream: int,
        values: list[Any],
    ) -> None:
        """Launch with parameters as ctypes values; `grid` has one or two sizes."""
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        sizes = [*grid, 1, 1][:3]
        numbers = [ctypes.c_uint(number) for number in (*sizes, threads, 1, 1, shared_bytes)]
        self._call("cuLaunchKernel", function, *numbers, ctypes.c_void_p(stream), pointers, None)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(status, ctypes.byref(text))
            raise RuntimeError(f"{name}: error {status}, {(text.value or b'unknown').decode()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPlugin:
    """A plugin for one set of shapes and types, under one tactic.

    Attributes:
        function: The driver's handle of its kernel.
        launch: Grid and integers.
        threads: Of a block.
        shared_bytes: Of a block.
        outputs: What it writes.
    """

    function: ctypes.c_void_p
    launch: Launch[int]
    threads: int
    shared_bytes: int
    outputs: tuple[Tensor, ...]

    def run(self, driver: Driver, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Launch on the current stream, parameters in TensorRT's order: inputs, integers, outputs."""
        import torch

        values: list[Any] = [ctypes.c_void_p(tensor.data_ptr()) for tensor in inputs]
        values += [ctypes.c_int32(number) for number in self.launch.scalars]
        values += [ctypes.c_void_p(tensor.data_ptr()) for tensor in self.outputs]
        stream = torch.cuda.current_stream().cuda_stream if inputs[0].is_cuda else 0
        driver.launch(self.function, self.launch.grid, self.threads, self.shared_bytes, stream, values)
        return self.outputs


def prepare(
    driver: Driver,
    architecture: Architecture,
    form: PluginForm,
    inputs: Sequence[Tensor],
    attributes: dict[str, float],
    choice: int = 0,
) -> PreparedPlugin:
    """Describe, plan and compile a plugin as TensorRT would; `choice` counts its tactics."""
    import torch

    from peagle_trt_plugins.kernel_build import write_plugin_ptx
    from peagle_trt_plugins.plugin_checks import GivenInput, read_call
    from peagle_trt_plugins.ports import VERSION
    from peagle_trt_plugins.ptx import kernel_name

    given = tuple(GivenInput(element=ELEMENTS[str(each.dtype)], shape=tuple(each.shape)) for each in inputs)
    call = read_call(form, given, {**attributes, "contract_version": VERSION}, lambda size: size)
    tactics = form.tactics(call) or (0,)
    variant, launch = form.plan(call, tactics[choice % len(tactics)])
    sizes = call.sizes | form.derive(call)
    outputs = tuple(
        # Whatever a kernel fails to write must be seen.
        torch.full(
            [sizes[letter] for letter in port.dims],
            -7,
            dtype=getattr(torch, TORCH_TYPES[call.elements[port.name]]),
            device=inputs[0].device,
        )
        for port in form.outputs
    )
    if repr(variant) not in driver.loaded:
        ptx, shared_bytes = write_plugin_ptx(variant, architecture)
        driver.loaded[repr(variant)] = (driver.load(ptx, kernel_name(ptx)), shared_bytes)
    function, shared_bytes = driver.loaded[repr(variant)]
    return PreparedPlugin(
        function=function,
        launch=launch,
        threads=_WARP * variant.num_warps,
        shared_bytes=shared_bytes,
        outputs=outputs,
    )


def select(
    driver: Driver, architecture: Architecture, inputs: Sequence[Tensor], candidates: int, choice: int
) -> Iterator[tuple[PreparedPlugin, Sequence[Tensor]]]:
    """Both stages of `SelectDraft`, or with `candidates` of `SelectDraftTopK`, each with what it reads."""
    from peagle_trt_plugins.plugin_forms import FORMS

    forms = {form.name: form for form in FORMS}
    counts = {"candidates": float(candidates)} if candidates else {}
    blocks = prepare(driver, architecture, forms["SelectBlocks"], inputs[:3], {"candidates": candidates or 1}, choice)
    yield blocks, inputs[:3]
    merge = forms["MergeCandidates" if candidates else "MergeBest"]
    given = [*blocks.outputs, *inputs[3:]]
    yield prepare(driver, architecture, merge, given, counts), given
