"""The trials of whatever file has some: kept ones, a run's candidates, other records, a sweep, T4; of a folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from normgen.errors import UsageError
from normgen.records.winners import kept_of
from normgen.studies.sweep_file import Sweep, is_sweep, read_sweep
from normgen.studies.t4 import t4_read
from normgen.trials.file import peeked, read
from normgen.trials.kept import Folder, Trials, of_records, pulled
from normgen.trials.trial import Trial


def read_trials(path: Path) -> tuple[Trial, ...]:
    """Every trial of a file or a folder, with all its facts. Raises UsageError with what is wrong with a file."""
    if path.is_dir():
        return tuple(pulled(Folder(path)))
    if is_sweep(path):
        return tuple(of_sweep(read_sweep(path), path.name.partition(".")[0]))
    if "schema_version" in (head := peeked(path)):
        try:
            return t4_read(head, run=path.name.partition(".")[0])
        except ValueError as error:
            raise UsageError("a file of T4 is what Kernel Tuner wrote", received=f"{path}: {error}") from None
    if "finished" in head:
        return read(Trials, path).trials
    name = path.parent.name if path.name == "candidates.jsonl" else path.name.partition(".")[0]
    return tuple(of_records(kept_of(path), name))


def of_sweep(sweep: Sweep, run: str) -> Iterable[Trial]:
    """The points of a sweep; they were drawn from the legal set, or are all of it."""
    return (
        replace(
            point,
            chosen=point.chosen or "sample",
            base_us=sweep.chain_us or 0.0,
            run=run,
            question=sweep.problem,
            place=sweep.place,
            device=sweep.device,
            versions=sweep.versions,
        )
        for point in sweep.points
    )
