"""Plain EAGLE-3 heads in the comparison: the reference is right, and a pass that is off by a little is found out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from peagle_trt.engine.protocol import DraftOutput, DraftRows, DraftStep, TargetOutput, TargetRows
from peagle_trt.errors import VerificationError
from peagle_trt.readers import read_head, read_target
from peagle_trt.spec import ARTIFACT_FORMAT, EngineManifest, TokenizerFiles
from peagle_trt.verify import checkpoint_source, compare_engine
from peagle_trt.verify.reference import run_sequential_drafter
from tests.support.drafter_reference import DrafterReference
from tests.support.models import HIDDEN, VOCABULARY, BuiltPair, open_pair, save_drafter, save_target

HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "normed": {"norm_before_fc": True, "norm_before_residual": True, "norm_output": True},
    "reduced": {"draft_vocab_size": 120, "num_hidden_layers": 1},
}


@pytest.mark.parametrize("settings", HEADS.values(), ids=HEADS.keys())
def test_a_sequential_drafter_is_computed_as_the_torch_reference_does(tmp_path: Path, settings: dict[str, Any]) -> None:
    save_target(tmp_path / "target")
    tensors = save_drafter(tmp_path / "head", mask_token_id=None, **settings)
    target, drafter = read_target(tmp_path / "target"), read_head(tmp_path / "head")
    source = checkpoint_source(target, drafter)
    rng = np.random.default_rng(5)
    next_ids, hidden = rng.integers(0, VOCABULARY, 7), rng.standard_normal((7, 3 * HIDDEN))
    drafts = rng.integers(0, VOCABULARY, 4)
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    tables = source.load_drafter("embed_tokens"), source.load_drafter("lm_head")
    reference = DrafterReference(tensors, config, *tables)
    expected = reference.sequential_logits(next_ids.tolist(), hidden, drafts[:-1].tolist())
    found = run_sequential_drafter(drafter.config, source.load_drafter, next_ids, hidden, drafts)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> BuiltPair:
    folder = tmp_path_factory.mktemp("sequential")
    save_target(folder / "target")
    save_drafter(folder / "head", mask_token_id=None, num_hidden_layers=1)
    return open_pair(folder / "target", folder / "head", folder / "build", max_batch_size=2)


def manifest_of(pair: BuiltPair, **of_the_drafter: bool) -> EngineManifest:
    return EngineManifest(
        format=ARTIFACT_FORMAT,
        peagle_trt_version="0",
        name="random",
        backend="onnxruntime",
        precision="fp32",
        target=pair.engine.target,
        drafter=msgspec.structs.replace(pair.engine.drafter, **of_the_drafter),
        shapes=pair.engine.shapes,
        tokenizer=TokenizerFiles(tokenizer="", chat_template=None),
        graphs={},
        files=(),
        sources={},
    )


def test_a_sound_engine_passes(pair: BuiltPair) -> None:
    outcome = compare_engine(pair.engine, manifest_of(pair), checkpoint_source(pair.target, pair.drafter))
    assert outcome.num_drafts_compared == 4 * pair.engine.shapes.draft_tokens


class FaultyEngine:
    """Passes everything on to a real engine, except what a subclass spoils."""

    def __init__(self, pair: BuiltPair) -> None:
        self._engine = pair.engine
        self.target, self.drafter, self.shapes = pair.engine.target, pair.engine.drafter, pair.engine.shapes
        self.draft_to_target = pair.engine.draft_to_target

    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        return self._engine.run_target(rows)

    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        return self._engine.run_drafter(rows, draft_tokens)

    def step_drafter(self, rows: Sequence[DraftStep]) -> DraftOutput:
        return self._engine.step_drafter([self.spoil(row) for row in rows])

    def spoil(self, row: DraftStep) -> DraftStep:
        return row

    def preload(self) -> None:
        self._engine.preload()

    def close(self) -> None:
        self._engine.close()


class ShiftedPosition(FaultyEngine):
    def spoil(self, row: DraftStep) -> DraftStep:
        return replace(row, position=row.position - 1)


class StaleState(FaultyEngine):
    def spoil(self, row: DraftStep) -> DraftStep:
        return replace(row, hidden=row.hidden * 1.01)


class AnotherToken(FaultyEngine):
    def spoil(self, row: DraftStep) -> DraftStep:
        return replace(row, token_id=(row.token_id + 1) % VOCABULARY)


@pytest.mark.parametrize("fault", [ShiftedPosition, StaleState, AnotherToken])
def test_a_faulty_pass_is_found_out(fault: type[FaultyEngine], pair: BuiltPair) -> None:
    with pytest.raises(VerificationError, match="drafter logits are off"):
        compare_engine(fault(pair), manifest_of(pair), checkpoint_source(pair.target, pair.drafter))


def test_a_state_from_the_wrong_side_of_the_norm_is_found_out(pair: BuiltPair) -> None:
    with pytest.raises(VerificationError, match="drafter logits are off"):
        compare_engine(pair.engine, manifest_of(pair, norm_output=True), checkpoint_source(pair.target, pair.drafter))
