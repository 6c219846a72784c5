"""Continuous batching over the target: prompts in, answers with their hidden states out.

Shape letters: B slots, C capacity of a slot in tokens, A auxiliary width (3H), H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from peagle_trt.train.target import TorchTarget

# Chooses the next token of every row from lm_head's input: [R, H] float32 to [R] int64.
Chooser = Callable[["Tensor"], "Tensor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One question to the target, already in its chat template.

    Attributes:
        identifier: Unique within a corpus; a resumed run skips what it has.
        source: Where the prompt comes from, for the report.
        token_ids: What the target reads first.
        max_new_tokens: Upper limit of its answer.
        follow_ups: Later user turns, each rendered as token ids that continue the answered conversation.
    """

    identifier: str
    source: str
    token_ids: tuple[int, ...]
    max_new_tokens: int
    follow_ups: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A prompt with its answer; the features cover every token but the last, which the target never read.

    They are zero columns wide where nobody asked for them.

    Attributes:
        prompt: What was asked.
        token_ids: Prompt and answer, [L] ints.
        auxiliary_NA: Auxiliary hidden states, [L-1, A] float16.
        normed_NH: lm_head's input, [L-1, H] float16.
    """

    prompt: Prompt
    token_ids: tuple[int, ...]
    auxiliary_NA: Tensor
    normed_NH: Tensor

    @property
    def has_states(self) -> bool:
        """Whether there are features."""
        return self.normed_NH.shape[-1] > 0


def answer_prompts(
    target: TorchTarget,
    prompts: Iterator[Prompt],
    *,
    choose: Chooser,
    num_slots: int,
    capacity: int,
    keeps_states: bool = True,
) -> Iterator[Answer]:
    """Answer prompts with `num_slots` sequences in flight; a finished one is replaced at once.

    Args:
        target: The model that answers.
        prompts: Consumed lazily.
        choose: Next-token rule; `target.greedy_tokens` for greedy decoding.
        num_slots: Sequences a step.
        capacity: Most tokens of a prompt and its answer; an answer is cut there.
        keeps_states: Whether the answers come with their hidden states.

    Yields:
        Answers in order of completion; follow-up turns are separate answers whose prompt holds the whole conversation.
    """
    import torch

    widths = (len(target.auxiliary_layers) * target.config.hidden_size, target.config.hidden_size)
    flight = _Flight(target, num_slots, capacity, choose, widths if keeps_states else (0, 0))
    waiting = _Queue(prompts)
    with torch.inference_mode():
        while flight.fill(waiting):
            for answer in flight.step():
                follow_up = _continue_conversation(answer, target.config.eos_token_ids)
                if follow_up is not None and len(follow_up.token_ids) < capacity:
                    waiting.put_back(follow_up)
                yield answer


class _Queue:
    """Prompts with follow-ups jumping the line."""

    def __init__(self, prompts: Iterator[Prompt]) -> None:
        self._prompts = prompts
        self._returned: list[Prompt] = []

    def put_back(self, prompt: Prompt) -> None:
        self._returned.append(prompt)

    def take(self) -> Prompt | None:
        return self._returned.pop() if self._returned else next(self._prompts, None)


class _Flight:
    """The sequences being answered, one a slot, and the hidden states gathered so far."""

    def __init__(
        self, target: TorchTarget, num_slots: int, capacity: int, choose: Chooser, widths: tuple[int, int]
    ) -> None:
        import torch

        self._target, self._choose, self._capacity = target, choose, capacity
        self._cache = target.new_cache(num_slots, capacity)
        # Zero columns keep nothing.
        self._auxiliary_BCA, self._normed_BCH = (
            torch.zeros(num_slots, capacity, width, dtype=torch.float16) for width in widths
        )
        self._lengths_B = torch.zeros(num_slots, dtype=torch.int64)
        self._last_tokens_B = torch.zeros(num_slots, dtype=torch.int64)
        self._prompts: list[Prompt | None] = [None] * num_slots
        self._tokens: list[list[int]] = [[] for _ in range(num_slots)]

    def fill(self, waiting: _Queue) -> bool:
        """Start a prompt in every free slot; False when nothing is left to do."""
        for slot, prompt in enumerate(self._prompts):
            if prompt is None and (incoming := waiting.take()) is not None:
                self._start(slot, incoming)
        return any(prompt is not None for prompt in self._prompts)

    def step(self) -> list[Answer]:
        """Advance every slot by one token and hand over what is finished."""
        import torch

        # A prompt may be answered by its prefill alone.
        finished = self._release_finished()
        slots = torch.arange(len(self._prompts))
        output = self._target.run(self._last_tokens_B[:, None], self._lengths_B, self._cache)
        self._keep(slots, self._lengths_B, output.auxiliary_BTA[:, 0], output.normed_BTH[:, 0])
        self._last_tokens_B = self._choose(output.normed_BTH[:, 0]).cpu()
        for slot, token in enumerate(self._last_tokens_B.tolist()):
            if self._prompts[slot] is not None:
                self._tokens[slot].append(token)
                self._lengths_B[slot] += 1
        return finished + self._release_finished()

    def _start(self, slot: int, prompt: Prompt) -> None:
        import torch

        token_ids = torch.tensor([prompt.token_ids])
        output = self._target.run(token_ids, torch.zeros(1, dtype=torch.int64), self._cache.slot(slot))
        self._keep(slot, slice(token_ids.shape[1]), output.auxiliary_BTA[0], output.normed_BTH[0])
        self._last_tokens_B[slot] = self._choose(output.normed_BTH[0, -1:]).cpu()[0]
        self._lengths_B[slot] = token_ids.shape[1]
        self._prompts[slot] = prompt
        self._tokens[slot] = [*prompt.token_ids, int(self._last_tokens_B[slot])]

    def _keep(self, slots: Tensor | int, places: Tensor | slice, auxiliary_RA: Tensor, normed_RH: Tensor) -> None:
        for kept, rows in ((self._auxiliary_BCA, auxiliary_RA), (self._normed_BCH, normed_RH)):
            kept[slots, places] = rows[:, : kept.shape[-1]].half().cpu()

    def _release_finished(self) -> list[Answer]:
        return [self._release(slot) for slot in range(len(self._prompts)) if self._is_finished(slot)]

    def _is_finished(self, slot: int) -> bool:
        prompt, tokens = self._prompts[slot], self._tokens[slot]
        if prompt is None:
            return False
        num_new = len(tokens) - len(prompt.token_ids)
        ended = tokens[-1] in self._target.config.eos_token_ids
        return ended or num_new >= prompt.max_new_tokens or len(tokens) >= self._capacity

    def _release(self, slot: int) -> Answer:
        prompt, tokens = self._prompts[slot], self._tokens[slot]
        assert prompt is not None
        read = len(tokens) - 1
        self._prompts[slot] = None
        self._lengths_B[slot] = 0
        return Answer(
            prompt=prompt,
            token_ids=tuple(tokens),
            auxiliary_NA=self._auxiliary_BCA[slot, :read].clone(),
            normed_NH=self._normed_BCH[slot, :read].clone(),
        )


def nucleus_chooser(target: TorchTarget, temperature: float, top_p: float, seed: int) -> Chooser:
    """A next-token rule that samples from the smallest set of tokens holding `top_p` of the probability."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def choose(normed_RH: Tensor) -> Tensor:
        probabilities = (target.logits(normed_RH) / temperature).softmax(dim=-1)
        # The nucleus of a language model is far smaller than this; sorting the whole vocabulary is not needed.
        best, tokens = (part.cpu() for part in probabilities.topk(1024, dim=-1))
        best = best.masked_fill(best.cumsum(dim=-1) - best > top_p, 0.0)
        picked = torch.multinomial(best, 1, generator=generator)
        return tokens.gather(1, picked)[:, 0]

    return choose


def _continue_conversation(answer: Answer, eos_token_ids: tuple[int, ...]) -> Prompt | None:
    prompt = answer.prompt
    if not prompt.follow_ups or answer.token_ids[-1] not in eos_token_ids:
        return None
    return Prompt(
        identifier=f"{prompt.identifier}+",
        source=f"{prompt.source}+",
        token_ids=(*answer.token_ids, *prompt.follow_ups[0]),
        max_new_tokens=prompt.max_new_tokens,
        follow_ups=prompt.follow_ups[1:],
    )
