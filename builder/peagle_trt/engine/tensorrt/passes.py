"""Runs dense passes on the GPU. See `engine.batched_engine.PassRunner`.

Tokens and positions go up, drafts and the likeliest tokens come back: some kilobytes a step. Caches, hidden states and
logits stay on the device; logits come back only where a request draws from them.

Letters: B sequences, S rows of the target, L rows with logits, V vocabulary, A auxiliary states, H hidden size,
R rows carried over to the drafter, K drafted slots, M candidates of a slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peagle_trt.engine.batched_engine import MAX_CANDIDATES, TargetResult
from peagle_trt.engine.batched_pass import DrafterPass, TargetPass
from peagle_trt.engine.protocol import DraftCandidates, HiddenRows
from peagle_trt.engine.tensorrt.device import Device
from peagle_trt.engine.tensorrt.execution import LoadedEngine
from peagle_trt.engine.tensorrt.library import Library
from peagle_trt.engine.tensorrt.memory import DeviceCaches, NamedBuffers, StepArena
from peagle_trt.errors import UsageError
from peagle_trt.graph.batched import first_key_row
from peagle_trt.graph.batched.ports import cache_dims
from peagle_trt.spec import DrafterConfig, EngineManifest, TargetConfig

_FLOAT32, _INT32 = np.dtype(np.float32), np.dtype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBlock:
    """Hidden states of one pass on the device, [B, S, A*H].

    Attributes:
        address: Where they lie.
        dtype: Type of an element.
        shape: B, S and A*H.
        generation: Step that they belong to.
        passes: Who can read them.
    """

    address: int
    dtype: np.dtype[Any]
    shape: tuple[int, int, int]
    generation: int
    passes: TensorRTPasses

    @property
    def sequence_bytes(self) -> int:
        """Size of one sequence's rows."""
        return self.shape[1] * self.shape[2] * self.dtype.itemsize

    def rows(self, row: int, count: int) -> DeviceHidden:
        """The first `count` rows of a sequence."""
        return DeviceHidden(block=self, row=row, count=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHidden:
    """The first rows of one sequence of a block. See `engine.protocol.DeviceRows`.

    Attributes:
        block: The block.
        row: Place of the sequence in it.
        count: Rows.
    """

    block: DeviceBlock
    row: int
    count: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and width."""
        return self.count, self.block.shape[2]

    @property
    def address(self) -> int:
        """Where they lie.

        Raises:
            ValueError: They belong to an earlier step, and are overwritten.
        """
        if self.block.generation != self.block.passes.generation:
            raise ValueError("these hidden states belong to an earlier step of the target")
        return self.block.address + self.row * self.block.sequence_bytes

    def to_host(self) -> NDArray[np.float32]:
        """A copy in this process's memory."""
        return self.block.passes.read_hidden(self)


class TensorRTPasses:
    """Target and drafter on one GPU.

    Args:
        library: What compiled them.
        device: Where they run.
        build_path: Folder of the build.
        manifest: Its manifest.
    """

    def __init__(self, library: Library, device: Device, build_path: Path, manifest: EngineManifest) -> None:
        self._library = library
        self._device = device
        self._build_path = build_path
        self._manifest = manifest
        self._buffers = NamedBuffers(device)
        self._arena = StepArena(device)
        self._engines: dict[str, LoadedEngine] = {}
        self._caches: dict[str, DeviceCaches] = {}

    @property
    def generation(self) -> int:
        """The step that hidden states must belong to."""
        return self._arena.generation

    def begin(self) -> None:
        """A new step of the target begins."""
        self._arena.reset()

    def run_target(self, each: TargetPass) -> TargetResult:
        """Run one pass of the target."""
        engine = self._engine("target")
        batch, width = each.token_ids.shape
        num_logits, vocab_size = each.logit_rows.shape[1], self._manifest.target.vocab_size
        inputs = {
            "token_ids": each.token_ids,
            "start_positions": each.start_positions,
            "key_lengths": each.key_lengths,
            "logit_rows": each.logit_rows,
        }
        hidden = self._take_block(engine, batch, width)
        outputs = {
            "logits": self._buffers.on_device("target.logits", batch * num_logits * vocab_size * 4),
            "greedy_token_ids": self._buffers.on_device("target.greedy_token_ids", batch * num_logits * 4),
            "hidden": hidden.address,
        }
        self._run("target", {"B": batch, "S": width, "L": num_logits}, inputs, outputs, each.first_slot)
        best = self._fetch("greedy_token_ids", outputs["greedy_token_ids"], _INT32, (batch, num_logits))
        logits = None
        if each.needs_logits:
            logits = self._fetch("logits", outputs["logits"], _FLOAT32, (batch, num_logits, vocab_size))
        self._device.wait()
        # The buffers are the next pass's; what is handed out must outlive it.
        return TargetResult(
            logits=None if logits is None else logits.copy(), greedy_token_ids=best.copy(), hidden=hidden
        )

    def run_drafter(self, each: DrafterPass, hidden: Sequence[HiddenRows]) -> DraftCandidates:
        """Run one pass of the drafter."""
        engine = self._engine("drafter")
        batch, carried = each.next_token_ids.shape
        slots = each.draft_tokens
        candidates = min(MAX_CANDIDATES, self._manifest.drafter.draft_vocab_size)
        shape = (batch, slots, candidates)
        inputs = {
            "next_token_ids": each.next_token_ids,
            "num_accepted": each.num_accepted,
            "start_positions": each.start_positions,
            "key_lengths": each.key_lengths,
            "mask_token_ids": np.full(slots, self._manifest.drafter.mask_token_id, np.int32),
        }
        width = hidden[0].shape[1]
        outputs = {
            "candidate_ids": self._buffers.on_device("drafter.candidate_ids", int(np.prod(shape)) * 4),
            "probabilities": self._buffers.on_device("drafter.probabilities", int(np.prod(shape)) * 4),
            "hidden": self._place_hidden(each, hidden, engine.dtype("hidden"), (batch, carried, width)),
        }
        shapes = {"hidden": (batch, carried, width)}
        self._run("drafter", {"B": batch, "R": carried, "K": slots}, inputs, outputs, each.first_slot, shapes)
        ids = self._fetch("candidate_ids", outputs["candidate_ids"], _INT32, shape)
        probabilities = self._fetch("probabilities", outputs["probabilities"], _FLOAT32, shape)
        self._device.wait()
        return DraftCandidates(token_ids=ids.copy(), probabilities=probabilities.copy())

    def copy_rows(self, source_slot: int, target_slot: int, num_rows: int) -> None:
        """Copy the first rows of a slot's caches, both models', over those of another."""
        for caches in self._caches.values():
            caches.copy_rows(source_slot, target_slot, num_rows)

    def read_hidden(self, hidden: DeviceHidden) -> NDArray[np.float32]:
        """A copy of hidden states in this process's memory."""
        found = self._fetch("hidden", hidden.address, hidden.block.dtype, hidden.shape)
        self._device.wait()
        return found.astype(np.float32)

    def preload(self) -> None:
        """Load both engines and prepare every profile."""
        for role in ("target", "drafter"):
            self._engine(role).prepare()

    def close(self) -> None:
        """Give everything on the device back."""
        self._device.wait()
        for engine in self._engines.values():
            engine.close()
        for caches in self._caches.values():
            caches.close()
        self._engines.clear()
        self._caches.clear()
        self._buffers.close()
        self._arena.close()

    def _engine(self, role: str) -> LoadedEngine:
        if not self._engines:
            self._load()
        return self._engines[role]

    def _load(self) -> None:
        records = self._manifest.engines
        configs: dict[str, TargetConfig | DrafterConfig] = {
            "target": self._manifest.target,
            "drafter": self._manifest.drafter,
        }
        engines = {
            role: LoadedEngine(self._library, self._device, self._build_path / records[role].path, records[role])
            for role in configs
        }
        for role, engine in engines.items():
            self._check_caches(engine, configs[role], records[role].path)
        size_bytes = max(engine.scratch_bytes for engine in engines.values())
        scratch = self._buffers.on_device("scratch", size_bytes)
        for role, engine in engines.items():
            engine.use_scratch(scratch, size_bytes)
            self._caches[role] = DeviceCaches(
                self._device,
                engine.caches,
                num_slots=self._manifest.shapes.max_batch_size,
                first_key_row=first_key_row(configs[role]),
            )
        self._engines = engines

    def _check_caches(self, engine: LoadedEngine, model: TargetConfig | DrafterConfig, path: str) -> None:
        """Refuse an engine of another model or length: rows would be written past the end of its caches."""
        _, *dims = cache_dims(model, self._manifest.shapes.cache_capacity)
        expected = {f"{kind}.{layer}": tuple(dims) for layer in range(model.num_layers) for kind in ("key", "value")}
        found = {name: port.shape for name, port in engine.caches.items()}
        if found != expected:
            shapes = " or ".join(str(list(shape)) for shape in sorted({*found.values()})) or "none"
            raise UsageError(
                f"`{path}` has {len(found)} caches of {shapes}; its manifest says {len(expected)} of {dims}",
                hint="build it again",
            )

    def _run(
        self,
        role: str,
        sizes: Mapping[str, int],
        inputs: Mapping[str, NDArray[Any]],
        addresses: Mapping[str, int],
        first_slot: int,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """Put a pass on the stream: what is on the host goes up first; caches are those from `first_slot` on."""
        engine, caches = self._engine(role), self._caches[role]
        found = dict(addresses)
        every = dict(shapes or {})
        for name, array in inputs.items():
            found[name] = self._buffers.upload(f"{role}.{name}", array)
            every[name] = array.shape
        for name, port in engine.caches.items():
            every[name] = (sizes["B"], *port.shape)
        engine.run(sizes, every, found | caches.addresses(first_slot))

    def _take_block(self, engine: LoadedEngine, batch: int, rows: int) -> DeviceBlock:
        target, dtype = self._manifest.target, engine.dtype("hidden")
        width = len(target.aux_layer_ids) * target.hidden_size
        address = self._arena.take(batch * rows * width * dtype.itemsize)
        return DeviceBlock(
            address=address, dtype=dtype, shape=(batch, rows, width), generation=self.generation, passes=self
        )

    def _place_hidden(
        self,
        each: DrafterPass,
        hidden: Sequence[HiddenRows],
        dtype: np.dtype[Any],
        shape: tuple[int, int, int],
    ) -> int:
        """Address of [B, R, A*H] with every member's rows in place; the target's own block where it is just that."""
        address = _matching_block(each, hidden, shape)
        if address is not None:
            return address
        size_bytes = int(np.prod(shape)) * dtype.itemsize
        address, staging = self._buffers.on_device("drafter.hidden", size_bytes), None
        for member, rows in zip(each.members, hidden, strict=True):
            offset = member.row * size_bytes // shape[0]
            num_bytes = member.count * shape[2] * dtype.itemsize
            if isinstance(rows, DeviceHidden):
                self._device.move(address + offset, rows.address, num_bytes)
                continue
            staging = staging or self._buffers.on_host("drafter.hidden", size_bytes)
            staging.view(dtype, shape)[member.row, : member.count] = _on_host(rows)
            self._device.upload(address + offset, staging.address + offset, num_bytes)
        return address

    def _fetch(self, name: str, address: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        return self._buffers.download(f"result.{name}", address, dtype, shape)


def _matching_block(each: DrafterPass, hidden: Sequence[HiddenRows], shape: tuple[int, int, int]) -> int | None:
    """Where the target left exactly these rows, sequence by sequence, or None: then nothing needs to be copied."""
    first = hidden[0]
    if not isinstance(first, DeviceHidden) or first.block.shape[1:] != shape[1:]:
        return None
    shift = first.row - each.members[0].row
    for member, rows in zip(each.members, hidden, strict=True):
        if not isinstance(rows, DeviceHidden) or rows.block is not first.block or rows.row - member.row != shift:
            return None
    if not 0 <= shift <= first.block.shape[0] - shape[0]:
        return None
    return first.address - (first.row - shift) * first.block.sequence_bytes


def _on_host(rows: HiddenRows) -> NDArray[np.float32]:
    return rows if isinstance(rows, np.ndarray) else rows.to_host()
