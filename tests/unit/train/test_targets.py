"""Targets of every architecture that the readers know, against transformers; heads trained on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle_trt import readers
from peagle_trt.cli.main import run
from peagle_trt.errors import CheckpointError, MachineError
from peagle_trt.spec.rope import RopeConfig
from peagle_trt.train import target_weights
from peagle_trt.train.checkpoint import read_head
from peagle_trt.train.generate import Prompt, answer_prompts
from peagle_trt.train.rotary import rotary_tables
from peagle_trt.train.start import copy_last_layers, drafter_config, seeded_head
from peagle_trt.train.target import TorchTarget, read_torch_target
from peagle_trt.train.target_weights import PackedStack
from tests.support.checkpoints import edit_tensors, save_byte_tokenizer
from tests.support.models import save_target
from tests.support.quantized import to_mxfp4

AUXILIARY = (1, 3, 5)
# Float32 sums in another order than transformers', over states of magnitude ten.
TOLERANCE: dict[str, float] = {"atol": 2e-4, "rtol": 2e-4}
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"attention_bias": True, "mlp_bias": True},
    "MistralForCausalLM": {"sliding_window": 9},
    "Qwen2ForCausalLM": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3},
    "Qwen3ForCausalLM": {"tie_word_embeddings": True},
    "Qwen3MoeForCausalLM": {},
    "GptOssForCausalLM": {},
}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("target")
    return save_target(folder, request.param, **MODELS[request.param]), folder


def read(folder: Path) -> TorchTarget:
    return read_torch_target(folder, torch.float32, AUXILIARY)


def assert_equal_states(model: Any, target: TorchTarget, token_ids: torch.Tensor, cut: int) -> None:
    """A text in two pieces has transformers' states and logits."""
    batch = len(token_ids)
    with torch.inference_mode():
        expected = model(token_ids, output_hidden_states=True)
        cache = target.new_cache(batch, token_ids.shape[1])
        pieces = [
            target.run(token_ids[:, :cut], torch.zeros(batch, dtype=torch.int64), cache),
            target.run(token_ids[:, cut:], torch.full((batch,), cut), cache),
        ]
    auxiliary, normed = (
        torch.cat([getattr(piece, name) for piece in pieces], dim=1) for name in ("auxiliary_BTA", "normed_BTH")
    )
    streams = torch.cat([expected.hidden_states[layer] for layer in AUXILIARY], dim=-1)
    torch.testing.assert_close(auxiliary, streams, **TOLERANCE)
    torch.testing.assert_close(normed, expected.hidden_states[-1], **TOLERANCE)
    torch.testing.assert_close(target.logits(normed), expected.logits, **TOLERANCE)


@pytest.mark.parametrize(("length", "cut"), [(2, 1), (21, 20), (40, 13)])
def test_states_and_logits_are_those_of_transformers(model: tuple[Any, Path], length: int, cut: int) -> None:
    torch.manual_seed(3)
    assert_equal_states(model[0], read(model[1]), torch.randint(3, 300, (2, length)), cut)


@pytest.mark.parametrize("name", ROPES)
def test_stretched_rotary_embeddings_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    rope = {"rope_theta": 5000.0, **ROPES[name]}
    model = save_target(tmp_path, "LlamaForCausalLM", rope_parameters=rope)
    assert_equal_states(model, read(tmp_path), torch.randint(3, 300, (1, 150)), 70)


def test_answers_are_those_of_transformers(model: tuple[Any, Path]) -> None:
    target = read(model[1])
    generator = np.random.default_rng(2)
    prompts = [
        Prompt(
            identifier=str(place),
            source="test",
            token_ids=tuple(generator.integers(3, 300, 4 + 5 * place).tolist()),
            max_new_tokens=8,
        )
        for place in range(4)
    ]
    answers = answer_prompts(target, iter(prompts), choose=target.greedy_tokens, num_slots=3, capacity=64)
    found = {answer.prompt.identifier: answer.token_ids for answer in answers}
    for prompt in prompts:
        token_ids = torch.tensor([prompt.token_ids])
        expected = model[0].generate(
            token_ids, attention_mask=torch.ones_like(token_ids), max_new_tokens=8, do_sample=False, pad_token_id=0
        )
        assert found[prompt.identifier] == tuple(expected[0].tolist())


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A gpt-oss folder in MXFP4, and the same numbers in float32."""
    folder, plain = (tmp_path_factory.mktemp("mxfp4") / name for name in ("packed", "plain"))
    folder.mkdir()
    save_target(folder, "GptOssForCausalLM", intermediate_size=64)
    to_mxfp4(folder, plain)
    return folder, plain


def test_experts_in_mxfp4_stay_packed_and_say_what_wide_ones_say(packed: tuple[Path, Path]) -> None:
    found, expected = (read(folder) for folder in packed)
    assert isinstance(found._layers[0].feed_forward.down, PackedStack)  # type: ignore[union-attr]
    token_ids = torch.randint(3, 300, (1, 30))
    starts = torch.zeros(1, dtype=torch.int64)
    with torch.inference_mode():
        states = [each.run(token_ids, starts, each.new_cache(1, 30)) for each in (found, expected)]
    torch.testing.assert_close(states[0].normed_BTH, states[1].normed_BTH, atol=0.0, rtol=0.0)
    for expert in range(8):
        wide = torch.from_numpy(readers.read_target(packed[0]).weights.load("layers.2.experts_gate_up_proj"))
        assert torch.equal(found._layers[2].feed_forward.gate_up.matrix(expert), wide[expert])  # type: ignore[union-attr]


def test_a_scale_that_is_no_number_is_refused(packed: tuple[Path, Path], tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((packed[0] / name).read_bytes())
    name = "model.layers.1.mlp.experts.down_proj_scales"
    spec = readers.read_target(packed[0]).weights["layers.1.experts_down_proj"].packed
    assert spec is not None
    broken = np.full(spec.scales.shape, 120, np.uint8)
    broken[3, 5] = 255
    edit_tensors(tmp_path, **{name.replace(".", "__"): broken})
    with pytest.raises(CheckpointError, match=f"`{name}` has a scale that is no number"):
        read(tmp_path)


def test_a_target_that_does_not_fit_is_refused_before_a_tensor_is_read(
    packed: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_weights, "_available_bytes", lambda device: 50_000)
    monkeypatch.setattr(target_weights.WeightLoader, "exact", lambda *_: pytest.fail("a tensor was read"))
    with pytest.raises(MachineError, match="bytes with products in float32, and `cpu` has 50,000") as error:
        read(packed[0])
    assert "bfloat16" in (error.value.hint or "")


def test_packed_experts_count_as_they_are_stored(packed: tuple[Path, Path]) -> None:
    narrow, wide = (readers.read_target(folder).weights["layers.0.experts_down_proj"] for folder in packed)
    found, expected = (target_weights._working_bytes("layers.0.experts_down_proj", t, 4) for t in (narrow, wide))
    # 4 bits and an eighth of a byte of scale a value against 32 bits.
    assert found / expected == pytest.approx((0.5 + 1 / 32) / 4)


@pytest.mark.parametrize("scaling", ["none", "linear"])
def test_rotary_tables_are_exact_in_double(scaling: Any) -> None:
    cosines, sines = rotary_tables(RopeConfig(theta=1e4, scaling=scaling, factor=2.0), 8, 50)
    stretch = 2.0 if scaling == "linear" else 1.0
    angles = np.outer(np.arange(50) / stretch, 1e4 ** (-np.arange(0, 8, 2) / 8))
    np.testing.assert_allclose(cosines[:, :4], np.cos(angles), atol=1e-5)
    np.testing.assert_allclose(sines[:, 4:], np.sin(angles), atol=1e-5)


def test_a_head_is_as_wide_as_what_a_token_passes_through(tmp_path: Path) -> None:
    save_target(tmp_path, "Qwen3MoeForCausalLM")
    config = readers.read_target(tmp_path).config
    head = drafter_config(
        config, aux_layer_ids=AUXILIARY, num_layers=1, draft_vocab_size=300, mask_token_id=9, num_depths=3
    )
    # 4 experts of width 32 a token.
    assert (config.intermediate_size, head.intermediate_size) == (32, 128)


@pytest.mark.parametrize("share", [0.5, 1.0, 2.0])
def test_a_head_of_any_width_begins_with_the_targets_neurons(tmp_path: Path, share: float) -> None:
    save_target(tmp_path, "LlamaForCausalLM")
    target = read_torch_target(tmp_path, torch.float32, AUXILIARY)
    width = int(target.config.intermediate_size * share)
    config = drafter_config(
        target.config,
        aux_layer_ids=AUXILIARY,
        num_layers=1,
        intermediate_size=width,
        draft_vocab_size=300,
        mask_token_id=9,
        num_depths=3,
    )
    head = seeded_head(config, torch.ones(3 * config.hidden_size), torch.float32, seed=0)
    copy_last_layers(head, target.weights, target.config)
    (layer,) = head.head_layers()
    last = f"layers.{target.config.num_layers - 1}"
    post_norm = torch.from_numpy(target.weights.load(f"{last}.post_attention_norm")).float()
    gate = torch.from_numpy(target.weights.load(f"{last}.gate_proj")).float() * post_norm
    num_kept = min(width, len(gate))
    rows = {tuple(row) for row in gate.tolist()}
    assert layer.gate_proj.shape == (width, config.hidden_size)
    assert sum(tuple(row) in rows for row in layer.gate_proj.tolist()) == num_kept
    assert torch.count_nonzero(layer.down_proj.abs().sum(dim=0)) == num_kept


@pytest.mark.parametrize("name", ["Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "GptOssForCausalLM"])
def test_a_head_trained_on_any_target_converts_and_builds(tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    model = save_target(target, name, **MODELS[name])
    # The last row, which the tokenizer has no token for, is what mask slots take; a random target might say it.
    table = "model.embed_tokens.weight" if MODELS[name].get("tie_word_embeddings") else "lm_head.weight"
    rows = model.state_dict()[table].numpy().copy()
    rows[-1] = 0.0
    edit_tensors(target, **{table.replace(".", "__"): rows})
    save_byte_tokenizer(target)
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "\u0102"}))
    questions = tmp_path / "q.jsonl"
    questions.write_text("".join(json.dumps({"prompt": f"How many {n}?"}) + "\n" for n in range(6)))
    words = ["--target", str(target), "--data", str(questions), "--aux-layers", "1,3,5", "--layers", "1"]
    limits = [
        "--steps",
        "2",
        "--max-new-tokens",
        "12",
        "--max-prompt-tokens",
        "32",
        "--depths",
        "3",
        "-k",
        "2",
        "--features",
        "computed",
    ]
    head = tmp_path / "head"
    assert run(["-q", "train", *words, *limits, "-o", str(head)]) == 0
    config = readers.read_head(head).config
    assert config.rope == readers.read_target(target).config.rope
    assert read_head(head, torch.float32)[0].config == config
    assert run(["-q", "convert", str(head), "--to", "speculators", "--target", str(target), "-o", f"{head}-2"]) == 0
    build = ["build", "--target", str(target), "--drafter", str(head), "--until", "graph", "-o", f"{head}-build"]
    assert run(["-q", *build]) == 0
