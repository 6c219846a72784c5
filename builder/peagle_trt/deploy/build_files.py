"""Reads what a finished build says about itself, without loading its engines."""

from __future__ import annotations

from pathlib import Path

from peagle_trt.build_folder import read_manifest
from peagle_trt.decode.session import require_files
from peagle_trt.decode.text import TextTokenizer
from peagle_trt.engine.registry import check_record
from peagle_trt.spec import EngineManifest


def read_whole_build(build_path: Path) -> EngineManifest:
    """The manifest of a finished build whose files are all there.

    Raises:
        UsageError: There is no build, or one of its files is missing or has another size.
    """
    manifest = read_manifest(build_path)
    require_files(build_path, manifest)
    check_record(manifest)
    return manifest


def open_build_tokenizer(build_path: Path) -> TextTokenizer:
    """The text side of a build, of which only the manifest and the tokenizer's files need be there."""
    text = read_manifest(build_path).tokenizer
    template = build_path / text.chat_template if text.chat_template else None
    return TextTokenizer.from_files(build_path / text.tokenizer, template, text.bos_token, text.eos_token)
