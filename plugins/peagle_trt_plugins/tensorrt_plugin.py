"""Registers the kernels as TensorRT plugins whose PTX travels inside the engine: no Python is needed to run one.

`register_tensorrt_plugins` comes before the ONNX parser; the parser then takes `peagle::ParallelDraft`, and of
`SelectDraft` and `SelectDraftTopK` the stages inside (onnx_select_stages.py), instead of their function bodies. Never
register in a process that uses TensorRT-RTX, which has no plugins.

What TensorRT is given: PTX of the oldest version that knows the GPU, without Triton's hidden parameters; grids and
32-bit integers as expressions of dimensions; everything else baked in. What to know when running such an engine:
TensorRT 11.1 and 11.2 lose GPU memory whenever a context that holds such plugins changes shapes
(github.com/NVIDIA/TensorRT/issues/4849), so give every K and bucket of B an execution context of its own.

Checked against the bindings of TensorRT 11.4.0 and 10.16.1 without a GPU: registration, shapes, types, launches and
numbers in Triton's interpreter. Not run: an engine.

Source: docstrings of `tensorrt.plugin` 11.4; docs.nvidia.com, "Adding custom layers using the Python API".
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from types import GenericAlias
from typing import Any

from peagle_trt_plugins.kernel_build import MissingToolError, write_plugin_ptx
from peagle_trt_plugins.kernel_launches import Dimension
from peagle_trt_plugins.kernel_targets import Architecture
from peagle_trt_plugins.kernel_variants import KernelVariant
from peagle_trt_plugins.plugin_checks import GivenInput, PluginError, read_call, require_known
from peagle_trt_plugins.plugin_forms import FORMS, PluginCall, PluginForm
from peagle_trt_plugins.ports import DOMAIN, VERSION
from peagle_trt_plugins.ptx import kernel_name

MAX_SHARED_BYTES = 48 << 10
"""Of a block, unless a launcher asks for more; whether TensorRT does is not documented. Source: CUDA C++ guide."""

_WARP = 32
_ELEMENTS = {"FLOAT": "fp32", "HALF": "fp16", "BF16": "bf16", "INT32": "i32", "INT64": "i64"}
_TUNED = {"fp32": "FP32", "fp16": "FP16", "bf16": "BF16", "i32": "INT32", "i64": "INT64"}

_registered: dict[str, Architecture] = {}


def register_tensorrt_plugins(architecture: Architecture) -> None:
    """Make the plugins known to TensorRT in this process; again for the same GPU, it does nothing.

    Args:
        architecture: Of the GPU that engines are built on and for, from `kernel_targets.find_architecture`.

    Raises:
        MissingToolError: TensorRT, its ahead-of-time Python plugins or Triton is not there.
        PluginError: The plugins are registered already, for another GPU or by another copy of this package.
    """
    present = next(iter(_registered.values()), None)
    if present == architecture:
        return
    if present is not None:
        raise PluginError(
            f"the plugins of version {VERSION} are registered for {present.name}; found {architecture.name}",
            hint="build for one kind of GPU in a process",
        )
    _require_tools()
    for form in FORMS:
        _register(form, architecture)
        _registered[form.name] = architecture


def _require_tools() -> None:
    if importlib.util.find_spec("tensorrt") is None:
        raise MissingToolError(
            "TensorRT is not installed", hint='install `pip install "peagle-trt[trt]"`, or use NVIDIA\'s container'
        )
    # `tensorrt.plugin` 11.4 uses `numpy.typing` without importing it, and fails on the first attribute of a node.
    importlib.import_module("numpy.typing")
    import tensorrt
    import tensorrt.plugin as trtp

    if not hasattr(trtp, "aot_impl"):
        raise MissingToolError(
            f"TensorRT {tensorrt.__version__} has no ahead-of-time Python plugins",
            hint="install TensorRT 11.1 or newer",
        )
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec("triton.compiler") is None:
        raise MissingToolError(
            "no Triton compiler: the package `triton` is not installed",
            hint='install it with `pip install "peagle-trt[kernels]"`',
        )


def _register(form: PluginForm, architecture: Architecture) -> None:
    """Hand one form to `tensorrt.plugin`, which reads names and types off the signatures of three functions."""
    import tensorrt.plugin as trtp

    plugin_id = f"{DOMAIN}::{form.name}"
    compiled: dict[str, tuple[str, str, int]] = {}

    def describe(*given: Any, **attributes: Any) -> tuple[Any, ...]:
        return _describe(form, given, attributes)

    def tune(*given: Any) -> list[Any]:
        return _tune(form, given)

    def implement(*given: Any) -> tuple[Any, ...]:
        return _implement(form, architecture, given, compiled)

    tensors = {port.name: trtp.TensorDesc for port in form.inputs}
    attributes = {**{each.name: _python_type(each.kind) for each in form.attributes}, "contract_version": int}
    outputs = GenericAlias(tuple, (trtp.TensorDesc,) * len(form.outputs))
    kernel = tuple[str, str, trtp.KernelLaunchParams, trtp.SymIntExprs]
    _sign(describe, tensors | attributes, outputs)
    _sign(tune, tensors | attributes | {"outputs": outputs}, list[trtp.AutoTuneCombination])
    _sign(implement, tensors | attributes | {"outputs": outputs, "tactic": int}, kernel)
    try:
        trtp.register(plugin_id)(describe)
    except ValueError as error:
        raise PluginError(
            f"{plugin_id} of version {VERSION} cannot be registered: {error}",
            hint="another copy of this package, or another library, has registered that name in this process",
        ) from error
    trtp.autotune(plugin_id)(tune)
    trtp.aot_impl(plugin_id)(implement)


def _describe(form: PluginForm, given: tuple[Any, ...], attributes: dict[str, Any]) -> tuple[Any, ...]:
    """Shapes and types of the outputs."""
    import tensorrt as trt
    import tensorrt.plugin as trtp

    call = _read(form, given, attributes)
    sizes = call.sizes | form.derive(call)
    types = {element: getattr(trt.DataType, name) for name, element in _ELEMENTS.items()}
    return tuple(
        trtp.from_shape_expr(tuple(sizes[letter] for letter in port.dims), types[call.elements[port.name]])
        for port in form.outputs
    )


def _tune(form: PluginForm, given: tuple[Any, ...]) -> list[Any]:
    """The one combination of types that this node has, plain layouts, and the tactics to time."""
    import tensorrt.plugin as trtp

    call = _read_positional(form, given)
    types = ", ".join(_TUNED[call.elements[port.name]] for port in (*form.inputs, *form.outputs))
    return [trtp.AutoTuneCombination(types, "LINEAR", form.tactics(call))]


def _implement(
    form: PluginForm, architecture: Architecture, given: tuple[Any, ...], compiled: dict[str, tuple[str, str, int]]
) -> tuple[Any, ...]:
    """Kernel, PTX, launch and integers under the tactic that comes last."""
    import tensorrt.plugin as trtp

    variant, launch = form.plan(_read_positional(form, given), given[-1])
    # TensorRT asks again for every profile; a kernel takes seconds to compile.
    if repr(variant) not in compiled:
        compiled[repr(variant)] = _compile(variant, architecture)
    name, ptx, shared_bytes = compiled[repr(variant)]
    parameters = trtp.KernelLaunchParams()
    parameters.grid_x = launch.grid[0]
    if len(launch.grid) > 1:
        parameters.grid_y = launch.grid[1]
    parameters.block_x = _WARP * variant.num_warps
    parameters.shared_mem = shared_bytes
    integers = trtp.SymIntExprs(len(launch.scalars))
    for index, scalar in enumerate(launch.scalars):
        integers[index] = trtp.SymInt32(scalar)
    return name, ptx, parameters, integers


def _compile(variant: KernelVariant, architecture: Architecture) -> tuple[str, str, int]:
    """Name, PTX and shared memory of a kernel.

    Raises:
        PluginError: It needs more shared memory than every launch is given.
    """
    ptx, shared_bytes = write_plugin_ptx(variant, architecture)
    if shared_bytes > MAX_SHARED_BYTES:
        raise PluginError(
            f"{variant.kernel} ({variant.label}) needs {shared_bytes} bytes of shared memory; "
            f"expected at most {MAX_SHARED_BYTES}",
            hint="this release of Triton spends more than the one it was measured with: install triton==3.9.0",
        )
    return kernel_name(ptx), ptx, shared_bytes


def _read_positional(form: PluginForm, given: tuple[Any, ...]) -> PluginCall:
    """Of inputs, attributes and whatever follows them, in the order of the signatures."""
    names = [*(attribute.name for attribute in form.attributes), "contract_version"]
    first = len(form.inputs)
    call = _read(form, given[:first], dict(zip(names, given[first : first + len(names)], strict=True)))
    require_known(form, call)
    return call


def _read(form: PluginForm, given: tuple[Any, ...], attributes: dict[str, Any]) -> PluginCall:
    inputs = tuple(
        GivenInput(element=_ELEMENTS.get(each.dtype.name, each.dtype.name), shape=tuple(each.shape_expr))
        for each in given
    )
    return read_call(form, inputs, attributes, _known_size)


def _known_size(size: Dimension) -> int | None:
    """The number of a `ShapeExpr`; None for one that is open, and for TensorRT's stand-ins before shapes are known."""
    expression: Any = size
    return None if expression.is_fake or not expression.is_constant else int(expression.constant_value())


def _python_type(kind: str) -> type:
    return float if kind == "float" else int


def _sign(function: Callable[..., Any], parameters: dict[str, Any], returns: Any) -> None:
    """Give a function the signature that `tensorrt.plugin` reads; the contract is where its names are written."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature(
        [inspect.Parameter(name, kind, annotation=annotation) for name, annotation in parameters.items()],
        return_annotation=returns,
    )
    function.__signature__ = signature  # type: ignore[attr-defined]
