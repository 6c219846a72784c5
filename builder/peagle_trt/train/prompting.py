"""Questions to prompts: the target's chat template and tokenizer, and user turns that the target invents itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from peagle_trt.errors import CheckpointError
from peagle_trt.train.corpus import Question
from peagle_trt.train.generate import Answer, Prompt

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Invented user turns outside these bounds are rarely a question (tokens).
MIN_INVENTED_TOKENS, MAX_INVENTED_TOKENS = 8, 120


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """A target's tokenizer and chat template, under the names of a Hugging Face folder."""

    tokenizer: Tokenizer
    render: Callable[..., str]
    end_of_turn_id: int

    def conversation_ids(self, first_turn: str) -> tuple[int, ...]:
        """Token ids up to the point where the assistant answers the first user turn."""
        text = self.render(messages=[{"role": "user", "content": first_turn}], add_generation_prompt=True)
        return self.encode(text)

    def next_turn_ids(self, turn: str) -> tuple[int, ...]:
        """Token ids that follow an answer and its end mark, up to the next answer."""
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        before = self.encode(self.render(messages=messages, add_generation_prompt=False))
        after = self.encode(
            self.render(messages=[*messages, {"role": "user", "content": turn}], add_generation_prompt=True)
        )
        ended = len(before) - before[::-1].index(self.end_of_turn_id)
        return after[ended:]

    def invitation_ids(self) -> tuple[int, ...]:
        """Token ids that end where a user's words would begin."""
        marker = "\N{OBJECT REPLACEMENT CHARACTER}"
        text = self.render(messages=[{"role": "user", "content": marker}], add_generation_prompt=False)
        return self.encode(text[: text.index(marker)])

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of text that already holds its special tokens."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)


def read_chat_format(folder: Path, end_of_turn_id: int) -> ChatFormat:
    """Tokenizer and chat template of a checkpoint folder.

    Raises:
        CheckpointError: There is no tokenizer.json or no chat template.
    """
    import jinja2
    from tokenizers import Tokenizer

    if not (folder / "tokenizer.json").exists():
        raise CheckpointError(f"no `tokenizer.json` in `{folder}`")
    template_path, config_path = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    template = (
        template_path.read_text()
        if template_path.exists()
        else json.loads(config_path.read_text()).get("chat_template")
    )
    if template is None:
        raise CheckpointError(f"no chat template in `{folder}`")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    return ChatFormat(
        tokenizer=Tokenizer.from_file(str(folder / "tokenizer.json")),
        render=environment.from_string(template).render,
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
        token_ids = chat.encode(question.turns[0]) if question.is_raw else chat.conversation_ids(question.turns[0])
        if len(token_ids) > max_prompt_tokens:
            continue
        yield Prompt(
            identifier=str(place),
            source=question.source,
            token_ids=token_ids,
            max_new_tokens=max_new_tokens if len(question.turns) == 1 else max_new_tokens // 2,
            follow_ups=tuple(chat.next_turn_ids(turn) for turn in question.turns[1:]),
        )


def invitations(chat: ChatFormat, count: int) -> Iterator[Prompt]:
    """Prompts to which the target's answer is a user's question.

    Source: Magpie (arXiv 2406.08464): an aligned model fed only the opening of a user turn writes an instruction.
    """
    token_ids = chat.invitation_ids()
    for place in range(count):
        yield Prompt(
            identifier=str(place), source="invented", token_ids=token_ids, max_new_tokens=MAX_INVENTED_TOKENS + 1
        )


def invented_question(answer: Answer, chat: ChatFormat) -> Question | None:
    """The question in an answer to an invitation, or None when it is too short, too long or not ended."""
    written = answer.token_ids[len(answer.prompt.token_ids) :]
    if written[-1] != chat.end_of_turn_id or not MIN_INVENTED_TOKENS <= len(written) - 1 <= MAX_INVENTED_TOKENS:
        return None
    text = chat.tokenizer.decode(written[:-1]).strip()
    return Question(source="invented", turns=(text,)) if text.isascii() else None
