"""A whole worker of either release can be captured: no value is asked for, and replays read its buffers anew."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from peagle_trt.readers import TargetCheckpoint
from peagle_trt.trtllm.runtime.head import DraftCache
from tests.support.trtllm_models import load_pair, model_config

Small = tuple[TargetCheckpoint, Path]
NUM_DRAFTS, REQUESTS, PROMPT = 3, 3, 5
BUFFERS = ("draft_tokens", "hidden_states", "peagle_slots")


@dataclass(frozen=True)
class Step:
    """A step of pieces of prompts, each with its start and length, and of requests that verify."""

    seed: int
    pieces: tuple[tuple[int, int], ...] = ()
    generations: int = REQUESTS

    @property
    def num_prompt_rows(self) -> int:
        return sum(length for _, length in self.pieces)

    def inputs(self) -> list[torch.Tensor]:
        """Tokens, positions and logits, all on the device."""
        generator = torch.Generator().manual_seed(self.seed)
        rows = self.num_prompt_rows + self.generations * (NUM_DRAFTS + 1)
        starts = torch.randint(PROMPT, 20, (self.generations, 1), generator=generator)
        read = [torch.arange(start, start + length) for start, length in self.pieces]
        positions = torch.cat([*read, (starts + torch.arange(NUM_DRAFTS + 1)).flatten()])
        logits = torch.randn(len(self.pieces) + self.generations * (NUM_DRAFTS + 1), 300, generator=generator)
        return [torch.randint(0, 300, (rows,), generator=generator, dtype=torch.int32), positions[None], logits]

    def drafts(self) -> torch.Tensor:
        """What the target chooses, but for a draft in three: all counts of accepted tokens occur."""
        chosen = self.inputs()[2][len(self.pieces) :].argmax(1).view(self.generations, NUM_DRAFTS + 1)[:, :-1]
        generator = torch.Generator().manual_seed(self.seed)
        is_wrong = torch.rand(chosen.shape, generator=generator) < 1 / 3
        return torch.where(is_wrong, (chosen + 1) % 300, chosen).int().flatten()

    def attention(self) -> Any:
        """What the host knows; without prompts its counts alone, since a graph would freeze all else."""
        found = SimpleNamespace(
            num_seqs=len(self.pieces) + self.generations,
            num_contexts=len(self.pieces),
            num_ctx_tokens=self.num_prompt_rows,
        )
        if self.pieces:
            starts = [start for start, _ in self.pieces] + [PROMPT] * self.generations
            found.seq_lens = np.array([length for _, length in self.pieces] + [NUM_DRAFTS + 1] * self.generations)
            found.kv_cache_params = SimpleNamespace(num_cached_tokens_per_seq=starts)
        return found


class Served:
    """A pair whose three requests have read their prompts, with the metadata of steps that are captured for three."""

    def __init__(self, registry: dict[str, Any], small_pair: Small, head: Path) -> None:
        target = small_pair[0].config
        self.model = registry["LlamaForCausalLM"](model_config(target, head, draft_tokens=NUM_DRAFTS))
        load_pair(self.model, small_pair[0], head)
        factory: Any = sys.modules["tensorrt_llm._torch.pyexecutor.model_engine"]
        sizes = SimpleNamespace(num_hidden_layers=target.num_layers, hidden_size=target.hidden_size)
        self.metadata = factory.get_spec_metadata(
            self.model.model_config.spec_config, sizes, REQUESTS + 1, max_num_tokens=64
        )
        self.graph_metadata = self.metadata.create_cuda_graph_metadata(REQUESTS)
        self.graph_metadata.draft_tokens = torch.zeros(REQUESTS * NUM_DRAFTS, dtype=torch.int32)

    def read_prompts(self) -> None:
        """A step of prompts alone, after which every request owns a slot and the cache has its memory."""
        step = Step(0, ((0, PROMPT),) * REQUESTS, 0)
        self.run(step.inputs(), step, self.prepared(self.metadata, step))

    def prepared(self, metadata: Any, step: Step) -> Any:
        """What TensorRT-LLM does on the host before a step: it names the requests and fills the step's buffers."""
        order = np.random.default_rng(step.seed).permutation(REQUESTS)[: len(step.pieces) + step.generations]
        metadata.request_ids = [7 + int(each) for each in order]
        metadata.num_generations, metadata.runtime_draft_len = step.generations, NUM_DRAFTS
        metadata.num_tokens = step.num_prompt_rows + step.generations * (NUM_DRAFTS + 1)
        if metadata.is_cuda_graph:
            metadata.draft_tokens.copy_(step.drafts())
        else:
            metadata.draft_tokens = step.drafts()
        generator = torch.Generator().manual_seed(step.seed)
        metadata.hidden_states.copy_(torch.randn(metadata.hidden_states.shape, generator=generator))
        metadata.prepare()
        return metadata

    def run(self, inputs: list[torch.Tensor], step: Step, metadata: Any) -> dict[str, torch.Tensor]:
        ids, positions, logits = inputs
        with torch.no_grad():
            outputs: dict[str, torch.Tensor] = self.model.spec_worker(
                input_ids=ids,
                position_ids=positions,
                hidden_states=torch.full((len(ids), 1), torch.nan),
                logits=logits,
                attn_metadata=step.attention(),
                spec_metadata=metadata,
                draft_model=self.model.draft_model,
            )
        return outputs

    def run_without_values(self, step: Step) -> dict[str, torch.Size]:
        """Shapes of the outputs of a step nothing of which has values on the device."""
        metadata, inputs = self.prepared(self.metadata, step), step.inputs()
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            for name in BUFFERS:
                setattr(metadata, name, mode.from_tensor(getattr(metadata, name)))
            outputs = self.run([mode.from_tensor(each) for each in inputs], step, metadata)
        return {name: value.shape for name, value in outputs.items() if name != "logits"}

    @property
    def cache(self) -> DraftCache:
        found: DraftCache = self.model.spec_worker.engine._open().cache
        return found


@pytest.fixture
def served(registry: dict[str, Any], small_pair: Small, served_head: Path) -> Served:
    found = Served(registry, small_pair, served_head)
    found.read_prompts()
    return found


@pytest.mark.parametrize(
    "step",
    [
        Step(1),
        Step(2, generations=1),
        Step(3, ((0, 4), (0, 1)), 0),
        Step(4, ((0, 6),), 2),
        Step(5, ((PROMPT, 4),), 2),
    ],
    ids=["verify steps", "one verify step", "prompts", "prompt and verify steps", "second piece of a prompt"],
)
def test_a_worker_never_waits_for_the_device(served: Served, step: Step) -> None:
    count = len(step.pieces) + step.generations
    assert served.run_without_values(step) == {
        "new_tokens": (count, NUM_DRAFTS + 1),
        "new_tokens_lens": (count,),
        "next_draft_tokens": (count, NUM_DRAFTS),
        "next_new_tokens": (count, NUM_DRAFTS + 1),
    }


@pytest.mark.parametrize(
    "ask",
    [
        lambda drafts: drafts.max().item(),
        lambda drafts: drafts.tolist(),
        torch.nonzero,
        lambda drafts: bool(drafts.sum()),
    ],
    ids=["item", "tolist", "nonzero", "bool"],
)
def test_a_worker_that_waited_would_be_noticed(
    served: Served, monkeypatch: pytest.MonkeyPatch, ask: Callable[[torch.Tensor], object]
) -> None:
    drafting = served.model.spec_worker.engine._open()
    draft = drafting.draft

    def draft_and_wait(step: Any) -> torch.Tensor:
        drafts: torch.Tensor = draft(step)
        ask(drafts)
        return drafts

    monkeypatch.setattr(drafting, "draft", draft_and_wait)
    with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        served.run_without_values(Step(1))


def test_a_captured_worker_replays_what_an_eager_one_does(
    registry: dict[str, Any], small_pair: Small, served_head: Path
) -> None:
    captured, eager = (Served(registry, small_pair, served_head) for _ in range(2))
    for each in (captured, eager):
        each.read_prompts()
    metadata, first, accepted = captured.graph_metadata, Step(0), set[int]()
    addresses = [getattr(metadata, name).data_ptr() for name in BUFFERS]
    before = captured.cache.keys.clone(), captured.cache.values.clone()
    captured.prepared(metadata, first)
    # Buffers of the metadata are no inputs: the trace holds them, as a graph holds addresses.
    replay: Any = make_fx(lambda *inputs: captured.run(list(inputs), first, metadata))(*first.inputs())
    captured.cache.keys.copy_(before[0])
    captured.cache.values.copy_(before[1])
    for seed in range(1, 9):
        step = Step(seed)
        captured.prepared(metadata, step)
        found = replay(*step.inputs())
        expected = eager.run(step.inputs(), step, eager.prepared(eager.graph_metadata, step))
        for name, value in expected.items():
            assert torch.equal(found[name], value), name
        accepted |= set(expected["new_tokens_lens"].tolist())
    assert torch.equal(captured.cache.keys, eager.cache.keys)
    assert torch.equal(captured.cache.values, eager.cache.values)
    assert [getattr(metadata, name).data_ptr() for name in BUFFERS] == addresses
    assert accepted == set(range(1, NUM_DRAFTS + 2))
