"""Where a step's hidden states come from: the store of answers, or the target, which reads the texts once more.

Shape letters: B texts of a pass, T tokens of the longest, A auxiliary width, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from peagle_trt.train.features import AnswerText, TrainingSequence

if TYPE_CHECKING:
    from torch import Tensor

    from peagle_trt.train.generate import Prompt
    from peagle_trt.train.target import TargetOutput, TorchTarget

Features = Literal["cached", "computed"]
FEATURES: dict[Features, str] = {
    "cached": "hidden states are stored with the answers, in float16",
    "computed": "token ids alone are stored; the target reads the texts of every step once more",
}
# A pass of the target holds the keys and values of this many tokens in all layers, or those of its longest text.
PASS_TOKENS = 2048
# Tokens of a pass that run at once: their masks are this wide, and a text's length long.
PASS_ROWS = 256
TOKEN_BYTES, STATE_BYTES = 4, 2


class StateSource(Protocol):
    """Adds hidden states to texts."""

    def complete(self, texts: Sequence[AnswerText]) -> list[TrainingSequence]:
        """The texts with their hidden states, in the same order."""


class StoredStates:
    """Hidden states that came out of the store with the texts."""

    def complete(self, texts: Sequence[AnswerText]) -> list[TrainingSequence]:
        """The sequences as they are."""
        sequences = [text for text in texts if isinstance(text, TrainingSequence)]
        assert len(sequences) == len(texts), "a store that is trained from holds hidden states"
        return sequences


class ComputedStates:
    """Hidden states from the target, float32; those of the texts that are asked for are all that is in memory."""

    def __init__(self, target: TorchTarget, *, pass_tokens: int = PASS_TOKENS, pass_rows: int = PASS_ROWS) -> None:
        """Remember the target.

        Args:
            target: The model that wrote the answers.
            pass_tokens: Most tokens of a pass, padding included; a longer text is read alone.
            pass_rows: Tokens of each of its texts that run at once.
        """
        self._target, self._pass_tokens, self._pass_rows = target, pass_tokens, pass_rows

    def complete(self, texts: Sequence[AnswerText]) -> list[TrainingSequence]:
        """Read the texts in padded passes of texts of like length; the last token of each is not read."""
        import torch

        completed: dict[int, TrainingSequence] = {}
        with torch.no_grad():
            for places in self._passes([len(text.token_ids) - 1 for text in texts]):
                outputs = self._read([texts[place] for place in places])
                completed |= dict(zip(places, outputs, strict=True))
        return [completed[place] for place in range(len(texts))]

    def _passes(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Places of the texts of each pass, the longest first."""
        chosen: list[int] = []
        for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
            if chosen and (len(chosen) + 1) * lengths[chosen[0]] > self._pass_tokens:
                yield chosen
                chosen = []
            chosen.append(place)
        if chosen:
            yield chosen

    def _read(self, texts: Sequence[AnswerText]) -> list[TrainingSequence]:
        import torch

        lengths = [len(text.token_ids) - 1 for text in texts]
        # What a shorter text reads behind its end, nothing before it sees.
        token_ids_BT = torch.zeros(len(texts), max(lengths), dtype=torch.int64)
        for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
            token_ids_BT[row, :length] = text.token_ids[:length]
        outputs = list(self._run(token_ids_BT))
        auxiliary_BTA = torch.cat([output.auxiliary_BTA for output in outputs], dim=1)
        normed_BTH = torch.cat([output.normed_BTH for output in outputs], dim=1)
        return [
            TrainingSequence(
                token_ids=text.token_ids,
                prompt_length=text.prompt_length,
                auxiliary_NA=auxiliary_BTA[row, :length],
                normed_NH=normed_BTH[row, :length],
            )
            for row, (text, length) in enumerate(zip(texts, lengths, strict=True))
        ]

    def _run(self, token_ids_BT: Tensor) -> Iterator[TargetOutput]:
        import torch

        batch, length = token_ids_BT.shape
        cache = self._target.new_cache(batch, length)
        for first in range(0, length, self._pass_rows):
            starts_B = torch.full((batch,), first)
            yield self._target.run(token_ids_BT[:, first : first + self._pass_rows], starts_B, cache)


def complete_each(states: StateSource, texts: Sequence[AnswerText]) -> Iterator[TrainingSequence]:
    """The texts with their hidden states, one at a time, so that those of one are in memory."""
    for text in texts:
        yield from states.complete([text])


def token_bytes(features: Features, *, hidden_size: int, num_auxiliary: int) -> int:
    """Bytes that a stored token takes."""
    return TOKEN_BYTES + (STATE_BYTES * (num_auxiliary + 1) * hidden_size if features == "cached" else 0)


def most_stored_tokens(prompts: Sequence[Prompt]) -> int:
    """Tokens of all answers when none ends by itself; every turn of a conversation is stored with those before it."""
    total = 0
    for prompt in prompts:
        length = len(prompt.token_ids) + prompt.max_new_tokens
        total += length
        for turn in prompt.follow_ups:
            length += len(turn) + prompt.max_new_tokens
            total += length
    return total
