"""A choice of K, explained."""

from __future__ import annotations

from peagle_trt.tuning.choice import Candidate, Choice
from peagle_trt.tuning.passes import PassKind
from peagle_trt.tuning.tune import Tuning


def write_text(found: Tuning, *, is_written: bool) -> str:
    """The lines of `tune`."""
    traffic = found.traffic
    shares = " ".join(f"{share:.2f}" for share in traffic.acceptance.shares)
    lines = [
        f"acceptance  {shares} by position, {traffic.acceptance.source}: {traffic.num_steps} steps",
        f"model       fitted to this machine, off by {found.worst_miss:.0%} at most where it was fitted",
        f"requests    {traffic.output_tokens:.0f} tokens an answer, {traffic.context_tokens} present in its middle; "
        f"a prompt takes {1e3 * traffic.prompt_seconds:.0f} ms, with drafts "
        f"{1e3 * traffic.drafter_prompt_seconds:.0f} more",
        "",
        *_table(found),
        "",
        *(_reason(choice, found) for choice in found.choices),
        "",
        f"schedule    {_schedule(found)}",
        "written into the build's manifest" if is_written else "nothing was written",
    ]
    return "\n".join(lines)


def _table(found: Tuning) -> list[str]:
    header = ("requests", "K", "tokens a step", "verify ms", "draft ms", "predicted tokens/s", "measured", "")
    rows: list[tuple[str, ...]] = [header]
    for choice in found.choices:
        rows += [_cells(item, is_best=item is choice.best) for item in choice.candidates if item.measured is not None]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cells(item: Candidate, *, is_best: bool) -> tuple[str, ...]:
    return (
        str(item.batch_size),
        str(item.draft_tokens or "-"),
        f"{item.tokens_a_step:.2f}",
        f"{1e3 * item.verify_seconds:.1f}",
        f"{1e3 * item.draft_seconds:.1f}" if item.draft_tokens else "-",
        f"{item.predicted:.1f}",
        f"{item.measured:.1f}" if item.measured is not None else "-",
        "<" if is_best else "",
    )


def _reason(choice: Choice, found: Tuning) -> str:
    best, plain = choice.best, choice.plain
    requests = "1 request" if best.batch_size == 1 else f"{best.batch_size} requests"
    if best.draft_tokens == 0:
        others = [item for item in choice.candidates if item.measured is not None and item.draft_tokens]
        nearest = max(others, key=lambda item: item.measured or 0.0)
        return (
            f"{requests}: no drafts; K = {nearest.draft_tokens} would yield {nearest.tokens_a_step:.2f} tokens a step "
            f"for {_times(nearest, plain):.2f} times the time of a plain one"
        )
    step = PassKind(model="target", draft_tokens=best.draft_tokens, batch_size=best.batch_size)
    for_bytes, for_operations = found.model.parts(step)
    bound = "memory" if for_bytes >= for_operations else "arithmetic"
    drafting = best.draft_seconds / (best.verify_seconds + best.draft_seconds)
    return (
        f"{requests}: K = {best.draft_tokens}, {choice.speedup:.2f} times plain decoding: a step yields "
        f"{best.tokens_a_step:.2f} tokens for {_times(best, plain):.2f} times the time of a plain one, of which "
        f"{drafting:.0%} is drafting; verifying is bound by {bound}"
    )


def _times(item: Candidate, plain: Candidate) -> float:
    return (item.verify_seconds + item.draft_seconds) / plain.verify_seconds


def _schedule(found: Tuning) -> str:
    return ", ".join(f"K = {count} up to {load}" for load, count in found.schedule)
