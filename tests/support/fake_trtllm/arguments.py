"""What a user of the stand-in passes in: settings and their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class FakeMode:
    """`SpeculativeDecodingMode`, as far as one-model Eagle3 asks."""

    def __init__(self, *, is_one_model: bool = True) -> None:
        self.is_one_model = is_one_model

    def is_eagle3_one_model(self) -> bool:
        return self.is_one_model


@dataclass
class FakeSpecConfig:
    """`EagleDecodingConfig` (llmapi/llm_args.py)."""

    speculative_model: Any
    max_draft_len: int
    eagle3_layers_to_capture: Any = None
    max_concurrency: Any = None
    spec_dec_mode: Any = field(default_factory=FakeMode)


@dataclass
class FakeCacheConfig:
    """`KvCacheConfig` (llmapi/llm_args.py), with its defaults."""

    enable_block_reuse: bool = True


@dataclass
class FakeArguments:
    """`TorchLlmArgs` (llmapi/llm_args.py), with its defaults."""

    speculative_config: Any = None
    kv_cache_config: Any = field(default_factory=FakeCacheConfig)
    cache_transceiver_config: Any = None
    kv_connector_config: Any = None
    guided_decoding_backend: Any = None
    max_batch_size: int | None = 2048
    max_seq_len: int | None = None


@dataclass
class FakeMapping:
    """`Mapping` (mapping.py)."""

    pp_size: int = 1
    cp_size: int = 1
    tp_size: int = 1
    enable_attention_dp: bool = False


@dataclass
class FakeModelConfig:
    """`ModelConfig` (_torch/model_config.py)."""

    pretrained_config: Any
    mapping: Any = field(default_factory=FakeMapping)
    spec_config: Any = None
