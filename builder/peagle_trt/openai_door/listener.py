"""The door as a part of `serve`: a thread of its own that listens while the model server runs."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from peagle_trt.errors import MachineError, PeagleError, UsageError
from peagle_trt.openai_door.settings import DoorSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

START_TIMEOUT_SECONDS = 30.0
SHUTDOWN_SECONDS = 5
"""What answers in flight are given when the door closes."""
KEEP_ALIVE_SECONDS = 20
BACKLOG = 512
_POLL_SECONDS = 0.02


class DoorListener:
    """Listens in a thread; a context manager.

    Args:
        app: The application.
        settings: Where and how to listen.
        listener: The bound socket.
    """

    def __init__(self, app: ASGIApp, settings: DoorSettings, listener: socket.socket) -> None:
        import uvicorn

        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            backlog=BACKLOG,
            ssl_certfile=settings.certificate_path,
            ssl_keyfile=settings.key_path,
        )
        self._server = uvicorn.Server(config)
        self._socket = listener
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="openai-door", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.close()
                raise PeagleError("the OpenAI door did not open", hint="its reasons stand above")
            time.sleep(_POLL_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def require_alive(self) -> None:
        """Notices a door that closed by itself.

        Raises:
            PeagleError: It did.
        """
        if not self._thread.is_alive():
            raise PeagleError("the OpenAI door closed by itself", hint="its reasons stand above")

    def close(self) -> None:
        """Stops listening, and gives up what is still being answered after a while."""
        self._server.should_exit = True
        self._thread.join(SHUTDOWN_SECONDS + START_TIMEOUT_SECONDS)
        self._socket.close()


def bind(settings: DoorSettings) -> socket.socket:
    """The socket of the door, bound so early that a taken port is found before the model server starts.

    Raises:
        MachineError: The address cannot be used, or a package is missing.
        UsageError: The certificate or its key cannot be used.
    """
    _require_packages()
    _require_certificate(settings)
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        with contextlib.ExitStack() as on_failure:
            listener = on_failure.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((settings.host, settings.port))
            listener.listen(BACKLOG)
            on_failure.pop_all()
    except OSError as error:
        raise MachineError(
            f"`{settings.host}:{settings.port}` cannot be used: {(error.strerror or str(error)).lower()}",
            hint="choose another with --openai-host and --openai-port, or stop what listens there",
        ) from error
    return listener


def _require_packages() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("starlette", "uvicorn", "tritonclient") if find_spec(name) is None]
    if missing:
        raise MachineError(
            f"the OpenAI door needs {', '.join(f'`{name}`' for name in missing)}",
            hint="pip install 'peagle-trt[serve]'",
        )


def _require_certificate(settings: DoorSettings) -> None:
    if settings.certificate_path is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.certificate_path, settings.key_path)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"`{settings.certificate_path}` cannot be used: {error}", hint="give a PEM certificate and its key"
        ) from error
