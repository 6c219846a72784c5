"""Nodes of the plugins for the cases that every form must agree on."""

from __future__ import annotations

import numpy as np

from peagle_trt_plugins import contract, contract_select_stages
from peagle_trt_plugins.ports import VERSION, Port
from tests.support.plugin_cases import Arrays, DraftCase, SelectCase
from tests.support.tensorrt_worker import Node

TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16", "int32": "INT32", "int64": "INT64"}
# What changes from step to step; a build leaves it open.
OPEN = "BRKW"


def node_for(plugin: str, ports: tuple[Port, ...], arrays: Arrays, **attributes: float) -> Node:
    """A node whose changing dimensions are open, and have the values of `arrays` when it runs."""
    given = [(port, arrays[port.name]) for port in ports]
    return Node(
        plugin=plugin,
        shapes=[
            tuple(letter if letter in OPEN else size for letter, size in zip(port.dims, array.shape, strict=True))
            for port, array in given
        ],
        types=[TYPES[array.dtype.name] for _, array in given],
        attributes={**attributes, "contract_version": VERSION},
        opened=[{letter: size for port, array in given for letter, size in zip(port.dims, array.shape, strict=True)}],
    )


def draft_node(case: DraftCase) -> Node:
    attributes = {"epsilon": case.attributes()["epsilon"], "norm_before_residual": int(case.norm_before_residual)}
    return node_for(contract.NAME, contract.INPUTS, case.inputs(), **attributes)


def blocks_node(case: SelectCase) -> Node:
    stages = contract_select_stages
    return node_for(stages.BLOCKS_NAME, stages.BLOCKS_INPUTS, case.inputs(), candidates=case.candidates or 1)


def merge_node(case: SelectCase, values: np.ndarray, ids: np.ndarray) -> tuple[Node, list[np.ndarray]]:
    """The second stage's node, and its inputs."""
    stages = contract_select_stages
    arrays = {**case.inputs(), "block_values": values, "block_ids": ids}
    if case.candidates:
        ports = stages.CANDIDATES_INPUTS
        node = node_for(stages.CANDIDATES_NAME, ports, arrays, candidates=case.candidates)
    else:
        ports = stages.BEST_INPUTS
        node = node_for(stages.BEST_NAME, ports, arrays)
    return node, [arrays[port.name] for port in ports]
