"""Compiling for real, with TensorRT-RTX and without a GPU."""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from peagle_trt.build_folder import read_manifest
from peagle_trt.engine.tensorrt.compile import CompileOptions, compile_graph
from peagle_trt.engine.tensorrt.interruption import HeldSignals
from peagle_trt.engine.tensorrt.library import MessageLog, load_library
from peagle_trt.engine.tensorrt.network_check import check_network
from peagle_trt.engine.tensorrt.profiles import drafter_profiles
from peagle_trt.errors import MachineError, PeagleError
from peagle_trt.files import sha256_of
from peagle_trt.graph.batched.drafter import drafter_graph
from peagle_trt.graph.build import drafter_weights
from peagle_trt.quant import open_stored
from peagle_trt.spec import EngineProfile
from tests.support.capabilities import needs

pytestmark = [pytest.mark.rtx, needs("rtx")]

PROFILES = (EngineProfile(name="prompt", dims={"B": (1, 2, 4), "S": (1, 2, 8)}),)
HEADS, CAPACITY, DIM = 2, 32, 64


def attention_graph(folder: Path, *, domain: str = "peagle", cache: str = "TensorScatter", **attributes: Any) -> Path:
    """Rows into a cache, and attention over it; `attributes` are those of the attention."""
    element = TensorProto.FLOAT16
    dims, rows = ["B", HEADS, CAPACITY, DIM], ["B", HEADS, "S", DIM]
    value = helper.make_tensor_value_info
    inputs = [
        value("rows", element, rows),
        value("starts", TensorProto.INT64, ["B"]),
        value("lengths", TensorProto.INT32, ["B"]),
        value("key.0", element, dims),
    ]
    if cache == "TensorScatter":
        update = helper.make_node("TensorScatter", ["key.0", "rows", "starts"], ["key.0.out"], axis=-2)
    else:
        update = helper.make_node("Add", ["key.0", "key.0"], ["key.0.out"])
    if domain:
        given = ["rows", "key.0.out", "key.0.out", "", "", "lengths"]
        attention = helper.make_node("TRT_Attention", given, ["mixed"], domain=domain, **attributes)
    else:
        attention = helper.make_node("Attention", ["rows", "key.0.out", "key.0.out"], ["mixed"], **attributes)
    outputs = [value("mixed", element, rows), value("key.0.out", element, dims)]
    graph = helper.make_graph([update, attention], "toy", inputs, outputs)
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("peagle", 1)]
    path = folder / "toy.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=11), path)
    return path


def compile_toy(folder: Path, path: Path, *capabilities: str) -> Any:
    options = CompileOptions(compute_capabilities=capabilities or ("120",))
    return compile_graph(load_library("tensorrt-rtx"), path, folder / "toy.plan", PROFILES, options)


def test_the_record_says_what_was_made(tmp_path: Path) -> None:
    made = compile_toy(tmp_path, attention_graph(tmp_path, causal_kind="lower_right"), "89", "120")
    plan = tmp_path / "toy.plan"
    assert (made.size_bytes, made.sha256) == (plan.stat().st_size, sha256_of(plan))
    assert (made.compiler, made.compute_capabilities) == ("tensorrt-rtx", ("89", "120"))
    assert made.profiles == PROFILES


def test_two_builds_are_equally_large(tmp_path: Path) -> None:
    # Their bytes are mostly the same, and not always: of 80 builds of this graph 61 were, and in the others a few
    # numbers of kernels differed. So the digest tells a damaged file from a whole one, and not one build from another.
    path = attention_graph(tmp_path, causal_kind="lower_right")
    assert compile_toy(tmp_path, path).size_bytes == compile_toy(tmp_path, path).size_bytes


def test_causality_from_the_upper_left_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PeagleError, match="was read with causality UPPER_LEFT, no mask and no key lengths"):
        compile_toy(tmp_path, attention_graph(tmp_path, domain="", is_causal=1))


def test_attention_to_everything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PeagleError, match="was read with causality NONE, no mask and key lengths"):
        compile_toy(tmp_path, attention_graph(tmp_path, causal_kind="none"))


def test_a_cache_that_is_copied_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PeagleError, match=r"cache `key\.0\.out` is not updated in place"):
        compile_toy(tmp_path, attention_graph(tmp_path, cache="Add", causal_kind="lower_right"))


def test_what_the_library_only_logs_is_an_error(tmp_path: Path) -> None:
    # float32 has no fused kernel, which TensorRT says in its log.
    path = attention_graph(tmp_path, causal_kind="lower_right")
    model = onnx.load(path)
    for port in (*model.graph.input, *model.graph.output):
        if port.type.tensor_type.elem_type == TensorProto.FLOAT16:
            port.type.tensor_type.elem_type = TensorProto.FLOAT
    onnx.save(model, path)
    with pytest.raises(PeagleError, match=r"could not compile `toy.onnx`: .*not supported by a dedicated kernel"):
        compile_toy(tmp_path, path)


def test_a_graph_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = attention_graph(tmp_path, causal_kind="lower_right")
    model = onnx.load(path)
    model.graph.node[1].op_type = "Nonsense"
    onnx.save(model, path)
    with pytest.raises(PeagleError, match=r"TensorRT cannot read `toy.onnx`: .*Plugin not found") as caught:
        compile_toy(tmp_path, path)
    assert "cudaError" not in caught.value.message


def test_weights_inside_a_checkpoints_shard_are_found(tiny_build: Path, tmp_path: Path) -> None:
    manifest = read_manifest(tiny_build)
    for name in ("target.safetensors", "drafter.safetensors"):
        (tmp_path / name).hardlink_to(tiny_build / "engine" / name)
    weights = drafter_weights(*(open_stored(tmp_path / f"{role}.safetensors") for role in ("target", "drafter")))
    capacity = manifest.shapes.cache_capacity
    model = drafter_graph(manifest.drafter, weights, element="FLOAT16", cache_capacity=capacity, uses_plugins=False)
    (tmp_path / "drafter.onnx").write_bytes(model.SerializeToString())
    made = compile_graph(
        load_library("tensorrt-rtx"),
        tmp_path / "drafter.onnx",
        tmp_path / "drafter.plan",
        drafter_profiles(manifest.shapes),
        CompileOptions(compute_capabilities=("120",)),
    )
    table = np.prod((manifest.drafter.vocab_size, manifest.drafter.hidden_size)) * 2
    assert made.size_bytes > table


def test_the_network_is_summed_up(tmp_path: Path) -> None:
    library = load_library("tensorrt-rtx")
    log = MessageLog(library, needs_gpu=False)
    builder = library.module.Builder(log.logger)
    network = builder.create_network(1)
    parser = library.module.OnnxParser(network, log.logger)
    assert parser.parse_from_file(str(attention_graph(tmp_path, causal_kind="lower_right")))
    found = check_network(library, network, "toy")
    assert (found.num_causal, found.num_masked, found.num_caches) == (1, 0, 1)


def test_an_engine_that_the_disk_does_not_hold_is_no_engine(tmp_path: Path) -> None:
    path = attention_graph(tmp_path, causal_kind="lower_right")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(MachineError, match=r"cannot use `.*toy.plan`: the file would be larger than is allowed"):
            compile_toy(tmp_path, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)


def test_ctrl_c_ends_a_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeldSignals, "__init__", lambda held: setattr(held, "first", signal.SIGINT))
    # A process that was started in the background ignores SIGINT.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            compile_toy(tmp_path, attention_graph(tmp_path, causal_kind="lower_right"))
    finally:
        signal.signal(signal.SIGINT, previous)
