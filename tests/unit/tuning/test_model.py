"""The machine model with constants of a machine that is made up, and so known."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from peagle_trt.build_folder import read_manifest
from peagle_trt.decode.session import LoadedBuild
from peagle_trt.errors import UsageError
from peagle_trt.spec import EngineManifest
from peagle_trt.tuning.choice import anchors
from peagle_trt.tuning.model import count_work, fit_model
from peagle_trt.tuning.passes import PLAIN, PassKind, measure_passes
from peagle_trt.tuning.stopwatch import clock_for
from peagle_trt.tuning.tune import require_tunable, write_defaults


@pytest.fixture
def manifest(tiny_build: Path) -> EngineManifest:
    return read_manifest(tiny_build)


def made_up(manifest: EngineManifest, a_byte: float, an_operation: float) -> dict[PassKind, float]:
    works = {kind: count_work(manifest, kind, 100) for kind in anchors([1, 8], 8)}
    return {kind: size * a_byte + operations * an_operation for kind, (size, operations) in works.items()}


@pytest.mark.parametrize(("a_byte", "an_operation"), [(5e-11, 1e-11), (5e-11, 0.0), (0.0, 1e-11)])
def test_constants_of_a_machine_are_found_again(manifest: EngineManifest, a_byte: float, an_operation: float) -> None:
    model = fit_model(manifest, made_up(manifest, a_byte, an_operation), context_tokens=100)
    unseen = PassKind(model="target", draft_tokens=3, batch_size=4)
    size, operations = count_work(manifest, unseen, 100)
    assert model.seconds(unseen) == pytest.approx(size * a_byte + operations * an_operation, rel=1e-6)


def test_no_constant_falls_below_nought(manifest: EngineManifest) -> None:
    # Passes that take less the more they have to do: nonsense, such as a machine that was busy at first.
    measured = {kind: 1.0 / work[1] for kind in anchors([1, 8], 8) if (work := count_work(manifest, kind, 100))}
    model = fit_model(manifest, measured, context_tokens=100)
    assert all(constant >= 0 for pair in model.constants.values() for constant in pair)


def test_a_plain_step_reads_every_weight_of_the_target_once(manifest: EngineManifest) -> None:
    target = manifest.target
    size, operations = count_work(manifest, PLAIN, 1)
    # Weights alone, in float32: what is left are caches and logits, which are small here.
    assert size > 4 * target.vocab_size * target.hidden_size
    assert operations > 2 * target.vocab_size * target.hidden_size
    assert operations < size


def scripted(times: list[float]) -> Callable[[], float]:
    return itertools.accumulate(itertools.chain.from_iterable((0.0, each) for each in times)).__next__


def test_a_machine_that_slows_down_slows_the_plain_step_too(loaded: LoadedBuild) -> None:
    kind = PassKind(model="target", draft_tokens=2, batch_size=2)
    # Plain, then the pass; the second turn is five times as slow as the others.
    clock = scripted([1.0, 1.5, 5.0, 7.5, 1.0, 1.5])
    assert measure_passes(loaded, [kind], context_tokens=5, turns=3, clock=clock) == {PLAIN: 1.0, kind: 1.5}


def test_the_clock_is_the_processors_only_where_it_computes() -> None:
    assert clock_for("onnxruntime").__name__ == "process_time"
    assert clock_for("tensorrt").__name__ == "perf_counter"


def test_a_load_that_the_build_cannot_take_is_refused(manifest: EngineManifest) -> None:
    with pytest.raises(UsageError, match="a load of 64"):
        require_tunable(manifest, [1, 64])


def test_a_sequential_head_is_refused(manifest: EngineManifest) -> None:
    sequential = msgspec.structs.replace(
        manifest, drafter=msgspec.structs.replace(manifest.drafter, mask_token_id=None, is_parallel=False)
    )
    with pytest.raises(UsageError, match="EAGLE-3"):
        require_tunable(sequential, [1])


def test_defaults_are_written_and_read_back(manifest: EngineManifest, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    write_defaults(tmp_path, ((1, 0), (4, 2)))
    shapes = read_manifest(tmp_path).shapes
    assert (shapes.draft_tokens, shapes.draft_schedule) == (2, ((1, 0), (4, 2)))
    assert msgspec.structs.replace(read_manifest(tmp_path), shapes=manifest.shapes) == manifest
