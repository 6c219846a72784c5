"""Sizes of files in words."""

from __future__ import annotations


def size_words(size_bytes: float) -> str:
    """A size for people, in powers of ten, as disks and downloads are sold."""
    for unit in ("bytes", "kB", "MB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} GB"
