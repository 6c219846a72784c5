"""A temporary folder in which one target and many readings of one head are run.

The target's weights are written once; a reading of the head gets a graph of its own, and weights of its own only where
it changes what is folded at build time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from peagle_trt import __version__
from peagle_trt.engine.protocol import Engine
from peagle_trt.engine.registry import open_engine
from peagle_trt.graph.attention import check_head_dims
from peagle_trt.graph.build import CACHE_MARGIN, drafter_weights
from peagle_trt.quant import StoredWeights, choose_recipe, store_drafter, store_target
from peagle_trt.readers import DrafterCheckpoint, TargetCheckpoint
from peagle_trt.spec import ARTIFACT_FORMAT, DrafterConfig, EngineManifest, GraphShapes, TargetConfig, TokenizerFiles
from peagle_trt.spec.build import MAX_DRAFT_TOKENS


class Workbench:
    """Builds and opens engines for a diagnosis.

    Args:
        folder: An empty folder.
        target: The target.
        drafter: The head as published.
        layer_ids: Every stream of the target that some reading needs, ascending.
        max_sequence_length: Tokens of the longest recording.
        num_threads: Threads of the engines; None takes every core.

    Attributes:
        precision: Recipe of the weights.
        reason: Why it was chosen.
    """

    def __init__(
        self,
        folder: Path,
        target: TargetCheckpoint,
        drafter: DrafterCheckpoint,
        *,
        layer_ids: Sequence[int],
        max_sequence_length: int,
        num_threads: int | None = None,
    ) -> None:
        check_head_dims(target.config, drafter.config)
        self._folder = folder
        self._target, self._drafter = target, drafter
        self._num_threads = num_threads
        self._config: TargetConfig = msgspec.structs.replace(target.config, aux_layer_ids=tuple(layer_ids))
        self._shapes = GraphShapes(
            draft_tokens=1,
            max_draft_tokens=MAX_DRAFT_TOKENS,
            max_batch_size=1,
            max_sequence_length=max_sequence_length,
            cache_capacity=max_sequence_length + CACHE_MARGIN,
        )
        self._engine_path = folder / "engine"
        self._engine_path.mkdir()
        self.precision, self.reason = choose_recipe(target)
        self._stored_target = store_target(self.precision, target, self._engine_path / "target.safetensors")
        self._stored_drafters: dict[tuple[bool, bool], StoredWeights] = {}
        # The engine reads the map of the draft vocabulary from this file, and no reading changes it.
        self._store(drafter.config)

    def open_target(self) -> Engine:
        """An engine whose target hands out every stream."""
        from peagle_trt.graph.target import target_graph

        path = self._engine_path / "target.b1.onnx"
        model = target_graph(
            self._config, self._stored_target, num_groups=1, cache_capacity=self._shapes.cache_capacity
        )
        path.write_bytes(model.SerializeToString(deterministic=True))
        return self._open("target.b1", path, self._drafter.config)

    def open_drafter(self, name: str, config: DrafterConfig) -> Engine:
        """An engine whose drafter is one reading of the head; `name` is for its file."""
        from peagle_trt.graph.drafter import drafter_graph

        weights = drafter_weights(self._stored_target, self._store(config))
        path = self._engine_path / f"{name}.onnx"
        model = drafter_graph(config, weights, num_groups=1, cache_capacity=self._shapes.cache_capacity)
        path.write_bytes(model.SerializeToString(deterministic=True))
        return self._open("drafter.b1", path, config)

    def _store(self, config: DrafterConfig) -> StoredWeights:
        """Weights for a reading; the norms before `fc` are folded into one of them."""
        key = (config.norm_before_fc, config.has_fc_norm)
        if key not in self._stored_drafters:
            name = "drafter" if not self._stored_drafters else f"drafter-{len(self._stored_drafters)}"
            read = DrafterCheckpoint(path=self._drafter.path, config=config, weights=self._drafter.weights)
            self._stored_drafters[key] = store_drafter(
                self.precision, read, self._target, self._engine_path / f"{name}.safetensors"
            )
        return self._stored_drafters[key]

    def _open(self, role: str, path: Path, drafter: DrafterConfig) -> Engine:
        manifest = EngineManifest(
            format=ARTIFACT_FORMAT,
            peagle_trt_version=__version__,
            name="diagnosis",
            backend="onnxruntime",
            precision=self.precision,
            target=self._config,
            drafter=drafter,
            shapes=self._shapes,
            tokenizer=TokenizerFiles(tokenizer="", chat_template=None),
            graphs={role: path.relative_to(self._folder).as_posix()},
            files=(),
            sources={},
        )
        return open_engine(self._folder, manifest, num_threads=self._num_threads)
