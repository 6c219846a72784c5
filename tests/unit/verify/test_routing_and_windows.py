"""Verification looks past a window, and does not judge an engine by a router's choice that is no choice."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from peagle_trt import __version__
from peagle_trt.errors import VerificationError
from peagle_trt.spec import ARTIFACT_FORMAT, EngineManifest, TargetConfig, TokenizerFiles
from peagle_trt.verify import checkpoint_source, compare_engine
from peagle_trt.verify.decoding import NUM_PROMPT_TOKENS, num_prompt_tokens
from peagle_trt.verify.reference import run_target
from tests.support.checkpoints import edit_tensors
from tests.support.models import BuiltPair, open_pair, save_drafter, save_target


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> BuiltPair:
    folder = tmp_path_factory.mktemp("pair")
    save_target(folder / "target", "GptOssForCausalLM", sliding_window=40)
    save_drafter(folder / "head")
    return open_pair(folder / "target", folder / "head", folder / "build", max_batch_size=1, max_sequence_length=64)


def manifest_of(pair: BuiltPair, target: TargetConfig) -> EngineManifest:
    return EngineManifest(
        format=ARTIFACT_FORMAT,
        peagle_trt_version=__version__,
        name="random",
        backend="onnxruntime",
        precision="fp32",
        target=target,
        drafter=pair.drafter.config,
        shapes=pair.engine.shapes,
        tokenizer=TokenizerFiles(tokenizer="", chat_template=None),
        graphs={},
        files=(),
        sources={},
    )


def test_the_prompt_is_longer_than_the_window(pair: BuiltPair) -> None:
    manifest = manifest_of(pair, pair.engine.target)
    assert num_prompt_tokens(manifest) == 40 + NUM_PROMPT_TOKENS
    wide = msgspec.structs.replace(pair.engine.target, attention_windows=(128, 0) * 3)
    assert num_prompt_tokens(manifest_of(pair, wide)) == 64 - manifest.shapes.draft_tokens


FAULTS = {
    "a shorter window": {"attention_windows": (39, 0) * 3},
    "a longer window": {"attention_windows": (41, 0) * 3},
    "no sinks": {"has_sinks": False},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_graph_that_departs_from_its_configuration_is_found_out(pair: BuiltPair, fault: dict[str, object]) -> None:
    source = checkpoint_source(pair.target, pair.drafter)
    compare_engine(pair.engine, manifest_of(pair, pair.engine.target), source)
    # The engine keeps what the reference is told to leave out.
    bent = msgspec.structs.replace(pair.engine.target, **fault)
    with pytest.raises(VerificationError, match="prompt: target logits are off"):
        compare_engine(pair.engine, manifest_of(pair, bent), source)


def test_a_router_without_a_preference_is_no_ones_fault(tmp_path: Path) -> None:
    save_target(tmp_path / "target", "Qwen3MoeForCausalLM")
    edit_tensors(tmp_path / "target", model__layers__2__mlp__gate__weight=np.zeros((16, 64), np.float32))
    save_drafter(tmp_path / "head")
    pair = open_pair(tmp_path / "target", tmp_path / "head", tmp_path / "build", max_batch_size=1)
    config = pair.engine.target
    assert run_target(config, pair.target.weights.load, np.arange(5)).routing_margin == 0
    with pytest.raises(VerificationError, match="some router's choice is too close to call"):
        compare_engine(pair.engine, manifest_of(pair, config), checkpoint_source(pair.target, pair.drafter))
