"""A build on disk: the staging folder it grows in, the record of finished steps, and the rename that publishes it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from peagle_trt.errors import UsageError, VerificationError
from peagle_trt.files import (
    SAMPLED_FROM_BYTES,
    link_or_copy,
    locked_folder,
    naming_os_errors,
    remove_folder,
    sampled_sha256_of,
    sha256_of,
    write_text,
)
from peagle_trt.spec import ARTIFACT_FORMAT, EngineFile, EngineManifest

MANIFEST_NAME = "manifest.json"
RECORD_NAME = ".steps.json"
VERIFICATION_NAME = "verification.json"
# An older build on its way out. It lies inside the staging folder, so that no name beside the build can be in the way.
_RETIRED_NAME = ".replaced"


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A finished step.

    Attributes:
        inputs: Hash of everything the step depends on.
        outputs: Files it wrote, as they were at that moment.
    """

    inputs: str
    outputs: tuple[EngineFile, ...]


def read_manifest(build_path: Path) -> EngineManifest:
    """The manifest of a finished build.

    Raises:
        UsageError: The folder is no finished build, or one of another version.
    """
    path = build_path / MANIFEST_NAME
    if not build_path.exists():
        raise UsageError(f"`{build_path}` does not exist", hint="give the folder that `peagle-trt build` wrote")
    if not path.is_file():
        raise UsageError(
            f"`{build_path}` is not a finished build: it has no `{MANIFEST_NAME}`", hint="run `peagle-trt build`"
        )
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=EngineManifest)
    except (msgspec.MsgspecError, OSError) as error:
        raise UsageError(f"cannot read `{path}`: {error}", hint="build it again with this version") from error
    if manifest.format != ARTIFACT_FORMAT:
        raise UsageError(
            f"`{build_path}` has format {manifest.format}, this version reads {ARTIFACT_FORMAT}",
            hint="build it again with this version",
        )
    return manifest


def check_files(build_path: Path, files: Iterable[EngineFile]) -> None:
    """Compare files with the sizes and digests that were noted when they were written.

    Raises:
        VerificationError: One is missing or changed.
    """
    for file in files:
        path = build_path / file.path
        if not path.is_file():
            raise VerificationError(f"`{build_path}` lacks `{file.path}`", hint="build it again")
        if path.stat().st_size != file.size_bytes or _digest(path, is_sampled=file.is_sampled) != file.sha256:
            raise VerificationError(f"`{path}` is not the file that was built", hint="build it again")


def require_replaceable(output_path: Path) -> None:
    """Refuse to build over something that is not a build; a damaged build still is one.

    Raises:
        UsageError: The path holds other files.
    """
    with naming_os_errors(output_path):
        if not output_path.exists():
            return
        if output_path.is_dir() and (_looks_like_a_build(output_path) or not any(output_path.iterdir())):
            return
    raise UsageError(f"`{output_path}` exists and is not a build", hint="choose another folder with -o, or remove it")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSteps:
    """Steps whose outputs are still there.

    Attributes:
        has_manifest: The finished build is there, and its manifest can be read.
        published: By name, in the finished build; empty where there is none.
        staged: By name, in the staging folder.
    """

    has_manifest: bool
    published: dict[str, StepRecord]
    staged: dict[str, StepRecord]

    def is_published(self, name: str, inputs: str) -> bool:
        """Whether the finished build holds the outputs of this very step."""
        return name in self.published and self.published[name].inputs == inputs

    def is_done(self, name: str, inputs: str) -> bool:
        """Whether the outputs of this very step are anywhere."""
        is_staged = name in self.staged and self.staged[name].inputs == inputs
        return is_staged or self.is_published(name, inputs)


def finished_steps(output_path: Path) -> FinishedSteps:
    """What earlier runs left."""
    return FinishedSteps(
        has_manifest=_has_readable_manifest(output_path),
        published=_read_record(output_path),
        staged=_read_record(staging_path(output_path)),
    )


def staging_path(output_path: Path) -> Path:
    """Where a build grows until it is complete."""
    return output_path.with_name(f".{output_path.name}.building")


class StagedBuild:
    """A build that is being written.

    Attributes:
        path: The staging folder.
        steps: Finished steps by name.
    """

    def __init__(self, output_path: Path) -> None:
        self.output_path = output_path
        self.path = staging_path(output_path)
        self.steps = _read_record(self.path)
        # What a killed run left half-written, or linked without recording it.
        self._remove_unrecorded()

    def adopt(self, name: str, inputs: str) -> bool:
        """Take a step's outputs from an earlier run, if it had the same inputs and they are as it left them.

        Returns:
            Whether the step is done.
        """
        if _is_usable(self.path, self.steps.get(name), inputs):
            return True
        record = _read_record(self.output_path).get(name)
        if record is None or not _is_usable(self.output_path, record, inputs):
            return False
        for output in record.outputs:
            link_or_copy(self.output_path / output.path, self.path / output.path)
        self._record(name, record)
        return True

    def forget(self, name: str) -> None:
        """Remove a step's outputs before it runs again: they may share their bytes with the finished build."""
        record = self.steps.pop(name, None)
        for output in record.outputs if record else ():
            (self.path / output.path).unlink(missing_ok=True)

    def finish(self, name: str, inputs: str, outputs: tuple[str, ...]) -> None:
        """Record that a step is done, and what its files hold now."""
        files = tuple(_describe(self.path, output) for output in outputs)
        self._record(name, StepRecord(inputs=inputs, outputs=files))

    def outputs(self) -> list[EngineFile]:
        """Files of all finished steps, in order of their paths."""
        files = {file.path: file for record in self.steps.values() for file in record.outputs}
        return [files[path] for path in sorted(files)]

    def publish(self, manifest: EngineManifest) -> None:
        """Write the manifest and put the folder in its place; an older build there is replaced at this moment."""
        self._remove_unrecorded()
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode()
        write_text(self.path / MANIFEST_NAME, text + "\n")
        with naming_os_errors(self.output_path):
            if self.output_path.exists():
                self.output_path.rename(self.path / _RETIRED_NAME)
            self.path.rename(self.output_path)
            remove_folder(self.output_path / _RETIRED_NAME)

    def _remove_unrecorded(self) -> None:
        kept = {RECORD_NAME, *(file.path for file in self.outputs())}
        for file in [path for path in self.path.rglob("*") if path.is_file()]:
            if file.relative_to(self.path).as_posix() not in kept:
                file.unlink()

    def _record(self, name: str, record: StepRecord) -> None:
        self.steps[name] = record
        write_text(self.path / RECORD_NAME, msgspec.json.encode(self.steps).decode())


@contextlib.contextmanager
def staged_build(output_path: Path) -> Iterator[StagedBuild]:
    """Open the staging folder of a build, for one process at a time.

    An interrupted build stays in staging, whose finished steps the next run takes over; nothing appears under
    `output_path` before `publish`.

    Raises:
        UsageError: `output_path` holds something that is not a build.
        MachineError: Another process builds there, or the folder cannot be written.
    """
    staging = staging_path(output_path)
    with naming_os_errors(output_path):
        require_replaceable(output_path)
    with locked_folder(staging, f"another process is building `{output_path}`"):
        _settle_replacement(output_path)
        build = StagedBuild(output_path)
        try:
            # A full disk is met while a file is written, when the system no longer says which.
            with naming_os_errors(output_path):
                yield build
        finally:
            if not build.steps:
                remove_folder(staging)


def _settle_replacement(output_path: Path) -> None:
    """Finish what a run did that was killed around the two renames of `publish`."""
    retired = staging_path(output_path) / _RETIRED_NAME
    with naming_os_errors(output_path):
        if retired.exists() and not output_path.exists():
            retired.rename(output_path)
        remove_folder(retired)
        remove_folder(output_path / _RETIRED_NAME)


def _has_readable_manifest(folder: Path) -> bool:
    try:
        read_manifest(folder)
    except UsageError:
        return False
    return True


def _looks_like_a_build(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (MANIFEST_NAME, RECORD_NAME))


def _describe(folder: Path, name: str) -> EngineFile:
    path = folder / name
    size_bytes = path.stat().st_size
    is_sampled = size_bytes >= SAMPLED_FROM_BYTES
    digest = _digest(path, is_sampled=is_sampled)
    return EngineFile(path=name, size_bytes=size_bytes, sha256=digest, is_sampled=is_sampled)


def _digest(path: Path, *, is_sampled: bool) -> str:
    return sampled_sha256_of(path) if is_sampled else sha256_of(path)


def _is_usable(folder: Path, record: StepRecord | None, inputs: str) -> bool:
    """Whether a step had these inputs and its outputs are unchanged, which means reading them once."""
    if record is None or record.inputs != inputs:
        return False
    try:
        check_files(folder, record.outputs)
    except VerificationError:
        return False
    return True


def _read_record(folder: Path) -> dict[str, StepRecord]:
    """Records whose outputs are all there in full; a damaged record counts as none, which only costs time."""
    try:
        records = msgspec.json.decode((folder / RECORD_NAME).read_bytes(), type=dict[str, StepRecord])
    except (OSError, msgspec.MsgspecError):
        return {}
    return {name: record for name, record in records.items() if _is_intact(folder, record)}


def _is_intact(folder: Path, record: StepRecord) -> bool:
    paths = {folder / file.path: file.size_bytes for file in record.outputs}
    return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())
