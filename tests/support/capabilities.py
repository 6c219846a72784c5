"""What a test may lack and still be left out. A kernel that is lost where the library is present fails."""

from __future__ import annotations

import importlib.util

import pytest

# The extra `kernels` takes a gigabyte on disk and is no part of `dev`; scripts/environment installs it all the same.
# modelopt pins an older transformers than `dev` takes, so the extra `quant` has an environment of its own.
LIBRARIES = {"kernels": "triton.language", "quant": "modelopt.torch"}


def needs(extra: str) -> pytest.MarkDecorator:
    package, _, module = LIBRARIES[extra].partition(".")
    is_there = importlib.util.find_spec(package) is not None and importlib.util.find_spec(f"{package}.{module}")
    return pytest.mark.skipif(not is_there, reason=f"the extra `{extra}` is not installed")
