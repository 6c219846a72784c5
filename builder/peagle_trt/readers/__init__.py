"""Foreign checkpoints in, spec types and lazy weights out; the only room that knows foreign names."""

from peagle_trt.readers.checkpoint import DrafterCheckpoint, TargetCheckpoint, TokenizerSource
from peagle_trt.readers.drafter import read_drafter, read_head
from peagle_trt.readers.pairing import check_pair, draft_to_target_ids
from peagle_trt.readers.target import checkpoint_files, read_target, read_tokenizer

__all__ = [
    "DrafterCheckpoint",
    "TargetCheckpoint",
    "TokenizerSource",
    "check_pair",
    "checkpoint_files",
    "draft_to_target_ids",
    "read_drafter",
    "read_head",
    "read_target",
    "read_tokenizer",
]
