"""How the OpenAI door listens and what it lets in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from peagle_trt.deploy.ports import LOOPBACK

DEFAULT_PORT = 9000
"""Triton's own three ports are 8000 to 8002. Source: the port of Triton's OpenAI frontend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorSettings:
    """Settings of the door.

    Attributes:
        host: Address to listen on.
        port: Port to listen on.
        api_keys: Keys a client may come with; none lets everybody in.
        certificate_path: TLS certificate chain (PEM); None speaks plain HTTP.
        key_path: Its private key (PEM).
        max_body_bytes: Longest body of a request.
        max_concurrent_answers: Answers being written at once, over all clients; more are refused with 429.
        requests_per_minute: What one client may ask for in a minute; 0 is without a limit.
        body_timeout_seconds: How long a client may take to send a request.
        write_timeout_seconds: How long a client may leave a piece of its answer unread before it is given up.
    """

    host: str = LOOPBACK
    port: int = DEFAULT_PORT
    api_keys: tuple[str, ...] = ()
    certificate_path: Path | None = None
    key_path: Path | None = None
    max_body_bytes: int = 4 * 2**20
    max_concurrent_answers: int = 64
    requests_per_minute: int = 0
    body_timeout_seconds: float = 30.0
    write_timeout_seconds: float = 60.0
