"""Foreign checkpoints in, spec types and lazy weights out; the only room that knows foreign names."""

from peagle_trt.readers.checkpoint import DrafterCheckpoint, TargetCheckpoint, TokenizerSource
from peagle_trt.readers.drafter import read_drafter, read_head
from peagle_trt.readers.findings import Finding
from peagle_trt.readers.judgement import judge_head
from peagle_trt.readers.pairing import check_pair
from peagle_trt.readers.target import checkpoint_files, read_target, read_tokenizer
from peagle_trt.readers.vocabulary_map import draft_to_target_ids

__all__ = [
    "DrafterCheckpoint",
    "Finding",
    "TargetCheckpoint",
    "TokenizerSource",
    "check_pair",
    "checkpoint_files",
    "draft_to_target_ids",
    "judge_head",
    "read_drafter",
    "read_head",
    "read_target",
    "read_tokenizer",
]
