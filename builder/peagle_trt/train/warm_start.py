"""A head that begins with the weights of an earlier one: a P-EAGLE head from an EAGLE-3 head, above all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.files import sha256_of
from peagle_trt.spec import DrafterConfig
from peagle_trt.spec.drafter import NO_MASK_TOKEN
from peagle_trt.train.narrow import strongest_neurons
from peagle_trt.train.start import seeded_head

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from peagle_trt.train.head import PeagleHead


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """An earlier head.

    Attributes:
        path: Its folder.
        config: Its sizes.
        state: Its weights by our names.
        draft_to_target: Target id of each draft id.
    """

    path: Path
    config: DrafterConfig
    state: dict[str, Tensor]
    draft_to_target: NDArray[np.int64]

    def digests(self) -> list[str]:
        """Digest of each of its files of weights."""
        return [sha256_of(path) for path in sorted(self.path.glob("*.safetensors"))]


def read_warm_start(folder: Path, target_path: Path) -> WarmStart:
    """Read an earlier head and check that it is one of this target.

    Args:
        folder: Of the head, of any known dialect.
        target_path: Of the target.

    Raises:
        CheckpointError: It is damaged, of another target, or has parts that training here does not know.
    """
    import torch

    from peagle_trt import readers
    from peagle_trt.train.checkpoint import read_head

    target = readers.read_target(target_path)
    num_layers = target.config.num_layers
    readers.check_pair(target, readers.read_head(folder, num_target_layers=num_layers))
    head, draft_to_target = read_head(folder, torch.float32, num_target_layers=num_layers)
    if len(draft_to_target) == target.config.vocab_size and (draft_to_target[1:] < draft_to_target[:-1]).any():
        raise CheckpointError(
            f"`{folder}` orders the whole vocabulary in its own way", hint="training here writes heads in the target's"
        )
    return WarmStart(path=folder, config=head.config, state=head.folded_state(), draft_to_target=draft_to_target)


def check_warm_request(
    start: WarmStart,
    *,
    auxiliary_layers: tuple[int, ...] | None,
    num_layers: int | None,
    draft_vocab_size: int | None,
    mask_token_id: int | None,
    intermediate_size: int | None = None,
) -> None:
    """Refuse what contradicts the earlier head; None stands for what the user did not say.

    Raises:
        UsageError: Something does.
    """
    config = start.config
    own_mask = config.mask_token_id if config.is_parallel else None
    for option, said, found in (
        ("--aux-layers", auxiliary_layers, config.aux_layer_ids),
        ("--draft-vocab-size", draft_vocab_size, config.draft_vocab_size),
        ("--mask-token-id", None if own_mask is None else mask_token_id, own_mask),
    ):
        if said is not None and said != found:
            raise UsageError(f"{option} is {said}, and `{start.path}` has {found}", hint="leave it out with --start")
    if num_layers is not None and num_layers < config.num_layers:
        raise UsageError(
            f"--layers is {num_layers}, and `{start.path}` has {config.num_layers}",
            hint="a head can start with more layers than that, not with fewer",
        )
    if intermediate_size is not None and intermediate_size > config.intermediate_size:
        raise UsageError(
            f"--intermediate-size is {intermediate_size}, and `{start.path}` has {config.intermediate_size}",
            hint="a head can start with narrower feed-forward blocks than that, not with wider ones",
        )


def warm_config(
    start: WarmStart,
    *,
    num_layers: int | None,
    mask_token_id: int,
    num_depths: int,
    max_positions: int,
    intermediate_size: int | None = None,
) -> DrafterConfig:
    """The earlier head's sizes with this training's layers, widths and positions; see `start.drafter_config`."""
    config = start.config
    return msgspec.structs.replace(
        config,
        dialect="vllm",
        aux_numbering="inputs",
        num_layers=num_layers or config.num_layers,
        intermediate_size=intermediate_size or config.intermediate_size,
        mask_token_id=mask_token_id,
        is_parallel=mask_token_id != NO_MASK_TOKEN,
        has_vocabulary_map=config.draft_vocab_size != config.vocab_size,
        num_depths=num_depths,
        max_positions=max_positions,
    )


def warm_head(
    start: WarmStart,
    config: DrafterConfig,
    auxiliary_scale_A: Tensor,
    compute_dtype: torch.dtype,
    *,
    seed: int,
    report: Callable[[str], None],
) -> PeagleHead:
    """A head with the earlier one's weights; what that lacks is new.

    Layers that are added behind the earlier one's begin as passages: their output projections are zero, so that the
    head says what the earlier one said until they have learned something. Narrower feed-forward blocks keep the
    strongest neurons. `mask_hidden` is drawn at random, as in a head without a start.

    Args:
        start: The earlier head.
        config: From `warm_config`.
        auxiliary_scale_A: See `PeagleHead`.
        compute_dtype: Type of the linear layers.
        seed: Of what is new.
        report: Takes lines about what was taken over and what is new.
    """
    import torch

    head = seeded_head(config, auxiliary_scale_A, compute_dtype, seed)
    with torch.no_grad():
        for layer in head.head_layers()[start.config.num_layers :]:
            layer.o_proj.zero_()
            layer.down_proj.zero_()
    fresh, earlier = head.folded_state(), _narrowed(start, config.intermediate_size)
    head.load_folded_state({name: earlier.get(name, value) for name, value in fresh.items()})
    _report(start, config, fresh.keys() - start.state.keys(), start.state.keys() - fresh.keys(), report)
    return head


def _narrowed(start: WarmStart, width: int) -> dict[str, Tensor]:
    """The earlier head's weights with `width` neurons a layer."""
    state = dict(start.state)
    if width == start.config.intermediate_size:
        return state
    for index in range(start.config.num_layers):
        gate, up, down = (f"layers.{index}.{name}_proj" for name in ("gate", "up", "down"))
        kept = strongest_neurons(state[gate], state[up], state[down], width)
        state |= {gate: state[gate][kept], up: state[up][kept], down: state[down][:, kept]}
    return state


def _report(
    start: WarmStart, config: DrafterConfig, new: set[str], left: set[str], report: Callable[[str], None]
) -> None:
    taken = len(start.state) - len(left)
    report(f"started from `{start.path}`, {_kind(start.config)}: took over {taken} tensors and the draft vocabulary")
    if "mask_hidden" in new:
        report("new: `mask_hidden`, drawn at random")
    if config.num_layers > start.config.num_layers:
        report(
            f"new: layers {start.config.num_layers}..{config.num_layers - 1}, which begin as passages "
            "(their output projections are zero)"
        )
    if config.intermediate_size < start.config.intermediate_size:
        report(
            f"kept {config.intermediate_size} of {start.config.intermediate_size} neurons of each feed-forward block"
        )
    if left:
        report(f"left out: {', '.join(f'`{name}`' for name in sorted(left))}, which {_kind(config)} has no place for")


def _kind(config: DrafterConfig) -> str:
    return "a P-EAGLE head" if config.is_parallel else "an EAGLE-3 head"
