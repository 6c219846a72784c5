"""Experts on disk: one tensor for each expert's projection, or one for all experts of a layer.

Letters: E experts, I width of an expert, H hidden size, N rows and C columns of a projection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peagle_trt.readers.accounting import ExpectedTensor
from peagle_trt.readers.packed import NVFP4_BLOCK, unpack_stack
from peagle_trt.readers.quantized import Quantization
from peagle_trt.readers.safetensors_file import entry_of, load_tensor
from peagle_trt.readers.tensors import LazyTensor, PackedTensor, require_finite
from peagle_trt.readers.weight_plan import (
    Part,
    Specs,
    matrix_part,
    mxfp4_shapes,
    packed_spec,
    plain_part,
    require_blocks,
)
from peagle_trt.spec import ExpertsConfig, TensorSpec
from peagle_trt.spec.names import expert_shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayer:
    """The experts of one layer in a checkpoint.

    Attributes:
        experts: What they are.
        hidden_size: H.
        router: Foreign name of the router, without `.weight`.
        stem: Foreign name before `.{expert}.` or `.gate_up_proj`.
    """

    experts: ExpertsConfig
    hidden_size: int
    router: str
    stem: str


def plan_experts(layer: ExpertLayer, found: Specs, quantization: Quantization | None) -> dict[str, Part]:
    """Every tensor of a layer's router and experts, by its name within the layer.

    Raises:
        CheckpointError: Rows cannot be cut into blocks.
    """
    shapes = expert_shapes(layer.experts, layer.hidden_size)
    parts = {"router": plain_part(f"{layer.router}.weight", shapes["router"])}
    if layer.experts.has_router_bias:
        parts["router_bias"] = plain_part(f"{layer.router}.bias", shapes["router_bias"])
    is_apart = not layer.experts.has_expert_bias or any(name.startswith(f"{layer.stem}.0.") for name in found)
    plan = _plan_apart if is_apart else _plan_together
    return parts | plan(layer, shapes, found, quantization)


def _plan_apart(
    layer: ExpertLayer, shapes: Mapping[str, tuple[int, ...]], found: Specs, quantization: Quantization | None
) -> dict[str, Part]:
    """`{stem}.{expert}.gate_proj.weight` and so on: Qwen3-MoE, and gpt-oss where llm-compressor wrote it."""
    width, hidden = layer.experts.intermediate_size, layer.hidden_size
    sizes = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    parts: dict[str, Part] = {}
    for name, sources in (("gate_up", ("gate", "up")), ("down", ("down",))):
        matrices = [
            matrix_part(f"{layer.stem}.{expert}.{source}_proj", sizes[source], found, quantization)
            for expert in range(layer.experts.num_experts)
            for source in sources
        ]
        parts[f"experts_{name}_proj"] = _stacked(matrices, shapes[f"experts_{name}_proj"], len(sources))
        if layer.experts.has_expert_bias:
            biases = [
                plain_part(f"{layer.stem}.{expert}.{source}_proj.bias", sizes[source][:1])
                for expert in range(layer.experts.num_experts)
                for source in sources
            ]
            parts[f"experts_{name}_bias"] = _stacked(biases, shapes[f"experts_{name}_bias"], len(sources))
    return parts


def _stacked(parts: list[Part], shape: tuple[int, ...], num_sources: int) -> Part:
    """Experts one after another; within each, the rows of its sources take turns."""
    expected = {name: wanted for part in parts for name, wanted in part.expected.items()}

    def build(specs: Specs) -> LazyTensor:
        tensors = [part.build(specs) for part in parts]
        spec = TensorSpec(name=tensors[0].spec.name, dtype="F32", shape=shape)
        return LazyTensor(spec=spec, load=lambda: _load_stack(tensors, shape, num_sources), parts=tuple(tensors))

    return Part(expected=expected, build=build)


def _load_stack(tensors: list[LazyTensor], shape: tuple[int, ...], num_sources: int) -> NDArray[np.float32]:
    stack = np.empty(shape, np.float32)
    for index, tensor in enumerate(tensors):
        expert, source = divmod(index, num_sources)
        values = tensor.load()
        # Here, where the expert is known by name.
        require_finite(tensor.packed.codes if tensor.packed else tensor.spec, values)
        stack[expert, source::num_sources] = values
    return stack


def _plan_together(
    layer: ExpertLayer, shapes: Mapping[str, tuple[int, ...]], found: Specs, quantization: Quantization | None
) -> dict[str, Part]:
    """`{stem}.gate_up_proj`, [E, C, N], or packed; gate and up take turns, as in gpt-oss."""
    parts: dict[str, Part] = {}
    for name in ("gate_up", "down"):
        foreign, shape = f"{layer.stem}.{name}_proj", shapes[f"experts_{name}_proj"]
        parts[f"experts_{name}_proj"] = _stack_part(foreign, shape, found, quantization)
        parts[f"experts_{name}_bias"] = plain_part(f"{foreign}_bias", shapes[f"experts_{name}_bias"])
    return parts


def _stack_part(name: str, shape: tuple[int, ...], found: Specs, quantization: Quantization | None) -> Part:
    if quantization is None or _is_plain(name, found):
        return _transposed_part(name, shape)
    return _packed_part(shape, *_packed_names(name, shape, quantization))


def _is_plain(name: str, found: Specs) -> bool:
    return name in found and found[name].dtype in ("F32", "BF16", "F16")


def _transposed_part(name: str, shape: tuple[int, ...]) -> Part:
    count, rows, columns = shape

    def load(spec: TensorSpec) -> NDArray[np.float32]:
        stack = np.empty(shape, np.float32)
        for expert in range(count):
            stack[expert] = load_tensor(entry_of(spec, expert)).T
        return stack

    def build(specs: Specs) -> LazyTensor:
        spec = specs[name]
        described = TensorSpec(name=name, dtype=spec.dtype, shape=shape)
        return LazyTensor(spec=described, load=lambda: load(spec))

    return Part(expected={name: ExpectedTensor(shapes=((count, columns, rows),))}, build=build)


PackedBuild = Callable[[Specs], PackedTensor]


def _packed_names(
    name: str, shape: tuple[int, ...], quantization: Quantization
) -> tuple[dict[str, ExpectedTensor], PackedBuild]:
    """What the checkpoint holds for a packed stack, and how it is packed.

    Source: gpt-oss's published checkpoints (mxfp4); modelopt 0.47 `export_hf_checkpoint` (the others).
    """
    count, rows, columns = shape
    codes, scales, overall = name, f"{name}_weight_scale", f"{name}_weight_scale_2"
    match quantization.spelling:
        case "mxfp4":
            codes, scales = f"{name}_blocks", f"{name}_scales"
            wanted = [ExpectedTensor(shapes=(each,), types=("U8",)) for each in mxfp4_shapes(name, shape)]
            return (
                dict(zip((codes, scales), wanted, strict=True)),
                lambda specs: PackedTensor(form="mxfp4", codes=specs[codes], scales=specs[scales]),
            )
        case "fp8" | "fp8_inverse":
            return (
                {
                    codes: ExpectedTensor(shapes=((count, columns, rows),), types=("F8_E4M3",)),
                    scales: ExpectedTensor(shapes=((), (1,)), types=("F32",)),
                },
                lambda specs: PackedTensor(form="fp8", codes=specs[codes], scales=specs[scales], is_transposed=True),
            )
    require_blocks(name, columns, NVFP4_BLOCK)
    return (
        {
            codes: ExpectedTensor(shapes=((count, columns // 2, rows),), types=("U8",)),
            scales: ExpectedTensor(shapes=((count, columns // NVFP4_BLOCK, rows),), types=("F8_E4M3",)),
            overall: ExpectedTensor(shapes=((), (1,)), types=("F32",)),
        },
        lambda specs: PackedTensor(
            form="nvfp4", codes=specs[codes], scales=specs[scales], global_scale=specs[overall], is_transposed=True
        ),
    )


def _packed_part(shape: tuple[int, ...], expected: dict[str, ExpectedTensor], describe: PackedBuild) -> Part:
    def build(specs: Specs) -> LazyTensor:
        packed = describe(specs)
        return LazyTensor(spec=packed_spec(packed, shape), load=lambda: unpack_stack(packed, shape), packed=packed)

    return Part(expected=expected, build=build)
