"""Ports on the loopback interface."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import dataclass

from peagle_trt.errors import MachineError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPorts:
    """Where a server listens, on the loopback interface only."""

    http: int
    grpc: int
    metrics: int


def choose_ports(http: int | None = None, grpc: int | None = None, metrics: int | None = None) -> ServerPorts:
    """The wanted ports, and free ones where None is wanted.

    Raises:
        MachineError: A wanted port is taken.
    """
    with ExitStack() as stack:
        # All three stay bound until the last is chosen, so that no two are the same.
        chosen = [_bind(stack, name, port) for name, port in (("http", http), ("grpc", grpc), ("metrics", metrics))]
    return ServerPorts(http=chosen[0], grpc=chosen[1], metrics=chosen[2])


def _bind(stack: ExitStack, name: str, port: int | None) -> int:
    listener = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    # A port that still lingers after an earlier server is free; one that somebody listens on is not.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port or 0))
        listener.listen()
    except OSError as error:
        raise MachineError(
            f"the {name} port `{port}` cannot be used: {(error.strerror or str(error)).lower()}",
            hint=f"choose another with --{name}-port, or stop what listens there",
        ) from error
    return int(listener.getsockname()[1])
