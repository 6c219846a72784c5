"""`peagle-trt bench report`: a page and pictures of what `bench` measured."""

from __future__ import annotations

from pathlib import Path

import click

from peagle_trt.bench.report.figures import make_figures
from peagle_trt.bench.report.page import write_page
from peagle_trt.bench.report.pictures import write_pictures
from peagle_trt.bench.report.runs import read_runs, require_apart
from peagle_trt.cli.options import FILE, FOLDER
from peagle_trt.cli.output import Output
from peagle_trt.files import write_text


@click.command("bench report")
@click.argument("run_paths", metavar="RUN...", type=FOLDER, nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    "page_path",
    type=FILE,
    default="report.html",
    show_default=True,
    metavar="FILE",
    help="The page to write.",
)
@click.option("--png/--no-png", "has_pictures", default=False, help="Write every chart as a PNG file beside the page.")
@click.pass_obj
def command(output: Output, *, run_paths: tuple[Path, ...], page_path: Path, has_pictures: bool) -> None:
    """Make one self-contained page of RUNs: folders of `bench -o`, or documents of `--json bench`.

    Several runs are compared. The page needs no network and no script; PNG files need the extra `report`.
    """
    require_apart(page_path, run_paths)
    runs = read_runs(run_paths)
    figures = make_figures(runs)
    pictures = write_pictures(figures, page_path.parent) if has_pictures else []
    write_text(page_path, write_page(runs))
    lines = [f"page     {page_path}", *(f"picture  {path}" for path in pictures)]
    output.result(
        {"page": page_path, "pictures": pictures, "charts": [each.name for each in figures]}, "\n".join(lines)
    )
