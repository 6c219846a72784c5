"""Collects, tensor by tensor, what a recipe makes of a checkpoint."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from peagle_trt.errors import CheckpointError
from peagle_trt.quant.activation_scales import ActivationScales
from peagle_trt.quant.fp8 import LARGEST_E4M3
from peagle_trt.quant.layer_recipes import AS_STORED, Algorithm, DrafterLayers, LayerScheme, TargetLayers, schemes
from peagle_trt.quant.nvfp4 import LARGEST_E2M1
from peagle_trt.quant.stored_floats import FLOAT_TYPES
from peagle_trt.readers.packed import NVFP4_BLOCK
from peagle_trt.readers.tensors import PackedTensor
from peagle_trt.spec import TensorSpec
from peagle_trt.writers.fused import fused_name, group_of, members_of
from peagle_trt.writers.quantized import jobs
from peagle_trt.writers.quantized.jobs import Job
from peagle_trt.writers.quantized.layers import LayerPlan

Source = TensorSpec | PackedTensor
# Largest number of a format, by which maxima are divided.
_LARGEST = {"fp8": LARGEST_E4M3, "nvfp4": LARGEST_E2M1 * LARGEST_E4M3}
_FLOAT32 = np.finfo(np.float32)
_LINEAR_KINDS = ("embedding", "lm_head", "fc", "qkv", "o", "gate_up", "down", "router", "experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded:
    """A layer whose numbers are rounded.

    Attributes:
        module: Its name.
        kind: Key of the recipe.
        spec: Its matrix, or a stack [E, C, N].
        group: Whose largest magnitude decides its scale.
        weights: Form that it is brought into, `fp8` or `nvfp4`.
        is_stack: It is a stack.
    """

    module: str
    kind: str
    spec: TensorSpec
    group: str
    weights: str
    is_stack: bool = False


@dataclass(slots=True, kw_only=True)
class Planner:
    """A plan in the making.

    Attributes:
        path: The checkpoint, for messages.
        rules: What becomes of each kind of layer.
        scales: Of activations and caches.
        layers: What was planned.
        jobs: What writes it.
        groups: What shares a scale, by the group's name.
        finite: Tensors that are only looked at for values that are no numbers.
        halved: Tensors of another type that become bfloat16.
        rounded: Layers whose numbers are rounded.
        left_out: Modules that stay as they are.
        algorithm_of_layers: What is made of each layer that is quantized, by its module.
        modules: Every module that has a weight, and whether it is quantized.
        is_matched: The recipe asks for a form of some layer, or for MXFP4 experts that are there.
    """

    path: Path
    rules: TargetLayers | DrafterLayers
    scales: ActivationScales
    layers: list[LayerPlan] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    groups: dict[str, list[Source]] = field(default_factory=dict)
    finite: list[TensorSpec] = field(default_factory=list)
    halved: list[TensorSpec] = field(default_factory=list)
    rounded: list[Rounded] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    algorithm_of_layers: dict[str, Algorithm] = field(default_factory=dict)
    modules: dict[str, bool] = field(default_factory=dict)
    is_matched: bool = False

    def matrix(self, spec: TensorSpec, module: str, kind: str) -> None:
        """A linear layer's weight, or a table.

        Raises:
            CheckpointError: Its rows cannot be cut into blocks, or a scale is missing.
        """
        scheme = self.scheme(kind, module)
        if scheme.algorithm is None:
            self.plain(spec, f"{module}.weight", kind, spec.shape, scheme)
            return
        group = group_of(module)
        self._require_blocks(spec, module, scheme)
        self.groups.setdefault(group, []).append(spec)
        self.rounded.append(Rounded(module=module, kind=kind, spec=spec, group=group, weights=scheme.weights))
        make = jobs.fp8_matrix if scheme.weights == "fp8" else jobs.nvfp4_matrix
        made = [make(spec, module, group)]
        if scheme.activations != "none":
            names = [f"{member}.input_scale" for member in members_of(group)]
            made.append(jobs.scalar(f"{module}.input_scale", self._input_scale(names, scheme)))
        self._add(made, module, kind, scheme, _stored_bytes(spec))

    def stack(self, spec: TensorSpec, name: str, kind: str) -> None:
        """Matrices of all experts in one tensor, [E, C, N]; arguments and errors as for `matrix`."""
        scheme = self.scheme(kind, name)
        if scheme.algorithm is None:
            self.plain(spec, name, kind, spec.shape, scheme)
            return
        self._require_blocks(spec, name, scheme, axis=1)
        self.groups[name] = [spec]
        self.rounded.append(
            Rounded(module=name, kind=kind, spec=spec, group=name, weights=scheme.weights, is_stack=True)
        )
        make = jobs.fp8_stack if scheme.weights == "fp8" else jobs.nvfp4_stack
        self._add([make(spec, name), *self._stack_input(name, scheme)], name, kind, scheme, _stored_bytes(spec))

    def packed_stack(self, packed: PackedTensor, name: str, kind: str, treatment: str) -> None:
        """Matrices of all experts in MXFP4.

        Args:
            packed: How they are stored.
            name: Name of the parameter, without `_blocks`.
            kind: Key of the recipe.
            treatment: The recipe's `packed_experts`.
        """
        stored = _stored_bytes(packed.codes) + _stored_bytes(packed.scales)
        scheme = self.scheme(kind, name)
        if treatment == "keep" or (treatment == "cast" and scheme.algorithm is None):
            made = [jobs.copied(spec, spec.name, spec.shape) for spec in (packed.codes, packed.scales)]
            self._add(made, name, kind, AS_STORED, stored, form="mxfp4")
        elif treatment == "unpack":
            scheme = LayerScheme(weights="bf16")
            self._add([jobs.unpacked_stack(packed, name)], name, kind, scheme, stored)
        else:
            self.groups[name] = [packed]
            made = [jobs.cast_stack(packed, name), *self._stack_input(name, scheme)]
            self._add(made, name, kind, scheme, stored)

    def plain(
        self, spec: TensorSpec, name: str, kind: str, shape: tuple[int, ...], scheme: LayerScheme = AS_STORED
    ) -> None:
        """A tensor that is not quantized."""
        is_rounded = scheme.weights == "bf16" and spec.dtype in FLOAT_TYPES and spec.dtype != "BF16"
        make = jobs.rounded if is_rounded else jobs.copied
        if spec.dtype in FLOAT_TYPES:
            (self.halved if is_rounded else self.finite).append(spec)
        form = "bf16" if scheme.weights == "bf16" and spec.dtype in FLOAT_TYPES else spec.dtype.lower()
        module = name.removesuffix(".weight")
        self._add([make(spec, name, shape)], module, kind, scheme, _stored_bytes(spec), form=form)

    def made(self, job: Job, kind: str) -> None:
        """A tensor that somebody else makes, and nobody changes."""
        name = job.outputs[0].name.removesuffix(".weight")
        self._add([job], name, kind, AS_STORED, 0, form=job.outputs[0].dtype.lower())

    def cache(self, module: str) -> None:
        """Scales of a layer's keys and values.

        Args:
            module: Its attention, such as `model.layers.0.self_attn`.
        """
        for part in "kv":
            name = f"{module}.{part}_proj.{part}_scale"
            self.jobs.append(jobs.scalar(name, self.scales.shared([name])))

    def scheme(self, kind: str, module: str) -> LayerScheme:
        """What the recipe makes of a layer."""
        patterns = self.rules.keep if isinstance(self.rules, TargetLayers) else ()
        if any(fnmatch.fnmatchcase(module, pattern) for pattern in patterns):
            return AS_STORED
        return schemes(self.rules).get(kind, AS_STORED)

    def require_whole_groups(self) -> None:
        """Refuse a recipe that quantizes a part of what loaders fuse.

        Raises:
            CheckpointError: There is such a group, or a pattern to keep matches nothing.
        """
        first: dict[str, str] = {}
        for module, is_quantized in self.modules.items():
            other = first.setdefault(fused_name(module), module)
            if self.modules[other] != is_quantized:
                raise CheckpointError(
                    f"`{self.path}`: the recipe quantizes only one of `{other}` and `{module}`, which loaders fuse",
                    hint="keep both or neither",
                )
        patterns: Sequence[str] = self.rules.keep if isinstance(self.rules, TargetLayers) else ()
        for pattern in patterns:
            if not fnmatch.filter(self.modules, pattern):
                raise CheckpointError(
                    f"`{self.path}` has no layer `{pattern}`, which the recipe keeps",
                    hint=f"names are such as `{next(iter(self.modules))}`; `inspect` shows the layers",
                )

    def _stack_input(self, name: str, scheme: LayerScheme) -> list[Job]:
        if scheme.activations == "none":
            return []
        scale_name = f"{name}_input_scale"
        return [jobs.scalar(scale_name, self._input_scale([scale_name], scheme))]

    def _input_scale(self, names: Sequence[str], scheme: LayerScheme) -> float:
        """A scale of activations, brought from the number format it was measured for to that of a layer."""
        scale, measured = self.scales.shared(names), self.scales.format
        if not measured or scheme.activations == "none":
            return scale
        own = scale * _LARGEST[measured] / _LARGEST[scheme.activations]
        if not _FLOAT32.tiny <= own <= _FLOAT32.max:
            raise CheckpointError(
                f"`{self.scales.path}`: `{names[0]}` is {scale:.3g}, which float32 cannot hold as a scale of "
                f"{scheme.activations}",
                hint="calibrate again",
            )
        return own

    def _require_blocks(self, spec: TensorSpec, module: str, scheme: LayerScheme, axis: int = -1) -> None:
        columns = spec.shape[axis]
        if scheme.weights == "nvfp4" and columns % NVFP4_BLOCK:
            raise CheckpointError(
                f"`{self.path}`: rows of `{module}` have {columns} values, no multiple of {NVFP4_BLOCK}, so they "
                "cannot become NVFP4",
                hint=f'name it under `keep` in a recipe of your own, or take `fp8`: `keep = ["{module}"]`',
            )

    def _add(
        self, made: list[Job], module: str, kind: str, scheme: LayerScheme, stored_bytes: int, form: str = ""
    ) -> None:
        self.jobs += made
        self.is_matched |= scheme.weights != "stored" or form == "mxfp4"
        if scheme.algorithm is not None:
            self.algorithm_of_layers[module] = scheme.algorithm
        if kind in _LINEAR_KINDS:
            self.modules[module] = scheme.algorithm is not None
        written = sum(job.length_bytes for job in made)
        self.layers.append(
            LayerPlan(
                module=module,
                kind=kind,
                weights=form or scheme.weights,
                activations=scheme.activations,
                stored_bytes=stored_bytes,
                written_bytes=written,
            )
        )


def _stored_bytes(spec: TensorSpec) -> int:
    return spec.location.length_bytes if spec.location else 0
