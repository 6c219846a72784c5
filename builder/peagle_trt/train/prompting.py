"""Questions to prompts: the target's chat template and tokenizer, and user turns that the target invents itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt.errors import CheckpointError
from peagle_trt.readers import read_tokenizer
from peagle_trt.train.corpus import Question
from peagle_trt.train.generate import Answer, Prompt

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

# Invented user turns outside these bounds are rarely a question (tokens).
MIN_INVENTED_TOKENS, MAX_INVENTED_TOKENS = 8, 120


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """A target's tokenizer and chat template.

    Attributes:
        tokenizer: Of the tokenizers library.
        render: Takes `messages` and `add_generation_prompt`, returns text with special tokens.
        end_of_turn_id: Token that ends an answer.
    """

    tokenizer: Tokenizer
    render: Callable[..., str]
    end_of_turn_id: int

    def conversation_ids(self, first_turn: str, system: str = "") -> tuple[int, ...]:
        """Token ids up to the point where the assistant answers the first user turn."""
        opening = [{"role": "system", "content": system}] if system else []
        text = self.render(messages=[*opening, {"role": "user", "content": first_turn}], add_generation_prompt=True)
        return self.encode(text)

    def next_turn_ids(self, turn: str) -> tuple[int, ...]:
        """Token ids that follow an answer and its end mark, up to the next answer."""
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        before = self.encode(self.render(messages=messages, add_generation_prompt=False))
        after = self.encode(
            self.render(messages=[*messages, {"role": "user", "content": turn}], add_generation_prompt=True)
        )
        if self.end_of_turn_id not in before:
            # A template that leaves the end mark out; the next turn starts where the rendered answer stops.
            return after[len(before) :]
        ended = len(before) - before[::-1].index(self.end_of_turn_id)
        return after[ended:]

    def invitation_ids(self) -> tuple[int, ...]:
        """Token ids that end where a user's words would begin."""
        marker = "\N{OBJECT REPLACEMENT CHARACTER}"
        text = self.render(messages=[{"role": "user", "content": marker}], add_generation_prompt=False)
        return self.encode(text[: text.index(marker)])

    def unused_token_id(self, counts_V: NDArray[np.int64]) -> int:
        """A token for mask slots: a row that no text reaches, or else the last special token that none of them holds.

        Args:
            counts_V: Occurrences of each token in the answers.

        Raises:
            CheckpointError: Every special token is in use.
        """
        if len(counts_V) > self.tokenizer.get_vocab_size():
            return len(counts_V) - 1
        special = sorted(i for i, token in self.tokenizer.get_added_tokens_decoder().items() if token.special)
        in_use = {self.end_of_turn_id, *self.conversation_ids("a"), *self.next_turn_ids("a")}
        free = [token_id for token_id in special if token_id not in in_use and counts_V[token_id] == 0]
        if not free:
            raise CheckpointError("the tokenizer has no unused special token", hint="name one with --mask-token-id")
        return free[-1]

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of text that already holds its special tokens."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)


def read_chat_format(path: Path, end_of_turn_id: int) -> ChatFormat:
    """Tokenizer and chat template of a checkpoint folder or GGUF file.

    Raises:
        CheckpointError: There is no tokenizer or no chat template.
    """
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from tokenizers import Tokenizer

    source = read_tokenizer(path)
    if source.chat_template is None:
        raise CheckpointError(f"no chat template in `{path}`")
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    template = environment.from_string(source.chat_template)
    return ChatFormat(
        tokenizer=Tokenizer.from_str(source.tokenizer_json()),
        render=partial(template.render, bos_token=source.bos_token, eos_token=source.eos_token),
        end_of_turn_id=end_of_turn_id,
    )


def make_prompts(
    questions: Iterable[Question], chat: ChatFormat, *, max_prompt_tokens: int, max_new_tokens: int
) -> Iterator[Prompt]:
    """Render questions, leaving out those that are too long.

    Args:
        questions: In the order in which they will be asked.
        chat: The target's format.
        max_prompt_tokens: Longer prompts are left out.
        max_new_tokens: Limit of each answer; a conversation of two turns gets half of it for each.

    Yields:
        Prompts whose identifier is their place among the questions.
    """
    for place, question in enumerate(questions):
        token_ids = (
            chat.encode(question.turns[0])
            if question.is_raw
            else chat.conversation_ids(question.turns[0], question.system)
        )
        if len(token_ids) > max_prompt_tokens:
            continue
        yield Prompt(
            identifier=str(place),
            source=question.source,
            token_ids=token_ids,
            max_new_tokens=max_new_tokens if len(question.turns) == 1 else max_new_tokens // 2,
            follow_ups=tuple(chat.next_turn_ids(turn) for turn in question.turns[1:]),
        )


def invitations(chat: ChatFormat, count: int, openings: Sequence[str] = ("",)) -> Iterator[Prompt]:
    """Prompts to which the target's answer is a user's question, or the rest of one.

    Args:
        chat: The target's format.
        count: Prompts.
        openings: First words that the target continues, taken in turn; "" leaves all of the question to it.

    Source: Magpie (arXiv 2406.08464): an aligned model fed only the opening of a user turn writes an instruction.
    """
    starts = [chat.invitation_ids() + chat.encode(opening) for opening in openings]
    for place in range(count):
        yield Prompt(
            identifier=str(place),
            source="invented",
            token_ids=starts[place % len(starts)],
            max_new_tokens=MAX_INVENTED_TOKENS + 1,
        )


def invented_question(answer: Answer, chat: ChatFormat) -> Question | None:
    """The question in an answer to an invitation, or None when it is too short, too long or not ended."""
    written = answer.token_ids[len(answer.prompt.token_ids) :]
    if written[-1] != chat.end_of_turn_id or not MIN_INVENTED_TOKENS <= len(written) - 1 <= MAX_INVENTED_TOKENS:
        return None
    opening = answer.prompt.token_ids[len(chat.invitation_ids()) :]
    text = chat.tokenizer.decode((*opening, *written[:-1])).strip()
    return Question(source="invented", turns=(text,)) if text.isascii() else None
