"""From the bytes of a body to its fields; every fault is answered with the field at fault."""

from __future__ import annotations

import difflib
import re
from typing import TypeVar

import msgspec

from peagle_trt.openai_door.fields import HARMLESS_FIELDS, REFUSED_FIELDS, GenerationFields
from peagle_trt.openai_door.refusals import RefusalError, unsupported

Fields = TypeVar("Fields", bound=GenerationFields)

_NAMED_FIELD = re.compile(r"field `([^`]*)`")
_PATH = re.compile(r" - at (?:`key` in )?`(?:key in )?\$\.?(.*)`$", re.DOTALL)


def read_fields(body: bytes, kind: type[Fields]) -> Fields:
    """Checks a body.

    Args:
        body: JSON, as sent.
        kind: Which request it is.

    Raises:
        RefusalError: It is no JSON object, or a field is missing, unknown, refused or out of range.
    """
    sent = _read_object(body)
    for name, harmless in REFUSED_FIELDS.items():
        if name in sent and not any(_is_same(sent[name], value) for value in harmless):
            raise unsupported(name)
    kept = {name: value for name, value in sent.items() if name not in HARMLESS_FIELDS and name not in REFUSED_FIELDS}
    _refuse_unknown(kept, kind)
    try:
        return msgspec.convert(kept, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _explain(str(error)) from error


def _read_object(body: bytes) -> dict[str, object]:
    try:
        sent = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusalError(f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(sent, dict):
        raise RefusalError("the body is not a JSON object", code="invalid_json")
    return sent


def _is_same(sent: object, value: object) -> bool:
    # 1 == True, but they are not the same answer to a yes-or-no question.
    return type(sent) is type(value) and sent == value


def _refuse_unknown(sent: dict[str, object], kind: type[GenerationFields]) -> None:
    known = kind.__struct_fields__
    for name in sent:
        if name not in known:
            close = difflib.get_close_matches(name[:100], known, n=1)
            advice = f"; did you mean `{close[0]}`?" if close else ""
            raise RefusalError(
                f"`{name}` is no field of this request{advice}", param=name[:100], code="unknown_parameter"
            )


def _explain(message: str) -> RefusalError:
    found = _PATH.search(message)
    path = found.group(1) if found else ""
    reason = message[: found.start()] if found else message
    named = _NAMED_FIELD.search(reason)
    param = ".".join(filter(None, [path, named.group(1) if named else ""]))
    return RefusalError(f"`{param}`: {reason}" if param else reason, param=param or None, code="invalid_value")
