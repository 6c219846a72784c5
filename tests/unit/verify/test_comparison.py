"""An engine that is off by a little is found out; each fault is made on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from peagle_trt.engine.protocol import DraftOutput, DraftRows, Engine, TargetOutput, TargetRows
from peagle_trt.errors import VerificationError
from peagle_trt.quant import open_stored
from peagle_trt.spec import ARTIFACT_FORMAT, EngineManifest, TokenizerFiles
from peagle_trt.verify import ReferenceSource, build_source, checkpoint_source, compare_engine
from tests.support.models import BuiltPair, open_pair, save_drafter, save_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    save_target(folder / "target")
    save_drafter(folder / "head", draft_vocab_size=120)
    return folder


@pytest.fixture(scope="module")
def pair(folder: Path) -> BuiltPair:
    return open_pair(folder / "target", folder / "head", folder / "build", max_batch_size=2)


@pytest.fixture(scope="module")
def manifest(pair: BuiltPair) -> EngineManifest:
    return EngineManifest(
        format=ARTIFACT_FORMAT,
        peagle_trt_version="0",
        name="random",
        backend="onnxruntime",
        precision="fp32",
        target=pair.engine.target,
        drafter=pair.engine.drafter,
        shapes=pair.engine.shapes,
        tokenizer=TokenizerFiles(tokenizer="", chat_template=None),
        graphs={},
        files=(),
        sources={},
    )


@pytest.fixture(scope="module")
def source(pair: BuiltPair) -> ReferenceSource:
    return checkpoint_source(pair.target, pair.drafter)


class FaultyEngine:
    """Passes everything on to a real engine, except what a subclass spoils."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.target, self.drafter, self.shapes = engine.target, engine.drafter, engine.shapes
        self.draft_to_target = engine.draft_to_target

    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        return self._engine.run_target(rows)

    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        return self._engine.run_drafter(rows, draft_tokens)

    def close(self) -> None: ...


class NoisyLogits(FaultyEngine):
    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        return [replace(output, logits=output.logits + np.float32(0.01)) for output in super().run_target(rows)]


class UndefinedLogits(FaultyEngine):
    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        return [replace(output, logits=output.logits * np.float32("nan")) for output in super().run_target(rows)]


class ShiftedPositions(FaultyEngine):
    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        moved = [replace(row, start_position=row.start_position + (row.start_position > 0)) for row in rows]
        return super().run_drafter(moved, draft_tokens)


class WrongDraft(FaultyEngine):
    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        output = super().run_drafter(rows, draft_tokens)
        return replace(output, token_ids=np.roll(output.token_ids, 1, axis=1))


class MixedBatch(FaultyEngine):
    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        outputs = super().run_target(rows)
        if len(outputs) > 1:
            outputs[0].logits[-1] = outputs[1].logits[0]
        return outputs


def test_a_sound_engine_passes(pair: BuiltPair, manifest: EngineManifest, source: ReferenceSource) -> None:
    outcome = compare_engine(pair.engine, manifest, source)
    assert outcome.max_logit_error < 1e-4
    assert outcome.num_drafts_compared == 4 * manifest.shapes.draft_tokens


def test_a_build_can_stand_in_for_its_checkpoints(folder: Path, pair: BuiltPair, manifest: EngineManifest) -> None:
    weights = [open_stored(folder / "build" / "engine" / f"{model}.safetensors") for model in ("target", "drafter")]
    source = build_source(manifest.target, manifest.drafter, weights[0], weights[1])
    assert compare_engine(pair.engine, manifest, source).max_logit_error < 1e-4


FAULTS = {
    NoisyLogits: "prompt: target logits are off by 1",
    UndefinedLogits: "prompt: target logits are off by nan",
    ShiftedPositions: "second draft: drafter logits are off",
    WrongDraft: "draft: slot . drafted token",
    MixedBatch: "batch of two, 17 rows: target logits are off",
}


@pytest.mark.parametrize(("fault", "message"), FAULTS.items())
def test_a_faulty_engine_is_found_out(
    fault: type[FaultyEngine], message: str, pair: BuiltPair, manifest: EngineManifest, source: ReferenceSource
) -> None:
    with pytest.raises(VerificationError, match=message):
        compare_engine(fault(pair.engine), manifest, source)
