"""Who reads how much of its prompt in a step."""

from __future__ import annotations

from collections.abc import Sequence


def share_prompt_rows(num_left: Sequence[int], budget: int) -> list[int]:
    """Rows for every prompt.

    The first prompt has half of the budget, so that it always gets on; the shortest of the others come next, so that
    none of them waits for the whole of a long one. What is left over goes to the first.

    Args:
        num_left: Rows left of every prompt, the one that goes first at the head; each at least 1.
        budget: Rows there are.

    Returns:
        Shares, some of them perhaps 0, of `budget` rows in all unless the prompts have fewer.
    """
    shares = [0] * len(num_left)
    if not num_left or budget < 1:
        return shares
    shares[0] = min(num_left[0], (budget + 1) // 2)
    budget -= shares[0]
    for index in sorted(range(1, len(num_left)), key=lambda index: num_left[index]):
        shares[index] = min(num_left[index], budget)
        budget -= shares[index]
    shares[0] += min(num_left[0] - shares[0], budget)
    return shares
