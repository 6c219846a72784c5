"""What runs inside the server: a build, its engine thread, and the way from a request to an answer."""

from peagle_trt.deploy.hosting.engine_host import EngineHost
from peagle_trt.deploy.hosting.open import open_engine_host, open_tokenizer

__all__ = ["EngineHost", "open_engine_host", "open_tokenizer"]
