"""What a test may lack and still be left out. A kernel that is lost where the library is present fails."""

from __future__ import annotations

import importlib.util

import pytest

# The extra `kernels` takes a gigabyte on disk and is no part of `dev`; scripts/environment installs it all the same.
LIBRARIES = {"kernels": "triton.language", "rtx": "tensorrt_rtx"}


def needs(extra: str) -> pytest.MarkDecorator:
    package, *modules = LIBRARIES[extra].split(".")
    is_there = importlib.util.find_spec(package) is not None and all(
        importlib.util.find_spec(f"{package}.{module}") for module in modules
    )
    return pytest.mark.skipif(not is_there, reason=f"the extra `{extra}` is not installed")
