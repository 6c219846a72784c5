"""Grammars over a handful of tokens, as tables; see `peagle_trt.decode.guide`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from peagle_trt.errors import RequestError

Table = Mapping[int, Mapping[int, int]]
"""State to the tokens that may follow, and the state each leads to."""


class TableGuide:
    """A finite automaton.

    Args:
        table: Its arrows; state 0 is the start.
        accepting: States in which an answer is whole.
        vocab_size: Tokens.
        max_tokens: A walk fails when it is asked for more.
    """

    def __init__(self, table: Table, accepting: Collection[int], *, vocab_size: int, max_tokens: int = 10_000) -> None:
        self.table, self.accepting = table, accepting
        self.vocab_size, self.max_tokens = vocab_size, max_tokens

    def start(self) -> TableWalk:
        return TableWalk(self)

    def follows(self, token_ids: Collection[int]) -> bool:
        """Whether tokens are the start of a whole answer, or all of it."""
        state = 0
        for token_id in token_ids:
            if token_id not in self.table.get(state, {}):
                return False
            state = self.table[state][token_id]
        return True


class TableWalk:
    def __init__(self, guide: TableGuide) -> None:
        self._guide = guide
        self.states = [0]

    @property
    def may_end(self) -> bool:
        return self.states[-1] in self._guide.accepting

    @property
    def is_complete(self) -> bool:
        return self.may_end and not self._guide.table.get(self.states[-1])

    def allowed(self) -> np.ndarray:
        allowed_V = np.zeros(self._guide.vocab_size, np.bool_)
        allowed_V[list(self._guide.table.get(self.states[-1], {}))] = True
        return allowed_V

    def take(self, token_id: int) -> None:
        if len(self.states) > self._guide.max_tokens:
            raise RequestError("the grammar cannot be followed any further")
        self.states.append(self._guide.table[self.states[-1]][token_id])

    def undo(self, count: int) -> None:
        assert 0 < count < len(self.states)
        del self.states[len(self.states) - count :]
