from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from peagle_trt.spec import DrafterConfig
from peagle_trt.spec.rope import RopeConfig
from peagle_trt.train.batches import pack_rows
from peagle_trt.train.features import TrainingSequence
from peagle_trt.train.head import PeagleHead
from peagle_trt.train.sampling import full_rows
from scripts.ablations import BENCHMARKS, VARIANTS, DepthEncodedHead, Variant, parse_options, write_table

WIDTH = 24
CONFIG = DrafterConfig(
    dialect="vllm",
    hidden_size=8,
    intermediate_size=12,
    num_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    rms_norm_eps=1e-5,
    rope=RopeConfig(theta=10000.0),
    max_positions=32,
    target_hidden_size=8,
    aux_layer_ids=(1, 2, 3),
    vocab_size=20,
    draft_vocab_size=20,
    mask_token_id=2,
    num_depths=3,
)


def run_head(head: PeagleHead) -> torch.Tensor:
    sequence = TrainingSequence(
        token_ids=torch.arange(3, 13, dtype=torch.int32),
        prompt_length=3,
        auxiliary_NA=torch.linspace(-1, 1, 9 * WIDTH).view(9, WIDTH),
        normed_NH=torch.ones(9, 8),
    )
    # Four depths, of which training saw three.
    rows = pack_rows([sequence], [full_rows(8, np.array([2, 4]), 4)], 2).rows
    with torch.no_grad():
        return head(rows, torch.linspace(-1, 1, 160).view(20, 8))


def test_depths_begin_alike_and_move_mask_rows_alone() -> None:
    heads = []
    for kind in (PeagleHead, DepthEncodedHead):
        torch.manual_seed(0)
        heads.append(kind(CONFIG, torch.ones(WIDTH)))
    shared, encoded = heads
    before = run_head(encoded)
    assert torch.equal(before, run_head(shared))
    with torch.no_grad():
        encoded.depth_vectors[0].fill_(9.0)
    assert torch.equal(run_head(encoded), before), "depth 0 is the context's"
    with torch.no_grad():
        encoded.depth_vectors[2].fill_(1.0)
    changed = (run_head(encoded) != before).any(dim=1)
    # Eight context rows, then depths 1, 2, 3 of two rollouts; the last reads the one before it.
    assert changed.tolist() == [False] * 8 + [False, True, True] * 2


def test_every_variant_but_the_first_differs_from_it() -> None:
    first, *others = VARIANTS.values()
    assert first == Variant(meaning=first.meaning)
    assert all(other != Variant(meaning=other.meaning) for other in others)


def test_an_unknown_variant_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ablations", "--target", "tiny", "--data", ".", "--work", ".", "--only", "shared,depth"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        parse_options()
    assert "no variant `depth`; there are shared, depth-encoded" in capsys.readouterr().err


def test_the_table_holds_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "layers-1").mkdir()
    lengths = dict(zip(BENCHMARKS, (1.5, 1.25, 1.0), strict=True))
    result = {"meaning": "1 layer", "acceptance_length": lengths, "last_loss": 2.0}
    (tmp_path / "layers-1/result.json").write_text(json.dumps(result))
    write_table(tmp_path)
    assert (tmp_path / "table.md").read_text() == capsys.readouterr().out
    assert "| layers-1 | 1 layer | 1.50 | 1.25 | 1.00 | 1.25 | 2.000 |" in (tmp_path / "table.md").read_text()
    assert json.loads((tmp_path / "table.json").read_text()) == {"layers-1": result}
