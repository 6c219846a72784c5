"""Downloads from a hub that runs here, and everything it and the disk may do wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import huggingface_hub.constants
import pytest

from peagle_trt.catalog.entries import HubRepository
from peagle_trt.catalog.hub import fetch_repository, find_repository
from peagle_trt.errors import CheckpointError, MachineError, PeagleError, UsageError
from tests.support.hub import COMMIT, FakeHub, list_file
from tests.unit.catalog.conftest import REPOSITORY, WEIGHTS


def fetch(source: HubRepository) -> Path:
    return fetch_repository(source, remedy="do it elsewhere", report=print)


def blobs() -> Path:
    return Path(huggingface_hub.constants.HF_HUB_CACHE) / "models--someone--a-model" / "blobs"


def test_a_repository_arrives_without_what_could_run(hub: FakeHub, source: HubRepository) -> None:
    folder = fetch(source)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert {path for _, path, _ in hub.requests if path.endswith((".py", ".bin"))} == set()


def test_what_is_here_is_found_by_us_and_by_the_hub_s_own_library(hub: FakeHub, source: HubRepository) -> None:
    folder = fetch(source)
    hub.requests.clear()
    assert find_repository(source) == fetch(source) == folder
    found = huggingface_hub.snapshot_download(
        REPOSITORY, local_files_only=True, cache_dir=huggingface_hub.constants.HF_HUB_CACHE
    )
    assert (Path(found), folder.name, hub.requests) == (folder, COMMIT, [])


def test_what_the_hub_s_own_library_downloaded_is_found(
    hub: FakeHub, source: HubRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetch(source)
    (folder.parents[1] / "refs" / "main").unlink()
    assert find_repository(source) is None
    pinned = HubRepository(repository=REPOSITORY, revision=COMMIT, licence="none")
    assert find_repository(pinned) == folder


def test_a_snapshot_that_lacks_a_shard_is_completed(hub: FakeHub, source: HubRepository) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = b'{"weight_map": {"a": "%s", "b": "%s"}}' % tuple(name.encode() for name in names)
    hub.repositories[REPOSITORY] = {
        "config.json": b"{}",
        "model.safetensors.index.json": index,
        names[0]: b"one",
        names[1]: b"two",
    }
    folder = fetch(source)
    (folder / names[1]).resolve().unlink()
    assert find_repository(source) is None
    hub.requests.clear()
    assert (fetch(source) / names[1]).read_bytes() == b"two"
    assert [path for method, path, _ in hub.requests if "/resolve/" in path] == [
        f"/{REPOSITORY}/resolve/{COMMIT}/{names[1]}"
    ]


def test_a_model_may_be_refused_before_its_weights_are_asked_for(hub: FakeHub, source: HubRepository) -> None:
    def refuse(folder: Path) -> None:
        raise CheckpointError((folder / "config.json").read_text())

    with pytest.raises(CheckpointError, match="x"):
        fetch_repository(source, remedy="", report=print, check=refuse)
    assert hub.ranges_of("model.safetensors") == []
    assert find_repository(source) is None


def test_a_cut_connection_is_resumed(hub: FakeHub, source: HubRepository) -> None:
    hub.cuts["model.safetensors"] = 2
    assert (fetch(source) / "model.safetensors").read_bytes() == WEIGHTS
    first, second, third = hub.ranges_of("model.safetensors")
    # What came in part of a chunk is dropped.
    assert (first, second) == ("", f"bytes={(len(WEIGHTS) // 2) & -(1 << 16)}-")
    assert int(third.removeprefix("bytes=").rstrip("-")) > int(second.removeprefix("bytes=").rstrip("-"))


def test_a_connection_that_is_reset_is_resumed(hub: FakeHub, source: HubRepository) -> None:
    hub.cuts["model.safetensors"] = 1
    hub.resets = True
    assert (fetch(source) / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.ranges_of("model.safetensors")[1] != ""


def test_a_connection_that_yields_nothing_is_given_up(
    hub: FakeHub, source: HubRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.cuts["model.safetensors"] = 1000
    with pytest.raises(MachineError, match=f"cannot download `{REPOSITORY}`: peer closed connection"):
        fetch(source)
    assert len(hub.ranges_of("model.safetensors")) < 100


def test_a_later_run_goes_on_where_the_first_one_stopped(hub: FakeHub, source: HubRepository) -> None:
    digest = list_file("model.safetensors", WEIGHTS)["lfs"]["oid"]
    blobs().mkdir(parents=True)
    (blobs() / f"{digest}.peagle-trt.incomplete").write_bytes(WEIGHTS[:1000])
    assert (fetch(source) / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.ranges_of("model.safetensors") == ["bytes=1000-"]
    assert list(blobs().glob("*incomplete")) == []


def test_a_hub_that_ignores_ranges_is_read_from_the_start(hub: FakeHub, source: HubRepository) -> None:
    hub.cuts["model.safetensors"] = 1
    hub.ignores_ranges = True
    assert (fetch(source) / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_arrives_damaged_is_refused_and_removed(hub: FakeHub, source: HubRepository, name: str) -> None:
    hub.corrupted.add(name)
    with pytest.raises(CheckpointError, match=f"`{name}` arrived damaged: expected hash"):
        fetch(source)
    content = hub.repositories[REPOSITORY][name]
    held = [path.read_bytes()[1:] for path in blobs().iterdir()]
    assert content[1:] not in held
    assert find_repository(source) is None
    hub.corrupted.clear()
    assert (fetch(source) / name).read_bytes() == content


def test_a_file_that_was_damaged_in_the_cache_is_fetched_again(
    hub: FakeHub, source: HubRepository, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fetch(source)
    (folder / "model.safetensors").resolve().write_bytes(b"rotten")
    (folder / "config.json").unlink()
    assert (fetch(source) / "model.safetensors").read_bytes() == WEIGHTS
    assert "is damaged; fetching `model.safetensors` again" in capsys.readouterr().out


def test_more_bytes_than_announced_are_not_stored(hub: FakeHub, source: HubRepository) -> None:
    hub.listings[REPOSITORY] = [
        list_file("config.json", b'{"x": 1}'),
        list_file("model.safetensors", WEIGHTS) | {"size": 1000},
    ]
    with pytest.raises(CheckpointError, match="sends more than the 1,000 bytes it announced"):
        fetch(source)
    assert all(path.stat().st_size <= 1000 for path in blobs().iterdir())


REFUSALS: dict[str, tuple[int, str, type[PeagleError], str, str]] = {
    "gated": (403, "GatedRepo", MachineError, "is gated", "HF_TOKEN"),
    "no token": (401, "RepoNotFound", MachineError, "knows no repository", "HF_TOKEN"),
    "forbidden": (403, "", MachineError, "does not let this token read", "HF_TOKEN"),
    "absent": (404, "RepoNotFound", MachineError, "knows no repository", "do it elsewhere"),
    "no revision": (404, "RevisionNotFound", UsageError, "has no revision `main`", "give another one"),
    "down": (503, "", MachineError, "answered with status 503", "do it elsewhere"),
    "busy": (500, "", MachineError, "answered with status 500", "try again later"),
}


@pytest.mark.parametrize(("status", "code", "kind", "message", "hint"), REFUSALS.values(), ids=REFUSALS.keys())
def test_what_the_hub_refuses_is_said(
    hub: FakeHub, source: HubRepository, status: int, code: str, kind: type[PeagleError], message: str, hint: str
) -> None:
    hub.statuses[REPOSITORY] = (status, code)
    with pytest.raises(kind, match=message) as caught:
        fetch(source)
    assert hint in caught.value.hint
    assert not blobs().exists()


NAMES = [
    "../evil.json",
    "/etc/evil.json",
    "a/../../evil.json",
    "..",
    "a\\..\\evil.json",
    "c:evil.json",
    "evil\0.json",
    "",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_leads_outside_is_refused(hub: FakeHub, source: HubRepository, name: str, tmp_path: Path) -> None:
    good = [list_file(name, content) for name, content in hub.repositories[REPOSITORY].items()]
    hub.listings[REPOSITORY] = [*good, list_file(name, b"evil")]
    with pytest.raises(CheckpointError, match=f"listing of `{REPOSITORY}` holds the name"):
        fetch(source)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_file_in_a_folder_is_left_alone(hub: FakeHub, source: HubRepository) -> None:
    hub.repositories[REPOSITORY]["original/model.safetensors"] = b"the same in another format"
    assert {path.name for path in fetch(source).iterdir()} == {"config.json", "model.safetensors"}


@pytest.mark.parametrize("hash_", ["../../evil", "", "0" * 63, "G" * 64])
def test_a_hash_that_is_none_is_refused(hub: FakeHub, source: HubRepository, hash_: str) -> None:
    large = list_file("model.safetensors", WEIGHTS)
    large["lfs"]["oid"] = hash_
    hub.listings[REPOSITORY] = [list_file("config.json", b"{}"), large]
    with pytest.raises(CheckpointError, match=r"the hash `.*` of `model\.safetensors`"):
        fetch(source)


@pytest.mark.parametrize(
    "text", [b"<html>please log in</html>", b"[]", b'[{"a": 1}]', b"null", b"[[[", b'"x"', b'{"sha": 5}']
)
def test_an_answer_of_something_else_is_no_hub(hub: FakeHub, source: HubRepository, text: bytes) -> None:
    hub.listing_text = text
    with pytest.raises((MachineError, CheckpointError)):
        fetch(source)


def test_a_repository_without_safetensors_is_refused(hub: FakeHub, source: HubRepository) -> None:
    del hub.repositories[REPOSITORY]["model.safetensors"]
    with pytest.raises(CheckpointError, match=r"holds no `config\.json` with safetensors"):
        fetch(source)


def test_without_a_network_the_way_round_is_named(
    hub: FakeHub, source: HubRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(MachineError, match=f"cannot download `{REPOSITORY}`") as caught:
        fetch(source)
    assert caught.value.hint == "do it elsewhere"


def test_offline_nothing_is_asked(hub: FakeHub, source: HubRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(MachineError, match="HF_HUB_OFFLINE forbids a download") as caught:
        fetch(source)
    assert (caught.value.hint, hub.requests) == ("do it elsewhere", [])


def test_without_the_library_the_command_is_named(source: HubRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MachineError, match="needs the package huggingface_hub") as caught:
        fetch(source)
    assert caught.value.hint.startswith("pip install 'peagle-trt[hub]'")


def test_a_disk_that_is_too_small_is_found_out_first(
    hub: FakeHub, source: HubRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": len(WEIGHTS) - 1}))
    with pytest.raises(MachineError, match="needs 512,008 bytes") as caught:
        fetch(source)
    assert "HF_HOME" in caught.value.hint
    assert hub.ranges_of("model.safetensors") == []


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_disk_that_fills_up_is_named(hub: FakeHub, source: HubRepository) -> None:
    digest = list_file("model.safetensors", WEIGHTS)["lfs"]["oid"]
    blobs().mkdir(parents=True)
    (blobs() / f"{digest}.peagle-trt.incomplete").symlink_to("/dev/full")
    with pytest.raises(MachineError, match="no space is left on the disk"):
        fetch(source)


@pytest.mark.parametrize("revision", ["../../evil", "", "/etc", "a b", "-x", "a/../b"])
def test_a_revision_that_is_none_is_refused(revision: str) -> None:
    with pytest.raises(UsageError, match="is no revision"):
        find_repository(HubRepository(repository=REPOSITORY, revision=revision, licence="none"))
