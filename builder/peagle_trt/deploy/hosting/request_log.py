"""A name for every request that its client knows too, and a line in the log for every answer."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping

from peagle_trt.decode.request import GenerationChunk

logger = logging.getLogger(__name__)

MAX_CLIENT_NAME = 80
_UNPRINTABLE = re.compile(r"[^!-~]+")


def request_name(number: int, client_name: str, parameters: Mapping[str, object]) -> str:
    """The name of a request in this process and in the log.

    Args:
        number: Its number since the model was loaded; two clients may choose the same name.
        client_name: The request's id on the wire, or nothing.
        parameters: Its parameters; the generate endpoint puts a client's `id` there.

    Returns:
        `r7`, or `r7:NAME` with the client's name in printable ASCII and within bounds.
    """
    told = client_name or str(parameters.get("id", ""))
    clean = _UNPRINTABLE.sub("_", told)[:MAX_CLIENT_NAME]
    return f"r{number}:{clean}" if clean else f"r{number}"


def log_answer(chunk: GenerationChunk) -> None:
    """A line about an answer that ended, from its last chunk."""
    metrics = chunk.metrics
    if metrics is None:
        logger.info("%s: %s before it ran %s", chunk.request_id, chunk.finish_reason, chunk.error)
        return
    logger.info(
        "%s: %s prompt=%d tokens=%d steps=%d acceptance_length=%.2f first_ms=%.1f ms=%.1f %s",
        chunk.request_id,
        chunk.finish_reason,
        metrics.num_prompt_tokens,
        metrics.num_output_tokens,
        metrics.num_verify_steps,
        metrics.acceptance_length,
        1000 * metrics.time_to_first_token_seconds,
        1000 * metrics.total_seconds,
        chunk.error,
    )


def write_log(*, logs_requests: bool) -> None:
    """Sends the log of this process to the server's; once, where the model is loaded.

    Args:
        logs_requests: With a line for every answer; otherwise warnings and errors.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s peagle %(message)s"))
    root = logging.getLogger("peagle_trt")
    root.handlers = [handler]
    root.propagate = False
    root.setLevel(logging.INFO if logs_requests else logging.WARNING)
