"""The record of a finished build; the only thing downstream rooms read."""

from __future__ import annotations

import msgspec

from peagle_trt.spec.build import MAX_DRAFT_TOKENS
from peagle_trt.spec.drafter import DrafterConfig
from peagle_trt.spec.target import TargetConfig

ARTIFACT_FORMAT = 1
"""Raised whenever an older reader would misread a newer manifest."""


class EngineFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A file of the build.

    Attributes:
        path: Relative to the build folder, forward slashes.
        size_bytes: Size.
        sha256: Hex digest of the content.
        is_sampled: The digest is `files.sampled_sha256_of`: of the size, the start and a sample of the rest. Gigabytes
            of weights, which are mostly a checkpoint's own shards, are not read to be told apart.
    """

    path: str
    size_bytes: int
    sha256: str
    is_sampled: bool = False


class GraphShapes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits baked into the engines, and the K that is served within them.

    Attributes:
        draft_tokens: K that the build serves by default.
        max_draft_tokens: Largest K the engines take.
        max_batch_size: Sequences that may share a step.
        max_sequence_length: Tokens of prompt and answer together.
        cache_capacity: Positions each cache holds; `max_sequence_length` plus room for a step past it.
        draft_schedule: Pairs of a number of running answers and the K up to it, for requests that leave K open; beyond
            the last pair its K holds. Empty for `draft_tokens` at any load. `peagle-trt tune` writes it.
    """

    draft_tokens: int
    max_draft_tokens: int
    max_batch_size: int
    max_sequence_length: int
    cache_capacity: int
    draft_schedule: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Refuse limits that contradict each other, wherever they come from.

        Raises:
            ValueError: They do.
        """
        if not 1 <= self.draft_tokens <= self.max_draft_tokens <= MAX_DRAFT_TOKENS:
            raise ValueError(
                f"draft_tokens {self.draft_tokens} of at most {self.max_draft_tokens}; expected 1..{MAX_DRAFT_TOKENS}"
            )
        if self.max_batch_size < 1 or not 1 <= self.max_sequence_length <= self.cache_capacity:
            raise ValueError(
                f"batch {self.max_batch_size}, length {self.max_sequence_length}, capacity {self.cache_capacity}"
            )
        loads = [load for load, _ in self.draft_schedule]
        if loads != sorted(set(loads)) or not all(
            load >= 1 and 0 <= count <= self.max_draft_tokens for load, count in self.draft_schedule
        ):
            raise ValueError(
                f"draft_schedule {self.draft_schedule}; expected rising loads, K 0..{self.max_draft_tokens}"
            )

    @property
    def most_default_drafts(self) -> int:
        """Largest K that a request gets which leaves it open."""
        return max((count for _, count in self.draft_schedule), default=self.draft_tokens)

    @property
    def least_default_drafts(self) -> int:
        """Smallest K that a request gets which leaves it open."""
        return min((count for _, count in self.draft_schedule), default=self.draft_tokens)

    def default_drafts(self, num_running: int) -> int:
        """K of requests that leave it open, while so many answers are running."""
        fitting = [count for load, count in self.draft_schedule if load >= num_running]
        if fitting:
            return fitting[0]
        return self.draft_schedule[-1][1] if self.draft_schedule else self.draft_tokens


class TokenizerFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the text side of the build lies, relative to the build folder.

    Attributes:
        tokenizer: A `tokenizer.json` of the tokenizers library.
        chat_template: A Jinja template, or None for a model without one.
        bos_token: Text of the token that starts a text, for the template; may be empty.
        eos_token: Text of the token that ends a turn, for the template; may be empty.
    """

    tokenizer: str
    chat_template: str | None
    bos_token: str = ""
    eos_token: str = ""


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shapes that an engine is tuned for together.

    Attributes:
        name: What it serves.
        dims: Smallest, usual and largest size of every free dimension, by its name in the graph.
    """

    name: str
    dims: dict[str, tuple[int, int, int]]


class CompiledEngine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine that was compiled ahead of time, and what that took.

    Attributes:
        path: Relative to the build folder, forward slashes.
        compiler: Backend whose library compiled it.
        compiler_version: Version of the library, the only one that runs it.
        compute_capabilities: GPUs it runs on, such as "120".
        profiles: Shapes it takes; a pass runs under the first one that holds its own.
        plugin_version: Version of the plugins inside, or "" for none.
        size_bytes: Size of the file.
        sha256: Hex digest of the file.
        build_seconds: Time it took.
        peak_memory_bytes: Most memory the process had taken by the end.
    """

    path: str
    compiler: str
    compiler_version: str
    compute_capabilities: tuple[str, ...]
    profiles: tuple[EngineProfile, ...]
    plugin_version: str
    size_bytes: int
    sha256: str
    build_seconds: float
    peak_memory_bytes: int


class EngineManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`manifest.json`: written last, so its presence means that the build is complete. Holds no absolute path.

    Attributes:
        format: `ARTIFACT_FORMAT` of the writer.
        peagle_trt_version: Version that wrote it.
        name: Name of the target.
        backend: Backend the engines run on.
        precision: Recipe of the weights.
        target: The target.
        drafter: The drafter.
        shapes: Limits of the engines.
        tokenizer: The text side.
        graphs: Role to path, relative to the build folder. Roles: `target.b{G}` and `drafter.b{G}`, a graph for each
            number of sequences G that may share a pass; a pass of fewer takes the next larger one; the drafter's graphs
            are those of its head's kind. `target.step`, where there is one: single rows of neighbouring slots. With the
            TensorRT backends: `target` and `drafter`, one graph each.
        files: Every file of the build except the manifest itself.
        sources: Where target and drafter came from, as a person would cite it; files of scales; and experts that stayed
            in the checkpoint's own form.
        engines: Role to engine, for backends that compile their graphs.
        keep_above: Largest relative error that rounding was allowed to make of a matrix, or None for any.
        left_out: Matrices that stayed as they were for that, such as `target.layers.0.o_proj`.
    """

    format: int
    peagle_trt_version: str
    name: str
    backend: str
    precision: str
    target: TargetConfig
    drafter: DrafterConfig
    shapes: GraphShapes
    tokenizer: TokenizerFiles
    graphs: dict[str, str]
    files: tuple[EngineFile, ...]
    sources: dict[str, str]
    engines: dict[str, CompiledEngine] = {}
    keep_above: float | None = None
    left_out: tuple[str, ...] = ()
