"""EAGLE-3 heads through the whole of training: trained, written, walked, decoded; and warm starts from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle_trt import catalog, readers
from peagle_trt.cli.main import run
from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationRequest
from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.spec.drafter import NO_MASK_TOKEN
from peagle_trt.train.acceptance import freeze_tables, measure_acceptance
from peagle_trt.train.batches import pack_rows
from peagle_trt.train.checkpoint import read_head
from peagle_trt.train.evaluation import TorchEngine
from peagle_trt.train.features import read_all_sequences
from peagle_trt.train.fitting import MemoryRequest
from peagle_trt.train.optimizer import OptimizerSettings
from peagle_trt.train.request import TrainingReport, TrainingRequest
from peagle_trt.train.run import train_head
from peagle_trt.train.sampling import DropSettings, full_rows
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.target import read_torch_target
from peagle_trt.train.warm_start import read_warm_start, warm_config, warm_head
from tests.support.checkpoints import edit_config

AUXILIARY = (1, 2, 3)
DRAFTS = 4


@pytest.fixture(scope="module")
def tiny() -> Path:
    return catalog.target_path(catalog.find_entry("tiny"))


@pytest.fixture(scope="module")
def trained(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingReport, list[str]]:
    """An EAGLE-3 head after a few steps, what training reported, and what it said."""
    folder = tmp_path_factory.mktemp("eagle3")
    said: list[str] = []
    report = train_head(request_for(tiny, folder), report=said.append)
    return folder / "head", report, said


def request_for(tiny: Path, folder: Path, **changes: Any) -> TrainingRequest:
    names = ("Tom", "Anna", "Mary", "John", "Sam", "Lily")
    lines = [{"prompt": f"{name} has {n} apples and buys {n + 1} more. How many?"} for name in names for n in (2, 5)]
    questions = folder / "q.jsonl"
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    request = TrainingRequest(
        target_path=tiny,
        questions_path=questions,
        output_path=folder / "head",
        method="eagle3",
        num_layers=1,
        auxiliary_layers=AUXILIARY,
        max_new_tokens=24,
        draft_tokens=DRAFTS,
        settings=TrainingSettings(
            drop=DropSettings(num_depths=3),
            optimizer=OptimizerSettings(total_steps=12, warmup_steps=1),
            tokens_per_step=150,
            average_decay=0.0,
            depth_decay=0.8,
        ),
    )
    return replace(request, **changes)


def test_a_training_leaves_a_plain_head(trained: tuple[Path, TrainingReport, list[str]]) -> None:
    folder, report, _ = trained
    config = readers.read_head(folder).config
    assert (config.method, config.num_layers, config.num_depths) == ("eagle3", 1, 3)
    assert report.mask_token_id is None
    lines = [json.loads(line) for line in (folder / "work/run/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]
    assert len(lines[0]["agreement"]) == 3


def test_the_decode_loop_takes_the_steps_and_tokens_that_the_walk_counts(
    tiny: Path, trained: tuple[Path, TrainingReport, list[str]]
) -> None:
    target = read_torch_target(tiny, torch.float32, AUXILIARY)
    head, draft_to_target = read_head(trained[0], torch.float32)
    tables = freeze_tables(target.embeddings_VH, target.head_VH, draft_to_target, torch.float32)
    engine = TorchEngine(target, head, tables, draft_tokens=DRAFTS, num_slots=2, max_length=128)
    accepted = 0
    for sequence in read_all_sequences(trained[0] / "work/features")[:4]:
        walked = measure_acceptance(head, tables, [sequence], draft_tokens=DRAFTS)
        loop = DecodeLoop(engine, None)
        prompt = tuple(sequence.token_ids[: sequence.prompt_length].tolist())
        new = len(sequence.token_ids) - len(prompt)
        loop.submit(GenerationRequest(request_id="0", prompt_ids=prompt, max_tokens=new))
        tokens = []
        while loop.has_work:
            tokens += [token for chunk in loop.step() for token in chunk.token_ids]
        assert tokens == sequence.token_ids[len(prompt) :].tolist()
        assert loop.statistics.num_steps - 1 == walked.num_steps
        accepted += sum(walked.accepted_by_position[1:])
    assert accepted > 0, "only later passes show that the head's own states arrive"


def test_a_state_of_the_other_method_is_refused(tiny: Path, tmp_path: Path) -> None:
    settings = request_for(tiny, tmp_path).settings
    short = replace(settings, optimizer=OptimizerSettings(total_steps=2, warmup_steps=1))
    train_head(request_for(tiny, tmp_path, settings=short), report=lambda line: None)
    with pytest.raises(UsageError, match="method `'eagle3'`, this one has `'p-eagle'`"):
        train_head(
            request_for(tiny, tmp_path, settings=short, method="p-eagle", is_resumed=True), report=lambda line: None
        )


def warm(trained: tuple[Path, TrainingReport, list[str]], tiny: Path, *, num_layers: int, mask: int, said: list[str]):  # type: ignore[no-untyped-def]
    start = read_warm_start(trained[0], tiny)
    config = warm_config(start, num_layers=num_layers, mask_token_id=mask, num_depths=5, max_positions=512)
    scale = torch.rand(3 * config.target_hidden_size) + 0.5
    return warm_head(start, config, scale, torch.float32, seed=1, report=said.append)


def test_a_warm_p_eagle_head_first_says_what_the_eagle3_head_says(
    tiny: Path, trained: tuple[Path, TrainingReport, list[str]]
) -> None:
    said: list[str] = []
    new = warm(trained, tiny, num_layers=3, mask=2, said=said)
    old, _ = read_head(trained[0], torch.float32)
    sequence = read_all_sequences(trained[0] / "work/features")[0]
    rows = pack_rows([sequence], [full_rows(len(sequence.token_ids) - 2, np.zeros(0, np.int64), 1)], 2).rows
    table = read_torch_target(tiny, torch.float32, AUXILIARY).embeddings_VH
    with torch.no_grad():
        torch.testing.assert_close(new(rows, table), old(rows, table), atol=1e-4, rtol=1e-4)
    assert new.config.is_parallel
    assert (new.config.mask_token_id, new.config.num_layers, new.config.num_depths) == (2, 3, 5)
    assert "an EAGLE-3 head: took over 12 tensors" in said[0]
    assert said[1:] == [
        "new: `mask_hidden`, drawn at random",
        "new: layers 1..2, which begin as passages (their output projections are zero)",
    ]


def test_what_a_start_leaves_out_is_named(tiny: Path) -> None:
    said: list[str] = []
    shipped = catalog.drafter_path(catalog.find_entry("tiny"))
    start = read_warm_start(shipped, tiny)
    config = warm_config(start, num_layers=None, mask_token_id=NO_MASK_TOKEN, num_depths=5, max_positions=512)
    scale = torch.ones(3 * config.target_hidden_size)
    head = warm_head(start, config, scale, torch.float32, seed=1, report=said.append)
    assert head.mask_hidden_A is None
    assert said[-1] == "left out: `mask_hidden`, which an EAGLE-3 head has no place for"


def test_a_p_eagle_head_trains_from_an_eagle3_head(
    tiny: Path, trained: tuple[Path, TrainingReport, list[str]], tmp_path: Path
) -> None:
    said: list[str] = []
    request = request_for(
        tiny, tmp_path, method="p-eagle", start_path=trained[0], num_layers=None, auxiliary_layers=None
    )
    short = replace(request.settings, optimizer=OptimizerSettings(total_steps=2, warmup_steps=1))
    report = train_head(replace(request, settings=short), report=said.append)
    config = readers.read_drafter(tmp_path / "head").config
    assert (config.num_layers, config.aux_layer_ids, report.mask_token_id) == (1, AUXILIARY, 2)
    assert config.draft_vocab_size == trained[1].draft_vocab_size
    assert any(line.startswith("started from") for line in said)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "segments": ({"memory": MemoryRequest(num_segments=2)}, "steps of an EAGLE-3 head are not cut"),
    "a mask token": ({"mask_token_id": 2}, "no masked slots"),
    "another vocabulary": ({"draft_vocab_size": 64}, "--draft-vocab-size is 64"),
    "other layers to read": ({"auxiliary_layers": (1, 2, 4)}, r"--aux-layers is \(1, 2, 4\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_requests_that_contradict_the_method_or_the_start_are_refused(
    tiny: Path, trained: tuple[Path, TrainingReport, list[str]], tmp_path: Path, name: str
) -> None:
    changes, reason = REFUSED[name]
    start = trained[0] if name.startswith(("another", "other")) else None
    with pytest.raises(UsageError, match=reason):
        train_head(request_for(tiny, tmp_path, start_path=start, **changes), report=lambda line: None)


def test_a_start_with_more_layers_is_refused(tiny: Path, tmp_path: Path) -> None:
    shipped = catalog.drafter_path(catalog.find_entry("tiny"))
    request = request_for(tiny, tmp_path, start_path=shipped, auxiliary_layers=None, num_layers=1)
    with pytest.raises(UsageError, match=r"--layers is 1, and .* has 2"):
        train_head(request, report=lambda line: None)


def test_a_start_of_another_target_is_refused(
    tiny: Path, trained: tuple[Path, TrainingReport, list[str]], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("config.json", "model.safetensors"):
        (other / name).write_bytes((trained[0] / name).read_bytes())
    edit_config(other, vocab_size=4096)
    with pytest.raises(CheckpointError, match="vocabulary"):
        train_head(request_for(tiny, tmp_path, start_path=other, auxiliary_layers=None), report=lambda line: None)


def test_retention_means_nothing_to_an_eagle3_head(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"prompt": "Why?"}\n')
    words = ["train", "--target", "tiny", "--data", str(tmp_path / "q.jsonl"), "-o", str(tmp_path / "head")]
    assert run(["-q", *words, "--method", "eagle3", "--retention", "0.5"]) == 2


def test_a_narrower_start_keeps_the_strongest_neurons(tiny: Path) -> None:
    said: list[str] = []
    start = read_warm_start(catalog.drafter_path(catalog.find_entry("tiny")), tiny)
    width = start.config.intermediate_size // 2
    config = warm_config(
        start, num_layers=None, mask_token_id=2, num_depths=5, max_positions=512, intermediate_size=width
    )
    scale = torch.ones(3 * config.target_hidden_size)
    head = warm_head(start, config, scale, torch.float32, seed=1, report=said.append)
    for index, layer in enumerate(head.head_layers()):
        gate, up, down = (start.state[f"layers.{index}.{name}_proj"] for name in ("gate", "up", "down"))
        weights = [float(gate[i].norm() * up[i].norm() * down[:, i].norm()) for i in range(len(gate))]
        kept = sorted(sorted(range(len(gate)), key=lambda i: -weights[i])[:width])
        torch.testing.assert_close(layer.gate_proj.detach(), gate[kept])
        torch.testing.assert_close(layer.down_proj.detach(), down[:, kept])
    assert f"kept {width} of {2 * width} neurons of each feed-forward block" in said


def test_a_wider_start_is_refused(tiny: Path, tmp_path: Path) -> None:
    shipped = catalog.drafter_path(catalog.find_entry("tiny"))
    request = replace(
        request_for(tiny, tmp_path, method="p-eagle"),
        start_path=shipped,
        auxiliary_layers=None,
        draft_vocab_size=None,
        num_layers=None,
        intermediate_size=100_000,
    )
    with pytest.raises(UsageError, match="--intermediate-size is 100000"):
        train_head(request, report=lambda line: None)
