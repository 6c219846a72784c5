"""`peagle-trt targets`: the catalog."""

from __future__ import annotations

import click

from peagle_trt import catalog
from peagle_trt.cli.checkpoint_argument import download_document
from peagle_trt.cli.output import Output


@click.command("targets")
@click.pass_obj
def command(output: Output) -> None:
    """List the targets known by name, with their drafters, their defaults, and what is still to be downloaded."""
    entries = catalog.list_entries()
    downloads = {entry.name: _missing(entry) for entry in entries}
    lines = [_line(entry, downloads[entry.name]) for entry in entries]
    output.result({"targets": [_document(entry, downloads[entry.name]) for entry in entries]}, "\n".join(lines))


def _missing(entry: catalog.CatalogEntry) -> list[catalog.Download]:
    parts = (catalog.missing_target(entry), catalog.missing_drafter(entry))
    return [part for part in parts if part is not None]


def _line(entry: catalog.CatalogEntry, downloads: list[catalog.Download]) -> str:
    return f"{entry.name:<20} K={entry.draft_tokens:<3} {entry.licence:<11} {_state(downloads):<31} {entry.summary}"


def _state(downloads: list[catalog.Download]) -> str:
    if not downloads:
        return "here"
    # Where no source says how much a part takes, its name has to do.
    sizes = (part.role if part.size_bytes is None else catalog.size_words(part.size_bytes) for part in downloads)
    return f"to download: {' + '.join(sizes)}"


def _document(entry: catalog.CatalogEntry, downloads: list[catalog.Download]) -> dict[str, object]:
    return {
        "name": entry.name,
        "summary": entry.summary,
        "licence": entry.licence,
        "source": entry.source,
        "drafter_source": entry.drafter_source,
        "has_drafter": catalog.has_drafter(entry),
        "is_here": not downloads,
        "downloads": [download_document(part) for part in downloads],
        "draft_tokens": entry.draft_tokens,
        "max_batch_size": entry.max_batch_size,
        "max_sequence_length": entry.max_sequence_length,
    }
