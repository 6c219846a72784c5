"""A stand-in for `tensorrt_llm` with the documented names, signatures and shapes of two releases, and nothing else.

Written from the interfaces as read in stored copies of NVIDIA/TensorRT-LLM (`trtllm/releases/*.toml` names the files);
what a real class does is reduced to what a worker can see of it.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import nn

VERSIONS = {"1.2.1": "1.2.1", "1.4": "1.4.0rc4"}
GRAPH_PADDING_ID = (1 << 64) - 1
"""Source: `_torch/pyexecutor/cuda_graph_runner.py`, `CUDA_GRAPH_DUMMY_REQUEST_ID`."""


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


@dataclass
class SpecMetadata:
    """Source: `_torch/speculative/interface.py`."""

    max_num_requests: int
    max_draft_len: int
    max_total_draft_tokens: int
    num_generations: int = 0
    is_cuda_graph: bool = False
    draft_tokens: Any = None
    request_ids: Any = None
    gather_ids: Any = None
    num_tokens: int = 0
    runtime_draft_len: int = 0
    num_layers: int = 0

    def __post_init__(self) -> None:
        pass

    def prepare(self) -> None:
        pass

    def create_cuda_graph_metadata(self, max_batch_size: int) -> Any:
        if self.is_cuda_graph:
            return self
        result = copy.copy(self)
        result.is_cuda_graph = True
        result.max_num_requests = max_batch_size
        result.__post_init__()
        return result


@dataclass
class Eagle3OneModelSpecMetadata(SpecMetadata):
    """Source: `_torch/speculative/eagle3.py`."""

    hidden_states: Any = None
    layers_to_capture: Any = None
    hidden_size: int = 0
    max_num_tokens: int = 0
    dtype: Any = torch.float32

    def __post_init__(self) -> None:
        if self.layers_to_capture is None:
            self.layers_to_capture = (1, self.num_layers // 2 - 1, self.num_layers - 4)
        self.layers_to_capture = sorted(self.layers_to_capture)
        width = self.hidden_size * len(self.layers_to_capture)
        # The real buffer is `torch.empty`: what nobody wrote must never matter.
        self.hidden_states = torch.full((self.max_num_tokens, width), torch.nan, dtype=self.dtype)

    def prepare(self) -> None:
        assert self.request_ids is not None
        self.num_tokens -= self.num_generations * self.max_draft_len

    def maybe_capture_hidden_states(self, layer_id: int, hidden_states: Any, residual: Any = None) -> None:
        index = list(self.layers_to_capture).index(layer_id)
        saved = hidden_states if residual is None else hidden_states + residual
        columns = slice(index * self.hidden_size, (index + 1) * self.hidden_size)
        self.hidden_states[: len(saved), columns].copy_(saved)


def _accept(self: Any, logits: Any, draft_tokens: Any, num_contexts: int, batch_size: int, spec_metadata: Any) -> Any:
    """Source: `SpecWorkerBase._sample_and_accept_draft_tokens_base`, greedy and strict; other columns are garbage."""
    num_drafts = draft_tokens.shape[-1] if draft_tokens.dim() > 1 else self.max_draft_len
    accepted = torch.randint(0, logits.shape[-1], (batch_size, num_drafts + 1), dtype=torch.int32)
    counts = torch.ones(batch_size, dtype=torch.int32)
    chosen = logits.argmax(dim=-1).int()
    accepted[:num_contexts, 0] = chosen[:num_contexts]
    generated = chosen[num_contexts:].reshape(batch_size - num_contexts, num_drafts + 1)
    accepted[num_contexts:] = generated
    counts[num_contexts:] += torch.cumprod((draft_tokens == generated[:, :num_drafts]).int(), dim=-1).sum(1).int()
    return accepted, counts


class OlderWorkerBase(nn.Module, ABC):
    """`SpecWorkerBase` of 1.2."""

    def __init__(self) -> None:
        super().__init__()
        self.guided_decoder: Any = None

    @property
    @abstractmethod
    def max_draft_len(self) -> int: ...

    _sample_and_accept_draft_tokens_base = _accept


class NewerWorkerBase(nn.Module, ABC):
    """`SpecWorkerBase` of main: owns `forward`."""

    def __init__(self, use_separate_draft_kv_cache: bool = False) -> None:
        super().__init__()
        self.guided_decoder: Any = None
        self.use_separate_draft_kv_cache = use_separate_draft_kv_cache
        self._d2t: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in cls.__dict__:
            raise TypeError(f"{cls.__name__} must not override SpecWorkerBase.forward")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward_impl(*args, **kwargs)

    @abstractmethod
    def _forward_impl(self, *args: Any, **kwargs: Any) -> Any: ...

    @property
    @abstractmethod
    def max_draft_len(self) -> int: ...

    def set_draft_model(self, draft_model: Any) -> None:
        self._d2t = getattr(getattr(draft_model, "model", None), "d2t", None)

    def skip_drafting(
        self,
        input_ids: Any,
        position_ids: Any,
        hidden_states: Any,
        logits: Any,
        attn_metadata: Any,
        spec_metadata: Any,
        draft_model: Any,
    ) -> Any:
        return {"next_draft_tokens": torch.zeros((attn_metadata.num_seqs, 0), dtype=torch.int32)}

    _accept_draft_tokens = _accept


def _register(registry: dict[str, Any]) -> Any:
    def register_auto_model(name: str) -> Any:
        def decorator(cls: Any) -> Any:
            registry[name] = cls
            return cls

        return decorator

    return register_auto_model


class _Target(nn.Module):
    """`SpecDecOneEngineForCausalLM`: constructs drafter and worker, runs them after the target."""

    table = "embed_tokens"

    def __init__(self, model_config: Any) -> None:
        super().__init__()
        self.model_config = model_config
        sizes = model_config.pretrained_config
        self.model = nn.Module()
        setattr(self.model, self.table, nn.Embedding(sizes.vocab_size, sizes.hidden_size))
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.logits_processor = SimpleNamespace(forward=lambda rows, head, metadata, context: head(rows).float())
        self.draft_model = self.spec_worker = None
        if model_config.spec_config is None:
            return
        speculative = sys.modules["tensorrt_llm._torch.models.modeling_speculative"]
        draft_config = SimpleNamespace(pretrained_config=sizes, mapping=model_config.mapping)
        self.draft_model = speculative.get_draft_model(model_config, draft_config, self.lm_head, self.model)
        options = {"use_separate_draft_kv_cache": True} if speculative.is_newer else {}
        self.spec_worker = speculative.get_spec_worker(
            model_config.spec_config, model_config, model_config.mapping, **options
        )
        if speculative.is_newer:
            self.spec_worker.set_draft_model(self.draft_model)

    def load_draft_weights(self, weights: Any, weight_mapper: Any = None) -> None:
        self.draft_model.load_weights(weights=weights, weight_mapper=weight_mapper)
        self.draft_model.load_weights_from_target_model(self)


class _GptOss(_Target):
    table = "embedding"


class FakeLLM:
    """`tensorrt_llm.LLM`: answers with the words of the prompt, one at a time."""

    started: ClassVar[list[FakeLLM]] = []

    def __init__(self, model: str, **arguments: Any) -> None:
        self.arguments, self.is_down = {"model": model, **arguments}, False
        FakeLLM.started.append(self)

    def generate_async(self, inputs: str, sampling_params: Any = None, *, streaming: bool = False) -> FakeResult:
        if inputs == "fail":
            raise RuntimeError("the engine broke")
        return FakeResult(inputs, sampling_params)

    def shutdown(self) -> None:
        self.is_down = True


class FakeSamplingParams:
    """`tensorrt_llm.SamplingParams`."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings


class FakeResult:
    """`GenerationResult`; the text of an output is all of it so far."""

    def __init__(self, prompt: str, sampling: FakeSamplingParams) -> None:
        words = prompt.split(" ")[: sampling.settings.get("max_tokens", 100)]
        self.texts = [" ".join(words[: count + 1]) for count in range(len(words))]
        self.is_aborted = False

    def __iter__(self) -> Iterator[Any]:
        for count, text in enumerate(self.texts):
            yield self._output(text, count + 1)

    def result(self) -> Any:
        return self._output(self.texts[-1], len(self.texts))

    def abort(self) -> None:
        self.is_aborted = True

    def _output(self, text: str, count: int) -> Any:
        reason = "length" if count == len(self.texts) else None
        output = SimpleNamespace(text=text, token_ids=list(range(count)), finish_reason=reason, stop_reason=None)
        return SimpleNamespace(outputs=[output], prompt_token_ids=[1, 2, 3])


def build_modules(release: str) -> dict[str, ModuleType]:
    """Modules of a release by name."""
    is_newer = release == "1.4"
    modules = {
        name: ModuleType(name)
        for name in (
            "tensorrt_llm",
            "tensorrt_llm._torch",
            "tensorrt_llm._torch.models",
            "tensorrt_llm._torch.models.modeling_utils",
            "tensorrt_llm._torch.models.modeling_speculative",
            "tensorrt_llm._torch.models.modeling_gpt_oss",
            "tensorrt_llm._torch.models.modeling_qwen3_moe",
            "tensorrt_llm._torch.models.modeling_qwen3",
            "tensorrt_llm._torch.models.modeling_llama",
            "tensorrt_llm._torch.speculative",
            "tensorrt_llm._torch.speculative.interface",
            "tensorrt_llm._torch.speculative.eagle3",
            "tensorrt_llm._torch.pyexecutor",
            "tensorrt_llm._torch.pyexecutor.model_engine",
            "tensorrt_llm._torch.pyexecutor.py_executor_creator",
        )
    }
    root: Any = modules["tensorrt_llm"]
    root.__version__ = VERSIONS[release]
    root.LLM, root.SamplingParams = FakeLLM, FakeSamplingParams
    for name, module in modules.items():
        module.__path__ = []  # type: ignore[attr-defined]
        module.__spec__ = ModuleSpec(name, None)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    registry: dict[str, Any] = {}
    short = {name.rpartition(".")[2]: module for name, module in modules.items()}
    _fill(short, registry, is_newer=is_newer)
    return modules


def _fill(modules: dict[str, Any], registry: dict[str, Any], *, is_newer: bool) -> None:
    register = _register(registry)
    modules["modeling_utils"].MODEL_CLASS_MAPPING = registry
    modules["modeling_utils"].register_auto_model = register
    modules["modeling_speculative"].is_newer = is_newer

    def get_draft_model(model_config: Any, draft_config: Any, lm_head: Any, model: Any) -> Any:
        return SimpleNamespace(stock="Eagle3ForCausalLM")

    if is_newer:

        def get_spec_worker(
            spec_config: Any, model_config: Any, mapping: Any, use_separate_draft_kv_cache: bool = False
        ) -> Any:
            return SimpleNamespace(stock="Eagle3OneModelWorker", set_draft_model=lambda model: None)

        def get_spec_metadata(
            spec_config: Any,
            model_config: Any,
            max_num_requests: int,
            max_num_tokens: int,
            spec_resource_manager: Any = None,
            is_draft_model: bool = False,
            max_seq_len: int = 262144,
            num_seq_slots: Any = None,
        ) -> Any:
            return _metadata(spec_config, model_config, max_num_requests, max_num_tokens)

    else:

        def get_spec_worker(spec_config: Any, model_config: Any, mapping: Any) -> Any:  # type: ignore[misc]
            return SimpleNamespace(stock="Eagle3OneModelWorker")

        def get_spec_metadata(  # type: ignore[misc]
            spec_config: Any,
            model_config: Any,
            max_num_requests: int,
            max_num_tokens: int,
            spec_resource_manager: Any = None,
            is_draft_model: bool = False,
        ) -> Any:
            return _metadata(spec_config, model_config, max_num_requests, max_num_tokens)

    modules["modeling_speculative"].get_draft_model = get_draft_model
    modules["modeling_speculative"].get_spec_worker = get_spec_worker
    modules["model_engine"].get_spec_metadata = get_spec_metadata

    def create_py_executor(
        llm_args: Any, checkpoint_dir: Any = None, tokenizer: Any = None, profiling_stage_data: Any = None
    ) -> str:
        return "weights are loaded"

    modules["py_executor_creator"].create_py_executor = create_py_executor
    modules["interface"].SpecWorkerBase = NewerWorkerBase if is_newer else OlderWorkerBase
    modules["eagle3"].Eagle3OneModelSpecMetadata = Eagle3OneModelSpecMetadata
    for module, name in (
        ("modeling_gpt_oss", "GptOssForCausalLM"),
        ("modeling_qwen3_moe", "Qwen3MoeForCausalLM"),
        ("modeling_qwen3", "Qwen3ForCausalLM"),
        ("modeling_llama", "LlamaForCausalLM"),
    ):
        base = _GptOss if name == "GptOssForCausalLM" else _Target
        registry[name] = type(name, (base,), {})
        setattr(modules[module], name, registry[name])


def _metadata(spec_config: Any, model_config: Any, max_num_requests: int, max_num_tokens: int) -> Any:
    return Eagle3OneModelSpecMetadata(
        max_num_requests=max_num_requests,
        max_draft_len=spec_config.max_draft_len,
        max_total_draft_tokens=spec_config.max_draft_len,
        num_layers=model_config.num_hidden_layers,
        hidden_size=model_config.hidden_size,
        max_num_tokens=max_num_tokens,
        layers_to_capture=spec_config.eagle3_layers_to_capture,
    )


@contextlib.contextmanager
def installed(release: str) -> Iterator[dict[str, Any]]:
    """The stand-in in place of a package that is not there; yields its registry of targets.

    Everything of ours that was imported against it is forgotten afterwards.
    """
    from peagle_trt.trtllm.releases import support

    modules = build_modules(release)
    before = set(sys.modules)
    sys.modules.update(modules)
    support.worker_class.cache_clear()
    try:
        yield modules["tensorrt_llm._torch.models.modeling_utils"].MODEL_CLASS_MAPPING
    finally:
        support.worker_class.cache_clear()
        for name in list(sys.modules):
            is_ours = name.startswith("peagle_trt.trtllm.adapters")
            if name in modules or (is_ours and name not in before):
                del sys.modules[name]
        adapters = sys.modules.get("peagle_trt.trtllm")
        if adapters is not None and hasattr(adapters, "adapters"):
            del adapters.adapters
