"""From the fields that ask for a form of the answer to a grammar of the `peagle` model."""

from __future__ import annotations

import json
from dataclasses import dataclass

from peagle_trt.openai_door.fields import GenerationFields, ResponseFormat, StructuredOutputs
from peagle_trt.openai_door.refusals import invalid
from peagle_trt_repo.inputs import GUIDE, GUIDE_TYPE

RESPONSE_FORMAT, STRUCTURED_OUTPUTS = "response_format", "structured_outputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideChoice:
    """A grammar, and who asked for it.

    Attributes:
        kind: Kind of the grammar.
        text: The grammar.
        field: The client's field, for messages.
    """

    kind: str
    text: str
    field: str

    def inputs(self) -> dict[str, object]:
        """Inputs of the model."""
        inputs: dict[str, object] = {GUIDE_TYPE: self.kind}
        return inputs | ({GUIDE: self.text} if self.text else {})


def read_guide(fields: GenerationFields) -> GuideChoice | None:
    """The grammar that a request asks for.

    Raises:
        RefusalError: There are two, or there is none where one is named.
    """
    by_format = _of_format(fields.response_format)
    by_outputs = _of_outputs(fields.structured_outputs)
    if by_format is not None and by_outputs is not None:
        raise invalid(STRUCTURED_OUTPUTS, "and `response_format` both ask for a form of the answer; send one of them")
    return by_format or by_outputs


def _of_format(sent: ResponseFormat | None) -> GuideChoice | None:
    if sent is None or sent.type == "text":
        return None
    if sent.type == "json_object":
        return GuideChoice(kind="json", text="", field=RESPONSE_FORMAT)
    if sent.json_schema is None:
        raise invalid(f"{RESPONSE_FORMAT}.json_schema", "is missing")
    text = json.dumps(sent.json_schema.schema)
    return GuideChoice(kind="json_schema", text=text, field=f"{RESPONSE_FORMAT}.json_schema.schema")


def _of_outputs(sent: StructuredOutputs | None) -> GuideChoice | None:
    if sent is None:
        return None
    schema = sent.json if isinstance(sent.json, str | None) else json.dumps(sent.json)
    texts = {
        "json": ("json_schema", schema),
        "json_object": ("json", "" if sent.json_object else None),
        "regex": ("regex", sent.regex),
        "choice": ("choice", None if sent.choice is None else json.dumps(sent.choice)),
        "grammar": ("ebnf_grammar", sent.grammar),
    }
    found = [
        GuideChoice(kind=kind, text=text, field=f"{STRUCTURED_OUTPUTS}.{name}")
        for name, (kind, text) in texts.items()
        if text is not None
    ]
    if len(found) != 1:
        raise invalid(STRUCTURED_OUTPUTS, f"holds {len(found)} grammars; expected 1 of {', '.join(texts)}")
    return found[0]
