"""The text side of a build: prompts to tokens, tokens to text that is whole at every moment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from peagle_trt.decode.token_bytes import TokenBytes
from peagle_trt.errors import CheckpointError, RequestError


class TextTokenizer:
    """A tokenizer and its chat template.

    Args:
        tokenizer: A `tokenizers.Tokenizer`.
        chat_template: Jinja source, or None.
        bos_token: Text the template may use for the start of a text.
        eos_token: Text the template may use for the end of a turn.
    """

    def __init__(self, tokenizer: Any, chat_template: str | None, bos_token: str = "", eos_token: str = "") -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._special = {"bos_token": bos_token, "eos_token": eos_token}

    @classmethod
    def from_files(
        cls, tokenizer_json: Path, chat_template: Path | None, bos_token: str = "", eos_token: str = ""
    ) -> TextTokenizer:
        """Read `tokenizer.json` and, where there is one, the template.

        Raises:
            CheckpointError: A file is missing or is not what its name says.
        """
        try:
            text = tokenizer_json.read_text(encoding="utf-8")
            template = chat_template.read_text(encoding="utf-8") if chat_template else None
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"cannot read the tokenizer `{tokenizer_json}`: {error}") from error
        return cls.from_text(tokenizer_json, text, template, bos_token, eos_token)

    @classmethod
    def from_text(
        cls, source: Path, tokenizer_json: str, chat_template: str | None, bos_token: str = "", eos_token: str = ""
    ) -> TextTokenizer:
        """Take the text of a `tokenizer.json`; `source` is where it comes from, for messages.

        Raises:
            CheckpointError: It is not what its name says.
        """
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_str(tokenizer_json)
        except Exception as error:
            # tokenizers raises a bare Exception for a malformed file.
            raise CheckpointError(f"cannot read the tokenizer `{source}`: {error}") from error
        return cls(tokenizer, chat_template, bos_token, eos_token)

    @property
    def vocab_size(self) -> int:
        """Ids the tokenizer knows, added tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def has_chat_template(self) -> bool:
        """Whether messages can be rendered."""
        return self._chat_template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens spelled out in it count as such.

        Raises:
            RequestError: The text holds bytes that are no characters, as an argument that is not UTF-8 does.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(f"the text is not valid UTF-8 at character {error.start}") from error
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def token_id(self, token: str) -> int | None:
        """Id of a token by its text, or None."""
        found = self._tokenizer.token_to_id(token)
        return None if found is None else int(found)

    def to_json(self) -> str:
        """The text of its `tokenizer.json`."""
        return str(self._tokenizer.to_str())

    def token_bytes(self) -> TokenBytes:
        """What single tokens stand for."""
        return TokenBytes(self._tokenizer)

    def base_vocabulary(self) -> dict[str, int]:
        """Token to id, without the added tokens."""
        return dict(self._tokenizer.get_vocab(with_added_tokens=False))

    def template_reads(self, name: str) -> bool:
        """Whether the chat template looks at a variable, such as `tools`; what it does not read would be lost."""
        if self._chat_template is None:
            return False
        from jinja2 import TemplateSyntaxError
        from jinja2.meta import find_undeclared_variables

        try:
            return name in find_undeclared_variables(_template_environment().parse(self._chat_template))
        except TemplateSyntaxError:
            return False

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Messages as the one text the model was trained to continue.

        Args:
            messages: `role` and `content` of every turn, and what else the template reads of it.
            add_generation_prompt: Open the assistant's turn at the end.
            variables: What else the template reads, as `tools`.

        Raises:
            RequestError: The model has no template, or the template refuses the messages.
        """
        if self._chat_template is None:
            raise RequestError("this model has no chat template", hint="send plain text")
        names = {**self._special, **(variables or {})}
        try:
            template = _template_environment().from_string(self._chat_template)
            return str(template.render(messages=list(messages), add_generation_prompt=add_generation_prompt, **names))
        except Exception as error:
            # A template is a program: besides TemplateError it may raise whatever its expressions do.
            raise RequestError(
                f"the chat template refuses the messages: {error}", hint="send plain text, without the template"
            ) from error

    def stream(self) -> TextStream:
        """A fresh incremental decoder."""
        return TextStream(self._tokenizer)


def _template_environment() -> Any:
    """What templates are written for. Source: transformers, `utils/chat_template_utils.py`, which also defines the two
    functions and a `tojson` that leaves HTML alone.
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: object, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


class TextStream:
    """Turns tokens into text one at a time, holding back what would split a character.

    Args:
        tokenizer: A `tokenizers.Tokenizer`.
    """

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._held: list[int] = []

    def push(self, token_id: int) -> tuple[tuple[int, ...], str] | None:
        """Take one token.

        Returns:
            The tokens whose text became whole and that text, or None while a character is open.
        """
        self._held.append(token_id)
        text = self._stream.step(self._tokenizer, token_id)
        if text is None:
            return None
        held, self._held = tuple(self._held), []
        return held, text

    def flush(self) -> tuple[tuple[int, ...], str]:
        """The tokens still held and what text they make; an open character becomes U+FFFD."""
        held, self._held = tuple(self._held), []
        return held, str(self._tokenizer.decode(list(held), skip_special_tokens=True)) if held else ""
