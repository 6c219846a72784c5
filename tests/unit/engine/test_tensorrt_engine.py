"""The code that runs engines on a GPU, over a fake whose every address, shape and order is checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from peagle_trt.decode.session import LoadedBuild
from peagle_trt.engine.batched_engine import BatchedEngine
from peagle_trt.engine.protocol import DraftRows, TargetRows, host_rows
from peagle_trt.engine.registry import check_record
from peagle_trt.engine.tensorrt.engine import check_engines, open_tensorrt_engine
from peagle_trt.engine.tensorrt.library import Library, load_library
from peagle_trt.errors import MachineError, PeagleError, UsageError
from peagle_trt.machine import Gpu, Machine, probe_machine
from peagle_trt.spec import EngineFile, EngineManifest
from tests.support.capabilities import needs
from tests.support.fake_cuda import FakeCuda
from tests.support.fake_tensorrt import FakeContext, fake_tensorrt, write_plan
from tests.support.generations import generate_all, make_requests
from tests.support.gpu_builds import VERSION, make_gpu_build, open_fake_engine, with_plugins

LENGTHS = (1, 17, 18, 200, 3, 40, 5, 90, 16)


@pytest.fixture(scope="module")
def gpu_build(tiny_build: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EngineManifest]:
    folder = tmp_path_factory.mktemp("gpu") / "tiny"
    return folder, make_gpu_build(tiny_build, folder)


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def engine(gpu_build: tuple[Path, EngineManifest], cuda: FakeCuda) -> Iterator[BatchedEngine]:
    engine = open_fake_engine(*gpu_build, cuda)
    yield engine
    engine.close()
    assert cuda.is_clean


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_whole_generations_equal_the_cpu_engine(
    loaded: LoadedBuild, engine: BatchedEngine, cuda: FakeCuda, temperature: float
) -> None:
    requests = make_requests(engine, LENGTHS, temperature=temperature)
    assert generate_all(engine, requests) == generate_all(loaded.engine, requests)
    assert cuda.num_captures > 0
    assert cuda.num_replays > cuda.num_captures


def test_steps_of_a_single_answer_are_captured(engine: BatchedEngine, cuda: FakeCuda) -> None:
    generate_all(engine, make_requests(engine, (30,), max_tokens=60))
    assert cuda.num_captures == 2
    assert cuda.num_replays > 4


def test_a_context_that_cannot_be_captured_is_launched(
    loaded: LoadedBuild, gpu_build: tuple[Path, EngineManifest], cuda: FakeCuda
) -> None:
    engine = open_fake_engine(*gpu_build, cuda, can_capture=False)
    requests = make_requests(engine, LENGTHS[:3])
    assert generate_all(engine, requests) == generate_all(loaded.engine, requests)
    assert cuda.num_captures == 0
    engine.close()


def test_an_engine_with_plugins_has_a_context_for_every_shape_of_a_step(
    loaded: LoadedBuild, gpu_build: tuple[Path, EngineManifest], cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: dict[int, set[tuple[str, tuple[int, ...]]]] = {}
    plain = FakeContext.set_input_shape

    def remember(context: FakeContext, name: str, shape: tuple[int, ...]) -> bool:
        shapes.setdefault(id(context), set()).add((name, shape))
        return plain(context, name, shape)

    monkeypatch.setattr(FakeContext, "set_input_shape", remember)
    engine = open_fake_engine(gpu_build[0], with_plugins(gpu_build[1]), cuda)
    requests = make_requests(engine, LENGTHS[3:6])
    assert generate_all(engine, requests) == generate_all(loaded.engine, requests)
    changed = [each for each in shapes.values() if len(dict(each)) < len(each)]
    # Those that read prompts, of the target and of the drafter, are alone in changing.
    assert len(changed) == 2 < len(shapes)
    engine.close()


def test_greedy_steps_bring_no_logits_down(engine: BatchedEngine, cuda: FakeCuda) -> None:
    generate_all(engine, make_requests(engine, (30, 40)))
    a_row_of_logits = 4 * engine.target.vocab_size
    steps = 40
    assert cuda.num_bytes_down < steps * a_row_of_logits


def test_hidden_states_of_a_step_are_read_where_the_target_left_them(engine: BatchedEngine, cuda: FakeCuda) -> None:
    outputs = engine.run_target([rows(0, 6), rows(1, 6)])
    engine.run_drafter([drafts(0, outputs[0].hidden), drafts(1, outputs[1].hidden)], 3)
    assert cuda.num_moves == 0


def test_hidden_states_that_lie_otherwise_are_moved_on_the_device(engine: BatchedEngine, cuda: FakeCuda) -> None:
    outputs = engine.run_target([rows(0, 6), rows(1, 30)])
    apart = engine.run_drafter([drafts(0, outputs[0].hidden)], 3)
    together = engine.run_drafter([drafts(1, host_rows(outputs[1].hidden))], 3)
    assert cuda.num_moves == 0
    both = engine.run_drafter([drafts(0, outputs[0].hidden), drafts(1, outputs[1].hidden)], 3)
    assert both.token_ids.tolist() == [*apart.token_ids.tolist(), *together.token_ids.tolist()]


def test_rows_from_host_and_device_share_a_pass(engine: BatchedEngine, cuda: FakeCuda) -> None:
    outputs = engine.run_target([rows(0, 6), rows(1, 6)])
    expected = engine.run_drafter([drafts(0, outputs[0].hidden), drafts(1, outputs[1].hidden)], 3)
    mixed = engine.run_drafter([drafts(0, outputs[0].hidden), drafts(1, host_rows(outputs[1].hidden))], 3)
    assert mixed.token_ids.tolist() == expected.token_ids.tolist()
    assert cuda.num_moves == 1


def test_hidden_states_of_an_earlier_step_are_refused(engine: BatchedEngine) -> None:
    (old,) = engine.run_target([rows(0, 6)])
    engine.run_target([rows(1, 6)])
    with pytest.raises(ValueError, match="belong to an earlier step"):
        engine.run_drafter([drafts(0, old.hidden)], 3)


def test_a_closed_engine_loads_again(engine: BatchedEngine, cuda: FakeCuda) -> None:
    (before,) = engine.run_target([rows(0, 6)])
    engine.close()
    engine.close()
    assert cuda.is_clean
    engine.preload()
    (after,) = engine.run_target([rows(0, 6)])
    np.testing.assert_array_equal(before.logits, after.logits)


def test_a_device_without_room_says_so(gpu_build: tuple[Path, EngineManifest]) -> None:
    engine = open_fake_engine(*gpu_build, FakeCuda(memory_bytes=1 << 16))
    with pytest.raises(MachineError, match="cudaMalloc failed: cudaErrorMemoryAllocation") as caught:
        engine.preload()
    assert "--max-batch-size" in caught.value.hint


def test_a_pass_that_no_profile_takes_names_both_sides(gpu_build: tuple[Path, EngineManifest], cuda: FakeCuda) -> None:
    folder, manifest = gpu_build
    wider = msgspec.structs.replace(manifest.shapes, draft_tokens=16, max_batch_size=16)
    engine = open_fake_engine(folder, msgspec.structs.replace(manifest, shapes=wider), cuda)
    with pytest.raises(
        UsageError,
        match=r"B 16, S 17, L 1 fits no profile of `engine/target.plan`, which takes step.b1: B 1\.\.1.*B 2\.\.8, S 1",
    ):
        engine.run_target([rows(0, 6), rows(15, 6)])


def test_a_file_that_is_no_engine_is_refused_with_the_librarys_words(
    gpu_build: tuple[Path, EngineManifest], cuda: FakeCuda, tmp_path: Path
) -> None:
    engine = open_fake_engine(copy_plans(gpu_build, tmp_path, b"not an engine"), gpu_build[1], cuda)
    with pytest.raises(PeagleError, match=r"could not load `target.plan`: magic tag does not match"):
        engine.preload()


def test_a_missing_engine_is_named(gpu_build: tuple[Path, EngineManifest], cuda: FakeCuda, tmp_path: Path) -> None:
    folder = copy_plans(gpu_build, tmp_path, b"")
    with pytest.raises(MachineError, match=r"target.plan` is not there, or empty"):
        open_fake_engine(folder, gpu_build[1], cuda).preload()
    (folder / "engine/target.plan").unlink()
    with pytest.raises(MachineError, match=r"target.plan` is not there, or empty"):
        open_fake_engine(folder, gpu_build[1], cuda).preload()


def test_a_cache_that_is_not_updated_in_place_is_refused(
    gpu_build: tuple[Path, EngineManifest], cuda: FakeCuda, tmp_path: Path
) -> None:
    folder = copy_plans(gpu_build, tmp_path, b"")
    profiles = gpu_build[1].engines["target"].profiles
    write_plan(folder / "engine/target.plan", gpu_build[0] / "engine/target.onnx", profiles, is_aliased=False)
    with pytest.raises(UsageError, match=r"does not update `key\.0` in place"):
        open_fake_engine(folder, gpu_build[1], cuda).preload()


@pytest.mark.parametrize(("capability", "version"), [("89", VERSION), ("120", "9.9")])
def test_an_engine_of_another_gpu_or_version_is_refused(
    gpu_build: tuple[Path, EngineManifest], cuda: FakeCuda, capability: str, version: str
) -> None:
    library = Library(backend="tensorrt-rtx", module=fake_tensorrt(cuda), version=version)
    with pytest.raises(MachineError) as caught:
        check_engines(gpu_build[1], library, capability, "a card")
    assert f"for SM120 by tensorrt-rtx {VERSION}" in caught.value.message
    assert f"this machine has SM{capability} (a card) and tensorrt-rtx {version}" in caught.value.message


def test_an_engine_in_the_place_of_another_is_refused(
    gpu_build: tuple[Path, EngineManifest], cuda: FakeCuda, tmp_path: Path
) -> None:
    folder = copy_plans(gpu_build, tmp_path, (gpu_build[0] / "engine/drafter.plan").read_bytes())
    with pytest.raises(UsageError, match=r"`engine/target.plan` has \d+ caches of .*; its manifest says \d+ of"):
        open_fake_engine(folder, gpu_build[1], cuda).preload()


def test_an_engine_with_shorter_caches_than_the_manifest_says_is_refused(
    gpu_build: tuple[Path, EngineManifest], cuda: FakeCuda
) -> None:
    folder, manifest = gpu_build
    longer = msgspec.structs.replace(manifest.shapes, cache_capacity=manifest.shapes.cache_capacity + 1)
    with pytest.raises(UsageError, match="its manifest says"):
        open_fake_engine(folder, msgspec.structs.replace(manifest, shapes=longer), cuda).preload()


def complete(manifest: EngineManifest) -> EngineManifest:
    """With its engines in the list of files, as a published build has them."""
    files = tuple(EngineFile(path=each.path, size_bytes=0, sha256="") for each in manifest.engines.values())
    graphs = {role: f"engine/{role}.onnx" for role in manifest.engines}
    return msgspec.structs.replace(manifest, files=files, graphs=graphs)


def change(manifest: EngineManifest, role: str, **changes: Any) -> EngineManifest:
    changed = msgspec.structs.replace(manifest.engines[role], **changes)
    return msgspec.structs.replace(manifest, engines={**manifest.engines, role: changed})


def test_a_manifest_as_it_was_written_is_taken(gpu_build: tuple[Path, EngineManifest]) -> None:
    check_record(complete(gpu_build[1]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "../../etc/passwd"}, "is not the file of that name in its list"),
        ({"sha256": "0"}, "is not the file of that name in its list"),
        ({"size_bytes": 1}, "is not the file of that name in its list"),
        ({"path": "engine/drafter.plan"}, "`engine/drafter.plan` is not its target"),
        ({"compiler": "gcc"}, "was compiled by gcc"),
        ({"compute_capabilities": ()}, "was compiled by"),
        ({"profiles": ()}, "takes B up to 0, and its limits say 8"),
    ],
)
def test_an_edited_record_of_an_engine_is_refused(
    gpu_build: tuple[Path, EngineManifest], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_record(change(complete(gpu_build[1]), "target", **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engines": {}}, "holds no engines of `tensorrt-rtx`"),
        ({"graphs": {}}, "holds no graphs for `tensorrt-rtx`"),
        ({"backend": "onnxruntime"}, "holds no graphs for `onnxruntime`"),
        ({"backend": "tensorrt"}, "was compiled by tensorrt-rtx"),
        ({"backend": "abacus"}, "backend `abacus` is unknown"),
    ],
)
def test_an_edited_manifest_is_refused(
    gpu_build: tuple[Path, EngineManifest], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_record(msgspec.structs.replace(complete(gpu_build[1]), **changes))


def test_more_sequences_than_the_engines_take_are_refused(gpu_build: tuple[Path, EngineManifest]) -> None:
    manifest = complete(gpu_build[1])
    wider = msgspec.structs.replace(manifest.shapes, max_batch_size=64)
    with pytest.raises(UsageError, match="takes B up to 8, and its limits say 64"):
        check_record(msgspec.structs.replace(manifest, shapes=wider))


@pytest.mark.rtx
@needs("rtx")
@pytest.mark.parametrize(
    ("capability", "version", "remedy"),
    [("100", VERSION, "--backend tensorrt"), ("89", VERSION, "--sm 89"), ("120", "9.9", f"tensorrt-rtx {VERSION}")],
)
def test_the_remedy_is_one_that_works(
    gpu_build: tuple[Path, EngineManifest], capability: str, version: str, remedy: str
) -> None:
    library = replace(load_library("tensorrt-rtx"), version=version)
    with pytest.raises(MachineError) as caught:
        check_engines(gpu_build[1], library, capability, "a card")
    assert remedy in caught.value.hint


def test_a_machine_without_a_gpu_is_told_so(gpu_build: tuple[Path, EngineManifest]) -> None:
    machine = this_machine(gpus=())
    with pytest.raises(MachineError, match="runs on an NVIDIA GPU, and this machine shows none"):
        open_tensorrt_engine(*gpu_build, machine)


def test_an_old_driver_is_named_with_both_versions(gpu_build: tuple[Path, EngineManifest]) -> None:
    gpu = Gpu(name="a card", compute_capability="12.0", memory_bytes=1, driver="550.1")
    with pytest.raises(MachineError, match=r"driver 550.1 is made for CUDA 12.4; .* needs one for CUDA 13.0"):
        open_tensorrt_engine(*gpu_build, this_machine(gpus=(gpu,), driver_cuda_version=12040))


def this_machine(**changes: Any) -> Machine:
    return replace(probe_machine(), **changes)


def copy_plans(gpu_build: tuple[Path, EngineManifest], folder: Path, content: bytes) -> Path:
    (folder / "engine").mkdir()
    for name in ("drafter.safetensors", "drafter.plan"):
        (folder / "engine" / name).write_bytes((gpu_build[0] / "engine" / name).read_bytes())
    (folder / "engine/target.plan").write_bytes(content)
    return folder


def rows(slot: int, count: int) -> TargetRows:
    ids = np.arange(5 + slot, 5 + slot + count, dtype=np.int32)
    return TargetRows(slot=slot, token_ids=ids, start_position=0, num_logit_rows=1)


def drafts(slot: int, hidden: object) -> DraftRows:
    count = hidden.shape[0]  # type: ignore[attr-defined]
    ids = np.arange(6 + slot, 6 + slot + count, dtype=np.int32)
    return DraftRows(slot=slot, next_token_ids=ids, hidden=hidden, num_accepted=count - 1, start_position=0)  # type: ignore[arg-type]
