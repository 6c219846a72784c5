"""What a measurement talks to, and a build in this process; served builds are in `served.py`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.prompt_lookup import LookupExperience
from peagle_trt.decode.request import DraftTokens, GenerationChunk, GenerationRequest, SamplingSettings
from peagle_trt.decode.request_check import check_request
from peagle_trt.decode.session import LoadedBuild
from peagle_trt.decode.speculation import SpeculationController
from peagle_trt.errors import PeagleError, RequestError

if TYPE_CHECKING:
    from peagle_trt.bench.cells import Method
    from peagle_trt.bench.prompt_sets import PromptSet


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAnswer:
    """One answer.

    Attributes:
        token_ids: Its tokens.
        num_output_tokens: How many.
        num_verify_steps: Steps that verified drafts.
        accepted_by_position: Accepted drafts at each position.
        time_to_first_token_seconds: Submission to first token.
        num_prompt_tokens: Tokens of the prompt; 0 where nothing tells.
        piece_seconds: When each piece of the answer came, since submission.
        piece_tokens: Tokens of each piece; empty where pieces are texts.
        are_pieces_steps: Each piece is just what one step yielded.
        failure: Why there is no whole answer, and the other fields say nothing; None where there is one.
    """

    token_ids: tuple[int, ...]
    num_output_tokens: int
    num_verify_steps: int
    accepted_by_position: tuple[int, ...]
    time_to_first_token_seconds: float
    num_prompt_tokens: int = 0
    piece_seconds: tuple[float, ...] = ()
    piece_tokens: tuple[int, ...] = ()
    are_pieces_steps: bool = False
    failure: str | None = None


def failed_answer(reason: str) -> ClientAnswer:
    """What stands in the place of an answer that never came as a whole."""
    return ClientAnswer(
        token_ids=(),
        num_output_tokens=0,
        num_verify_steps=0,
        accepted_by_position=(),
        time_to_first_token_seconds=0.0,
        failure=reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: 0 takes the most likely token.
        seed: Prompt i of a batch gets the seed `seed + i`; of no effect at temperature 0.
    """

    temperature: float = 0.0
    seed: int = 0


GREEDY = Sampling()


class Client(Protocol):
    """Answers prompts with a method."""

    max_adaptive_drafts: int
    """Largest K that an adaptive method may choose."""
    is_local: bool
    """Whether the work is done by this process, so that its CPU time says what it took."""

    def answer(self, prompts: Sequence[str], method: Method, max_tokens: int) -> list[ClientAnswer]:
        """Answer all, `method.concurrency` at a time; in the order of the prompts.

        Raises:
            PeagleError: No more can be expected of what answers.
        """
        ...


@dataclass(slots=True)
class _Growing:
    """An answer so far."""

    submitted_at: float
    token_ids: list[int] = field(default_factory=list)
    piece_seconds: list[float] = field(default_factory=list)
    piece_tokens: list[int] = field(default_factory=list)

    def add(self, chunk: GenerationChunk, now: float) -> None:
        if chunk.token_ids:
            self.token_ids += chunk.token_ids
            self.piece_seconds.append(now - self.submitted_at)
            self.piece_tokens.append(len(chunk.token_ids))


class InProcessClient:
    """A build in this process.

    Args:
        loaded: The build.
        is_chat: Put prompts into the chat template.
        ends: Stop at the model's end tokens; otherwise every answer has `max_tokens`.
        baseline: Another build of the same target, which answers with the method of its own head.
        sampling: How tokens are chosen.
        prompt_lookup: Let copies from the text take the place of drafts; see `GenerationRequest.prompt_lookup`.
    """

    is_local = True

    def __init__(
        self,
        loaded: LoadedBuild,
        *,
        is_chat: bool,
        ends: bool,
        baseline: LoadedBuild | None = None,
        sampling: Sampling = GREEDY,
        prompt_lookup: bool = False,
    ) -> None:
        self.max_adaptive_drafts = loaded.manifest.shapes.draft_tokens
        self._loaded = loaded
        self._baseline = baseline
        self._is_chat = is_chat
        self._ends = ends
        self._sampling = sampling
        self._prompt_lookup = prompt_lookup
        # As in a server, what one answer teaches about costs and acceptance serves the next.
        self._controller = SpeculationController(loaded.engine.shapes.max_draft_tokens)
        self._lookups: dict[Method, LookupExperience] = {}

    def require_fit(self, prompt_set: PromptSet, max_tokens: int) -> None:
        """Refuse prompts that the build does not take, before hours are spent on those in front of them.

        Raises:
            RequestError: One is too long, empty, or no text.
        """
        loaded = self._loaded
        for number, prompt in enumerate(prompt_set.prompts, start=1):
            try:
                request = self._request(prompt, max_tokens, 0)
                check_request(
                    request, loaded.engine.shapes, vocab_size=loaded.manifest.target.vocab_size, has_tokenizer=True
                )
            except RequestError as error:
                raise RequestError(
                    f"prompt {number} of `{prompt_set.name}`: {error.message}", hint=error.hint
                ) from error

    def answer(self, prompts: Sequence[str], method: Method, max_tokens: int) -> list[ClientAnswer]:
        """See `Client`. A prompt is submitted when one before it ends, so that the batch stays full."""
        is_baseline = self._baseline is not None and method.name == self._baseline.manifest.drafter.method
        loaded = self._baseline if self._baseline is not None and is_baseline else self._loaded
        loop = DecodeLoop(loaded.engine, None, controller=self._controller_of(method, loaded))
        waiting = deque(enumerate(prompts))
        answers: dict[str, ClientAnswer] = {}
        growing: dict[str, _Growing] = {}
        for _ in range(method.concurrency):
            self._submit_next(loop, waiting, growing, method, max_tokens)
        while loop.has_work:
            chunks = loop.step()
            now = time.perf_counter()
            for chunk in chunks:
                if chunk.finish_reason == "error":
                    raise PeagleError(f"a decode step failed: {chunk.error}")
                growing[chunk.request_id].add(chunk, now)
                if chunk.metrics is not None:
                    answers[chunk.request_id] = _answer(chunk, growing.pop(chunk.request_id))
                    self._submit_next(loop, waiting, growing, method, max_tokens)
        return [answers[str(index)] for index in range(len(prompts))]

    def _controller_of(self, method: Method, loaded: LoadedBuild) -> SpeculationController:
        if method.is_adaptive:
            return self._controller
        # What copies are worth outlives a round too, for each method alone; a fixed K learns nothing else.
        lookups = self._lookups.setdefault(method, LookupExperience())
        return SpeculationController(loaded.engine.shapes.max_draft_tokens, lookups=lookups)

    def _submit_next(
        self,
        loop: DecodeLoop,
        waiting: deque[tuple[int, str]],
        growing: dict[str, _Growing],
        method: Method,
        max_tokens: int,
    ) -> None:
        if not waiting:
            return
        index, prompt = waiting.popleft()
        request = self._request(prompt, max_tokens, index)
        end_ids = request.end_ids if self._ends else ()
        draft_tokens: DraftTokens = "auto" if method.is_adaptive else method.draft_tokens
        sampling = SamplingSettings(temperature=self._sampling.temperature, seed=self._sampling.seed + index)
        growing[str(index)] = _Growing(submitted_at=time.perf_counter())
        loop.submit(
            replace(
                request,
                draft_tokens=draft_tokens,
                end_ids=end_ids,
                sampling=sampling,
                prompt_lookup=self._prompt_lookup,
            )
        )

    def _request(self, prompt: str, max_tokens: int, index: int) -> GenerationRequest:
        ask = self._loaded.chat_request if self._is_chat else self._loaded.request
        return ask(prompt, max_tokens=max_tokens, request_id=str(index))


def _answer(last: GenerationChunk, grown: _Growing) -> ClientAnswer:
    metrics = last.metrics
    assert metrics is not None, "the last chunk of an answer has them"
    return ClientAnswer(
        token_ids=tuple(grown.token_ids),
        num_output_tokens=metrics.num_output_tokens,
        num_verify_steps=metrics.num_verify_steps,
        accepted_by_position=metrics.accepted_by_position,
        time_to_first_token_seconds=metrics.time_to_first_token_seconds,
        num_prompt_tokens=metrics.num_prompt_tokens,
        piece_seconds=tuple(grown.piece_seconds),
        piece_tokens=tuple(grown.piece_tokens),
        are_pieces_steps=True,
    )
