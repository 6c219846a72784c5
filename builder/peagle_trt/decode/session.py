"""Opens a finished build and generates with it in this process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from peagle_trt.build_folder import MANIFEST_NAME, check_files, read_manifest
from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationChunk, GenerationRequest, RequestMetrics, TokenLogProb
from peagle_trt.decode.text import TextTokenizer
from peagle_trt.engine.protocol import Engine
from peagle_trt.engine.registry import check_record, open_engine
from peagle_trt.errors import PeagleError, UsageError
from peagle_trt.spec import EngineManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBuild:
    """A build that is ready to run.

    Attributes:
        path: Its folder.
        manifest: Its manifest.
        engine: Target and drafter, loaded.
        tokenizer: Its text side.
    """

    path: Path
    manifest: EngineManifest
    engine: Engine
    tokenizer: TextTokenizer

    def request(self, prompt: str, *, max_tokens: int, request_id: str = "0") -> GenerationRequest:
        """A greedy request to continue a text, with the model's own end tokens; change the rest by `replace`."""
        return self._greedy(self.tokenizer.encode(prompt), max_tokens, request_id)

    def chat_request(self, turn: str, *, max_tokens: int, request_id: str = "0") -> GenerationRequest:
        """The same for a user's turn, put into the chat template.

        Raises:
            RequestError: The model has no template.
        """
        conversation = self.tokenizer.apply_chat_template([{"role": "user", "content": turn}])
        # The template spells its special tokens out.
        return self._greedy(self.tokenizer.encode(conversation, add_special_tokens=False), max_tokens, request_id)

    def _greedy(self, prompt_ids: Sequence[int], max_tokens: int, request_id: str) -> GenerationRequest:
        return GenerationRequest(
            request_id=request_id,
            prompt_ids=tuple(prompt_ids),
            max_tokens=max_tokens,
            end_ids=self.manifest.target.eos_token_ids,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A whole answer.

    Attributes:
        token_ids: Its tokens.
        text: Its text.
        finish_reason: Why it ended.
        metrics: What it cost.
        log_probs: One entry a token, where the request asks for them.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    metrics: RequestMetrics
    log_probs: tuple[TokenLogProb, ...] = ()


def open_build(build_path: Path, *, num_threads: int | None = None) -> LoadedBuild:
    """Load a finished build.

    Args:
        build_path: Its folder.
        num_threads: Threads of the CPU backends; None takes every core this process may use.

    Raises:
        UsageError: The folder is not a finished build, or a file of it is missing or cut. Content is not compared: see
            `verify`.
        VerificationError: A file was written over after the build was finished.
        MachineError: This machine cannot run it.
    """
    manifest = read_manifest(build_path)
    require_files(build_path, manifest)
    check_record(manifest)
    files = manifest.tokenizer
    tokenizer = TextTokenizer.from_files(
        build_path / files.tokenizer,
        build_path / files.chat_template if files.chat_template else None,
        files.bos_token,
        files.eos_token,
    )
    engine = open_engine(build_path, manifest, num_threads=num_threads)
    return LoadedBuild(path=build_path, manifest=manifest, engine=engine, tokenizer=tokenizer)


def require_method(manifest: EngineManifest, method: str) -> None:
    """Refuse to decode with another kind of head than a build holds.

    Args:
        manifest: Of the build.
        method: "p-eagle", "eagle3", or "none", which any build can do.

    Raises:
        UsageError: The build's head is of the other kind.
    """
    found = manifest.drafter.method
    if method in ("none", found):
        return
    if method == "eagle3":
        raise UsageError(
            f"method `eagle3` needs an EAGLE-3 head, and build `{manifest.name}` holds a P-EAGLE head",
            hint="a P-EAGLE head never read its own states; train one with `train --method eagle3` and build it",
        )
    raise UsageError(
        f"method `{method}` needs a P-EAGLE head, and build `{manifest.name}` holds a plain EAGLE-3 head",
        hint=f"use --method {found}, or build with a P-EAGLE head",
    )


def require_files(build_path: Path, manifest: EngineManifest) -> None:
    """Compare every file's size with the manifest, and the content of those that were touched since it was written.

    A build that leaves weights in place shares them with its checkpoint, which somebody may write over.

    Raises:
        UsageError: One is missing or has another size.
        VerificationError: One has another content.
    """
    finished_ns = (build_path / MANIFEST_NAME).stat().st_mtime_ns
    for file in manifest.files:
        found = build_path / file.path
        if not found.is_file() or found.stat().st_size != file.size_bytes:
            raise UsageError(f"`{found}` is missing or not of {file.size_bytes} bytes", hint="build again with --force")
    check_files(build_path, [f for f in manifest.files if (build_path / f.path).stat().st_mtime_ns > finished_ns])


def generate(loaded: LoadedBuild, requests: Sequence[GenerationRequest]) -> list[Generation]:
    """Answer requests together and wait for all of them.

    Args:
        loaded: The build.
        requests: Requests; their ids are replaced by their index.

    Returns:
        One answer a request, in order.

    Raises:
        RequestError: A request cannot be honoured.
        PeagleError: A step failed.
    """
    loop = DecodeLoop(loaded.engine, loaded.tokenizer)
    for index, request in enumerate(requests):
        loop.submit(replace(request, request_id=str(index)))
    chunks: dict[str, list[GenerationChunk]] = {str(index): [] for index in range(len(requests))}
    for chunk in _run(loop):
        chunks[chunk.request_id].append(chunk)
    return [_join(parts) for parts in chunks.values()]


def stream(loaded: LoadedBuild, request: GenerationRequest) -> Iterator[GenerationChunk]:
    """Answer one request, chunk by chunk."""
    loop = DecodeLoop(loaded.engine, loaded.tokenizer)
    loop.submit(request)
    yield from _run(loop)


def _run(loop: DecodeLoop) -> Iterator[GenerationChunk]:
    while loop.has_work:
        for chunk in loop.step():
            if chunk.finish_reason == "error":
                raise PeagleError(f"a decode step failed: {chunk.error}")
            yield chunk


def _join(parts: list[GenerationChunk]) -> Generation:
    last = parts[-1]
    assert last.metrics is not None and last.finish_reason is not None
    return Generation(
        token_ids=tuple(itertools.chain.from_iterable(part.token_ids for part in parts)),
        text="".join(part.text for part in parts),
        finish_reason=last.finish_reason,
        metrics=last.metrics,
        log_probs=tuple(itertools.chain.from_iterable(part.log_probs for part in parts)),
    )
