"""A slot that is handed another's rows goes on as the other does, in every engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from peagle_trt.build_folder import read_manifest
from peagle_trt.decode.session import LoadedBuild
from peagle_trt.engine.paired import PairedEngine
from peagle_trt.engine.proof import open_proof
from peagle_trt.engine.protocol import CopyingEngine, DraftRows, TargetRows, host_rows
from peagle_trt.engine.tensorrt.device import Device
from peagle_trt.engine.tensorrt.memory import CachePort, DeviceCaches
from tests.support.fake_cuda import FakeCuda
from tests.support.gpu_builds import make_gpu_build, open_fake_engine

NUM_ROWS = 40


@pytest.fixture(params=["onnxruntime", "two builds", "dense passes", "tensorrt"])
def engine(
    request: pytest.FixtureRequest, tiny_build: Path, loaded: LoadedBuild, tmp_path: Path
) -> Iterator[CopyingEngine]:
    if request.param == "onnxruntime":
        assert isinstance(loaded.engine, CopyingEngine)
        yield loaded.engine
        return
    if request.param == "two builds":
        yield PairedEngine(loaded.engine, loaded.engine)
        return
    if request.param == "dense passes":
        manifest = msgspec.structs.replace(read_manifest(tiny_build), backend="tensorrt-rtx")
        found = open_proof(tiny_build, manifest, num_threads=1)
    else:
        found = open_fake_engine(tmp_path / "gpu", make_gpu_build(tiny_build, tmp_path / "gpu"), FakeCuda())
    yield found
    found.close()


def go_on(engine: CopyingEngine, slot: int) -> tuple[list[float], list[int]]:
    """Logits of the prompt's last row and of another, and the drafts after them."""
    rows = TargetRows(slot=slot, token_ids=np.int32([7, 8]), start_position=NUM_ROWS, num_logit_rows=2)
    (output,) = engine.run_target([rows])
    hidden = host_rows(output.hidden).copy()
    draft_rows = DraftRows(
        slot=slot, next_token_ids=np.int32([8, 9]), hidden=hidden, num_accepted=1, start_position=NUM_ROWS
    )
    return output.logits.reshape(-1).tolist(), engine.run_drafter([draft_rows], 3).token_ids[0].tolist()


def test_a_slot_goes_on_from_rows_that_another_read(engine: CopyingEngine) -> None:
    ids = np.random.default_rng(0).integers(3, engine.target.vocab_size, NUM_ROWS).astype(np.int32)
    (output,) = engine.run_target([TargetRows(slot=0, token_ids=ids, start_position=0, num_logit_rows=0)])
    hidden = host_rows(output.hidden).copy()
    follow = np.append(ids[1:], np.int32(7))
    engine.run_drafter(
        [DraftRows(slot=0, next_token_ids=follow, hidden=hidden, num_accepted=NUM_ROWS - 1, start_position=0)], 1
    )
    engine.copy_rows(0, 2, NUM_ROWS)
    assert go_on(engine, 2) == go_on(engine, 0)
    engine.copy_rows(0, 3, NUM_ROWS - 9)
    # Nine rows of what the slot held before are not what was read.
    assert go_on(engine, 3)[0] != go_on(engine, 0)[0]


@pytest.mark.parametrize(("source", "target", "rows"), [(0, 0, 4), (0, 99, 4), (-1, 1, 4), (0, 1, 10**6)])
def test_what_cannot_be_copied_is_refused(engine: CopyingEngine, source: int, target: int, rows: int) -> None:
    with pytest.raises(ValueError, match=r"expected different ones|the cache holds"):
        engine.copy_rows(source, target, rows)


def test_on_a_device_every_head_of_a_cache_is_copied_and_nothing_behind_the_rows() -> None:
    cuda = FakeCuda()
    device = Device(cuda)
    port = CachePort(name="key.0", dtype=np.dtype(np.float32), shape=(2, 5, 3))
    caches = DeviceCaches(device, {"key.0": port}, num_slots=3, first_key_row=np.float32([7, 7, 7]))
    address = caches.addresses(0)["key.0"]
    buffer = device.allocate_host(3 * port.slot_bytes)
    cells = buffer.view(np.dtype(np.float32), (3, 2, 5, 3))
    cells[...] = np.arange(90).reshape(3, 2, 5, 3)
    device.upload(address, buffer.address, 3 * port.slot_bytes)
    device.wait()
    expected = cells.copy()
    expected[2, :, :4] = expected[1, :, :4]
    caches.copy_rows(1, 2, 4)
    device.download(buffer.address, address, 3 * port.slot_bytes)
    device.wait()
    np.testing.assert_array_equal(cells, expected)
