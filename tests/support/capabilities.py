"""What a test may lack and still be left out. A kernel that is lost where the library is present fails."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

# The extra `kernels` takes a gigabyte on disk and is no part of `dev`, and TensorRT's bindings are of no use without
# TensorRT but to tests; scripts/environment installs both all the same. modelopt pins an older transformers than `dev`
# takes, so the extra `quant` has an environment of its own.
LIBRARIES = {
    "bindings": "tensorrt_bindings",
    "kernels": "triton.language",
    "quant": "modelopt.torch",
    "rtx": "tensorrt_rtx",
    "cuda": "cuda.bindings",
}


def needs(extra: str) -> pytest.MarkDecorator:
    package, _, module = LIBRARIES[extra].partition(".")
    is_there = importlib.util.find_spec(package) is not None
    if module:
        # A folder of the same name, such as Triton Inference Server's, is no library.
        is_there = is_there and importlib.util.find_spec(f"{package}.{module}") is not None
    return pytest.mark.skipif(not is_there, reason=f"the extra `{extra}` is not installed")


def needs_program(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"there is no `{name}`")
