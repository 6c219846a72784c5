"""llama.cpp over its C interface, for `peer_worker`: several prompts in one batch, drafts copied from the text.

`llama-cpp-python` carries llama.cpp's own library and the functions of `llama.h`. Its class `Llama` decodes one prompt
at a time, and the library has no speculation behind that interface, so batches, copying and verifying are done here, as
llama.cpp's examples `batched` and `lookup` do them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BATCH_ROWS = 512
LONGEST_MATCH = 3
"""Words compared to find what may be copied, as OpenVINO's `max_ngram_size` is set beside."""


@dataclass(slots=True, kw_only=True)
class _Answer:
    """One prompt's text: what was decoded of it, and what is to be decoded next."""

    text: list[int]
    wanted: int
    num_decoded: int = 0
    drafts: list[int] = field(default_factory=list)


class LlamaCpp:
    """A model and its caches.

    Args:
        path: GGUF file.
        threads: Threads.
        max_length: Tokens of a prompt and its answer.
        max_batch: Prompts in flight.
    """

    def __init__(self, path: str, *, threads: int, max_length: int, max_batch: int) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load `{path}`")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = max_length * max_batch, max_batch
        settings.n_batch = settings.n_ubatch = BATCH_ROWS
        settings.n_threads = settings.n_threads_batch = threads
        # Its own default is half precision.
        settings.type_k = settings.type_v = llama_cpp.GGML_TYPE_F32
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(BATCH_ROWS, 0, 1)

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int, draft_tokens: int) -> list[list[int]]:
        """Answer greedily, all prompts together.

        Args:
            prompts: Token ids.
            max_tokens: Tokens of every answer.
            draft_tokens: Tokens that are copied and verified a step; 0 for plain decoding.
        """
        self._lib.llama_memory_clear(self._memory, True)
        answers = [_Answer(text=list(prompt), wanted=len(prompt) + max_tokens) for prompt in prompts]
        for sequence, answer in enumerate(answers):
            self._read(sequence, answer)
        while any(len(answer.text) < answer.wanted for answer in answers):
            self._step(answers, draft_tokens)
        return [answer.text[len(prompt) :] for answer, prompt in zip(answers, prompts, strict=True)]

    def _read(self, sequence: int, answer: _Answer) -> None:
        """A prompt but for its last token, whose logits the first step takes."""
        while answer.num_decoded < len(answer.text) - 1:
            first = answer.num_decoded
            rows = answer.text[first : min(first + BATCH_ROWS, len(answer.text) - 1)]
            self._decode([(token, first + offset, sequence, False) for offset, token in enumerate(rows)])
            answer.num_decoded += len(rows)

    def _step(self, answers: Sequence[_Answer], draft_tokens: int) -> None:
        rows: list[tuple[int, int, int, bool]] = []
        members = []
        for sequence, answer in enumerate(answers):
            left = answer.wanted - len(answer.text)
            if left:
                answer.drafts = copied(answer.text, min(draft_tokens, left - 1))
                members.append((sequence, answer, len(rows)))
                tokens = [answer.text[-1], *answer.drafts]
                rows += [(token, answer.num_decoded + offset, sequence, True) for offset, token in enumerate(tokens)]
        self._decode(rows)
        for sequence, answer, first in members:
            best = [self._best(first + offset) for offset in range(len(answer.drafts) + 1)]
            kept = next((n for n, draft in enumerate(answer.drafts) if draft != best[n]), len(answer.drafts))
            answer.text += best[: kept + 1]
            answer.num_decoded = len(answer.text) - 1
            if kept < len(answer.drafts):
                self._lib.llama_memory_seq_rm(self._memory, sequence, answer.num_decoded, -1)

    def _decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for place, (token, position, sequence, needs_logits) in enumerate(rows):
            batch.token[place], batch.pos[place] = token, position
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
            batch.logits[place] = needs_logits
        code = self._lib.llama_decode(self._context, batch)
        if code:
            raise RuntimeError(f"llama_decode answered {code}")

    def _best(self, row: int) -> int:
        pointer = self._lib.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(pointer, (self._vocab_size,)).argmax())


def copied(text: Sequence[int], count: int) -> list[int]:
    """What followed the last earlier place that ends like the text, at most `count` tokens of it."""
    for length in range(min(LONGEST_MATCH, len(text) - 1), 0, -1):
        end = list(text[-length:])
        for first in range(len(text) - length - 1, -1, -1):
            if list(text[first : first + length]) == end:
                return list(text[first + length : first + length + count])
    return []
