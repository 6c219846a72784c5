"""TensorRT-LLM's PyTorch executor in miniature: in-flight batching, chunked prefill, padded steps, overlapped steps.

It owns no model: the target is an engine of this project, whose states are captured as TensorRT-LLM captures them, so
that a worker's answers can be compared with this project's own loop over the same engine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from peagle_trt.engine.protocol import Engine, TargetRows
from tests.support.fake_trtllm import GRAPH_PADDING_ID


@dataclass
class Running:
    """A request; `num_seen` tokens of it are in the target's cache, as far as the host knows."""

    request_id: int
    prompt: list[int]
    max_tokens: int
    slot: int = -1
    num_seen: int = 0
    answer: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    is_generating: bool = False


@dataclass
class _Outcome:
    """What a step left on the device, and the requests it was for."""

    requests: list[Running]
    rows: dict[int, int]
    outputs: dict[str, Any]
    generated: set[int]


class Executor:
    """Runs requests through a worker.

    Args:
        model: The target class that the release's registry constructed, with drafter and worker.
        engine: What stands for the target's layers.
        draft_tokens: K.
        max_batch_size: Requests in flight.
        chunk: Tokens of prompts a step may read.
        overlaps: The host learns of a step's tokens only after it has started the next one.
        graph_sizes: Batch sizes that steps without prompts are padded to, or none.
        rng: Decides when a waiting request is admitted, or a prompt left alone for a step.
    """

    def __init__(
        self,
        model: Any,
        engine: Engine,
        *,
        draft_tokens: int,
        max_batch_size: int,
        chunk: int,
        overlaps: bool,
        graph_sizes: Sequence[int] = (),
        rng: np.random.Generator,
    ) -> None:
        self.model, self.engine, self.num_drafts = model, engine, draft_tokens
        self.max_batch_size, self.chunk, self.overlaps = max_batch_size, chunk, overlaps
        self.graph_sizes, self.rng = sorted(graph_sizes), rng
        factory = sys.modules["tensorrt_llm._torch.pyexecutor.model_engine"].get_spec_metadata
        sizes = SimpleNamespace(num_hidden_layers=engine.target.num_layers, hidden_size=engine.target.hidden_size)
        max_tokens = chunk + max_batch_size * (draft_tokens + 1)
        self.metadata = factory(model.model_config.spec_config, sizes, max_batch_size, max_num_tokens=max_tokens)
        self.graph_metadata = {size: self.metadata.create_cuda_graph_metadata(size) for size in self.graph_sizes}
        self.pending: _Outcome | None = None

    def run(self, requests: Sequence[Running]) -> None:
        waiting, active = list(requests), list[Running]()
        free = list(range(self.max_batch_size))
        while waiting or active or self.pending:
            while waiting and free and self.rng.random() < 0.7:
                request = waiting.pop(0)
                request.slot = free.pop(int(self.rng.integers(len(free))))
                active.append(request)
            outcome = self._launch(active)
            settled, self.pending = (self.pending, outcome) if self.overlaps else (outcome, None)
            if settled is None:
                continue
            self._settle(settled)
            for request in [each for each in active if len(each.answer) >= each.max_tokens]:
                active.remove(request)
                free.append(request.slot)

    def _launch(self, active: list[Running]) -> _Outcome | None:
        """One step: pieces of prompts first, then everything that generates."""
        budget, pieces = self.chunk, list[tuple[Running, int]]()
        generating = [each for each in active if each.is_generating]
        for request in [each for each in active if not each.is_generating]:
            left = len(request.prompt) - request.num_seen
            length = min(left, budget, int(self.rng.integers(1, self.chunk + 1)))
            if length:
                pieces.append((request, length))
                budget -= length
        if not pieces and not generating:
            return None
        return self._step(pieces, generating)

    def _step(self, pieces: list[tuple[Running, int]], generating: list[Running]) -> _Outcome:
        width = self.num_drafts + 1
        metadata, padding = self.metadata, 0
        if not pieces and generating and self.graph_sizes and len(generating) <= self.graph_sizes[-1]:
            size = next(size for size in self.graph_sizes if size >= len(generating))
            metadata, padding = self.graph_metadata[size], size - len(generating)
        ids, positions, drafts = self._inputs(pieces, generating, padding)
        lengths = [length for _, length in pieces] + [width] * (len(generating) + padding)
        starts = [request.num_seen for request, _ in pieces] + [0] * (len(generating) + padding)
        num_prompt_rows = sum(length for _, length in pieces)
        attention = SimpleNamespace(
            num_seqs=len(lengths),
            num_contexts=len(pieces),
            num_ctx_tokens=num_prompt_rows,
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            kv_cache_params=SimpleNamespace(num_cached_tokens_per_seq=starts),
        )
        metadata.request_ids = [r.request_id for r, _ in pieces] + [r.request_id for r in generating]
        metadata.request_ids += [GRAPH_PADDING_ID - index for index in range(padding)]
        metadata.num_generations = len(generating) + padding
        metadata.num_tokens, metadata.runtime_draft_len = len(ids), self.num_drafts
        metadata.draft_tokens = drafts
        metadata.prepare()
        logits = self._run_target(pieces, generating, padding, ids, positions, metadata)
        outputs = self.model.spec_worker(
            input_ids=ids,
            position_ids=positions[None],
            hidden_states=torch.full((len(ids), 1), torch.nan),
            logits=logits,
            attn_metadata=attention,
            spec_metadata=metadata,
            draft_model=self.model.draft_model,
        )
        everyone = [request for request, _ in pieces] + generating
        for request, length in pieces:
            request.num_seen += length
            request.is_generating = request.num_seen == len(request.prompt)
        rows = {request.request_id: row for row, request in enumerate(everyone)}
        generated = {request.request_id for request in everyone if request.is_generating}
        return _Outcome(requests=everyone, rows=rows, outputs=outputs, generated=generated)

    def _inputs(self, pieces: list[tuple[Running, int]], generating: list[Running], padding: int) -> Any:
        """Tokens and positions on the device; of a request whose last step is still pending they come from there.

        Source: `_torch/pyexecutor/model_engine.py`: the host's positions are stale there, and `new_tokens_lens` of the
            last step is added on the device (`previous_pos_id_offsets_cuda`).
        """
        width, ids, positions, drafts = self.num_drafts + 1, [], [], []
        for request, length in pieces:
            piece = request.prompt[request.num_seen : request.num_seen + length]
            ids.append(torch.tensor(piece, dtype=torch.int32))
            positions.append(torch.arange(request.num_seen, request.num_seen + length))
        for request in generating:
            first = torch.tensor(len(request.prompt) + max(len(request.answer) - 1, 0))
            if self.pending is not None and request.request_id in self.pending.rows:
                row, outputs = self.pending.rows[request.request_id], self.pending.outputs
                tokens = outputs["next_new_tokens"][row]
                if request.answer:
                    first = first + outputs["new_tokens_lens"][row]
            else:
                tokens = torch.tensor(request.next_tokens)  # type: ignore[attr-defined]
            ids.append(tokens.int())
            drafts.append(tokens[1:].int())
            positions.append(first + torch.arange(width))
        for _ in range(padding):
            ids.append(torch.zeros(width, dtype=torch.int32))
            drafts.append(torch.zeros(width - 1, dtype=torch.int32))
            positions.append(torch.arange(width) + 1)
        flat = torch.cat(drafts) if drafts else torch.zeros(0, dtype=torch.int32)
        return torch.cat(ids), torch.cat(positions), flat

    def _run_target(
        self, pieces: Any, generating: list[Running], padding: int, ids: Any, positions: Any, metadata: Any
    ) -> Any:
        width, first, rows = self.num_drafts + 1, 0, []
        for request, length in [*pieces, *((request, width) for request in generating)]:
            rows.append(
                TargetRows(
                    slot=request.slot,
                    token_ids=ids[first : first + length].numpy().astype(np.int32),
                    start_position=int(positions[first]),
                    num_logit_rows=width if request.is_generating else 1,
                )
            )
            first += length
        outputs = self.engine.run_target(rows)
        hidden = torch.from_numpy(np.concatenate([np.array(output.hidden, np.float32) for output in outputs]))
        hidden = torch.cat([hidden, torch.full((padding * width, hidden.shape[1]), 0.5)])
        for index, layer in enumerate(metadata.layers_to_capture):
            columns = slice(index * metadata.hidden_size, (index + 1) * metadata.hidden_size)
            # The stream in two halves, as the layers of TensorRT-LLM hand it over.
            metadata.maybe_capture_hidden_states(layer, hidden[:, columns] * 0.5, hidden[:, columns] * 0.5)
        logits = torch.from_numpy(np.concatenate([np.array(output.logits) for output in outputs]))
        return torch.cat([logits, torch.zeros(padding * width, logits.shape[1])])

    def _settle(self, outcome: _Outcome) -> None:
        """The host learns of a step."""
        for request in outcome.requests:
            row = outcome.rows[request.request_id]
            if request.request_id not in outcome.generated or len(request.answer) >= request.max_tokens:
                continue
            count = int(outcome.outputs["new_tokens_lens"][row])
            tokens = outcome.outputs["new_tokens"][row, :count].tolist()
            request.steps.append(count)
            request.answer += tokens
            request.next_tokens = outcome.outputs["next_new_tokens"][row].tolist()  # type: ignore[attr-defined]
