"""An engine that is off by a little is found out; each fault is made on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from peagle_trt.engine.protocol import DraftCandidates, DraftOutput, DraftRows, Engine, TargetOutput, TargetRows
from peagle_trt.errors import VerificationError
from peagle_trt.quant import open_stored, store_drafter, store_target
from peagle_trt.readers import read_drafter, read_target
from peagle_trt.spec import ARTIFACT_FORMAT, EngineManifest, TokenizerFiles
from peagle_trt.verify import ReferenceSource, build_source, checkpoint_source, compare_engine, compare_subject
from peagle_trt.verify.subject import Subject
from peagle_trt.verify.tolerances import TOLERANCES
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


class MixedSteps(FaultyEngine):
    def preload(self, *, plain_steps: bool = True) -> None: ...

    def preload_steps(self) -> bool:
        return True

    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        outputs = super().run_target(rows)
        return outputs[::-1] if all(len(item.token_ids) == 1 for item in rows) else outputs


def test_a_sound_engine_passes(pair: BuiltPair, manifest: EngineManifest, source: ReferenceSource) -> None:
    outcome = compare_engine(pair.engine, manifest, source)
    assert outcome.max_logit_error < 1e-4
    assert outcome.num_drafts_compared == 4 * manifest.shapes.draft_tokens


def test_candidates_in_place_of_logits_pass(pair: BuiltPair, manifest: EngineManifest, source: ReferenceSource) -> None:
    outcome = compare_engine(Candidates(pair.engine), manifest, source)
    assert outcome.max_draft_logit_error < 1e-5


def test_a_recipe_without_a_limit_is_measured_and_not_judged(
    pair: BuiltPair, manifest: EngineManifest, source: ReferenceSource
) -> None:
    subject = Subject(engine=NoisyLogits(pair.engine), description="x", tolerance=TOLERANCES["fp8"])
    outcome = compare_subject(subject, manifest, source)
    assert outcome.logit_tolerance is None
    assert "measured, not judged: logits stray 1.0e-02" in outcome.summary()
    with pytest.raises(VerificationError, match="off by nan"):
        compare_subject(replace(subject, engine=UndefinedLogits(pair.engine)), manifest, source)


def test_a_drafter_that_is_rounded_alone_has_a_limit_of_its_own(
    pair: BuiltPair, manifest: EngineManifest, source: ReferenceSource
) -> None:
    subject = Subject(engine=pair.engine, description="x", tolerance=TOLERANCES["fp32-int8-drafter"])
    outcome = compare_subject(subject, manifest, source)
    assert (outcome.logit_tolerance, outcome.draft_logit_tolerance) == (5e-3, 4.0)
    assert "(limit 0.005), drafts' " in outcome.summary()
    with pytest.raises(VerificationError, match="target logits are off by 1"):
        compare_subject(replace(subject, engine=NoisyLogits(pair.engine)), manifest, source)


def test_a_recipe_that_rounds_is_suspected_before_the_backend(
    pair: BuiltPair, manifest: EngineManifest, source: ReferenceSource
) -> None:
    rounded = msgspec.structs.replace(manifest, precision="bf16")
    subject = Subject(engine=UndefinedLogits(pair.engine), description="the graphs", tolerance=TOLERANCES["bf16"])
    with pytest.raises(VerificationError, match=r"^the graphs disagree with the reference") as caught:
        compare_subject(subject, rounded, source)
    assert "bf16 may be too coarse for these weights" in caught.value.hint


def test_a_build_can_stand_in_for_its_checkpoints(folder: Path, pair: BuiltPair, manifest: EngineManifest) -> None:
    weights = [open_stored(folder / "build" / "engine" / f"{model}.safetensors") for model in ("target", "drafter")]
    source = build_source(manifest.target, manifest.drafter, weights[0], weights[1])
    assert compare_engine(pair.engine, manifest, source).max_logit_error < 1e-4


@pytest.mark.parametrize("precision", ["fp8", "nvfp4", "int8", "int4"])
def test_a_build_of_codes_is_read_as_the_numbers_they_are_worth(folder: Path, tmp_path: Path, precision: str) -> None:
    target, drafter = read_target(folder / "target"), read_drafter(folder / "head")
    paths = tmp_path / "target.safetensors", tmp_path / "drafter.safetensors"
    stored = (
        store_target(precision, target, paths[0]),
        store_drafter(precision, drafter, target, paths[1]),
    )
    source = build_source(target.config, drafter.config, *stored)
    limit = {"fp8": 0.04, "nvfp4": 0.12, "int8": 0.01, "int4": 0.1}[precision]
    names = [f"layers.1.{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down")]
    for load, weights in ((source.load_target, target.weights), (source.load_drafter, drafter.weights)):
        for name in names:
            plain = weights.load(name)
            error = np.linalg.norm(load(name) - plain) / np.linalg.norm(plain)
            # Nothing would be 0, and another matrix 1.4.
            assert 1e-4 < error < limit


class Candidates(FaultyEngine):
    """Gives what a batched engine gives in place of logits, from those of a real one."""

    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        outputs = super().run_target(rows)
        return [replace(output, greedy_token_ids=output.logits.argmax(axis=1).astype(np.int32)) for output in outputs]

    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        output = super().run_drafter(rows, draft_tokens)
        chosen = np.argsort(-output.logits, axis=-1, kind="stable")[:, :, :8]
        weights = np.exp(np.take_along_axis(output.logits, chosen, axis=-1))
        probabilities = weights / weights.sum(axis=-1, keepdims=True)
        ids = self.draft_to_target[chosen].astype(np.int32)
        return replace(output, logits=None, candidates=DraftCandidates(token_ids=ids, probabilities=probabilities))


class WrongArgmax(Candidates):
    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        outputs = super().run_target(rows)
        return [replace(output, greedy_token_ids=output.greedy_token_ids ^ 1) for output in outputs]


class SpoiledCandidates(Candidates):
    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        output = super().run_drafter(rows, draft_tokens)
        return replace(output, candidates=self.spoil(output.candidates))

    def spoil(self, candidates: DraftCandidates) -> DraftCandidates: ...


class WrongProbabilities(SpoiledCandidates):
    def spoil(self, candidates: DraftCandidates) -> DraftCandidates:
        return replace(candidates, probabilities=candidates.probabilities[:, :, ::-1])


class TwiceTheSameCandidate(SpoiledCandidates):
    def spoil(self, candidates: DraftCandidates) -> DraftCandidates:
        return replace(candidates, token_ids=candidates.token_ids[:, :, [0, 0, 2, 3, 4, 5, 6, 7]])


class UnlikelyCandidate(SpoiledCandidates):
    def spoil(self, candidates: DraftCandidates) -> DraftCandidates:
        others = [token for token in self.draft_to_target.tolist() if token not in candidates.token_ids[0, 0]]
        ids = candidates.token_ids.copy()
        ids[:, :, -1] = others[0]
        return replace(candidates, token_ids=ids)


FAULTS = {
    NoisyLogits: "prompt: target logits are off by 1",
    UndefinedLogits: "prompt: target logits are off by nan",
    ShiftedPositions: "second draft: drafter logits are off",
    WrongDraft: "draft: slot . drafted token",
    MixedBatch: "batch of two, 17 rows: target logits are off",
    MixedSteps: "plain step of two, after 17 rows: target logits are off",
    WrongArgmax: "prompt: row 0 is followed by token",
    WrongProbabilities: "draft: drafter candidates are off",
    TwiceTheSameCandidate: "draft: drafter candidates are off by inf",
    UnlikelyCandidate: "draft: drafter candidates are off by inf",
}


@pytest.mark.parametrize(("fault", "message"), FAULTS.items())
def test_a_faulty_engine_is_found_out(
    fault: type[FaultyEngine], message: str, pair: BuiltPair, manifest: EngineManifest, source: ReferenceSource
) -> None:
    with pytest.raises(VerificationError, match=message):
        compare_engine(fault(pair.engine), manifest, source)
