"""What a training refuses before its first long step: limits, lengths, the mask token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from peagle_trt.errors import UsageError
from peagle_trt.train.prompting import ChatFormat, make_prompts

if TYPE_CHECKING:
    from peagle_trt.train.corpus import Question
    from peagle_trt.train.features import AnswerText
    from peagle_trt.train.fitting import MemoryRequest


def check_lengths(
    chat: ChatFormat,
    questions: Sequence[Question],
    *,
    max_prompt_tokens: int,
    max_new_tokens: int,
    max_positions: int,
    report: Callable[[str], None],
) -> None:
    """Refuse limits that the target cannot hold; say how many questions are too long.

    Args:
        chat: The target's format.
        questions: All of them.
        max_prompt_tokens: Longer questions are left out.
        max_new_tokens: Longest answer.
        max_positions: What the target was made for.
        report: Takes a line.

    Raises:
        UsageError: A prompt and its answer exceed the target, or no question is short enough.
    """
    if max_prompt_tokens + max_new_tokens > max_positions:
        raise UsageError(
            f"prompts of {max_prompt_tokens} and answers of {max_new_tokens} tokens exceed the "
            f"target's {max_positions} positions",
            hint="lower --max-prompt-tokens or --max-new-tokens",
        )
    prompts = make_prompts(questions, chat, max_prompt_tokens=max_prompt_tokens, max_new_tokens=max_new_tokens)
    kept = {int(prompt.identifier) for prompt in prompts}
    left_out = [place for place in range(len(questions)) if place not in kept]
    if not kept:
        raise UsageError(
            f"all {len(questions)} questions are longer than {max_prompt_tokens} tokens",
            hint="raise --max-prompt-tokens",
        )
    if left_out:
        report(
            f"note: {len(left_out)} of {len(questions)} questions are longer than {max_prompt_tokens} tokens "
            f"and left out, the first is number {left_out[0] + 1}; see --max-prompt-tokens"
        )


def check_mask_token(mask_token_id: int, sequences: Sequence[AnswerText], vocab_size: int) -> None:
    """Refuse a mask token that the target lacks or that stands in a text.

    Raises:
        UsageError: It does.
    """
    if mask_token_id >= vocab_size:
        raise UsageError(
            f"the mask token `{mask_token_id}` is outside the target's vocabulary of {vocab_size}",
            hint="name a token that no text holds with --mask-token-id",
        )
    for place, sequence in enumerate(sequences):
        if (sequence.token_ids == mask_token_id).any():
            raise UsageError(
                f"the mask token `{mask_token_id}` occurs in the data, first in answer `{place}`",
                hint="name a token that no text holds with --mask-token-id",
            )


def check_sequential(memory: MemoryRequest, mask_token_id: int | None) -> None:
    """Refuse what a plain EAGLE-3 head has no use for.

    Raises:
        UsageError: Steps are to be cut, or a mask token is named.
    """
    if memory.num_segments is not None or memory.budget_bytes is not None:
        raise UsageError(
            "steps of an EAGLE-3 head are not cut",
            hint="leave out --segments and --memory-budget: its sequences run one by one, each whole",
        )
    if mask_token_id is not None:
        raise UsageError("an EAGLE-3 head has no masked slots", hint="leave out --mask-token-id")
