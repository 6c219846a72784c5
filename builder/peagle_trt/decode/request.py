"""What a caller asks for, and what it gets back, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from peagle_trt.decode.guide import Guide

DraftTokens = int | Literal["auto"] | None
"""K of a request: see `GenerationRequest.draft_tokens`."""
FinishReason = Literal["stop", "length", "cancelled", "deadline", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How a token is chosen from the target's distribution.

    Attributes:
        temperature: 0 takes the most likely token.
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of tokens whose probability reaches p; 1 keeps all.
        repetition_penalty: Divides positive and multiplies negative logits of tokens already present in
            prompt or answer; 1 is off. Source: CTRL (arXiv 1909.05858), as transformers applies it.
        frequency_penalty: Subtracted once for every occurrence in the answer; 0 is off.
        presence_penalty: Subtracted once when the answer holds the token; 0 is off.
        min_tokens: End tokens are barred until the answer has this many tokens.
        bad_words: Runs of tokens that the answer never holds; the last token of one is barred after the others.
        logit_bias: Token ids and what is added to their logits, before any penalty.
        seed: Seed of the request's own random stream; None draws one.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    min_tokens: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogProb:
    """How likely a token was after the tokens before it, to the target itself.

    The number is the log-softmax of the target's logits as they come: before temperature, top-k, top-p, penalties,
    biases, bars and grammars, so that it says the same for every setting.

    Attributes:
        log_prob: Natural logarithm of the token's probability.
        top: The likeliest tokens in its place and theirs, best first; as many as the request asks for.

    Source: the default of vLLM (`logprobs_mode: raw_logprobs`) and of TensorRT-LLM's LLM API (`LogprobMode.RAW`).
    """

    log_prob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt to continue.

    Attributes:
        request_id: Unique among the requests in flight.
        prompt_ids: Token ids of the prompt; at least one.
        max_tokens: Longest answer, in tokens; at least 1.
        sampling: How tokens are chosen.
        end_ids: Tokens that end the answer and are not part of it; empty generates to `max_tokens`.
        stop_strings: Texts that end the answer and are cut from it.
        draft_tokens: K for this request; 0 decodes without speculation; None takes the build's K; "auto" takes, step by
            step, what is fastest here and now, from 0 to the build's K.
        priority: Among waiting requests the highest goes first, and reads its prompt first.
        deadline_seconds: Time from submission after which the answer ends as it is; None for any time.
        samples_drafts: Draw drafts from the drafter's distribution (probabilistic) instead of taking its argmax.
        prompt_lookup: Verify a copy from the text in place of a draft where copies have been right more often; see
            `decode.prompt_lookup`. Changes no answer; does nothing to drawn drafts and to those that follow a grammar.
        num_top_log_probs: 0 for log probabilities of the answer's tokens, n for those of the n likeliest tokens in
            every place too; None for neither.
        guide: A grammar that the answer follows; None lets it be anything.
        prompt_group: Name of several answers to one prompt, which is read once for all of them; None for an answer of
            its own.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    end_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    draft_tokens: DraftTokens = None
    priority: int = 0
    deadline_seconds: float | None = None
    samples_drafts: bool = False
    prompt_lookup: bool = False
    num_top_log_probs: int | None = None
    guide: Guide | None = None
    prompt_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """What one answer cost and what speculation gained.

    Attributes:
        num_prompt_tokens: Tokens of the prompt.
        num_output_tokens: Tokens of the answer.
        num_verify_steps: Target passes after the prompt that verified at least one draft.
        num_draft_tokens: Drafts verified.
        num_accepted_tokens: Drafts accepted.
        num_looked_up_tokens: Those of them that were copied from the text where the head had drafted something else.
        accepted_by_position: Accepted drafts at each slot 0..K-1.
        num_drafter_passes: Drafter forwards that proposed drafts.
        time_to_first_token_seconds: Submission to first token.
        total_seconds: Submission to last token.
    """

    num_prompt_tokens: int
    num_output_tokens: int
    num_verify_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_by_position: tuple[int, ...]
    num_drafter_passes: int
    time_to_first_token_seconds: float
    total_seconds: float
    num_looked_up_tokens: int = 0

    @property
    def acceptance_length(self) -> float:
        """Tokens a verify step yields, bonus counted; 1.0 when nothing was drafted. Source: vLLM's convention."""
        return 1.0 + self.num_accepted_tokens / self.num_verify_steps if self.num_verify_steps else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationChunk:
    """What one step added to one answer.

    Attributes:
        request_id: Whose.
        token_ids: New tokens; several when drafts were accepted. Never splits a UTF-8 character: tokens whose text
            ends inside one are held back until the character is whole or the answer ends.
        text: Text of `token_ids`, valid on its own; the concatenation of all chunks is the answer.
        log_probs: One entry a token, where the request asks for them.
        finish_reason: Set on the last chunk only.
        metrics: Set on the last chunk only.
        error: Set when `finish_reason` is "error".
        is_overload: Whether that is only because too many requests are waiting.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    log_probs: tuple[TokenLogProb, ...] = ()
    finish_reason: FinishReason | None = None
    metrics: RequestMetrics | None = None
    error: str = ""
    is_overload: bool = False
