"""The passes of a sequential head after one verify step: K of them, each with the sequences that still want a draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from peagle_trt.engine.protocol import DraftOutput, DraftRows, DraftStep, Engine, SequentialEngine

Choose = Callable[[int, DraftOutput, int], int]
"""Takes a sequence's place in `rows`, a pass's output and its place in it; returns the draft to continue from."""


def draft_in_turn(engine: Engine, rows: Sequence[DraftRows], counts: Sequence[int], choose: Choose) -> int:
    """Run the first pass over the verify step's rows, then passes of one row a sequence.

    The rows of later passes lie where the next verify step's rows will: their keys and values are written over before
    they could be read.

    Args:
        engine: One with a sequential head.
        rows: One entry a slot.
        counts: Drafts each sequence wants, 1 or more.
        choose: Called for every draft, in the order of the passes.

    Returns:
        Drafter forwards that this took.
    """
    assert isinstance(engine, SequentialEngine), "a sequential head opens in an engine that runs it"
    output, places = engine.run_drafter(rows, 1), list(range(len(rows)))
    for depth in range(1, max(counts) + 1):
        drafts = [choose(place, output, index) for index, place in enumerate(places)]
        assert output.next_hidden is not None, "a sequential head hands its state on"
        steps = [
            DraftStep(
                slot=rows[place].slot,
                token_id=draft,
                hidden=output.next_hidden[index],
                position=rows[place].start_position + rows[place].num_accepted + depth,
            )
            for index, (place, draft) in enumerate(zip(places, drafts, strict=True))
            if counts[place] > depth
        ]
        places = [place for place in places if counts[place] > depth]
        if not steps:
            break
        output = engine.step_drafter(steps)
    return max(counts)
