"""`peagle-trt targets`: the catalog."""

from __future__ import annotations

import click

from peagle_trt.catalog import CatalogEntry, catalog_folder, list_entries
from peagle_trt.cli.output import Output


@click.command("targets")
@click.pass_obj
def command(output: Output) -> None:
    """List the targets known by name, with their drafters and defaults."""
    entries = list_entries()
    lines = [f"{entry.name:<16} K={entry.draft_tokens}  {entry.licence:<12} {entry.summary}" for entry in entries]
    output.result({"targets": [_document(entry) for entry in entries]}, "\n".join(lines))


def _document(entry: CatalogEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "summary": entry.summary,
        "licence": entry.licence,
        "source": entry.source,
        "drafter_source": entry.drafter_source,
        "has_drafter": (catalog_folder() / entry.drafter / "config.json").exists(),
        "draft_tokens": entry.draft_tokens,
        "max_batch_size": entry.max_batch_size,
        "max_sequence_length": entry.max_sequence_length,
    }
