"""What was measured, as it is kept: a cell is one method over one batch of prompts, once."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import msgspec

from peagle_trt.bench.clients import ClientAnswer


class Method(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to decode.

    Attributes:
        name: "p-eagle", "eagle3" or "none"; "served" for a server that decodes as it pleases.
        draft_tokens: K; 0 for "none". The largest where K is chosen step by step.
        concurrency: Requests kept in flight.
        is_adaptive: Whether the decode loop chooses K, step by step.
    """

    name: str
    draft_tokens: int
    concurrency: int
    is_adaptive: bool = False


class CellAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer of a cell; see `ClientAnswer`.

    Attributes:
        num_prompt_tokens: Tokens of the prompt; 0 where nothing tells.
        num_output_tokens: Tokens of the answer.
        num_verify_steps: Steps that verified drafts.
        accepted_by_position: Accepted drafts at each position.
        first_token_seconds: Submission to first token.
        piece_seconds: When each piece came, since submission.
        piece_tokens: Tokens of each piece.
        are_pieces_steps: Each piece is what one step yielded.
        digest: Of the tokens, to tell equal answers.
    """

    num_prompt_tokens: int
    num_output_tokens: int
    num_verify_steps: int
    accepted_by_position: tuple[int, ...]
    first_token_seconds: float
    piece_seconds: tuple[float, ...]
    piece_tokens: tuple[int, ...]
    are_pieces_steps: bool
    digest: str


class Cell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One method over one batch of prompts, once.

    Attributes:
        prompts: Name of the set.
        round: Number of the batch and repetition, from 0; all methods of a round take turns.
        method: The method.
        seconds: What it took.
        cpu_seconds: CPU time of this process, or None where others did the work.
        energy_joules: Energy by meter, such as "package-0"; empty where none can be read.
        answers: In the order of the prompts; those that came as a whole.
        failures: How many requests failed, by reason.
    """

    prompts: str
    round: int
    method: Method
    seconds: float
    cpu_seconds: float | None
    energy_joules: dict[str, float]
    answers: tuple[CellAnswer, ...]
    failures: dict[str, int] = {}

    @property
    def num_tokens(self) -> int:
        """Answer tokens."""
        return sum(answer.num_output_tokens for answer in self.answers)


def keep_answers(answers: Sequence[ClientAnswer]) -> tuple[CellAnswer, ...]:
    """What of a client's answers is kept: figures, and of the tokens a digest."""
    return tuple(
        CellAnswer(
            num_prompt_tokens=answer.num_prompt_tokens,
            num_output_tokens=answer.num_output_tokens,
            num_verify_steps=answer.num_verify_steps,
            accepted_by_position=answer.accepted_by_position,
            first_token_seconds=answer.time_to_first_token_seconds,
            # Microseconds; a run of thousands of answers is kept as text.
            piece_seconds=tuple(round(second, 6) for second in answer.piece_seconds),
            piece_tokens=answer.piece_tokens,
            are_pieces_steps=answer.are_pieces_steps,
            digest=hashlib.sha256(repr(answer.token_ids).encode()).hexdigest()[:16],
        )
        for answer in answers
        if answer.failure is None
    )


def count_failures(answers: Sequence[ClientAnswer]) -> dict[str, int]:
    """Requests without a whole answer, by reason."""
    return dict(Counter(answer.failure for answer in answers if answer.failure is not None))
