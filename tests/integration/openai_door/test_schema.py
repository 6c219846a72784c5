"""Requests that schemathesis makes from the door's own fields: methods, headers and bodies, sound and spoilt."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error

from peagle_trt.openai_door.fields import ChatFields, CompletionFields

from .conftest import Door

NUM_CASES = 60
SECONDS = 30.0


def description() -> dict[str, Any]:
    """The door as an OpenAPI document, with the fields that it reads."""
    (chat, completion), components = msgspec.json.schema_components(
        [ChatFields, CompletionFields], ref_template="#/components/schemas/{name}"
    )
    # A long answer is honoured, and takes its time.
    for name in ("ChatFields", "CompletionFields"):
        for field in ("max_tokens", "max_completion_tokens"):
            if field in components[name]["properties"]:
                components[name]["properties"][field] = {"type": "integer", "minimum": 1, "maximum": 3}
        components[name]["required"] = sorted({*components[name].get("required", []), "model", "max_tokens"})
        components[name]["properties"]["model"] = {"enum": ["tiny"]}
    answers = {"default": {"description": "an answer, or the reason why not"}}

    def posted(schema: dict[str, Any]) -> dict[str, Any]:
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        return {"post": {"requestBody": body, "responses": answers}}

    return {
        "openapi": "3.1.0",
        "info": {"title": "the door", "version": "1"},
        "paths": {
            "/v1/chat/completions": posted(chat),
            "/v1/completions": posted(completion),
            "/v1/models": {"get": {"responses": answers}},
            "/health": {"get": {"responses": answers}},
            "/metrics": {"get": {"responses": answers}},
        },
        "components": {"schemas": components},
    }


schema = schemathesis.openapi.from_dict(description())


@pytest.mark.slow
@schema.parametrize()
@settings(max_examples=NUM_CASES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_nothing_that_fits_the_schema_or_not_is_a_fault_of_ours(case: schemathesis.Case, door: Door) -> None:
    response = case.call(base_url=door.address, timeout=SECONDS)
    case.validate_response(response, checks=[not_a_server_error])
