"""The command that writes headers."""

from __future__ import annotations

from pathlib import Path

import click

from normgen import export as headers
from normgen.cli.options import show
from normgen.device import device_from
from normgen.errors import NothingValidError, UsageError
from normgen.records.t4 import t4_results
from normgen.records.winners import adopt, read_whole

RE_EXPORT = "`normgen export` writes them again"


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default=Path("generated"), show_default=True
)
@click.option("--force", is_flag=True, help="Replace shipped records even by slower ones.")
@click.option("--check", is_flag=True, help="Write nothing; exit 2 if a header is not what the records say.")
@click.option("--specs", multiple=True, type=click.Path(exists=True, file_okay=False), help="More folders of specs.")
@click.option("--format", "form", type=click.Choice(["headers", "t4"]), default="headers", show_default=True)
def export(files: tuple[Path, ...], output: Path, force: bool, check: bool, specs: tuple[str, ...], form: str) -> None:
    """Write the headers of all records under OUTPUT/records.

    Records in FILES (a run's winner.jsonl) are taken in first, each where it is better than the one shipped.
    With --format t4 the records of FILES (a run's candidates.jsonl) are printed in Kernel Tuner's results format.
    """
    if form == "t4":
        if not files:
            raise UsageError("--format t4 needs files of records", hint="for example a run's candidates.jsonl")
        show(t4_results(record for file in files for record in read_whole(file)))
        return

    if check and files:
        raise UsageError("--check writes nothing, so it takes no records in", received=str(files[0]))
    for file in files:
        for record in read_whole(file):
            taken = adopt(record, output / "records", device_from(record.device), force=force)
            click.echo(f"{'taken' if taken else 'the shipped one is better'}: {record.problem.op} {record.schedule}")
    if check:
        differences = headers.differences(output, spec_folders=specs)
        if differences:
            raise UsageError("headers must be what their records say", received="; ".join(differences), hint=RE_EXPORT)
        return
    if not headers.folder_records(output):
        raise NothingValidError("there is no record to export", received=str(output / "records"))
    for path in headers.export_folder(output, spec_folders=specs):
        click.echo(str(path))
