"""The batched graphs in ONNX Runtime, behind the calls that the decode loop makes of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime

from peagle_trt.engine.protocol import DraftRows, TargetOutput, TargetRows
from peagle_trt.graph.batched import Port, batched_ports, build_batched_graphs, first_key_row
from peagle_trt.graph.builder import Element
from peagle_trt.readers import read_drafter, read_target
from peagle_trt.readers.checkpoint import DrafterCheckpoint, TargetCheckpoint
from peagle_trt.spec import BuildSpec, DrafterConfig, GraphShapes, TargetConfig
from tests.support.models import STORING

NUMPY_TYPES = {"FLOAT": np.float32, "FLOAT16": np.float16, "INT32": np.int32}


class BatchedGraph:
    """One graph and its caches, a place in the batch for every slot; caches are bound in place."""

    def __init__(
        self, path: Path, config: TargetConfig | DrafterConfig, shapes: GraphShapes, *, element: Element
    ) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.ports = batched_ports(config, shapes, element=element)
        self.batch, self.capacity = shapes.max_batch_size, shapes.cache_capacity
        self.caches = {port.alias: self._cache(port) for port in self.ports if port.alias}
        row = first_key_row(config)
        for name, cache in self.caches.items():
            if row is not None and name.startswith("key"):
                cache[:, :, 0] = row
        self.lengths = np.zeros(self.batch, np.int32)

    def run(self, feeds: dict[str, np.ndarray], sizes: dict[str, int]) -> dict[str, np.ndarray]:
        binding = self.session.io_binding()
        outputs: dict[str, np.ndarray] = {}
        for port in self.ports:
            array = self.caches.get(port.alias or port.name)
            if array is None and port.is_input:
                array = feeds[port.name]
                assert array.dtype == NUMPY_TYPES[port.element]
            if array is None:
                dims = [sizes[dim] if isinstance(dim, str) else dim for dim in port.dims]
                array = outputs[port.name] = np.zeros(dims, NUMPY_TYPES[port.element])
            bind = binding.bind_input if port.is_input else binding.bind_output
            bind(port.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        self.session.run_with_iobinding(binding)
        return outputs

    def starts(self, slots: dict[int, int], num_rows: int) -> np.ndarray:
        """Where each place writes: what takes no part writes behind what it has."""
        idle = np.minimum(self.lengths, self.capacity - num_rows)
        return np.array([slots.get(slot, idle[slot]) for slot in range(self.batch)], np.int32)

    def _cache(self, port: Port) -> np.ndarray:
        dims = [self.batch if dim == "B" else dim for dim in port.dims]
        return np.zeros(dims, NUMPY_TYPES[port.element])  # type: ignore[arg-type]


def key_lengths(starts: np.ndarray, num_rows: int, slots: Sequence[int]) -> np.ndarray:
    """Valid rows of every cache; what takes no part looks at as few as it can."""
    lengths = np.full(len(starts), num_rows, np.int32)
    lengths[list(slots)] += starts[list(slots)]
    return lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedDraft:
    """Candidates of one pass, in the order of the call."""

    candidate_ids: np.ndarray
    probabilities: np.ndarray


class BatchedEngine:
    """Both graphs; takes what the decode loop gives an engine."""

    def __init__(self, target: BatchedGraph, drafter: BatchedGraph, mask_token_id: int) -> None:
        self.target, self.drafter, self.mask_token_id = target, drafter, mask_token_id

    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        graph = self.target
        step = max(len(each.token_ids) for each in rows)
        wanted = max(max(each.num_logit_rows for each in rows), 1)
        token_ids, logit_rows = np.zeros((graph.batch, step), np.int32), np.zeros((graph.batch, wanted), np.int32)
        for each in rows:
            count = len(each.token_ids)
            token_ids[each.slot, :count] = each.token_ids
            logit_rows[each.slot, : each.num_logit_rows] = np.arange(count - each.num_logit_rows, count)
        starts = graph.starts({each.slot: each.start_position for each in rows}, step)
        feeds = {
            "token_ids": token_ids,
            "start_positions": starts,
            "key_lengths": key_lengths(starts, step, [each.slot for each in rows]),
            "logit_rows": logit_rows,
        }
        found = graph.run(feeds, {"B": graph.batch, "S": step, "L": wanted})
        best = found["logits"].argmax(-1)
        assert (found["greedy_token_ids"] == best).all()
        outputs = []
        for each in rows:
            count = len(each.token_ids)
            graph.lengths[each.slot] = each.start_position + count
            logits = found["logits"][each.slot, : each.num_logit_rows]
            outputs.append(TargetOutput(logits=logits, hidden=found["hidden"][each.slot, :count].astype(np.float32)))
        return outputs

    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> BatchedDraft:
        graph = self.drafter
        carried = max(len(each.next_token_ids) for each in rows)
        width = carried + draft_tokens - 1
        hidden_port = next(port for port in graph.ports if port.name == "hidden")
        feeds = {
            "next_token_ids": np.zeros((graph.batch, carried), np.int32),
            # Of a place without a sequence, row 0 is read, and what it leaves in the cache must be a number.
            "hidden": np.zeros((graph.batch, carried, hidden_port.dims[2]), NUMPY_TYPES[hidden_port.element]),
            "num_accepted": np.zeros(graph.batch, np.int32),
            "mask_token_ids": np.full(draft_tokens, self.mask_token_id, np.int32),
        }
        for each in rows:
            count = len(each.next_token_ids)
            feeds["next_token_ids"][each.slot, :count] = each.next_token_ids
            feeds["hidden"][each.slot] = np.nan
            feeds["hidden"][each.slot, :count] = each.hidden
            feeds["num_accepted"][each.slot] = each.num_accepted
        starts = graph.starts({each.slot: each.start_position for each in rows}, width)
        slots = [each.slot for each in rows]
        feeds |= {"start_positions": starts, "key_lengths": key_lengths(starts, width, slots)}
        found = graph.run(feeds, {"B": graph.batch, "R": carried, "K": draft_tokens})
        for each in rows:
            graph.lengths[each.slot] = each.start_position + each.num_accepted + 1
        return BatchedDraft(candidate_ids=found["candidate_ids"][slots], probabilities=found["probabilities"][slots])


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedPair:
    """A target and a drafter with their engine, and what it was made of."""

    target: TargetCheckpoint
    drafter: DrafterCheckpoint
    target_config: TargetConfig
    shapes: GraphShapes
    engine_path: Path
    engine: Any = None


def build_pair(
    target_path: Path,
    drafter_path: Path,
    build_path: Path,
    *,
    element: Element = "FLOAT",
    precision: str = "fp32",
    uses_plugins: bool = False,
    **limits: int,
) -> BatchedPair:
    """Write weights and batched graphs for two checkpoints."""
    target, drafter = read_target(target_path), read_drafter(drafter_path)
    config = msgspec.structs.replace(target.config, aux_layer_ids=drafter.config.aux_layer_ids)
    engine_path = build_path / "engine"
    engine_path.mkdir(parents=True)
    store_target, store_drafter = STORING[precision]
    stored_target = store_target(target, engine_path / "target.safetensors")
    stored_drafter = store_drafter(drafter, target, engine_path / "drafter.safetensors")
    spec = BuildSpec(
        name="random",
        target_path=target_path,
        drafter_path=drafter_path,
        tokenizer_path=target_path,
        output_path=build_path,
        **({"max_batch_size": 8, "max_sequence_length": 256} | limits),
    )
    shapes, _ = build_batched_graphs(
        spec,
        config,
        drafter.config,
        stored_target,
        stored_drafter,
        engine_path,
        element=element,
        uses_plugins=uses_plugins,
    )
    return BatchedPair(target=target, drafter=drafter, target_config=config, shapes=shapes, engine_path=engine_path)


def open_batched_pair(
    target_path: Path, drafter_path: Path, build_path: Path, *, element: Element = "FLOAT", **options: Any
) -> BatchedPair:
    """The same, loaded into ONNX Runtime."""
    pair = build_pair(target_path, drafter_path, build_path, element=element, **options)
    target = BatchedGraph(pair.engine_path / "target.onnx", pair.target_config, pair.shapes, element=element)
    drafter = BatchedGraph(pair.engine_path / "drafter.onnx", pair.drafter.config, pair.shapes, element=element)
    engine = BatchedEngine(target, drafter, pair.drafter.config.mask_token_id)
    return BatchedPair(
        target=pair.target,
        drafter=pair.drafter,
        target_config=pair.target_config,
        shapes=pair.shapes,
        engine_path=pair.engine_path,
        engine=engine,
    )
