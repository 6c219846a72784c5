"""`d2t`: which token of the target every draft id stands for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peagle_trt.readers.checkpoint import DrafterCheckpoint
from peagle_trt.readers.findings import Finding, judged, listed
from peagle_trt.readers.safetensors_file import load_tensor
from peagle_trt.spec import TargetConfig

_WHAT = "vocabulary map `d2t`"
_OFFSETS = "`d2t` holds offsets, not ids; the head may have been saved by another tool"
# Fewer draft ids than this may all stand apart by chance.
_MIN_IDS_TO_TELL = 64


def draft_to_target_ids(drafter: DrafterCheckpoint) -> NDArray[np.int64]:
    """Id in the target's vocabulary of every draft id, [Vd] int64.

    Source: `d2t` holds offsets: target id = draft id + d2t[draft id] (EAGLE-3's published heads).
    """
    draft_ids = np.arange(drafter.config.draft_vocab_size, dtype=np.int64)
    if not drafter.config.has_vocabulary_map:
        return draft_ids
    return draft_ids + drafter.weights.load("d2t").astype(np.int64)


def judge_vocabulary_map(drafter: DrafterCheckpoint) -> list[Finding]:
    """Whether every draft id leads to a token of its own.

    Args:
        drafter: A head; the map is read whole, 8 bytes a draft id.
    """
    config = drafter.config
    if not config.has_vocabulary_map:
        return [Finding(level="ok", what=_WHAT, found="none, draft ids are token ids", expected="a whole vocabulary")]
    target_ids = draft_to_target_ids(drafter)
    expected = f"offsets that lead to distinct tokens below {config.vocab_size}"
    low, high = int(target_ids.min()), int(target_ids.max())
    if low < 0 or high >= config.vocab_size:
        found = f"offsets that lead to token {low if low < 0 else high}"
        return [Finding(level="refused", what=_WHAT, found=found, expected=expected, hint=_OFFSETS)]
    num_tokens = len(np.unique(target_ids))
    if num_tokens < len(target_ids):
        found = f"{len(target_ids)} draft ids for {num_tokens} tokens"
        return [Finding(level="refused", what=_WHAT, found=found, expected=expected, hint=_OFFSETS)]
    return [*_judge_spread(target_ids, expected), *_judge_inverse(drafter, target_ids)]


def judge_end_tokens(drafter: DrafterCheckpoint, target: TargetConfig) -> list[Finding]:
    """Whether a head with a reduced vocabulary can draft the end of an answer."""
    if not drafter.config.has_vocabulary_map or not target.eos_token_ids:
        return []
    known = set(draft_to_target_ids(drafter).tolist())
    absent = [token for token in target.eos_token_ids if token not in known]
    return [
        judged(
            not absent,
            "end tokens",
            found=f"{listed(absent)} outside the draft vocabulary" if absent else "in the draft vocabulary",
            expected=f"{listed(target.eos_token_ids)} in the draft vocabulary",
            hint="the head never drafts the end of an answer; answers stay the target's",
            otherwise="note",
        )
    ]


def _judge_spread(target_ids: NDArray[np.int64], expected: str) -> list[Finding]:
    """Token ids taken for offsets spread the map: between ids i and i + 1 lies at least one token it leaves out."""
    steps = np.diff(target_ids)
    is_spread = len(target_ids) >= _MIN_IDS_TO_TELL and bool(steps.min() > 1)
    identity = "identity" if not np.any(target_ids - np.arange(len(target_ids))) else f"{len(target_ids)} offsets"
    return [
        judged(
            not is_spread,
            _WHAT,
            found="no two neighbouring tokens, as if token ids had been saved as offsets" if is_spread else identity,
            expected=expected,
            hint=_OFFSETS,
            otherwise="warning",
        )
    ]


def _judge_inverse(drafter: DrafterCheckpoint, target_ids: NDArray[np.int64]) -> list[Finding]:
    spec = next((item.spec for item in drafter.left_out if item.spec.name == "t2d"), None)
    if spec is None or spec.shape != (drafter.config.vocab_size,) or spec.dtype not in ("BOOL", "U8"):
        return []
    kept = np.flatnonzero(load_tensor(spec))
    return [
        judged(
            np.array_equal(kept, np.sort(target_ids)),
            "inverse map `t2d`",
            found=f"{len(kept)} tokens",
            expected="the tokens that `d2t` leads to",
            hint="the two maps come from different vocabularies; one of them is wrong",
            otherwise="warning",
        )
    ]
