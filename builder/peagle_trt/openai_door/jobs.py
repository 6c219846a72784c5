"""From a checked body to what the server is asked: one job for every choice of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peagle_trt.decode.text import TextTokenizer
from peagle_trt.errors import RequestError
from peagle_trt.openai_door.dialects import Dialect
from peagle_trt.openai_door.fields import ChatFields, CompletionFields, GenerationFields
from peagle_trt.openai_door.guides import read_guide
from peagle_trt.openai_door.refusals import RefusalError, invalid, unsupported
from peagle_trt.spec import EngineManifest
from peagle_trt_repo.inputs import GUIDE_START

DEFAULT_COMPLETION_TOKENS = 16
"""Source: OpenAI's API reference, `/v1/completions`."""
DEFAULT_TEMPERATURE = 1.0
"""Source: OpenAI's API reference."""
MAX_CHOICES = 16
NO_END_ID = -1
_SEED_RANGE = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a request comes to.

    Attributes:
        jobs: Inputs of the `peagle` model for every prompt, in the order of the choices.
        num_choices: Answers to each prompt.
        num_prompt_tokens: Tokens of all prompts, each counted once.
        max_seconds: When the answers end as they are; None for any time.
        has_log_probs: Whether they come with log probabilities.
        guide_field: The field that asked for a grammar, or None.
    """

    jobs: tuple[dict[str, object], ...]
    num_choices: int = 1
    num_prompt_tokens: int
    max_seconds: float | None = None
    has_log_probs: bool = False
    guide_field: str | None = None


class JobMaker:
    """Makes jobs for one build.

    Args:
        manifest: The build.
        tokenizer: Its text side.
        dialect: How its model reads conversations.
        passes_stop_words: Whether a stop word may end an answer of a conversation at the server.
    """

    def __init__(
        self, manifest: EngineManifest, tokenizer: TextTokenizer, dialect: Dialect, *, passes_stop_words: bool
    ) -> None:
        self._manifest = manifest
        self._tokenizer = tokenizer
        self._dialect = dialect
        self._passes_stop_words = passes_stop_words

    def chat(self, fields: ChatFields) -> Work:
        """Work of a chat request.

        Raises:
            RefusalError: It cannot be honoured.
        """
        self._check(fields)
        if fields.stop and not self._passes_stop_words:
            raise unsupported("stop", "would cut this model's reasoning; leave it out")
        guide = read_guide(fields)
        start_ids = self._dialect.content_start_ids if guide is not None else ()
        if guide is not None and not self._passes_stop_words and not start_ids:
            raise unsupported(guide.field, "would hold this model's reasoning to the same form; leave it out")
        limit = _chat_limit(fields)
        prompt_ids = self._dialect.prompt_ids(fields)
        if fields.top_logprobs is not None and not fields.logprobs:
            raise invalid("top_logprobs", "means nothing without `logprobs`")
        num_top = (fields.top_logprobs or 0) if fields.logprobs else None
        return self._work(
            fields, [prompt_ids], limit=limit, param="messages", num_top=num_top, guide_start_ids=start_ids
        )

    def completion(self, fields: CompletionFields) -> Work:
        """Work of a completion request.

        Raises:
            RefusalError: It cannot be honoured.
        """
        self._check(fields)
        prompts = [self._prompt_ids(prompt) for prompt in _prompts(fields)]
        limit = fields.max_tokens or DEFAULT_COMPLETION_TOKENS
        return self._work(fields, prompts, limit=limit, param="prompt", num_top=fields.logprobs)

    def _check(self, fields: GenerationFields) -> None:
        if fields.model != self._manifest.name:
            raise RefusalError(
                f"the model `{fields.model}` is not served here; this server has `{self._manifest.name}`",
                param="model",
                status=404,
                code="model_not_found",
            )
        if fields.stream_options is not None and not fields.stream:
            raise invalid("stream_options", "means nothing without `stream`")
        largest = self._manifest.shapes.max_draft_tokens
        if fields.draft_tokens is not None and fields.draft_tokens > largest:
            raise invalid("draft_tokens", f"is {fields.draft_tokens}; expected 0..{largest}")
        vocab_size = self._manifest.target.vocab_size
        for name, ids in (("stop_token_ids", fields.stop_token_ids), ("logit_bias", map(int, fields.logit_bias or {}))):
            largest = max(ids or (), default=0)
            if largest >= vocab_size:
                raise invalid(name, f"holds the token {largest}; expected 0..{vocab_size - 1}")

    def _prompt_ids(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            try:
                return self._tokenizer.encode(prompt)
            except RequestError as error:
                raise invalid("prompt", f"cannot be read: {error.message}") from error
        vocab_size = self._manifest.target.vocab_size
        if max(prompt, default=0) >= vocab_size:
            raise invalid("prompt", f"holds the token {max(prompt)}; expected 0..{vocab_size - 1}")
        return prompt

    def _work(
        self,
        fields: GenerationFields,
        prompts: Sequence[list[int]],
        *,
        limit: int | None,
        param: str,
        num_top: int | None,
        guide_start_ids: tuple[int, ...] = (),
    ) -> Work:
        num_choices = fields.n or 1
        if num_choices * len(prompts) > MAX_CHOICES:
            raise invalid("n", f"asks for {num_choices * len(prompts)} answers in one request; at most {MAX_CHOICES}")
        settings = _settings(fields) | ({} if num_top is None else {"num_top_log_probs": num_top})
        guide = read_guide(fields)
        settings |= {} if guide is None else guide.inputs()
        settings |= {GUIDE_START: list(guide_start_ids)} if guide_start_ids else {}
        jobs: list[dict[str, object]] = []
        for prompt_ids in prompts:
            max_tokens = self._max_tokens(prompt_ids, limit, param)
            job = {"input_ids": prompt_ids, "max_tokens": max_tokens, "stream": True, **settings}
            if num_choices > 1:
                # One request: the server reads the prompt once for all its answers.
                job["num_return_sequences"] = num_choices
            jobs.append(job | _seed(fields, num_choices * len(jobs)))
        return Work(
            jobs=tuple(jobs),
            num_choices=num_choices,
            num_prompt_tokens=sum(map(len, prompts)),
            max_seconds=fields.max_time,
            has_log_probs=num_top is not None,
            guide_field=None if guide is None else guide.field,
        )

    def _max_tokens(self, prompt_ids: list[int], limit: int | None, param: str) -> int:
        room = self._manifest.shapes.max_sequence_length - len(prompt_ids)
        if not prompt_ids:
            raise invalid(param, "is empty")
        if room < 1:
            raise RefusalError(
                f"`{param}` has {len(prompt_ids)} tokens; "
                f"at most {self._manifest.shapes.max_sequence_length - 1} fit this model",
                param=param,
                code="context_length_exceeded",
            )
        return min(room, limit or room)


def _chat_limit(fields: ChatFields) -> int | None:
    old, new = fields.max_tokens, fields.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise invalid("max_tokens", f"is {old} and `max_completion_tokens` is {new}; send one of them")
    return new if old is None else old


def _prompts(fields: CompletionFields) -> list[str | list[int]]:
    sent = fields.prompt
    if isinstance(sent, str):
        return [sent]
    if sent and all(isinstance(entry, int) for entry in sent):
        return [[entry for entry in sent if isinstance(entry, int)]]
    prompts = [entry for entry in sent if not isinstance(entry, int)]
    if not prompts or len(prompts) < len(sent):
        raise invalid("prompt", "is empty, or mixes texts and tokens")
    return prompts


def _settings(fields: GenerationFields) -> dict[str, object]:
    temperature = DEFAULT_TEMPERATURE if fields.temperature is None else fields.temperature
    # At the server a `top_p` of 0 means off, for classic clients; here it means the most likely token.
    is_greedy = fields.top_p == 0.0
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop
    wanted = {
        "temperature": 0.0 if is_greedy else temperature,
        "top_p": None if is_greedy else fields.top_p,
        "top_k": fields.top_k,
        "frequency_penalty": fields.frequency_penalty,
        "presence_penalty": fields.presence_penalty,
        "repetition_penalty": fields.repetition_penalty,
        "min_tokens": fields.min_tokens,
        "draft_tokens": fields.draft_tokens,
        "prompt_lookup": fields.prompt_lookup,
        "stop_words": stop or None,
        "end_id": NO_END_ID if fields.ignore_eos else None,
        "stop_token_ids": fields.stop_token_ids or None,
        "priority": fields.priority,
        "logit_bias_ids": [int(key) for key in fields.logit_bias or {}] or None,
        "logit_bias_values": list((fields.logit_bias or {}).values()) or None,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _seed(fields: GenerationFields, index: int) -> dict[str, object]:
    # Choices with one seed would all be the same answer.
    return {} if fields.seed is None else {"seed": (fields.seed + index) % _SEED_RANGE}
