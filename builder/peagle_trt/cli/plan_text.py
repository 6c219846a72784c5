"""A forecast for people."""

from __future__ import annotations

from peagle_trt.catalog import size_words
from peagle_trt.roofline import AcceptanceCurve, Forecast, Load, Row


def write_text(name: str, title: str, load: Load, curve: AcceptanceCurve, found: Forecast) -> str:
    """The lines of `plan`."""
    formats, memory = load.formats, found.memory
    lines = [
        f"{name} on {title}: predicted, not measured",
        f"weights     attention {formats.attention}, feed-forward {formats.feed_forward}, output layer {formats.head}, "
        f"drafter {formats.drafter}; caches {load.cache_format}, {load.context_tokens} tokens a request",
        f"acceptance  {curve.source}",
        f"memory      {size_words(memory.total_bytes)} of {size_words(memory.usable_bytes)}: "
        f"target {size_words(memory.target_bytes)}, drafter {size_words(memory.drafter_bytes)}, "
        f"caches {size_words(memory.cache_bytes)}, logits {size_words(memory.logits_bytes)}; "
        f"{'fits' if memory.fits else 'DOES NOT FIT'}",
        "",
        *_table(found),
        "",
    ]
    for count in dict.fromkeys(row.concurrency for row in found.rows):
        lines.append(_best(found.best(count)))
    return "\n".join(lines)


def _table(found: Forecast) -> list[str]:
    header = ("requests", "K", "tokens/s", "each", "speed-up", "acceptance", "step ms", "verify", "draft", "bound by")
    rows = [header, *(_cells(row) for row in found.rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _cells(row: Row) -> tuple[str, ...]:
    step = row.step
    return (
        str(row.concurrency),
        str(row.draft_tokens or "-"),
        f"{row.tokens_per_second:.0f}",
        f"{row.tokens_per_second / row.concurrency:.0f}",
        f"{row.speedup:.2f}x" if row.draft_tokens else "-",
        f"{row.acceptance_length:.2f}" if row.draft_tokens else "-",
        f"{1e3 * step.seconds:.2f}",
        f"{1e3 * step.verify.seconds:.2f}",
        f"{1e3 * step.draft.seconds:.2f}" if row.draft_tokens else "-",
        step.bound,
    )


def _best(row: Row) -> str:
    requests = "1 request" if row.concurrency == 1 else f"{row.concurrency} requests"
    if not row.draft_tokens:
        return f"best at {requests}: plain decoding, {row.tokens_per_second:.0f} tokens/s; no K gains"
    return (
        f"best at {requests}: K = {row.draft_tokens}, {row.tokens_per_second:.0f} tokens/s, "
        f"{row.speedup:.2f}x plain decoding, bound by {row.step.bound}"
    )
