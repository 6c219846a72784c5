"""A checkpoint whose weights are worth what their codes would be, in float32.

Every engine that reads float32 runs it, so that answers of a quantized model are had where no kernel of its format is.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.files import replacing
from peagle_trt.quant.calibration.names import fused_groups
from peagle_trt.quant.calibration.scales import PRE_QUANT_SCALE
from peagle_trt.quant.fp8 import quantize_fp8
from peagle_trt.quant.nvfp4 import dequantize_nvfp4, global_scale, quantize_nvfp4
from peagle_trt.readers.float_codes import decode_e4m3
from peagle_trt.readers.tensors import LazyTensor, Weights

WeightScheme = Literal["fp8", "nvfp4"]
Matrix = NDArray[np.float32]
_SUFFIX = ".weight"
_WEIGHTS_NAME = "model.safetensors"
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "fc")
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlan:
    """What becomes of a checkpoint's weights.

    Attributes:
        scheme: Number format.
        parts: Last names of the modules it takes.
        kept: Modules that are left alone all the same.
        column_scales: `MODULE.pre_quant_scale` of AWQ, by which weights' columns are divided before they are rounded.
    """

    scheme: WeightScheme
    parts: Collection[str] = _PROJECTIONS
    kept: Collection[str] = ()
    column_scales: Mapping[str, Matrix] | None = None


def write_dequantized(folder: Path, weights: Weights, output: Path, plan: WeightPlan) -> dict[str, float]:
    """Write a checkpoint in Hugging Face's layout, a layer's linears in memory at a time.

    Args:
        folder: The checkpoint's.
        weights: Its weights; none is put together or turned around from what the folder holds, but for experts that lie
            one by one.
        output: A folder that is made; all but the weights is copied.
        plan: What is quantized.

    Returns:
        Error of every quantized module: the Frobenius norm of the difference over that of the weight.

    Raises:
        CheckpointError: A tensor's foreign name is not known, or rows cannot be cut into blocks.
        UsageError: The plan takes no module.
    """
    tensors = dict(_foreign(weights))
    modules = {name.removesuffix(_SUFFIX) for name in tensors if _is_taken(name, tensors[name], plan)}
    if not modules:
        raise UsageError(
            f"nothing in `{folder}` would be quantized",
            hint="the plan names no module that is there, or leaves all of them out",
        )
    output.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        if file.is_file() and file.suffix in (".json", ".jinja") and "safetensors" not in file.name:
            shutil.copyfile(file, output / file.name)
    groups = fused_groups(modules)
    shared = {module: group for group in groups for module in group}
    errors: dict[str, float] = {}

    def produce(name: str) -> NDArray[np.generic]:
        module = name.removesuffix(_SUFFIX)
        if module not in modules:
            return tensors[name].load()
        group = [_scaled(tensors[f"{member}{_SUFFIX}"].load(), member, plan) for member in shared.get(module, [module])]
        original = tensors[name].load().astype(np.float32, copy=False)
        worth = _unscaled(_worth(name, _scaled(original, module, plan), group, plan.scheme), module, plan)
        errors[module] = float(np.linalg.norm(worth - original) / (np.linalg.norm(original) or 1.0))
        return worth

    _write(output / _WEIGHTS_NAME, tensors, produce)
    return errors


def modules_above(errors: Mapping[str, float], limit: float) -> list[str]:
    """The modules whose error is above a limit, and those that an engine multiplies together with one of them."""
    above = {module for module, error in errors.items() if error > limit}
    for group in fused_groups(set(errors)):
        if above.intersection(group):
            above.update(group)
    return sorted(above)


def _foreign(weights: Weights) -> Iterator[tuple[str, LazyTensor]]:
    for name, tensor in weights.items():
        for part in tensor.parts or (tensor,):
            if part.spec.location is None:
                raise CheckpointError(
                    f"`{name}` is put together from what the checkpoint holds, and cannot be written back",
                    hint="only checkpoints that hold every matrix as it is used can be measured so",
                )
            yield part.spec.name, part


def _is_taken(name: str, tensor: LazyTensor, plan: WeightPlan) -> bool:
    module = name.removesuffix(_SUFFIX)
    is_linear = name.endswith(_SUFFIX) and len(tensor.shape) == 2
    return is_linear and module.rpartition(".")[2] in plan.parts and module not in plan.kept


def _worth(name: str, matrix: Matrix, group: list[Matrix], scheme: WeightScheme) -> Matrix:
    if scheme == "fp8":
        packed = quantize_fp8(matrix)
        values: Matrix = decode_e4m3(packed.codes) * packed.scale
        return values
    try:
        return dequantize_nvfp4(quantize_nvfp4(matrix, global_scale(*group)))
    except ValueError as error:
        raise CheckpointError(f"`{name}`: {error}", hint="leave it out, or take `fp8`") from error


def _columns(module: str, plan: WeightPlan) -> Matrix | None:
    return (plan.column_scales or {}).get(f"{module}{PRE_QUANT_SCALE}")


def _scaled(matrix: NDArray[np.generic], module: str, plan: WeightPlan) -> Matrix:
    columns, values = _columns(module, plan), matrix.astype(np.float32, copy=False)
    return values if columns is None else values / columns


def _unscaled(matrix: Matrix, module: str, plan: WeightPlan) -> Matrix:
    columns = _columns(module, plan)
    return matrix if columns is None else matrix * columns


def _write(path: Path, tensors: Mapping[str, LazyTensor], produce: Callable[[str], NDArray[np.generic]]) -> None:
    types = {name: _stored_type(tensor) for name, tensor in tensors.items()}
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + math.prod(tensor.shape) * types[name].itemsize
        dtype = "I64" if types[name].kind == "i" else "F32"
        entries[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with replacing(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name, stored in types.items():
            file.write(np.ascontiguousarray(produce(name), stored).data)


def _stored_type(tensor: LazyTensor) -> np.dtype[np.generic]:
    is_integer = tensor.spec.dtype.startswith(("I", "U"))
    return np.dtype("<i8" if is_integer else "<f4")
