"""Whether the mask token may turn up in a text, and whether there is a chat template to ask with."""

from __future__ import annotations

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.checkpoint import TargetCheckpoint, TokenizerSource
from peagle_trt.readers.findings import Finding, judged
from peagle_trt.spec import DrafterConfig

_WHAT = "mask token in the tokenizer"
_EXPECTED = "reserved: an id without a token, or a special token that no text holds"


def judge_text(drafter: DrafterConfig, target: TargetCheckpoint) -> list[Finding]:
    """Look at the text side of a target; without one there is nothing to say.

    Raises:
        CheckpointError: The tokenizer is damaged.
    """
    if target.tokenizer is None:
        return []
    template = target.tokenizer.chat_template
    findings = [
        judged(
            template is not None,
            "chat template",
            found="there" if template is not None else "none",
            expected="the one the head's training texts were written with",
            hint="heads trained on chats accept about half as many drafts on bare prompts",
            otherwise="note",
        )
    ]
    if drafter.is_parallel:
        findings.insert(0, _judge_mask_token(drafter.mask_token_id, target, target.tokenizer))
    return findings


def _judge_mask_token(token: int, target: TargetCheckpoint, source: TokenizerSource) -> Finding:
    ends = (*target.config.eos_token_ids, *(id for id in (target.config.bos_token_id,) if id is not None))
    text, is_special = _look_up(token, source)
    if text is None:
        return Finding(level="ok", what=_WHAT, found=f"{token}, no token", expected=_EXPECTED)
    found = f"{token}, {'special' if is_special else 'ordinary'} token `{text}`"
    hint = ""
    if token in ends:
        hint = "it starts or ends texts, so the head cannot tell a mask from an end; keep to a reserved id"
    elif not is_special:
        hint = "texts may hold it, and its row is then no mask; keep to a reserved id"
    elif source.chat_template is not None and text in source.chat_template:
        hint = "the chat template writes it; keep to a reserved id"
    return judged(not hint, _WHAT, found=found, expected=_EXPECTED, hint=hint, otherwise="warning")


def _look_up(token: int, source: TokenizerSource) -> tuple[str | None, bool]:
    """Text of an id, and whether it is a special token."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(source.tokenizer_json())
    except Exception as error:
        # The library raises a bare Exception for a malformed file.
        raise CheckpointError(f"`{source.path}` is no tokenizer: {error}", hint="fetch the file again") from error
    added = tokenizer.get_added_tokens_decoder().get(token)
    return tokenizer.id_to_token(token), added is not None and bool(added.special)
