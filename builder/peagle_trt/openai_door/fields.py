"""The bodies that clients send: which fields there are, and what each may hold."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Temperature = Annotated[float, msgspec.Meta(ge=0.0, le=2.0)]
Penalty = Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)]
RepetitionPenalty = Annotated[float, msgspec.Meta(gt=0.0, le=10.0)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
CountOrNone = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Choices = Annotated[int, msgspec.Meta(ge=1, le=16)]
StopWord = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
StopWords = Annotated[list[StopWord], msgspec.Meta(max_length=16)]
FunctionName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
TokenKey = Annotated[str, msgspec.Meta(pattern=r"^(0|[1-9][0-9]{0,8})$")]
"""A token has one spelling: `5` and `05` in one object would be two biases of it."""
TokenIds = Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]], msgspec.Meta(max_length=64)]
Bias = Annotated[float, msgspec.Meta(ge=-100.0, le=100.0)]
LogitBias = Annotated[dict[TokenKey, Bias], msgspec.Meta(max_length=1024)]
TopLogProbs = Annotated[int, msgspec.Meta(ge=0, le=20)]
Priority = Annotated[int, msgspec.Meta(ge=-(2**31) + 1, le=2**31 - 1)]
Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=86_400.0)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object without other fields than its own."""


class StreamOptions(Body, frozen=True, kw_only=True):
    """How a stream is written; `include_obfuscation` pads pieces at OpenAI, and there is nothing to pad here."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class FunctionCall(Body, frozen=True, kw_only=True):
    """A call of an earlier turn; `arguments` is a JSON object as text."""

    name: FunctionName
    arguments: str


class ToolCall(Body, frozen=True, kw_only=True):
    """A call of an earlier turn and its id."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"
    index: int | None = None


class Message(Body, frozen=True, kw_only=True):
    """A turn. What an assistant's answer carries may be sent back as it came."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None


class FunctionDefinition(Body, frozen=True, kw_only=True):
    """A function the model may call; `strict` would need constrained decoding."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Literal[False] | None = None


class Tool(Body, frozen=True, kw_only=True):
    """A tool; there are only functions."""

    function: FunctionDefinition
    type: Literal["function"]


class JsonSchemaFormat(Body, frozen=True, kw_only=True):
    """A schema and its name; it is followed whether or not `strict` asks for that."""

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Body, frozen=True, kw_only=True):
    """What an answer looks like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(Body, frozen=True, kw_only=True):
    """What an answer follows, in vLLM's words; one of them."""

    json: str | dict[str, Any] | None = None
    json_object: Literal[True] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class GenerationFields(Body, frozen=True, kw_only=True):
    """What both kinds of requests share.

    From `top_k` on the fields are those of other servers: vLLM's, and `max_time` of transformers and of Hugging Face's
    inference API; `draft_tokens` and `prompt_lookup` are ours.
    """

    model: str
    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    n: Choices | None = None
    stop: StopWord | StopWords | None = None
    seed: Seed | None = None
    logit_bias: LogitBias | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    top_k: CountOrNone | None = None
    repetition_penalty: RepetitionPenalty | None = None
    min_tokens: CountOrNone | None = None
    draft_tokens: CountOrNone | None = None
    prompt_lookup: bool | None = None
    ignore_eos: bool | None = None
    stop_token_ids: TokenIds | None = None
    priority: Priority | None = None
    max_time: Seconds | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None


class ChatFields(GenerationFields, frozen=True, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    reasoning_effort: Literal["low", "medium", "high"] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogProbs | None = None


class CompletionFields(GenerationFields, frozen=True, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: TopLogProbs | None = None


HARMLESS_FIELDS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)
"""Accepted with any value: they ask for nothing that would change an answer."""

REFUSED_FIELDS: dict[str, tuple[object, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "echo": (None, False),
    "function_call": (None, "none"),
    "functions": (None, []),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None, True),
    "prediction": (None,),
    "suffix": (None, ""),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
}
"""Understood and refused by name, except with the values given here, which ask for nothing."""
