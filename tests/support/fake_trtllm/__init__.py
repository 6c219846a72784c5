"""A stand-in for `tensorrt_llm` with the documented names, signatures and shapes of two releases, and nothing else.

Written from the interfaces as read in stored copies of NVIDIA/TensorRT-LLM (`trtllm/releases/*.toml` names the files);
what a real class does is reduced to what a worker can see of it.
"""

from tests.support.fake_trtllm.arguments import (
    FakeArguments,
    FakeCacheConfig,
    FakeMapping,
    FakeMode,
    FakeModelConfig,
    FakeSpecConfig,
)
from tests.support.fake_trtllm.llm import FakeLLM
from tests.support.fake_trtllm.modules import installed
from tests.support.fake_trtllm.worker import GRAPH_PADDING_ID

__all__ = [
    "GRAPH_PADDING_ID",
    "FakeArguments",
    "FakeCacheConfig",
    "FakeLLM",
    "FakeMapping",
    "FakeMode",
    "FakeModelConfig",
    "FakeSpecConfig",
    "installed",
]
