"""A quantized folder as loaders meet it: two descriptions, and tensors grouped by the module they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.json_file import read_object
from peagle_trt.readers.quantized import HF_QUANT_CONFIG
from peagle_trt.readers.shards import read_folder_tensors
from peagle_trt.spec import TensorSpec

_PARTS = ("weight", "weight_scale", "weight_scale_2", "weight_scale_inv", "weight_packed", "weight_global_scale")
_SCALARS = ("input_scale", "input_global_scale", "k_scale", "v_scale", "kv_scale")
_MODULE_PART = re.compile(rf"(.+)\.({'|'.join((*_PARTS, *_SCALARS))})")
_STACK = re.compile(
    r"(.+\.experts\.(?:gate_up|down)_proj)(?:_(weight_scale_2|weight_scale|input_scale|blocks|scales))?"
)
CODE_TYPES = ("F8_E4M3", "U8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A layer with a weight.

    Attributes:
        name: Its name.
        parts: What belongs to it, by what follows the name: `weight`, `weight_scale` ...
        is_stack: It is a stack of all experts' matrices, as gpt-oss has them.
    """

    name: str
    parts: Mapping[str, TensorSpec]
    is_stack: bool = False

    @property
    def is_quantized(self) -> bool:
        """Whether its weight is codes."""
        weight = self.parts.get("weight") or self.parts.get("weight_packed") or self.parts.get("blocks")
        return weight is not None and weight.dtype in CODE_TYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedFolder:
    """A folder.

    Attributes:
        path: Where it is.
        config: config.json.
        twin: Its `quantization_config`, or None.
        quant_file: hf_quant_config.json, or None.
        modules: Layers with weights of two dimensions or more, by name.
        tensors: Every tensor.
        is_head: It is a drafter.
    """

    path: Path
    config: Mapping[str, Any]
    twin: Mapping[str, Any] | None
    quant_file: Mapping[str, Any] | None
    modules: Mapping[str, Module]
    tensors: Mapping[str, TensorSpec]
    is_head: bool = False

    def quantized(self) -> list[Module]:
        """Modules whose weight is codes."""
        return [module for module in self.modules.values() if module.is_quantized]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What one of the two files says, in the words of the other where they differ.

    Attributes:
        source: File, for messages.
        algorithm: `quant_algo` as it stands.
        method: `quant_method`, empty in hf_quant_config.json.
        cache: `kv_cache_quant_algo`; of the twin, what its dict means.
        left_out: Patterns of modules that are left out.
        layers: Algorithm by module where layers differ, `quantized_layers`.
        raw: Everything.
    """

    source: str
    algorithm: str
    method: str
    cache: str
    left_out: tuple[str, ...]
    layers: Mapping[str, str] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict)


def read_quantized_folder(path: Path) -> QuantizedFolder:
    """Read a folder's descriptions and headers.

    Raises:
        CheckpointError: It is damaged, or no file says that it is quantized.
    """
    config = read_object(path / "config.json").values
    own_file = path / HF_QUANT_CONFIG
    quant_file = read_object(own_file).values if own_file.exists() else None
    twin = config.get("quantization_config")
    if not isinstance(twin, dict) and quant_file is None:
        raise CheckpointError(
            f"`{path}` is not quantized: neither `{HF_QUANT_CONFIG}` nor `quantization_config` in config.json",
            hint="give a folder that `convert --recipe` wrote, or one of ModelOpt's",
        )
    tensors = read_folder_tensors(path)
    return QuantizedFolder(
        path=path,
        config=config,
        twin=twin if isinstance(twin, dict) else None,
        quant_file=quant_file,
        modules=_group(tensors),
        tensors=tensors,
        is_head=any(name.removeprefix("model.") == "fc.weight" for name in tensors),
    )


def description(folder: QuantizedFolder, *, prefers_twin: bool) -> Description:
    """What a loader goes by.

    Args:
        folder: The folder.
        prefers_twin: config.json counts first, as in vLLM; otherwise hf_quant_config.json, as in TensorRT-LLM.
    """
    if folder.twin is not None and (prefers_twin or folder.quant_file is None):
        return _of_twin(folder.twin)
    assert folder.quant_file is not None, "one of both is there"
    return _of_file(folder.quant_file)


def _of_twin(twin: Mapping[str, Any]) -> Description:
    scheme = twin.get("kv_cache_scheme")
    is_fp8 = isinstance(scheme, dict) and scheme.get("type") == "float" and scheme.get("num_bits") == 8
    return Description(
        source="config.json",
        algorithm=str(twin.get("quant_algo") or ""),
        method=str(twin.get("quant_method") or ""),
        cache="FP8" if is_fp8 else "",
        left_out=_texts(twin.get("ignore") or twin.get("modules_to_not_convert")),
        layers=_layers(twin.get("quantized_layers")),
        raw=twin,
    )


def _of_file(document: Mapping[str, Any]) -> Description:
    inner = document.get("quantization")
    if not isinstance(inner, dict):
        return _of_twin(document)
    return Description(
        source=HF_QUANT_CONFIG,
        algorithm=str(inner.get("quant_algo") or ""),
        method="",
        cache=str(inner.get("kv_cache_quant_algo") or ""),
        left_out=_texts(inner.get("exclude_modules")),
        layers=_layers(inner.get("quantized_layers")),
        raw=document,
    )


def _layers(values: object) -> dict[str, str]:
    """Algorithm by module; an entry that names none stands as an empty word, which no loader takes."""
    entries = values.items() if isinstance(values, Mapping) else ()
    return {
        str(name): str(entry.get("quant_algo") or "").upper() if isinstance(entry, Mapping) else ""
        for name, entry in entries
    }


def _texts(values: object) -> tuple[str, ...]:
    return tuple(str(value) for value in values) if isinstance(values, Iterable) and values else ()


def _group(tensors: Mapping[str, TensorSpec]) -> dict[str, Module]:
    found: dict[str, dict[str, TensorSpec]] = {}
    stacks: set[str] = set()
    for name, spec in tensors.items():
        stack, part = _STACK.fullmatch(name), _MODULE_PART.fullmatch(name)
        if stack is not None:
            stacks.add(stack[1])
            found.setdefault(stack[1], {})[stack[2] or "weight"] = spec
        elif part is not None:
            found.setdefault(part[1], {})[part[2]] = spec
    return {
        name: Module(name=name, parts=parts, is_stack=name in stacks)
        for name, parts in found.items()
        if any(len(parts[part].shape) > 1 for part in ("weight", "weight_packed", "blocks") if part in parts)
    }
