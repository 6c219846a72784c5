"""The module behind a TensorRT backend, found and checked, and a logger that turns its errors into ours."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from peagle_trt.errors import MachineError, PeagleError

MODULES = {"tensorrt-rtx": "tensorrt_rtx", "tensorrt": "tensorrt"}
"""Name of a backend to the Python module that it drives."""

_INSTALL = {
    "tensorrt-rtx": "install `peagle-trt[rtx]`",
    "tensorrt": "use NVIDIA's TensorRT container, or install `peagle-trt[trt]` from NVIDIA's package index",
}

# What the graphs rely on; TensorRT 10 has none of them.
_NEEDED = (
    ("CausalMaskKind", "LOWER_RIGHT"),
    ("IAttention", "key_value_lengths"),
    ("INetworkDefinition", "add_kv_cache_update"),
    ("ICudaEngine", "get_aliased_input_tensor"),
)

# Without a GPU every TensorRT object says once that CUDA has no driver, also where only a compiler is asked for.
_NO_DRIVER = ("checkMacros", "cudaError 35")
_WARNING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A TensorRT module that has what the graphs need.

    Attributes:
        backend: A name of `MODULES`.
        module: The module; its classes have no types of their own.
        version: Its version.
    """

    backend: str
    module: Any
    version: str

    @property
    def is_ahead_of_time(self) -> bool:
        """Whether it compiles for GPUs that this machine does not have."""
        return hasattr(self.module, "ComputeCapability")


def load_library(backend: str) -> Library:
    """Import a backend's module.

    Raises:
        MachineError: It is not installed, its libraries are missing, or it is too old for the graphs.
    """
    name = MODULES[backend]
    try:
        module = importlib.import_module(name)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        # Its packages load shared libraries as they are imported, and fail in as many ways.
        raise MachineError(
            f"backend `{backend}` needs the module `{name}`, which cannot be imported: {error}", hint=_INSTALL[backend]
        ) from error
    return check_library(backend, module)


def check_library(backend: str, module: Any) -> Library:
    """Refuse a module that lacks what the graphs need.

    Raises:
        MachineError: It is too old, or something else of that name: any folder can be imported.
    """
    version = getattr(module, "__version__", None)
    if version is None:
        where = ", ".join(getattr(module, "__path__", ())) or "nowhere"
        raise MachineError(
            f"the module `{MODULES[backend]}` found in `{where}` is not NVIDIA's", hint=_INSTALL[backend]
        )
    missing = [f"{owner}.{member}" for owner, member in _NEEDED if not hasattr(getattr(module, owner, None), member)]
    if missing:
        raise MachineError(
            f"`{MODULES[backend]}` {version} has no {', '.join(missing)}; "
            "the graphs need attention over key lengths, which came with TensorRT 11.0",
            hint="install TensorRT 11.1 or newer",
        )
    return Library(backend=backend, module=module, version=str(version))


class MessageLog:
    """Collects the errors of a library, which are written to its log and not raised.

    Args:
        library: Whose logger to make.
        needs_gpu: False where a machine without a GPU is as good as another, to compile ahead of time.
    """

    def __init__(self, library: Library, *, needs_gpu: bool) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.logger = _make_logger(library.module, self)
        self._needs_gpu = needs_gpu

    def require_clean(self, doing: str) -> None:
        """Raise what has been logged since the last call.

        Args:
            doing: What was tried, as in "compile `target.onnx`".

        Raises:
            PeagleError: Something was.
        """
        if self.errors:
            raise self.fail(doing)

    def fail(self, doing: str) -> PeagleError:
        """The error of a call that said it failed, with what was logged about it, if anything was."""
        text = "; ".join(self.errors) or "it did not say why"
        self.errors.clear()
        return PeagleError(f"TensorRT could not {doing}: {text}", hint="the messages are TensorRT's own")

    def real_part(self, message: str) -> str:
        """A message of several lines without those that only say that there is no GPU."""
        return "; ".join(line.strip() for line in message.splitlines() if line.strip() and not self._is_noise(line))

    def take(self, severity: int, message: str) -> None:
        """File a message; `severity` is 0 for an internal error, 1 for an error, 2 for a warning."""
        if severity > _WARNING or self._is_noise(message):
            return
        (self.warnings if severity == _WARNING else self.errors).append(message.strip())

    def _is_noise(self, message: str) -> bool:
        return not self._needs_gpu and all(part in message for part in _NO_DRIVER)


def _make_logger(module: Any, log: MessageLog) -> Any:
    base: type[Any] = module.ILogger

    class Logger(base):  # type: ignore[misc]
        """Hands every message to the log."""

        def __init__(self) -> None:
            base.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            log.take(int(severity), message)

    return Logger()
