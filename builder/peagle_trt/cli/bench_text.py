"""The results of `bench` for people."""

from __future__ import annotations

from peagle_trt.bench.measure import Result

_HEADER = ("prompts", "method", "K", "requests", "tokens/s", "each", "speed-up", "acceptance", "by position")
_MORE = ("first ms", "between ms", "same answer")
NOTE = (
    "speed-up: median over rounds of the ratio within a round; in brackets its 95 % interval (bootstrap over rounds), "
    "or the middle half where rounds are few"
)


def write_table(results: list[Result]) -> str:
    """The lines of `bench`."""
    rows = [(*_HEADER, *_MORE), *(_row(result) for result in results)]
    # One set of prompts needs no column.
    first = 1 if len({result.prompts for result in results}) == 1 else 0
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row[first:], widths[first:], strict=True)).rstrip()
        for row in rows
    ]
    if any(result.speedup is not None for result in results):
        lines.append(NOTE)
    return "\n".join([*lines, *(_failed(result) for result in results if result.num_failed)])


def write_speedup(result: Result) -> str:
    """A speed-up with what is known of its spread."""
    if result.speedup is None:
        return "-"
    if result.speedup_interval is not None:
        low, high = result.speedup_interval
        return f"{result.speedup:.2f}x [{low:.2f}-{high:.2f}]"
    if result.speedup_low is None or result.speedup_high is None:
        return f"{result.speedup:.2f}x"
    return f"{result.speedup:.2f}x ({result.speedup_low:.2f}-{result.speedup_high:.2f})"


def _failed(result: Result) -> str:
    method = result.method
    reasons = "; ".join(f"{count} times {reason}" for reason, count in result.failures.items())
    name = f"{method.name} K={method.draft_tokens}" if method.draft_tokens else method.name
    return f"{result.num_failed} requests failed ({result.prompts}, {name}, {method.concurrency} in flight): {reasons}"


def _row(result: Result) -> tuple[str, ...]:
    method, equal, gaps = result.method, result.is_equal_to_baseline, result.inter_token_ms
    each = result.tokens_per_second_per_user
    length = result.acceptance_length
    return (
        result.prompts,
        method.name,
        f"0..{method.draft_tokens}" if method.is_adaptive else str(method.draft_tokens or "-"),
        str(method.concurrency),
        f"{result.tokens_per_second:.1f}",
        "-" if each is None else f"{each:.1f}",
        write_speedup(result),
        f"{length:.2f}" if method.draft_tokens and length is not None else "-",
        " ".join(f"{share:.2f}" for share in result.acceptance_by_position) or "-",
        "-" if result.time_to_first_token_ms is None else f"{result.time_to_first_token_ms:.0f}",
        "-" if gaps is None else f"{gaps.p50:.0f}/{gaps.p90:.0f}/{gaps.p99:.0f}",
        "-" if equal is None else f"{equal:.0%}",
    )
