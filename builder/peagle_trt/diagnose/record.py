"""Greedy answers of the target, with the residual streams that a head may read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from peagle_trt.diagnose.walk import PROMPT_ROWS_A_PASS, Recording
from peagle_trt.engine.protocol import Engine, TargetRows, host_rows


def record(engine: Engine, prompt_ids: Sequence[int], *, max_tokens: int, end_ids: Sequence[int]) -> Recording:
    """Answer one prompt with the target alone.

    Args:
        engine: Its target hands out every stream of `engine.target.aux_layer_ids`.
        prompt_ids: The prompt, at least one token.
        max_tokens: Longest answer, at least one token.
        end_ids: Tokens that end an answer.
    """
    tokens = list(prompt_ids)
    hidden: list[NDArray[np.float32]] = []
    read = 0
    while len(tokens) < len(prompt_ids) + max_tokens and not (read and tokens[-1] in end_ids):
        rows = np.array(tokens[read : read + PROMPT_ROWS_A_PASS], np.int32)
        is_last = read + len(rows) == len(tokens)
        item = TargetRows(slot=0, token_ids=rows, start_position=read, num_logit_rows=int(is_last))
        (output,) = engine.run_target([item])
        hidden.append(host_rows(output.hidden).copy())
        read += len(rows)
        if is_last:
            tokens.append(int(output.logits[0].argmax()))
    streams = np.split(np.concatenate(hidden), len(engine.target.aux_layer_ids), axis=1)
    return Recording(
        token_ids_T=np.array(tokens, np.int32),
        prompt_length=len(prompt_ids),
        streams=dict(zip(engine.target.aux_layer_ids, streams, strict=True)),
    )
