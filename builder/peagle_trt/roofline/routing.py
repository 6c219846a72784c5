"""How many experts of a layer a pass touches: with few rows, that is what a mixture of experts reads from memory."""

from __future__ import annotations

import math


def expected_experts(num_experts: int, experts_per_token: int, num_rows: int, *, spread: float = math.inf) -> float:
    """Expected number of different experts that some row of a pass is sent to.

    A row picks `experts_per_token` different experts, so an expert is left out by one row with probability 1 - k/E and
    by n independent rows with its n-th power: E (1 - (1 - k/E)^n). That is exact for rows that choose independently and
    experts that are equally popular, the ties among a row's own choices included.

    Real routers have favourites. With popularities p_e that are drawn from a Beta distribution of mean k/E, the power
    becomes its expectation, E[(1 - p)^n] = B(a, b + n) / B(a, b) with a = s k/E and b = s (1 - k/E). Fewer experts are
    touched the smaller the `spread` s is; s without limit is the equal popularity.

    Args:
        num_experts: E, experts of a layer.
        experts_per_token: k, experts a row is sent to; 1..E.
        num_rows: n, rows of the pass; 0 or more.
        spread: s, sum of the Beta distribution's parameters; above 0.

    Returns:
        Between k (one row) and E (many rows); 0 for no rows.

    Raises:
        ValueError: An argument is out of its range.
    """
    if not 1 <= experts_per_token <= num_experts:
        raise ValueError(f"experts_per_token is {experts_per_token}; expected 1..{num_experts}")
    if num_rows < 0 or spread <= 0:
        raise ValueError(f"num_rows is {num_rows} and spread {spread}; expected 0 or more and more than 0")
    share = experts_per_token / num_experts
    if share == 1:
        return float(num_experts if num_rows else 0)
    if math.isinf(spread):
        # The same as 1 - (1 - share)^n, without cancellation where share is small.
        return -num_experts * math.expm1(num_rows * math.log1p(-share))
    left_out = spread * (1 - share)
    log_missed = (
        math.lgamma(left_out + num_rows) - math.lgamma(left_out) + math.lgamma(spread) - math.lgamma(spread + num_rows)
    )
    return -num_experts * math.expm1(log_missed)
