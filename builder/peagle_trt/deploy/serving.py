"""Serves one build in the foreground: a repository of its own, a server, and an eye on both until somebody stops it."""

from __future__ import annotations

import contextlib
import logging
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from peagle_trt.deploy.build_files import read_whole_build
from peagle_trt.deploy.hosting.settings import HostSettings
from peagle_trt.deploy.leftovers import owner_prefix, sweep_stale_folders
from peagle_trt.deploy.ports import LOOPBACK, ServerPorts
from peagle_trt.deploy.repository import ENGINE_BUILD, assemble_repository, is_repository
from peagle_trt.deploy.server import TritonServer
from peagle_trt.engine.registry import require_runnable
from peagle_trt.errors import PeagleError, UsageError

logger = logging.getLogger(__name__)

Report = Callable[[str], None]

WATCH_PERIOD_SECONDS = 1.0
LOG_NAME = "tritonserver.log"


class Door(Protocol):
    """Something that listens in front of the server."""

    def require_alive(self) -> None:
        """Raises when it has closed by itself."""
        ...


OpenDoor = Callable[[Path, ServerPorts, Callable[[], bool]], contextlib.AbstractContextManager[Door]]
"""Takes a folder with the build's manifest and tokenizer, the server's ports, and what tells whether it still runs."""


def serve(
    path: Path,
    ports: ServerPorts,
    *,
    log_folder: Path | None,
    report: Report,
    open_door: OpenDoor | None = None,
    profile: str | None = None,
    settings: HostSettings | None = None,
) -> None:
    """Serves until SIGINT or SIGTERM. Call it from the main thread.

    Args:
        path: A build, or a repository.
        ports: Where to listen.
        log_folder: Folder for the server's log; None keeps it only while the server runs, and if it fails.
        report: Takes a line about what is going on.
        open_door: Opens a second door in front of the server; it closes first.
        profile: Configuration that the server takes, as `cpu`; None takes `config.pbtxt`.
        settings: Parameters of the `peagle` model, where a build is served; a repository has its own.

    Raises:
        UsageError: `path` is neither, or a repository and settings were given.
        MachineError: This machine cannot serve.
        PeagleError: The server did not start, or died.
    """
    require_servable(path, profile, settings)
    with contextlib.ExitStack() as stack:
        repository = path if is_repository(path) else stack.enter_context(_temporary_repository(path, settings))
        log_path = (log_folder or stack.enter_context(_temporary_folder())) / LOG_NAME
        server = TritonServer(repository, ports, log_path=log_path, profile=profile)
        report(f"starting tritonserver ({server.installation.origin}), log in {log_path}")
        server.start()
        with _stop_signals() as is_stopping:
            try:
                for line in _greeting(ports):
                    report(line)
                with contextlib.ExitStack() as doors:
                    watched: list[TritonServer | Door] = [server]
                    if open_door is not None:
                        build = repository / ENGINE_BUILD
                        watched.append(doors.enter_context(open_door(build, ports, lambda: _is_alive(server))))
                    while not is_stopping.wait(WATCH_PERIOD_SECONDS):
                        for each in watched:
                            each.require_alive()
                    report("stopping")
            finally:
                server.stop()


def require_servable(path: Path, profile: str | None = None, settings: HostSettings | None = None) -> None:
    """Refuses early what `serve` could not serve.

    Raises:
        UsageError: `path` is neither a finished build nor a repository of ours, or it has no such profile, or settings
            were given beside a repository.
        MachineError: This machine cannot run the build.
    """
    # A server takes `config.pbtxt` in silence where the profile is missing.
    if profile is not None and not (path / "peagle" / "configs" / f"{profile}.pbtxt").is_file():
        raise UsageError(
            f"`{path}` has no profile `{profile}`",
            hint="make one: peagle-trt repo BUILD --cpu-build CPU_BUILD -o REPOSITORY",
        )
    if settings is not None and is_repository(path):
        raise UsageError(
            f"`{path}` is a repository, and holds its own settings", hint="set them in peagle/config.pbtxt"
        )
    if not is_repository(path):
        require_runnable(read_whole_build(path))


def _is_alive(server: TritonServer) -> bool:
    try:
        server.require_alive()
    except PeagleError:
        return False
    return True


@contextlib.contextmanager
def _temporary_repository(build_path: Path, settings: HostSettings | None) -> Iterator[Path]:
    # Beside the build the files can be linked; elsewhere they would be copied.
    sweep_stale_folders(build_path.resolve().parent)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{owner_prefix()}", dir=build_path.resolve().parent))
    except OSError as error:
        folder = Path(tempfile.mkdtemp(prefix=f".{owner_prefix()}"))
        logger.warning("the build's files will be copied to `%s`: %s", folder, error)
    try:
        yield assemble_repository(build_path, folder / "repository", settings=settings).path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder that stays when the work in it fails: the error points at the log inside."""
    folder = Path(tempfile.mkdtemp(prefix="peagle-log-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second one does not disturb an orderly stop."""
    is_stopping = threading.Event()
    previous = {
        number: signal.signal(number, lambda *_: is_stopping.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield is_stopping
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _greeting(ports: ServerPorts) -> list[str]:
    address = f"http://{LOOPBACK}:{ports.http}/v2/models"
    body = """'{"text_input": "What is 2 + 3?", "max_tokens": 64, "apply_chat_template": true}'"""
    return [
        f"ready    http  {LOOPBACK}:{ports.http}   grpc {LOOPBACK}:{ports.grpc}   metrics {LOOPBACK}:{ports.metrics}",
        "models   peagle (direct), tensorrt_llm_bls, ensemble (a client that leaves does not stop its engine)",
        f"try      curl -s {address}/peagle/generate -d {body}",
        "stop     Ctrl-C",
    ]
