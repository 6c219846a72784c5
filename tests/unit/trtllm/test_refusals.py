"""What is refused before any weight is loaded: each of these would run and be wrong, or never run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peagle_trt.errors import CheckpointError, MachineError, PeagleError, PlanError
from peagle_trt.readers import TargetCheckpoint
from peagle_trt.trtllm.plugin import install
from peagle_trt.trtllm.releases import support
from peagle_trt.trtllm.runtime.drafting import PromptPiece
from peagle_trt.trtllm.runtime.one_engine import OneEngine
from peagle_trt.trtllm.runtime.slots import SlotTable
from peagle_trt.trtllm.served_settings import ServedSettings
from tests.support.checkpoints import edit_tensors
from tests.support.fake_trtllm import FakeArguments, FakeCacheConfig, FakeMode, installed
from tests.support.trtllm_models import edit_document, load_pair, model_config

Small = tuple[TargetCheckpoint, Path]


def construct(registry: dict[str, Any], small_pair: Small, head: Path, **options: Any) -> Any:
    return registry["LlamaForCausalLM"](model_config(small_pair[0].config, head, **options))


@pytest.mark.parametrize(
    ("mapping", "what"),
    [
        ({"pp_size": 2}, "pipeline"),
        ({"cp_size": 2}, "context_parallel"),
        ({"enable_attention_dp": True}, "attention_dp"),
    ],
)
def test_unsupported_parallelism_is_named(
    registry: dict[str, Any], small_pair: Small, served_head: Path, mapping: dict[str, Any], what: str
) -> None:
    with pytest.raises(PlanError, match=what):
        construct(registry, small_pair, served_head, mapping=mapping)


def test_tensor_parallelism_is_accepted(registry: dict[str, Any], small_pair: Small, served_head: Path) -> None:
    assert construct(registry, small_pair, served_head, mapping={"tp_size": 8}).spec_worker.max_draft_len == 3


def test_a_k_above_the_builds_is_refused(registry: dict[str, Any], small_pair: Small, served_head: Path) -> None:
    with pytest.raises(PlanError, match=r"max_draft_len` is 6; the build was made for 1\.\.5"):
        construct(registry, small_pair, served_head, draft_tokens=6)


@pytest.mark.parametrize(
    "option", ["max_concurrency", "use_rejection_sampling", "draft_len_schedule", "acceptance_window"]
)
def test_an_option_that_cannot_be_honoured_is_named(
    registry: dict[str, Any], small_pair: Small, served_head: Path, option: str
) -> None:
    with pytest.raises(PlanError, match=option):
        construct(registry, small_pair, served_head, **{option: {1: 3}})


def test_other_captured_layers_are_refused(registry: dict[str, Any], small_pair: Small, served_head: Path) -> None:
    with pytest.raises(PlanError, match=r"outputs of layers \[1, 2, 3\]; the head was trained with \[0, 2, 4\]"):
        construct(registry, small_pair, served_head, eagle3_layers_to_capture={1, 2, 3})
    with pytest.raises(PlanError, match=r"eagle3_layers_to_capture|outputs"):
        construct(registry, small_pair, served_head, eagle3_layers_to_capture=None)


@pytest.mark.parametrize(("size", "value"), [("hidden_size", 96), ("vocab_size", 310)])
def test_a_head_of_another_target_is_refused(
    registry: dict[str, Any], small_pair: Small, served_head: Path, size: str, value: int
) -> None:
    config = model_config(small_pair[0].config, served_head)
    setattr(config.pretrained_config, size, value)
    with pytest.raises(CheckpointError, match=f"does not fit.*`{size}` {value}"):
        registry["LlamaForCausalLM"](config)


def test_a_head_without_the_limits_of_a_build_is_refused(
    registry: dict[str, Any], small_pair: Small, served_head: Path
) -> None:
    edit_document(served_head, peagle_trt=None)
    with pytest.raises(CheckpointError, match="not written by a build for TensorRT-LLM"):
        construct(registry, small_pair, served_head)


LIMITS = {"draft_tokens": 5, "max_batch_size": 4, "max_sequence_length": 200}


@pytest.mark.parametrize(
    "value",
    [
        {"draft_tokens": 5},
        {"draft_tokens": "5"},
        7,
        LIMITS | {"draft_tokens": 17},
        LIMITS | {"max_batch_size": 0},
        LIMITS | {"max_sequence_length": -9},
        LIMITS | {"max_sequence_length": 10**12},
    ],
)
def test_damaged_limits_are_refused(
    registry: dict[str, Any], small_pair: Small, served_head: Path, value: object
) -> None:
    edit_document(served_head, peagle_trt=value)
    with pytest.raises(CheckpointError, match="peagle_trt"):
        construct(registry, small_pair, served_head)


def test_a_damaged_head_is_refused(registry: dict[str, Any], small_pair: Small, served_head: Path) -> None:
    edit_tensors(served_head, mask_hidden=None)
    with pytest.raises(CheckpointError, match="mask_hidden"):
        construct(registry, small_pair, served_head)


@pytest.mark.parametrize("text", ['{"parallel_dra', "[]", "\ufffd{}", ""])
def test_a_head_whose_configuration_is_damaged_is_not_left_to_tensorrt_llm(
    registry: dict[str, Any], small_pair: Small, served_head: Path, text: str
) -> None:
    (served_head / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        construct(registry, small_pair, served_head)


def test_a_mask_that_is_no_token_is_refused(registry: dict[str, Any], small_pair: Small, served_head: Path) -> None:
    edit_document(served_head, **dict.fromkeys(("mask_token_id", "pard_token", "ptd_token_id"), 300))
    with pytest.raises(CheckpointError, match="masks with token 300; the target has 300"):
        construct(registry, small_pair, served_head)


def test_a_k_that_is_not_set_is_refused(registry: dict[str, Any], small_pair: Small, served_head: Path) -> None:
    with pytest.raises(PlanError, match=r"max_draft_len` is None; the build was made for 1\.\.5"):
        construct(registry, small_pair, served_head, max_draft_len=None)


def test_a_plain_head_is_left_to_tensorrt_llm(registry: dict[str, Any], small_pair: Small, served_head: Path) -> None:
    edit_document(served_head, parallel_drafting=None, peagle_trt=None)
    model = construct(registry, small_pair, served_head)
    assert model.draft_model.stock == "Eagle3ForCausalLM"
    assert model.spec_worker.stock == "Eagle3OneModelWorker"


def test_a_head_whose_mark_was_edited_out_is_not_left_to_tensorrt_llm(
    registry: dict[str, Any], small_pair: Small, served_head: Path
) -> None:
    edit_document(served_head, parallel_drafting=False)
    with pytest.raises(CheckpointError, match=r"plain|parallel"):
        construct(registry, small_pair, served_head)


def test_a_head_is_not_left_to_another_way_of_drafting(
    registry: dict[str, Any], small_pair: Small, served_head: Path
) -> None:
    with pytest.raises(PlanError, match="another way of drafting"):
        construct(registry, small_pair, served_head, spec_dec_mode=FakeMode(is_one_model=False))
    with pytest.raises(PlanError, match="another way of drafting"):
        create_executor(small_pair, served_head, spec_dec_mode=FakeMode(is_one_model=False))


def create_executor(small_pair: Small, head: Path, **options: Any) -> Any:
    """What a worker process calls before any weight is loaded; options of `speculative_config` have `spec_` before."""
    import sys

    spec_config = model_config(
        small_pair[0].config, head, **{name: options.pop(name) for name in list(options) if name.startswith("spec_")}
    ).spec_config
    fitting = {"kv_cache_config": FakeCacheConfig(enable_block_reuse=False), "max_batch_size": 4, "max_seq_len": 200}
    creator: Any = sys.modules["tensorrt_llm._torch.pyexecutor.py_executor_creator"]
    arguments = FakeArguments(speculative_config=spec_config, **(fitting | options))
    return creator.create_py_executor(llm_args=arguments, checkpoint_dir=Path("target"), tokenizer=None)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"kv_cache_config": FakeCacheConfig()}, "enable_block_reuse` is True"),
        ({"cache_transceiver_config": {"backend": "UCX"}}, "cache_transceiver_config"),
        ({"kv_connector_config": {"connector_module": "x"}}, "kv_connector_config"),
        ({"guided_decoding_backend": "xgrammar"}, "`guided_decoding_backend` is 'xgrammar'"),
        ({"max_batch_size": 5}, "`max_batch_size` is 5; the build was made for 4"),
        ({"max_batch_size": None}, "`max_batch_size` is not set"),
        ({"max_seq_len": 201}, "`max_seq_len` is 201; the build was made for 200"),
        ({"max_seq_len": None}, "`max_seq_len` is not set"),
    ],
)
@pytest.mark.usefixtures("registry")
def test_settings_that_a_drafter_cannot_follow_load_no_weight(
    small_pair: Small, served_head: Path, options: dict[str, Any], what: str
) -> None:
    assert create_executor(small_pair, served_head) == "weights are loaded"
    with pytest.raises(PlanError, match=what):
        create_executor(small_pair, served_head, **options)


def show_gpu(monkeypatch: pytest.MonkeyPatch, *compute_capability: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "RTX PRO 6000")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: compute_capability)


@pytest.mark.usefixtures("registry")
def test_a_gpu_that_gives_gibberish_with_drafts_loads_no_weight(
    small_pair: Small, served_head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_gpu(monkeypatch, 12, 0)
    with pytest.raises(MachineError, match=r"RTX PRO 6000 is SM120, where .* gibberish .*11125") as caught:
        create_executor(small_pair, served_head)
    assert "SM90, SM100, SM103" in caught.value.hint
    assert "--backend tensorrt-rtx" in caught.value.hint
    # Without a head of ours its decoding is TensorRT-LLM's own affair.
    edit_document(served_head, parallel_drafting=None, peagle_trt=None)
    assert create_executor(small_pair, served_head) == "weights are loaded"


@pytest.mark.parametrize("compute_capability", [(9, 0), (10, 0), (10, 3), (12, 1)])
@pytest.mark.usefixtures("registry")
def test_other_gpus_are_left_to_the_doctor(
    small_pair: Small, served_head: Path, monkeypatch: pytest.MonkeyPatch, compute_capability: tuple[int, int]
) -> None:
    show_gpu(monkeypatch, *compute_capability)
    assert create_executor(small_pair, served_head) == "weights are loaded"


@pytest.mark.usefixtures("registry")
def test_settings_without_a_head_of_ours_are_left_alone(small_pair: Small, served_head: Path) -> None:
    import sys

    creator: Any = sys.modules["tensorrt_llm._torch.pyexecutor.py_executor_creator"]
    assert creator.create_py_executor(FakeArguments()) == "weights are loaded"
    edit_document(served_head, parallel_drafting=None, peagle_trt=None)
    assert create_executor(small_pair, served_head, max_batch_size=2048) == "weights are loaded"


def test_the_stock_parts_are_back_after_a_target_was_made(
    registry: dict[str, Any], small_pair: Small, served_head: Path
) -> None:
    import sys

    module: Any = sys.modules["tensorrt_llm._torch.models.modeling_speculative"]
    before = module.get_draft_model, module.get_spec_worker
    construct(registry, small_pair, served_head)
    with pytest.raises(PeagleError):
        construct(registry, small_pair, served_head, mapping={"pp_size": 2})
    assert (module.get_draft_model, module.get_spec_worker) == before


def test_weights_that_differ_from_the_head_are_named(
    registry: dict[str, Any], small_pair: Small, served_head: Path
) -> None:
    model = construct(registry, small_pair, served_head)
    with pytest.raises(CheckpointError, match=r"missing \['fc\.weight'.*unknown \['other'\]"):
        model.load_draft_weights({"other": torch.zeros(1)})


def test_a_drafter_without_weights_says_so(registry: dict[str, Any], small_pair: Small, served_head: Path) -> None:
    model = construct(registry, small_pair, served_head)
    with pytest.raises(CheckpointError, match="no weights"):
        model.spec_worker.engine._open()


def test_a_server_for_more_requests_than_the_build_is_refused(
    registry: dict[str, Any], small_pair: Small, served_head: Path
) -> None:
    import sys

    model = construct(registry, small_pair, served_head)
    factory: Any = sys.modules["tensorrt_llm._torch.pyexecutor.model_engine"]
    sizes = SimpleNamespace(num_hidden_layers=6, hidden_size=64)
    with pytest.raises(PlanError, match="`max_batch_size` is 5; the build was made for 4"):
        factory.get_spec_metadata(model.model_config.spec_config, sizes, 5, max_num_tokens=64)


def test_a_guided_decoder_that_gets_through_is_turned_away(
    registry: dict[str, Any], small_pair: Small, served_head: Path
) -> None:
    model = construct(registry, small_pair, served_head)
    load_pair(model, small_pair[0], served_head)
    assert model.spec_worker.set_guided_decoder(object()) is False


def pieces_of(length: int) -> list[PromptPiece]:
    engine = OneEngine(ServedSettings(draft_tokens=5, max_batch_size=2, max_sequence_length=200))
    cached = SimpleNamespace(num_cached_tokens_per_seq=[0])
    attention: Any = SimpleNamespace(num_contexts=1, seq_lens=torch.tensor([length]), kv_cache_params=cached)
    step: Any = SimpleNamespace(request_ids=[1])
    return engine._pieces(attention, step)


def test_warm_up_may_be_longer_than_any_request() -> None:
    assert pieces_of(200 + 3 * 5) == [PromptPiece(slot=0, start=0, length=215)]


def test_a_prompt_that_the_cache_has_no_room_for_is_refused() -> None:
    with pytest.raises(PlanError, match="has 216 tokens; the build was made for 200"):
        pieces_of(200 + 3 * 5 + 1)


def test_cache_reuse_is_refused_where_it_shows() -> None:
    table = SlotTable(2)
    assert table.read_chunk(7, 0, 16, [7]) == 0
    with pytest.raises(PlanError, match=r"request 8 goes on at token 32, and the drafter has read 0") as caught:
        table.read_chunk(8, 32, 4, [8])
    assert "enable_block_reuse: false" in caught.value.hint
    table.read_chunk(7, 16, 4, [7])
    with pytest.raises(PlanError, match="goes on at token 16, and the drafter has read 20"):
        table.read_chunk(7, 16, 4, [7])


def test_more_requests_than_slots_are_refused() -> None:
    table = SlotTable(1)
    table.read_chunk(1, 0, 4, [1, 2])
    with pytest.raises(MachineError, match="more requests share a step than the build's 1"):
        table.read_chunk(2, 0, 4, [1, 2])


def test_a_slot_goes_to_the_newcomer_and_a_loss_is_told(caplog: pytest.LogCaptureFixture) -> None:
    table = SlotTable(2)
    slots = [table.read_chunk(request, 0, 4, [request]) for request in (1, 2)]
    assert table.find([1, 2, 99]) == [*slots, table.scratch]
    assert table.read_chunk(3, 0, 4, [3]) == slots[0]
    assert table.find([1, 2]) == [table.scratch, slots[1]]
    assert "request 1 lost its place" in caplog.text
    # Preempted, and read again from its start.
    assert table.read_chunk(1, 0, 4, [1, 2]) == slots[0]


def test_an_absent_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MachineError, match="TensorRT-LLM is not installed") as caught:
        install()
    assert "container" in caught.value.hint


@pytest.mark.parametrize("version", ["1.0.0", "1.2.0", "1.3.0rc24", "1.5.0", "2.0", "unknown"])
def test_an_unknown_release_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(support, "find_version", lambda: version)
    with pytest.raises(MachineError, match=f"TensorRT-LLM {version} is installed.*1.2.1 and 1.4"):
        install()


@pytest.mark.parametrize(
    ("version", "release"), [("1.2.1", "1.2.1"), ("1.2.1.post1", "1.2.1"), ("1.4.0rc4", "1.4"), ("1.4.0", "1.4")]
)
def test_known_releases_have_names(version: str, release: str) -> None:
    assert support.name_release(version) == release


def test_a_release_that_is_not_what_it_says_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed("1.4"):
        monkeypatch.setattr(support, "find_version", lambda: "1.2.1")
        with pytest.raises(MachineError, match=r"_draft_tokens_base` is not there.*_forward_impl` is there"):
            install()
