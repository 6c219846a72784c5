"""Known pairs of target and drafter, as data."""

from peagle_trt.catalog.entries import (
    CatalogEntry,
    catalog_folder,
    drafter_path,
    find_entry,
    has_entry,
    list_entries,
)
from peagle_trt.catalog.fetch import cache_folder, target_path

__all__ = [
    "CatalogEntry",
    "cache_folder",
    "catalog_folder",
    "drafter_path",
    "find_entry",
    "has_entry",
    "list_entries",
    "target_path",
]
