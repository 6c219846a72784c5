"""From OpenAI's messages to what chat templates read."""

from __future__ import annotations

import json
from collections.abc import Sequence

from peagle_trt.openai_door.fields import Message, Tool
from peagle_trt.openai_door.refusals import invalid, unsupported


def text_of(message: Message, index: int) -> str:
    """The text of a turn.

    Args:
        message: The turn.
        index: Its place, for the refusal.

    Raises:
        RefusalError: It holds something that is no text.
    """
    if message.content is None:
        if message.role != "assistant":
            raise invalid(f"messages[{index}].content", "is missing")
        return message.refusal or ""
    if isinstance(message.content, str):
        return message.content
    return "".join(_part(part, f"messages[{index}].content[{place}]") for place, part in enumerate(message.content))


def arguments_of(arguments: str, path: str) -> dict[str, object]:
    """The arguments of an earlier call.

    Raises:
        RefusalError: They are no JSON object.
    """
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise invalid(path, "is not valid JSON") from error
    if not isinstance(parsed, dict):
        raise invalid(path, "is not a JSON object")
    return parsed


def template_turns(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Messages as templates know them: `system` for `developer`, text for parts, objects for arguments.

    Raises:
        RefusalError: A message cannot be put so.
    """
    return [_turn(message, index) for index, message in enumerate(messages)]


def template_tools(tools: Sequence[Tool]) -> list[dict[str, object]]:
    """Tools as templates know them. Source: transformers, "tool use"."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                "description": tool.function.description or "",
                "parameters": tool.function.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]


def _turn(message: Message, index: int) -> dict[str, object]:
    turn: dict[str, object] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": text_of(message, index),
    }
    for name in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            turn[name] = value
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": arguments_of(
                        call.function.arguments, f"messages[{index}].tool_calls[{place}].function.arguments"
                    ),
                },
            }
            for place, call in enumerate(message.tool_calls)
        ]
    return turn


def _part(part: dict[str, object], path: str) -> str:
    kind = part.get("type")
    if kind not in ("text", "refusal"):
        raise unsupported(f"{path}.type", "is not `text`, and this server reads nothing else")
    text = part.get(str(kind))
    if not isinstance(text, str):
        raise invalid(f"{path}.{kind}", "is not a text")
    return text
