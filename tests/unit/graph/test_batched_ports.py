"""What the batched graphs say of their inputs and outputs is what they have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from peagle_trt.graph.batched import batched_ports, first_key_row
from peagle_trt.graph.builder import Element
from tests.support.batched import BatchedPair, build_pair
from tests.support.models import HIDDEN, save_drafter, save_target


def pair_of(folder: Path, architecture: str, element: Element) -> BatchedPair:
    save_target(folder / "target", architecture)
    save_drafter(folder / "drafter", draft_vocab_size=10)
    return build_pair(folder / "target", folder / "drafter", folder / "build", element=element, max_batch_size=2)


@pytest.mark.parametrize("element", ["FLOAT", "FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "GptOssForCausalLM"])
def test_ports_are_the_graphs_own(tmp_path: Path, architecture: str, element: Element) -> None:
    pair = pair_of(tmp_path, architecture, element)
    for role, config in (("target", pair.target_config), ("drafter", pair.drafter.config)):
        graph = onnx.load(pair.engine_path / f"{role}.onnx", load_external_data=False).graph
        ports = batched_ports(config, pair.shapes, element=element)
        for is_input, values in ((True, graph.input), (False, graph.output)):
            expected = [(port.name, port.element, port.dims) for port in ports if port.is_input == is_input]
            assert [described(value) for value in values] == expected


def described(value: onnx.ValueInfoProto) -> tuple[str, str, tuple[int | str, ...]]:
    kind = value.type.tensor_type
    dims = tuple(dim.dim_param or dim.dim_value for dim in kind.shape.dim)
    return value.name, onnx.TensorProto.DataType.Name(kind.elem_type), dims


def test_every_cache_that_comes_out_names_the_one_that_went_in(tmp_path: Path) -> None:
    pair = pair_of(tmp_path, "LlamaForCausalLM", "FLOAT")
    ports = {port.name: port for port in batched_ports(pair.target_config, pair.shapes, element="FLOAT")}
    aliased = [port for port in ports.values() if port.alias]
    assert len(aliased) == 12
    assert all(ports[port.alias].dims == port.dims and ports[port.alias].is_input for port in aliased)


def test_a_cache_with_sinks_has_a_row_and_sixteen_columns_more(tmp_path: Path) -> None:
    pair = pair_of(tmp_path, "GptOssForCausalLM", "FLOAT")
    ports = {port.name: port for port in batched_ports(pair.target_config, pair.shapes, element="FLOAT")}
    assert ports["key.0"].dims == ("B", 2, pair.shapes.cache_capacity + 1, 48)
    row = first_key_row(pair.target_config)
    assert row is not None
    assert np.flatnonzero(row).tolist() == [32]
    assert first_key_row(pair.drafter.config) is None


def test_a_slot_has_no_more_candidates_than_the_draft_vocabulary(tmp_path: Path) -> None:
    pair = pair_of(tmp_path, "LlamaForCausalLM", "FLOAT")
    ports = {port.name: port for port in batched_ports(pair.drafter.config, pair.shapes, element="FLOAT")}
    assert ports["candidate_ids"].dims == ("B", "K", 10)
    assert ports["hidden"].dims == ("B", "R", 3 * HIDDEN)


def test_a_graph_holds_nothing_of_onnx_runtimes_own(tmp_path: Path) -> None:
    pair = pair_of(tmp_path, "GptOssForCausalLM", "BFLOAT16")
    for role in ("target", "drafter"):
        model = onnx.load(pair.engine_path / f"{role}.onnx", load_external_data=False)
        nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
        domains = {node.domain for node in nodes}
        assert domains - {"", "peagle", "peagle.causal", "peagle.masked"} == set()
        # TensorRT would drop its lengths; see nodes.py.
        assert "Attention" not in {node.op_type for node in model.graph.node}
