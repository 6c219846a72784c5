"""Experts of the batched graphs, in every way they are stored, against the reference over torch's own unpacking."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import save_file

from peagle_trt.errors import CheckpointError
from peagle_trt.graph.batched import Port
from peagle_trt.graph.batched.experts_layer import gathered_experts, switched_experts
from peagle_trt.graph.batched.experts_stacks import integers, mxfp4_stack
from peagle_trt.graph.batched.nodes import BATCHED_OPSET
from peagle_trt.graph.batched.packed_words import doubled_values, doubled_values_in_order, scale_values
from peagle_trt.graph.builder import Element, GraphBuilder
from peagle_trt.quant.mxfp4 import mxfp4_to_nvfp4
from peagle_trt.readers.safetensors_file import read_header
from peagle_trt.spec import ExpertsConfig
from peagle_trt.spec.names import expert_shapes
from peagle_trt.verify.feed_forward import mix_experts
from scripts.synthesize_checkpoint import read_published, shorten, write_drafter, write_target
from tests.support.batched import open_batched_pair
from tests.support.capabilities import needs
from tests.support.models import open_pair
from tests.support.quantized import nvfp4
from tests.support.rtx import SIZES, compile_graph
from tests.support.shrunk_models import shrink
from tests.unit.graph.test_batched_gpt_oss import read_in_two, token_ids_of

HIDDEN = 64
GPT_OSS = ExpertsConfig(
    num_experts=8,
    experts_per_token=4,
    intermediate_size=32,
    activation="clamped_swiglu",
    limit=1.5,
    has_router_bias=True,
    has_expert_bias=True,
)
CONFIGS = {
    "gpt-oss": GPT_OSS,
    "qwen3-moe": ExpertsConfig(num_experts=16, experts_per_token=5, intermediate_size=96),
    "shares-as-they-are": ExpertsConfig(
        num_experts=16, experts_per_token=3, intermediate_size=32, normalizes_shares=False
    ),
    "one-of-one": ExpertsConfig(num_experts=1, experts_per_token=1, intermediate_size=32),
}
Emit = Callable[[GraphBuilder, ExpertsConfig, str, str], str]
FORMS: dict[str, Emit] = {
    "gathered": gathered_experts,
    "looped": partial(switched_experts, max_gathered_rows=0),
    "switched": partial(switched_experts, max_gathered_rows=6),
}
# One order of summation against another: float32 over rows of 96 at most.
ROUNDING = 2e-5


def pack_mxfp4(weights: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(weights.shape[1])
    blocks_shape = (*weights.shape[:2], weights.shape[2] // 32, 16)
    blocks = torch.randint(0, 256, blocks_shape, dtype=torch.uint8, generator=generator)
    scales = torch.randint(120, 126, blocks_shape[:-1], dtype=torch.uint8, generator=generator)
    worth = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    return {".blocks": blocks, ".scales": scales}, worth


def pack_nvfp4(weights: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    codes, scales, overall, worth = nvfp4(weights.reshape(-1, weights.shape[2]))
    lead = weights.shape[:2]
    parts = {"": codes.reshape(*lead, -1), ".block_scales": scales.reshape(*lead, -1), ".global_scale": overall}
    return parts, worth.reshape(weights.shape)


def cast_to_nvfp4(weights: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The same numbers as `pack_mxfp4` makes, as NVFP4."""
    parts, worth = pack_mxfp4(weights)
    cast = mxfp4_to_nvfp4("stack", parts[".blocks"].numpy(), parts[".scales"].numpy())
    scales = torch.from_numpy(cast.block_scales).view(torch.float8_e4m3fn)
    overall = torch.from_numpy(cast.global_scale)
    return {"": torch.from_numpy(cast.codes), ".block_scales": scales, ".global_scale": overall}, worth


def keep(dtype: torch.dtype, weights: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    return {"": weights.to(dtype)}, weights.to(dtype).float()


STORED = {
    "float32": partial(keep, torch.float32),
    "bfloat16": partial(keep, torch.bfloat16),
    "mxfp4": pack_mxfp4,
    "nvfp4": pack_nvfp4,
    "cast": cast_to_nvfp4,
}


def write_experts(
    folder: Path, emit: Emit, config: ExpertsConfig, stored: str, element: Element = "FLOAT"
) -> tuple[Path, dict[str, np.ndarray]]:
    """A graph of nothing but experts, and what their weights are worth."""
    generator = torch.Generator().manual_seed(config.num_experts)
    tensors: dict[str, torch.Tensor] = {}
    worth: dict[str, np.ndarray] = {}
    for name, shape in expert_shapes(config, HIDDEN).items():
        weights = torch.randn(shape, generator=generator) * 0.3
        parts, value = STORED[stored](weights) if name.endswith("proj") else keep(torch.float32, weights)
        tensors |= {f"layers.0.{name}{part}": tensor.contiguous() for part, tensor in parts.items()}
        worth[f"layers.0.{name}"] = value.numpy()
    save_file(tensors, folder / "weights.safetensors")
    builder = GraphBuilder("experts", read_header(folder / "weights.safetensors"), opset=BATCHED_OPSET, element=element)
    rows = builder.input("rows", element, ["S", HIDDEN])
    builder.op("Identity", emit(builder, config, rows, "layers.0."), output="mixed")
    builder.output("mixed", element, ["S", HIDDEN])
    path = folder / "experts.onnx"
    path.write_bytes(builder.model().SerializeToString())
    return path, worth


def open_session(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stored", STORED)
def test_experts_are_mixed_as_the_reference_does(tmp_path: Path, form: str, config: ExpertsConfig, stored: str) -> None:
    path, worth = write_experts(tmp_path, FORMS[form], config, stored)
    session = open_session(path)
    for count in (1, 6, 7, 33):
        rows = np.random.default_rng(count).standard_normal((count, HIDDEN)).astype(np.float32)
        (found,) = session.run(["mixed"], {"rows": rows})
        expected, margin = mix_experts(config, worth.__getitem__, "layers.0.", rows.astype(np.float64))
        assert margin > 1e-6
        np.testing.assert_allclose(found, expected, atol=ROUNDING * np.abs(expected).max())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("config", [GPT_OSS, CONFIGS["qwen3-moe"]], ids=["gpt-oss", "qwen3-moe"])
def test_mxfp4_and_its_cast_to_nvfp4_give_the_same_bits(tmp_path: Path, form: str, config: ExpertsConfig) -> None:
    for folder in ("mxfp4", "cast"):
        (tmp_path / folder).mkdir()
    kept = open_session(write_experts(tmp_path / "mxfp4", FORMS[form], config, "mxfp4")[0])
    cast = open_session(write_experts(tmp_path / "cast", FORMS[form], config, "cast")[0])
    rows = np.random.default_rng(9).standard_normal((11, HIDDEN)).astype(np.float32)
    found, expected = (session.run(["mixed"], {"rows": rows})[0] for session in (cast, kept))
    assert np.abs(expected).max() > 0.1
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_a_row_gets_the_same_alone_and_among_others(tmp_path: Path) -> None:
    session = open_session(write_experts(tmp_path, gathered_experts, GPT_OSS, "mxfp4")[0])
    rows = np.random.default_rng(0).standard_normal((6, HIDDEN)).astype(np.float32)
    (together,) = session.run(["mixed"], {"rows": rows})
    alone = np.concatenate([session.run(["mixed"], {"rows": row[None]})[0] for row in rows])
    np.testing.assert_array_equal(together, alone)


def test_every_word_of_codes_is_taken_apart_exactly(tmp_path: Path) -> None:
    words = np.random.default_rng(0).integers(-(2**31), 2**31, 4096, dtype=np.int64).astype(np.int32)
    words[:4] = [-(2**31), -1, 0, 2**31 - 1]
    builder = GraphBuilder("words", {}, opset=BATCHED_OPSET)
    builder.input("words", "INT32", ["N"])
    table = builder.constant(np.arange(256, dtype=np.float32))
    in_order = builder.op("Reshape", doubled_values_in_order(builder, "words"), integers(builder, -1, 8))
    parts = [*doubled_values(builder, "words"), *scale_values(builder, "words", table)]
    for place, part in enumerate(parts):
        builder.output(builder.op("Identity", part, output=f"part.{place}"), "FLOAT", ["N"])
    builder.output(builder.op("Identity", in_order, output="in.order"), "FLOAT", ["N", 8])
    (tmp_path / "words.onnx").write_bytes(builder.model().SerializeToString())
    found = open_session(tmp_path / "words.onnx").run(None, {"words": words})
    codes = words.view(np.uint32)[:, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    doubled = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
    np.testing.assert_array_equal(np.stack(found[:8], axis=1), doubled[codes])
    np.testing.assert_array_equal(found[12], doubled[codes])
    np.testing.assert_array_equal(np.stack(found[8:12], axis=1), words.view(np.uint8).reshape(-1, 4))


def test_scales_that_fill_no_words_are_named(tmp_path: Path) -> None:
    tensors = {
        "layers.0.experts_gate_up_proj.blocks": torch.zeros(2, 3, 1, 16, dtype=torch.uint8),
        "layers.0.experts_gate_up_proj.scales": torch.zeros(2, 3, 1, dtype=torch.uint8),
    }
    save_file(tensors, tmp_path / "weights.safetensors")
    builder = GraphBuilder("experts", read_header(tmp_path / "weights.safetensors"), opset=BATCHED_OPSET)
    with pytest.raises(CheckpointError, match=r"`layers.0.experts_gate_up_proj.scales` has 3 scales a matrix"):
        mxfp4_stack(builder, "layers.0.experts_gate_up_proj")


@pytest.fixture(scope="module", params=["gpt-oss-120b", "qwen3-coder-30b-a3b", "qwen3-coder-30b-a3b-cut"])
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shrunken model in its published form; of the last, shards cut a layer's experts in two."""
    folder = tmp_path_factory.mktemp(request.param)
    model = request.param.removesuffix("-cut")
    description = shrink(shorten(read_published(model), 2))
    description |= {"max_shard_bytes": 400_000 if request.param.endswith("-cut") else 1 << 30}
    write_target(folder / "target", description, is_filled=lambda _: True, seed=1)
    write_drafter(folder / "head", description, is_filled=lambda _: True, seed=2)
    return folder


@pytest.mark.parametrize("precision", ["native", "bf16", "fp32"])
def test_a_published_model_gives_the_numbers_of_the_grouped_graph(published: Path, precision: str) -> None:
    places = (published / "target", published / "head")
    tokens = token_ids_of(40) % 280
    expected = read_in_two(open_pair(*places, published / f"grouped.{precision}", max_batch_size=2).engine, tokens)
    build = published / f"batched.{precision}"
    found = read_in_two(open_batched_pair(*places, build, precision=precision, max_batch_size=2).engine, tokens)
    np.testing.assert_allclose(found, expected, atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.rtx
@needs("rtx")
@pytest.mark.parametrize(
    ("stored", "form", "element"),
    [
        ("bfloat16", "gathered", "BFLOAT16"),
        ("mxfp4", "gathered", "BFLOAT16"),
        ("mxfp4", "switched", "BFLOAT16"),
        ("mxfp4", "gathered", "FLOAT16"),
        ("nvfp4", "gathered", "BFLOAT16"),
    ],
)
def test_experts_compile(tmp_path: Path, stored: str, form: str, element: Element) -> None:
    path, _ = write_experts(tmp_path, FORMS[form], GPT_OSS, stored, element)
    ports = (Port(name="rows", element=element, dims=("S", HIDDEN), is_input=True),)
    assert compile_graph(path, ports).engine_bytes > 0


@pytest.mark.rtx
@needs("rtx")
def test_words_of_nvfp4_compile_for_gpus_without_fp4(tmp_path: Path) -> None:
    path, _ = write_experts(tmp_path, gathered_experts, GPT_OSS, "nvfp4", "BFLOAT16")
    ports = (Port(name="rows", element="BFLOAT16", dims=("S", HIDDEN), is_input=True),)
    assert compile_graph(path, ports, capability="SM80").engine_bytes > 0


@pytest.mark.rtx
@needs("rtx")
@pytest.mark.parametrize("stored", ["mxfp4", "nvfp4", "bfloat16"])
def test_tensorrt_writes_no_chosen_matrix_out(tmp_path: Path, stored: str) -> None:
    config = msgspec.structs.replace(GPT_OSS, intermediate_size=1024)
    path, _ = write_experts(tmp_path, gathered_experts, config, stored, "BFLOAT16")
    rows = SIZES["S"][2]
    packed_bytes = rows * config.experts_per_token * 2 * config.intermediate_size * HIDDEN // 2
    ports = (Port(name="rows", element="BFLOAT16", dims=("S", HIDDEN), is_input=True),)
    # Gathering, unpacking, scaling, multiplying and adding are then one kernel. 8 MiB are TensorRT's own.
    assert compile_graph(path, ports).scratch_bytes < packed_bytes


@pytest.mark.rtx
@needs("rtx")
def test_tensorrt_takes_remainders_towards_minus_infinity(tmp_path: Path) -> None:
    import tensorrt_rtx as trt

    builder = GraphBuilder("words", {}, opset=BATCHED_OPSET)
    words = builder.input("words", "INT32", [4])
    builder.op("Mod", words, builder.constant(np.array(16, np.int32)), output="rest")
    builder.output("rest", "INT32", [4])
    # A word with its highest bit set is a negative number, of which rounding towards zero would give other digits.
    assert elementwise_operations(trt, builder.model().SerializeToString()) == ["FLOOR_DIV", "PROD", "SUB"]


def elementwise_operations(trt: Any, model: bytes) -> list[str]:
    """What TensorRT's parser makes of a graph, element by element."""
    network = trt.Builder(trt.Logger(trt.Logger.ERROR)).create_network()
    assert trt.OnnxParser(network, trt.Logger(trt.Logger.ERROR)).parse(model)
    found = []
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ELEMENTWISE:
            layer.__class__ = trt.IElementWiseLayer
            found.append(layer.op.name)
    return found
