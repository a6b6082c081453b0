"""`normgen report`: what the records say, as one HTML page and as PNG files."""

from __future__ import annotations

from pathlib import Path

import click

from normgen.cli.options import NewFile, json_option, show
from normgen.files.private import write_output
from normgen.report.evidence import gather
from normgen.report.page import render
from normgen.report.plots import draw


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=NewFile(), default=Path("report.html"), show_default=True, help="Page.")
@click.option("--png", type=click.Path(file_okay=False, path_type=Path), help="Folder for the same plots as PNG.")
@json_option
def report(files: tuple[Path, ...], out: Path, png: Path | None, as_json: bool) -> None:
    """Write one self-contained HTML page: search progress, % of roofline, knob importance, all records.

    FILES are candidates and winners of runs (JSON lines), sweeps, and what `bench --json` wrote; without any, all runs
    and winners of this user, and the winners, sweeps and benches that come with normgen.
    Lines that are no records are left out: stderr says so, and the page names each. PNG files need matplotlib: pip
    install 'normgen[plot]'. --json prints {written: [files]}.
    """
    evidence = gather(files)
    pictures = draw(evidence, png) if png is not None else ()
    write_output(out, render(evidence))
    written = [str(path) for path in (out, *pictures)]
    show({"written": written} if as_json else "\n".join(written))
