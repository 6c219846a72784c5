"""The real Python bindings of TensorRT without TensorRT: its libraries are stubs, and its plugins run all the same.

`tensorrt-cu13-bindings` holds `tensorrt.plugin`, which is plain Python: what it does to a plugin when an engine is
built can be done here, up to the kernel, which Triton's interpreter runs. Only the bindings' classes are real; whatever
would call the libraries answers null.
"""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

STUBS = {
    "nvinfer": (
        "createInferBuilder_INTERNAL",
        "createInferRefitter_INTERNAL",
        "createInferRuntime_INTERNAL",
        "getBuilderPluginRegistry",
        "getPluginRegistry",
    ),
    "nvonnxparser": (
        "createNvOnnxParser_INTERNAL",
        "createNvOnnxParserRefitter_INTERNAL",
        "getNvOnnxParserVersion",
    ),
    "nvinfer_plugin": ("initLibNvInferPlugins",),
}


class Bindings:
    """A process that imports the bindings; `close` ends it."""

    def __init__(self, folder: Path, *, interprets: bool) -> None:
        """`folder` is for the stubs. `interprets`: Triton runs kernels on the CPU, and then compiles none."""
        _make_stubs(folder)
        environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment.get("PYTHONPATH", "")])
        if interprets:
            environment["TRITON_INTERPRET"] = "1"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.tensorrt_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def ask(self, function: str, *arguments: Any) -> Any:
        """What a function of tensorrt_worker.py returns, or the exception that it raised, as text."""
        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump((function, arguments), self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=30)


def _make_stubs(folder: Path) -> None:
    """The three libraries that the bindings are linked to, and the package `tensorrt` that NVIDIA's wheel would be."""
    if (folder / "tensorrt").exists():
        return
    major = importlib.metadata.version("tensorrt-cu13-bindings").split(".")[0]
    for library, functions in STUBS.items():
        source = folder / f"{library}.c"
        source.write_text("".join(f"void* {name}(void) {{ return 0; }}\n" for name in functions), encoding="ascii")
        name = f"lib{library}.so.{major}"
        command = ["gcc", "-shared", "-fPIC", "-o", str(folder / name), str(source), f"-Wl,-soname,{name}"]
        subprocess.run(command, check=True)
    for package, content in (("tensorrt", "tensorrt_bindings"), ("tensorrt/plugin", "tensorrt_bindings.plugin")):
        (folder / package).mkdir()
        text = f"from {content} import *\n" + ("" if "/" in package else f"from {content} import __version__\n")
        (folder / package / "__init__.py").write_text(text, encoding="ascii")
