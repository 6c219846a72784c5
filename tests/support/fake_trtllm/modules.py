"""The modules of the stand-in, as a release has them, and their place in `sys.modules`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.support.fake_trtllm.llm import FakeLLM, FakeSamplingParams
from tests.support.fake_trtllm.targets import GptOss, Target
from tests.support.fake_trtllm.worker import Eagle3OneModelSpecMetadata, NewerWorkerBase, OlderWorkerBase

VERSIONS = {"1.2.1": "1.2.1", "1.4": "1.4.0rc4"}


def _register(registry: dict[str, Any]) -> Any:
    def register_auto_model(name: str) -> Any:
        def decorator(cls: Any) -> Any:
            registry[name] = cls
            return cls

        return decorator

    return register_auto_model


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

    modules["modeling_speculative"].get_draft_model = get_draft_model
    # 1.2 has the same functions with fewer parameters.
    modules["modeling_speculative"].get_spec_worker = get_spec_worker if is_newer else _first(3, get_spec_worker)
    modules["model_engine"].get_spec_metadata = get_spec_metadata if is_newer else _first(6, get_spec_metadata)
    modules["py_executor_creator"].create_py_executor = create_py_executor
    modules["interface"].SpecWorkerBase = NewerWorkerBase if is_newer else OlderWorkerBase
    modules["eagle3"].Eagle3OneModelSpecMetadata = Eagle3OneModelSpecMetadata
    for module, name in (
        ("modeling_gpt_oss", "GptOssForCausalLM"),
        ("modeling_qwen3_moe", "Qwen3MoeForCausalLM"),
        ("modeling_qwen3", "Qwen3ForCausalLM"),
        ("modeling_llama", "LlamaForCausalLM"),
    ):
        base = GptOss if name == "GptOssForCausalLM" else Target
        registry[name] = type(name, (base,), {})
        setattr(modules[module], name, registry[name])


def _first(count: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with its first parameters alone; it refuses the others."""
    full = inspect.signature(function)
    signature = full.replace(parameters=list(full.parameters.values())[:count])

    @functools.wraps(function)
    def shorter(*values: Any, **named: Any) -> Any:
        given = signature.bind(*values, **named)
        return function(*given.args, **given.kwargs)

    vars(shorter)["__signature__"] = signature
    return shorter


def get_draft_model(model_config: Any, draft_config: Any, lm_head: Any, model: Any) -> Any:
    return SimpleNamespace(stock="Eagle3ForCausalLM")


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
    return Eagle3OneModelSpecMetadata(
        max_num_requests=max_num_requests,
        max_draft_len=spec_config.max_draft_len,
        max_total_draft_tokens=spec_config.max_draft_len,
        num_layers=model_config.num_hidden_layers,
        hidden_size=model_config.hidden_size,
        max_num_tokens=max_num_tokens,
        layers_to_capture=spec_config.eagle3_layers_to_capture,
    )


def create_py_executor(
    llm_args: Any, checkpoint_dir: Any = None, tokenizer: Any = None, profiling_stage_data: Any = None
) -> str:
    return "weights are loaded"


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
