"""Finds a tritonserver and checks that this Python can host models inside it."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from peagle_trt.errors import MachineError

NUMPY_HINT = "pip install 'numpy<2' (the extra `serve` does)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInstallation:
    """A tritonserver on this machine.

    Attributes:
        binary_path: The server.
        origin: Where it was found, for a person.
        embedded_root: Folder of the server inside nvidia-pytriton; None for a server that is installed whole.
    """

    binary_path: Path
    origin: str
    embedded_root: Path | None


def find_server() -> ServerInstallation:
    """A server on PATH, else the one inside nvidia-pytriton.

    Raises:
        MachineError: There is none.
    """
    if on_path := shutil.which("tritonserver"):
        return ServerInstallation(binary_path=Path(on_path), origin="PATH", embedded_root=None)
    # The package is only located, never imported: it would pull in its own dependencies.
    package = importlib.util.find_spec("pytriton")
    for location in (package.submodule_search_locations or []) if package else []:
        root = Path(location) / "tritonserver"
        binary = root / "bin" / "tritonserver"
        if binary.is_file():
            return ServerInstallation(binary_path=binary, origin="nvidia-pytriton", embedded_root=root)
    raise MachineError("there is no `tritonserver` on this machine", hint="pip install 'peagle-trt[serve]'")


def find_stub(installation: ServerInstallation) -> Path | None:
    """The program that runs models of this Python; None where the server brings its own.

    Raises:
        MachineError: The server has none for this version.
    """
    if installation.embedded_root is None:
        return None
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stubs = installation.embedded_root / "python_backend_stubs"
    stub = stubs / version / "triton_python_backend_stub"
    if not stub.is_file():
        known = ", ".join(sorted(entry.name for entry in stubs.iterdir())) if stubs.is_dir() else "none"
        raise MachineError(f"the server runs models of Python {known}; this is Python {version}")
    return stub


def require_numpy_1(installation: ServerInstallation) -> None:
    """Refuses numpy 2 for the embedded server, which would hand models empty tensors without a word.

    Raises:
        MachineError: numpy 2 or newer is installed.

    Source: triton-inference-server/python_backend#384; servers from 24.11 on read numpy 2.
    """
    import numpy as np

    if installation.embedded_root is not None and int(np.__version__.split(".")[0]) >= 2:
        raise MachineError(f"numpy {np.__version__} does not work inside the embedded server", hint=NUMPY_HINT)


def python_library_path() -> Path | None:
    """Folder of libpython for the embedded server's stub, or None when the loader finds it by itself.

    Raises:
        MachineError: This Python has no shared library.
    """
    import ctypes

    name = str(sysconfig.get_config_var("INSTSONAME") or "")
    folder = Path(str(sysconfig.get_config_var("LIBDIR")))
    for candidate in (folder, folder / str(sysconfig.get_config_var("MULTIARCH") or "")):
        if ".so" in name and (candidate / name).is_file():
            return candidate
    soname = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    try:
        ctypes.CDLL(soname)
    except OSError as error:
        raise MachineError(
            f"this Python has no shared library `{soname}`, which the server needs",
            hint="install it (Debian: libpython3.x), or use a Python that was built with --enable-shared",
        ) from error
    return None
