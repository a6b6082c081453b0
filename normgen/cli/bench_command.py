"""What `normgen bench` does with its arguments: results on stdout, progress on stderr, a file that is always whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import click

from normgen.bench import ablation, runner, transfer
from normgen.bench import plot as plots
from normgen.bench.peers import Options, check_names
from normgen.bench.result import Results, joined
from normgen.bench.rounds import Rounds
from normgen.bench.runner import Wish
from normgen.bench.table import results_text
from normgen.cli.options import STDOUT
from normgen.cli.text.result import Terminal
from normgen.device import Device
from normgen.errors import UsageError
from normgen.records.record import Record
from normgen.records.winners import kept_of, records_of, shipped_folder
from normgen.suites.bands import parse_rows
from normgen.suites.suite import load_suite
from normgen.trials.contest import Venue, venue_of
from normgen.trials.file import of_text, read, resumed, text_of, write
from normgen.trials.head import Run
from normgen.trials.run import How


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What every kind of run is asked for.

    json_to   the results file; "-" prints them instead of a table
    records   files whose records are known besides the shipped ones
    limit_s   begin no measurement later than this
    samples   interleaved replays of each kernel
    device    number of the GPU
    """

    json_to: str | None
    records: tuple[Path, ...]
    limit_s: float | None
    samples: int
    seed: int
    device: int

    def file(self) -> Path | None:
        return results_file(self.json_to)

    def how(self) -> How:
        return {"path": self.file(), "limit_s": self.limit_s}

    def venue(self) -> Venue:
        return venue_of(self.device, samples=self.samples, seed=self.seed)


def run(
    suite: str,
    ask: Ask,
    *,
    only: str | None,
    skip: str | None,
    which: slice,
    resume: bool,
    picture: Path | None,
    compile_mode: str,
    setting: str | None,
    context: str | None,
    peers: tuple[str, ...] | None,
    **wished: Any,
) -> int:
    """Run a suite and print it. Returns the exit code."""
    chosen = load_suite(suite)
    if only:
        chosen = chosen.only(only)
    if skip:
        chosen = chosen.skip(skip)
    chosen = chosen.part(which).at(setting=setting, context=context)
    if picture is not None:
        plots.require_matplotlib()
    file = ask.file()
    if resume and file is None:
        raise UsageError("--resume goes on with the results of a file", hint="--json FILE names it")
    before = resumed(Results, file) if resume else None
    wish = Wish(
        peers=None if peers is None else check_names(peers),
        options=Options(compile_mode=compile_mode),
        **{name: getattr(ask, name) for name in ("records", "samples", "seed", "limit_s")},
        **wished,
    )
    with Terminal() as progress:
        results = runner.run_suite(chosen, wish, device=ask.device, progress=progress, before=before, path=file)
    _show(results, ask.json_to, picture)
    return results.exit_code


def run_nearest(count: int, ask: Ask, *, budget_s: float, rows: str | None, which: slice) -> int:
    """What the nearest-schedule rule is worth at `count` random shapes, or row counts, or at some of these.

    Returns the exit code.
    """
    venue = ask.venue()
    known = known_records(ask.records, venue.facts)
    if rows is None:
        entries = transfer.random_entries(known, count=count, seed=ask.seed)
    else:
        about = [r for path in ask.records for r in kept_of(path)]
        entries = transfer.row_entries(about, parse_rows(rows), count=count, seed=ask.seed)
    with Terminal() as progress:
        found = transfer.run_transfer(
            entries[which],
            known,
            venue,
            budget_s=budget_s,
            progress=progress,
            is_banded=rows is not None,
            **ask.how(),
        )
    return _conclude(found, ask.json_to, transfer.transfer_text(found))


def run_host(json_to: str | None, *, rounds: int, device: int) -> None:
    """Print what a call costs the host, and write it into a file. Raises UsageError without torch."""
    with _torch_is_there("what a call costs is measured beside torch"):
        from normgen.bench.host_times import host_times
    _tell(host_times(rounds=rounds, device=device), json_to)


def run_model(name: str, json_to: str | None, *, rounds: int, device: int, compiled: bool) -> None:
    """Print what norms cost in a whole model, and write it into a file. Raises UsageError without torch."""
    with _torch_is_there("models are torch's"):
        from normgen.bench.model_times import model_times
    _tell(model_times(name, rounds=rounds, device=device, compiled=compiled), json_to)


@contextmanager
def _torch_is_there(rule: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise UsageError(rule, received=str(error)) from error


def _tell(found: Rounds, json_to: str | None) -> None:
    """A table, and a file beside it where one is named, as of a suite; or JSON instead."""
    if file := results_file(json_to):
        write(file, found)
    _conclude(found, json_to, str(found))


def run_ablation(source: str, ask: Ask, *, each: int, most: int, tried: int) -> int:
    """What each technique is worth in the tuned kernels of a suite or a file of records. Returns the exit code."""
    venue = ask.venue()
    with runner.record_places(ask.records, venue.facts) as folders:
        winners = ablation.tuned_entries(source, venue.facts, folders)
    cases, unused = ablation.cases_of(winners, each=each, most=most)
    with Terminal() as progress:
        found = ablation.run_ablation(
            source,
            cases,
            unused,
            venue,
            tried=tried,
            progress=progress,
            **ask.how(),
        )
    return _conclude(found, ask.json_to, ablation.ablation_text(found))


def results_file(json_to: str | None) -> Path | None:
    """The file of --json, whose folder the option has looked for, if there is to be one."""
    return None if json_to is None or json_to == STDOUT else Path(json_to)


def known_records(files: tuple[Path, ...], facts: Device) -> list[Record]:
    """What the rule may know: the records of the files, and those that ship; not what this user tuned meanwhile.

    Of this GPU and of others of its architecture.
    """
    given = (r for file in files for r in kept_of(file) if r.device.get("arch") == facts.arch)
    return [*given, *records_of(facts, [shipped_folder()])]


def _conclude(found: Run, json_to: str | None, text: str) -> int:
    click.echo(as_json(found).rstrip("\n") if json_to == STDOUT else text)
    return found.exit_code


def show_recorded(recorded: Sequence[Path], *, json_to: str | None, picture: Path | None) -> int:
    """Print, draw and write what earlier runs of a suite found: the later files' entries replace the earlier ones'."""
    target = results_file(json_to)
    rewritten = target.resolve() if target else None
    found = reduce(joined, (read(Results, file, keeps=file.resolve() == rewritten) for file in recorded))
    if target:
        write(target, found)
    _show(found, json_to, picture)
    return 0


def _show(results: Results, json_to: str | None, picture: Path | None) -> None:
    # What is printed is what the file says: a figure rounded twice may end on another digit.
    said = of_text(Results, text_of(results).encode())
    click.echo(as_json(results).rstrip("\n") if json_to == STDOUT else results_text(said))
    if picture is not None and results.entries:
        plots.plot(results, picture)


def as_json(results: Run) -> str:
    return json.dumps(results.as_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
