"""Maxima of a drafter's linears against the same rows in torch, and against a drafter of one multiplication."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.overrides import TorchFunctionMode

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.quant.activation_scales import read_activation_scales
from peagle_trt.quant.calibration import calibrate_drafter, write_scales
from peagle_trt.quant.layer_recipes import load_layer_recipe
from peagle_trt.readers import read_drafter, read_target
from peagle_trt.readers.checkpoint import DrafterCheckpoint
from peagle_trt.train.checkpoint import read_head
from peagle_trt.train.head import HeadRows
from peagle_trt.train.row_attention import SequenceRows
from peagle_trt.verify.reference import run_drafter
from peagle_trt.verify.sources import checkpoint_source
from peagle_trt.writers.loaders import judge_folder
from peagle_trt.writers.quantized import quantize_head
from tests.support.models import HEAD_DIM, HIDDEN, save_drafter, save_target

ROWS, DRAFT_TOKENS = 11, 4


@dataclass(frozen=True)
class Text:
    token_ids: np.ndarray
    hidden_TA: np.ndarray


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    save_target(folder / "target")
    save_drafter(folder / "head")
    return folder / "target", folder / "head"


@pytest.fixture
def head(folders: tuple[Path, Path]) -> DrafterCheckpoint:
    return read_drafter(folders[1])


def text() -> Text:
    numbers = np.random.default_rng(3)
    hidden = numbers.normal(0, 1, (ROWS + 1, 3 * HIDDEN)).astype(np.float32)
    hidden[0] *= 50
    return Text(token_ids=numbers.integers(0, 299, ROWS + 1), hidden_TA=hidden)


class LinearInputs(TorchFunctionMode):
    """Inputs of every linear layer, by the weight's address."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, torch.Tensor] = {}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.nn.functional.linear:
            self.seen[args[1].data_ptr()] = args[0].detach()
        return function(*args, **(kwargs or {}))


def inputs_in_torch(folders: tuple[Path, Path], read: Text) -> dict[str, torch.Tensor]:
    """What every linear of a layer reads when a step follows the whole text; [rows and mask slots, columns] each."""
    module, _ = read_head(folders[1], torch.float32)
    target = read_target(folders[0])
    masks = DRAFT_TOKENS - 1
    count = ROWS + masks
    rows = HeadRows(
        token_ids_R=torch.tensor([*read.token_ids[1 : ROWS + 1], *[299] * masks]),
        auxiliary_RA=torch.cat([torch.from_numpy(read.hidden_TA[:ROWS]), torch.zeros(masks, 3 * HIDDEN)]),
        is_mask_R=torch.arange(count) >= ROWS,
        positions_R=torch.arange(count),
        layouts=[SequenceRows(num_context=ROWS, anchors=np.full(masks, ROWS - 1), depths=np.arange(1, DRAFT_TOKENS))],
    )
    with torch.inference_mode(), LinearInputs() as inputs:
        module(rows, torch.from_numpy(target.weights.load("embed_tokens")))
    found = {"fc": inputs.seen[module.fc.data_ptr()]}
    for index, layer in enumerate(module.head_layers()):
        for part in ("q", "k", "v", "o"):
            weight = getattr(layer, f"{part}_proj")
            found[f"layers.{index}.self_attn.{part}_proj"] = inputs.seen[weight.data_ptr()]
        for part in ("gate", "up", "down"):
            weight = getattr(layer, f"{part}_proj")
            found[f"layers.{index}.mlp.{part}_proj"] = inputs.seen[weight.data_ptr()]
    return found


def test_maxima_are_those_of_torch_rows(folders: tuple[Path, Path], head: DrafterCheckpoint) -> None:
    source = checkpoint_source(read_target(folders[0]), head)
    scales, maxima = calibrate_drafter(
        head.config,
        source.load_drafter,
        [text()],
        recipe_name="fp8",
        draft=run_drafter,
        draft_tokens=DRAFT_TOKENS,
        stride=1000,
    )
    expected = inputs_in_torch(folders, text())
    assert set(maxima) == {*expected, "lm_head"}
    for module, rows in expected.items():
        found = maxima[module]
        parts = [rows[:1], rows[1:ROWS], rows[ROWS:]]
        np.testing.assert_allclose(
            [found.first, found.real, found.masked], [float(part.abs().max()) for part in parts], rtol=2e-4
        )
        largest = max(found.first, found.real, found.masked)
        np.testing.assert_allclose(scales.values[f"{module}.input_scale"], largest / 448, rtol=1e-6)


def rotated(keys: np.ndarray, theta: float) -> np.ndarray:
    """Keys [rows, heads, width], each row at its own position; halves turn together."""
    half = keys.shape[-1] // 2
    angles = np.arange(len(keys))[:, None, None] * theta ** (-np.arange(half) / half)
    first, second = keys[..., :half], keys[..., half:]
    return np.concatenate(
        [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)], axis=-1
    )


@pytest.mark.parametrize("recipe", ["fp8-kv", "nvfp4-kv"])
def test_scales_of_the_cache_are_those_of_torch_rows(
    folders: tuple[Path, Path], head: DrafterCheckpoint, recipe: str
) -> None:
    source = checkpoint_source(read_target(folders[0]), head)
    scales, _ = calibrate_drafter(
        head.config,
        source.load_drafter,
        [text()],
        recipe_name=recipe,
        draft=run_drafter,
        draft_tokens=DRAFT_TOKENS,
        stride=1000,
    )
    expected, weights = inputs_in_torch(folders, text()), load_file(folders[1] / "model.safetensors")
    for index in range(2):
        prefix = f"layers.{index}.self_attn"
        kept = {
            part: (
                expected[f"{prefix}.{part}_proj"].double() @ weights[f"{prefix}.{part}_proj.weight"].double().T
            ).numpy()
            for part in "kv"
        }
        kept["k"] = rotated(kept["k"].reshape(len(kept["k"]), -1, HEAD_DIM), head.config.rope.theta)
        for part, rows in kept.items():
            scale = scales.values[f"{prefix}.{part}_proj.{part}_scale"]
            # One divisor for both formats, as modelopt has it.
            np.testing.assert_allclose(scale, np.abs(rows).max() / 448, rtol=2e-4)


def test_a_recipe_without_a_cache_measures_none(folders: tuple[Path, Path], head: DrafterCheckpoint) -> None:
    source = checkpoint_source(read_target(folders[0]), head)
    scales, _ = calibrate_drafter(
        head.config, source.load_drafter, [text()], recipe_name="fp8", draft=run_drafter, draft_tokens=2, stride=1000
    )
    assert all(name.endswith(".input_scale") for name in scales.values)


@pytest.mark.parametrize("dialect", ["vllm", "trtllm"])
def test_a_head_takes_measured_scales_in_every_dialect(
    folders: tuple[Path, Path], head: DrafterCheckpoint, tmp_path: Path, dialect: str
) -> None:
    target = read_target(folders[0])
    source = checkpoint_source(target, head)
    scales, _ = calibrate_drafter(
        head.config, source.load_drafter, [text()], recipe_name="fp8-kv", draft=run_drafter, draft_tokens=2, stride=1000
    )
    write_scales(scales, tmp_path / "scales.safetensors")
    quantize_head(
        head,
        target,
        load_layer_recipe("fp8-kv"),
        dialect,  # type: ignore[arg-type]
        tmp_path / "out",
        scales=read_activation_scales(tmp_path / "scales.safetensors"),
    )
    written = load_file(tmp_path / "out" / "model.safetensors")
    first = "layers.0" if dialect == "vllm" else "midlayer.0"
    for name in ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale", "mlp.down_proj.input_scale"):
        assert written[f"{first}.{name}"].item() == scales.values[f"layers.0.{name}"]
    assert all(finding.level != "refused" for finding in judge_folder(tmp_path / "out"))


def test_steps_are_taken_all_along_a_text(folders: tuple[Path, Path], head: DrafterCheckpoint) -> None:
    lengths: list[int] = []

    def draft(config: Any, load: Any, next_ids: np.ndarray, hidden: np.ndarray, draft_tokens: int) -> Any:
        lengths.append(len(next_ids))
        assert len(hidden) == len(next_ids)
        return run_drafter(config, load, next_ids, hidden, draft_tokens)

    source = checkpoint_source(read_target(folders[0]), head)
    calibrate_drafter(
        head.config, source.load_drafter, [text()], recipe_name="nvfp4", draft=draft, draft_tokens=2, stride=4
    )
    assert lengths == [11, 7, 3]


def one_product(rows: np.ndarray) -> Callable[..., Any]:
    return lambda config, load, next_ids, hidden, draft_tokens: rows @ load("fc").T


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_a_linear_that_reads_no_numbers_is_named(value: float, head: DrafterCheckpoint) -> None:
    draft = one_product(np.full((3, 3 * HIDDEN), value))
    with pytest.raises(CheckpointError, match="`fc` reads nothing but"):
        calibrate_drafter(
            head.config, head.weights.load, [text()], recipe_name="fp8", draft=draft, draft_tokens=DRAFT_TOKENS
        )


def test_one_draft_token_leaves_no_mask_slot(head: DrafterCheckpoint) -> None:
    with pytest.raises(UsageError, match="leave no mask slots"):
        calibrate_drafter(
            head.config, head.weights.load, [text()], recipe_name="fp8", draft=run_drafter, draft_tokens=1
        )


def test_no_texts_are_refused(head: DrafterCheckpoint) -> None:
    with pytest.raises(UsageError, match="no texts to calibrate the drafter on"):
        calibrate_drafter(head.config, head.weights.load, [], recipe_name="fp8", draft=run_drafter, draft_tokens=5)
