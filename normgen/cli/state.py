"""Commands about what is kept: caches, and results against each other."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from normgen.cli.options import (
    CommandGroup,
    NewFile,
    json_option,
    parse_device,
    place_options,
    problem_options,
    show,
    target_option,
)
from normgen.cli.problems import read_problem
from normgen.cli.text.result import comparison_text
from normgen.cuda.driver import find_gpu
from normgen.device import target as named_target
from normgen.errors import UsageError
from normgen.files.private import cache_root
from normgen.records.caches import clear, inspect, list_results
from normgen.records.compare import compare_files
from normgen.records.place import place_named
from normgen.records.winners import state_folder
from normgen.studies.trial_files import read_trials
from normgen.text import table
from normgen.trials.file import text_of, write
from normgen.trials.kept import NAME, Folder, Trials, joined, push
from normgen.trials.versions import environment
from normgen.tuning.measured import results_here

SLOWER = 5


@click.group("cache", cls=CommandGroup)
def cache_group() -> None:
    """What is kept between runs: cubins, objects of the CPU executor, results of candidates."""


@cache_group.command("path")
def cache_path() -> None:
    """The folder: NORMGEN_CACHE_DIR, else the user's cache folder."""
    click.echo(str(cache_root()))


@cache_group.command("info")
@json_option
def cache_info(as_json: bool) -> None:
    """Files and bytes of each kind. --json prints {path, kinds: {name: {files, bytes, damaged}}}."""
    report = inspect()
    if as_json:
        show(report)
        return
    rows = [[k.name, str(k.files), f"{k.bytes / 2**20:.1f}", str(k.damaged), k.what] for k in report.kinds]
    click.echo(f"{report.path}\n\n" + table(("kind", "files", "MiB", "damaged", ""), rows))


@cache_group.command("ls")
@json_option
def cache_ls(as_json: bool) -> None:
    """The problems whose candidates have results.

    --json prints {results: [{file, gpu, problem, results, environments}]}.
    """
    found = list_results()
    if as_json:
        show({"results": found})
        return
    rows = [[e.gpu, str(e.results), str(e.environments), e.problem] for e in found]
    click.echo(table(("GPU", "results", "environments", "problem"), rows) if rows else "no results are kept")


@cache_group.command("clear")
@json_option
@click.argument("kind", type=click.Choice(["all", "cubin", "cpu", "results"]), default="all")
@click.option("--yes", is_flag=True, help="Do not ask.")
def cache_clear(as_json: bool, kind: str, yes: bool) -> None:
    """Remove one KIND or all. --json prints {removed, bytes}."""
    kinds = [k for k in inspect().kinds if kind in ("all", k.name)]
    files, size = sum(k.files for k in kinds), sum(k.bytes for k in kinds)
    if files and not yes:
        click.confirm(f"Remove {files} files ({size / 2**20:.1f} MiB)?", abort=True, err=True)
    removed, freed = clear([k.name for k in kinds])
    show({"removed": removed, "bytes": freed} if as_json else f"removed {removed} files, {freed / 2**20:.1f} MiB")


@cache_group.command("why")
@problem_options
@target_option
@json_option
@place_options
@click.option("--device", default=None, help="Number of a GPU, or cpu (default: the first GPU, else the target).")
def cache_why(target: str, as_json: bool, setting: str, context: str, device: str | None, **options: Any) -> None:
    """How many kept results a run of this problem could use, and why not the others.

    --json prints {file, usable, misses: [{reason, schedules}]}.
    """
    problem = read_problem(options)
    gpu = find_gpu(parse_device(device))
    facts = gpu[1] if gpu else named_target(target)
    results = results_here(problem, facts, place_named(setting, context), environment(measured=False))
    counts = results.counts()
    usable = counts.pop("usable")
    if as_json:
        misses = [{"reason": reason, "schedules": n} for reason, n in counts.items()]
        show({"file": str(results.path), "usable": usable, "misses": misses})
        return
    click.echo(f"{results.path}\n{usable:>6}  usable")
    for reason, number in sorted(counts.items(), key=lambda pair: -pair[1]):
        click.echo(f"{number:>6}  {reason}")
    if not usable and not counts:
        click.echo("        nothing was measured for this problem on this GPU model")


@click.group("trials", cls=CommandGroup)
def trials_group() -> None:
    """What measured tunes have timed: show it, merge it, push it into a shared folder.

    FILES are files of trials, a run's candidates.jsonl, other records, sweeps, results of Kernel Tuner in T4, or
    folders that were pushed into.
    """


def _of_all(files: tuple[Path, ...]) -> Trials:
    return joined(trial for file in files for trial in read_trials(file))


@trials_group.command("show")
@json_option
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def trials_show(as_json: bool, files: tuple[Path, ...]) -> None:
    """How many trials there are, of what, where, and how they were chosen.

    --json prints {trials, timed, questions, runs, devices, versions, chosen, outcomes}; the last four are counts.
    """
    found = _of_all(files).trials
    counts = {
        "devices": Counter(str((t.device or {}).get("name", "unknown")) for t in found),
        "versions": Counter(str((t.versions or {}).get("normgen", "unknown")) for t in found),
        "chosen": Counter(t.chosen or "unknown" for t in found),
        "outcomes": Counter(t.outcome.value for t in found),
    }
    facts: dict[str, Any] = {
        "trials": len(found),
        "timed": sum(t.measured for t in found),
        "questions": len({repr(t.question) for t in found}),
        "runs": len({t.run for t in found}),
        **{name: dict(counted.most_common()) for name, counted in counts.items()},
    }
    if as_json:
        show(facts)
        return
    for name, value in facts.items():
        said = value if isinstance(value, int) else ", ".join(f"{count} {what}" for what, count in value.items())
        click.echo(f"{name:<10}{said}")


@trials_group.command("merge")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("-o", "--out", type=NewFile(), help="File; .xz is compressed (default: stdout).")
def trials_merge(files: tuple[Path, ...], out: Path | None) -> None:
    """One file of all trials of FILES, each once: a line has what is not the same for all, GPU and versions too."""
    found = _of_all(files)
    if out is None:
        click.echo(text_of(found), nl=False)
        return
    write(out, found)
    click.echo(f"{out}: {len(found.trials)} trials", err=True)


@trials_group.command("push")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
def trials_push(folder: Path, files: tuple[Path, ...]) -> None:
    """Copy the trials of FILES, or of every run of this user, into a shared FOLDER: each file once, by its content."""
    chosen = files or tuple(sorted((state_folder() / "runs").glob(f"*/{NAME}")))
    if not chosen:
        hint = "runs of `normgen tune` on a GPU have some"
        raise UsageError("there are trials to push", received=str(state_folder() / "runs"), hint=hint)
    new = [push(Folder(folder), read_trials(file)) for file in chosen]
    click.echo(f"{folder}: {sum(new)} new of {len(new)} files")


@click.command()
@click.argument("before", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("after", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def compare(before: Path, after: Path, as_json: bool) -> None:
    """Whether the kernels of AFTER are FASTER, SLOWER or the SAME as those of BEFORE, problem by problem.

    Files are records, one a line, or what `tune --json` printed. A difference counts where the 95 % intervals of the
    medians do not meet. Exit 5 if any problem is slower. --json prints {faster, slower, same, only_before, only_after,
    problems: [{problem, verdict, before_us, after_us, ratio, chain_ratio, before_verified, after_verified}]}.
    """
    found = compare_files(before, after)
    show(found if as_json else comparison_text(found))
    if found.slower:
        sys.exit(SLOWER)
