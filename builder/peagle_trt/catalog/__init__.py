"""Known pairs of target and drafter, as data."""

from peagle_trt.catalog.entries import CatalogEntry, HubRepository, catalog_folder, find_entry, has_entry, list_entries
from peagle_trt.catalog.fetch import Download, drafter_path, has_drafter, missing_drafter, missing_target, target_path
from peagle_trt.catalog.sizes import size_words
from peagle_trt.catalog.wheel import cache_folder

__all__ = [
    "CatalogEntry",
    "Download",
    "HubRepository",
    "cache_folder",
    "catalog_folder",
    "drafter_path",
    "find_entry",
    "has_drafter",
    "has_entry",
    "list_entries",
    "missing_drafter",
    "missing_target",
    "size_words",
    "target_path",
]
