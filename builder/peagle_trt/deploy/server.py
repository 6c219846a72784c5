"""Starts a tritonserver on the loopback interface, waits until it is ready, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from peagle_trt.deploy import server_log, shared_memory
from peagle_trt.deploy.installation import (
    ServerInstallation,
    find_server,
    find_stub,
    python_library_path,
    require_numpy_1,
)
from peagle_trt.deploy.leftovers import owner_prefix, sweep_stale_folders
from peagle_trt.deploy.ports import LOOPBACK, ServerPorts
from peagle_trt.errors import PeagleError

READY_TIMEOUT_SECONDS = 180.0
EXIT_TIMEOUT_SECONDS = 5
"""What the server gives its clients; an idle keep-alive connection uses all of it."""
STOP_TIMEOUT_SECONDS = 12.0
"""After this the server is killed: an open gRPC stream would hold a 2.51 server for ever."""
_POLL_SECONDS = 0.1

# Runs in the child before the server: the kernel then ends the server when its parent is killed with no chance to.
_EXEC_WITH_PARENT = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class TritonServer:
    """A server process. Start it from the main thread: it ends with the thread that started it.

    Args:
        repository_path: The models.
        ports: Where to listen.
        log_path: File for everything the server prints.
        installation: Which server; None looks for one.
        profile: Configuration that models which have it take from `configs/`, as `cpu`; None takes `config.pbtxt`.
    """

    def __init__(
        self,
        repository_path: Path,
        ports: ServerPorts,
        *,
        log_path: Path,
        installation: ServerInstallation | None = None,
        profile: str | None = None,
    ) -> None:
        self.ports = ports
        self.log_path = log_path
        self.installation = installation or find_server()
        self._repository_path = repository_path
        self._profile = profile
        self._prefix = shared_memory.new_prefix()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Number of the server's process.

        Raises:
            PeagleError: It was not started.
        """
        if self._process is None:
            raise PeagleError("the server was not started")
        return self._process.pid

    @property
    def shared_memory_prefix(self) -> str:
        """What the names of its shared memory start with."""
        return self._prefix

    def start(self, timeout_seconds: float = READY_TIMEOUT_SECONDS) -> None:
        """Starts the server and waits until every model is ready.

        Raises:
            MachineError: This Python cannot host models in that server.
            PeagleError: The server ended, hangs, or was not ready in time; the message gives its reasons.
        """
        require_numpy_1(self.installation)
        shared_memory.sweep_stale_regions()
        sweep_stale_folders(Path(tempfile.gettempdir()))
        self._folder = Path(tempfile.mkdtemp(prefix=owner_prefix()))
        try:
            self._spawn(self._folder)
            self._wait_ready(time.monotonic() + timeout_seconds)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the server and everything it started, in bounded time; safe to call twice."""
        if self._process is not None:
            self._end(self._process)
        shared_memory.remove_regions(self._prefix)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def require_alive(self) -> None:
        """Notices a server, or one of its model processes, that died.

        Raises:
            PeagleError: It did.
        """
        status = None if self._process is None else self._process.poll()
        if status is not None:
            raise PeagleError(f"the server ended by itself: {_describe_exit(status)}", hint=f"see {self.log_path}")
        # A 2.51 server stays "ready" without its model process, and every request fails.
        if _has_dead_child(self.pid):
            raise PeagleError("a model process of the server died", hint=f"see {self.log_path}")

    def _spawn(self, folder: Path) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        parent = str(os.getpid())
        command = [sys.executable, "-c", _EXEC_WITH_PARENT, parent, str(self.installation.binary_path)]
        environment = self._environment()
        arguments = [*self._arguments(), *_backend_arguments(self.installation, folder)]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # A terminal's Ctrl-C is for us; we then stop the server in order.
            )

    def _arguments(self) -> list[str]:
        return [
            f"--model-repository={self._repository_path}",
            *(f"--{door}-address={LOOPBACK}" for door in ("http", "grpc", "metrics")),
            f"--http-port={self.ports.http}",
            f"--grpc-port={self.ports.grpc}",
            f"--metrics-port={self.ports.metrics}",
            f"--backend-config=python,shm-region-prefix-name={self._prefix}",
            f"--exit-timeout-secs={EXIT_TIMEOUT_SECONDS}",
            "--disable-auto-complete-config",
            "--allow-gpu-metrics=false",
            *([] if self._profile is None else [f"--model-config-name={self._profile}"]),
        ]

    def _environment(self) -> dict[str, str]:
        # The model processes take the first `python3` on PATH, and with it this environment's packages.
        search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        environment = dict(os.environ, PATH=search_path, PYTHONDONTWRITEBYTECODE="1")
        if self.installation.embedded_root is not None:
            libraries = [self.installation.embedded_root.parent.parent / "nvidia_pytriton.libs", python_library_path()]
            found = [str(path) for path in libraries if path is not None]
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [*found, os.environ.get("LD_LIBRARY_PATH")]))
        return environment

    def _wait_ready(self, deadline: float) -> None:
        while not _is_ready(self.ports.http):
            if self._process is not None and self._process.poll() is not None:
                self._fail("the server did not start")
            if server_log.will_hang(self.log_path):
                self._fail("the server would wait for ever")
            if time.monotonic() > deadline:
                self._fail("the server was not ready in time")
            time.sleep(_POLL_SECONDS)

    def _fail(self, message: str) -> None:
        reasons = "; ".join(server_log.failure_reasons(self.log_path))
        raise PeagleError(f"{message}: {reasons or 'its log is empty'}", hint=f"see {self.log_path}")

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # Model processes that outlived their server are in its session.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _backend_arguments(installation: ServerInstallation, folder: Path) -> list[str]:
    stub = find_stub(installation)
    if stub is None or installation.embedded_root is None:
        return []
    backend = folder / "backends" / "python"
    shutil.copytree(installation.embedded_root / "backends" / "python", backend)
    shutil.copy(stub, backend)
    (backend / stub.name).chmod(0o755)
    return [
        f"--backend-directory={backend.parent}",
        f"--cache-directory={installation.embedded_root / 'caches'}",
    ]


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=2)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _has_dead_child(pid: int) -> bool:
    children: set[str] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children |= set(path.read_text().split())
    return any(_is_zombie(child) for child in children)


def _is_zombie(pid: str) -> bool:
    try:
        # The state follows the name, which stands in parentheses and may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def _describe_exit(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit code {status}"
