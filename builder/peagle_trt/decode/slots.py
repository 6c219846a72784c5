"""The engine's slots, and what their caches still hold of requests that ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIN_SHARED_TOKENS = 16
"""A shorter common start is not worth a slot that is out of turn, unless it is the whole prompt: every template has
one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """What a slot's caches hold.

    Attributes:
        token_ids: Tokens of a prompt and its answer.
        num_target: How many of them, from the first on, the target's cache holds.
        num_drafter: How many rows the drafter's cache holds.
    """

    token_ids: tuple[int, ...]
    num_target: int
    num_drafter: int


NOTHING = Leftover(token_ids=(), num_target=0, num_drafter=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenSlot:
    """A slot for a request.

    Attributes:
        slot: Its number.
        num_target: Tokens of the prompt that need not be read again.
        num_drafter: Rows that the drafter need not read again; at least `num_target` for a request that drafts.
    """

    slot: int
    num_target: int
    num_drafter: int


class Slots:
    """Free slots, the one that was freed longest ago first.

    Args:
        count: Slots of the engine.
        reuses_prefixes: Whether a prompt goes on from what a slot still holds of its start.
    """

    def __init__(self, count: int, *, reuses_prefixes: bool) -> None:
        self._free: dict[int, Leftover] = dict.fromkeys(range(count), NOTHING)
        self._reuses_prefixes = reuses_prefixes

    def __len__(self) -> int:
        return len(self._free)

    def take(self, prompt_ids: Sequence[int], *, drafts: bool) -> TakenSlot:
        """The slot that holds most of a prompt, or else the next one; there must be one.

        Args:
            prompt_ids: The prompt.
            drafts: Whether the drafter's cache is needed too.
        """
        found = {slot: _shared(prompt_ids, leftover, drafts) for slot, leftover in self._free.items()}
        best = max(found, key=lambda slot: found[slot])
        # Of a whole prompt all but the last token can be shared.
        if found[best] < min(MIN_SHARED_TOKENS, len(prompt_ids) - 1):
            best = next(iter(self._free))
            found[best] = 0
        leftover = self._free.pop(best)
        num_target = found[best]
        return TakenSlot(slot=best, num_target=num_target, num_drafter=min(num_target, leftover.num_drafter))

    def give_back(self, slot: int, leftover: Leftover = NOTHING, *, is_wanted: bool = False) -> None:
        """Free a slot; without a leftover nothing in it is trusted.

        Args:
            slot: Its number.
            leftover: What it holds.
            is_wanted: Another answer to its very prompt waits, and goes on from it even where prefixes are not reused.
        """
        if not self._reuses_prefixes:
            kept = leftover if is_wanted else NOTHING
            # The slots in use stay together at the front, so that passes over neighbours carry few idle ones.
            self._free = dict(sorted([*self._free.items(), (slot, kept)]))
            return
        self._free[slot] = leftover


def _shared(prompt_ids: Sequence[int], leftover: Leftover, drafts: bool) -> int:
    """Rows of a prompt that both caches hold already.

    The drafter's row at position p was read with the token at p + 1, so of n tokens that are the same only n - 1 of its
    rows are. The target's last shared row is read again: the drafter needs its hidden state, which nobody kept, and the
    prompt's last row must give logits.

    Source: vllm-project/vllm#15901, NVIDIA/TensorRT-LLM#18280.
    """
    limit = min(len(prompt_ids), leftover.num_target)
    shared = 0
    while shared < limit and prompt_ids[shared] == leftover.token_ids[shared]:
        shared += 1
    rows = max(0, shared - 1)
    return min(rows, leftover.num_drafter) if drafts else rows
