"""`normgen study frozen`, `first`, `rank`: random problems timed once, what first choices are worth, their ranker."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from normgen.cli.options import NewFile, json_option, show
from normgen.cli.text.result import LiveLine, Terminal
from normgen.cuda.driver import device_facts
from normgen.errors import UsageError, did_you_mean
from normgen.files.plain import plain
from normgen.files.private import write_output
from normgen.studies.frozen.file import FILE, MORE, SEEN, TRIALS, Frozen, gathered, part_of, read_frozen
from normgen.studies.frozen.first import CHOOSERS, Chooser, Scores, scores
from normgen.studies.frozen.measure import completed, drawn, lacking, measure, measured
from normgen.studies.rank import SCALE, Examples, examples, fit, left_out, raced, sources
from normgen.studies.sweep_file import Sweep, key_of
from normgen.text import table
from normgen.trials.file import peeked, read, write
from normgen.trials.head import opening
from normgen.trials.kept import Trials
from normgen.trials.versions import environment

HEAD = ("", "best of", "", "timed", "median", "p95", "worst", "<= 1.01", "<= 1.03")
LEFT_OUT: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "problem": key_of,
    "operation": lambda question: str(question["op"]),
}
SOURCE = click.Path(exists=True, path_type=Path)


@click.command()
@json_option
@click.argument("sources", nargs=-1, type=SOURCE)
@click.option("--out", "-o", type=NewFile(), required=True, help="File; what it holds already stays.")
@click.option("--measure", "is_measured", is_flag=True, help="Measure the drawn problems on a GPU.")
@click.option("--first", "chooser", help="Time what this chooser lists first and SOURCES lack: ranker.")
@click.option(
    "--index", type=click.IntRange(min=0), default=0, show_default=True, help="Which share of the work, from 0."
)
@click.option("--of", type=click.IntRange(min=1), default=1, show_default=True, help="Of so many shares.")
@click.option("--limit", "limit_s", type=click.FloatRange(min=0), help="Begin no problem after so many seconds.")
@click.option("--device", type=int, default=0, show_default=True, help="Number of a GPU.")
@click.pass_context
def frozen(
    ctx: click.Context,
    /,
    as_json: bool,
    sources: tuple[Path, ...],
    out: Path,
    is_measured: bool,
    chooser: str | None,
    **options: Any,
) -> None:
    """Random problems, each timed once: measure them, or gather what was measured from SOURCES into one file.

    SOURCES are files of frozen problems, sweeps, and folders of both; --measure leaves out what they hold. --measure
    and --first go on with their file, in which every problem that was done stays. --json prints {file, problems, parts,
    note}.
    """
    if is_measured or chooser:
        found = _measured(sources, out, chooser, **options)
    else:
        found = gathered([*([out] if out.exists() else []), *sources])
        write(out, found)
    parts = dict(sorted(Counter(part_of(sweep.problem, found.salt) for sweep in found.sweeps).items()))
    if as_json:
        show({"file": str(out), "problems": len(found.sweeps), "parts": parts, "note": found.note})
    else:
        click.echo(f"{out}: {len(found.sweeps)} problems, {parts}" + (f" ({found.note})" if found.note else ""))
    ctx.exit(found.exit_code)


def _measured(
    sources: tuple[Path, ...],
    out: Path,
    chooser: str | None,
    *,
    index: int,
    of: int,
    limit_s: float | None,
    device: int,
) -> Frozen:
    if index >= of:
        raise UsageError("--index is a share of --of, from 0", received=f"--index {index} --of {of}")
    opened = Frozen(**opening(device_facts(device), environment(measured=True), {}))
    sweeps = gathered(sources).sweeps if sources or chooser else ()
    cases = lacking(sweeps, _chooser(chooser, sweeps)) if chooser else drawn(sweeps)
    one = partial(completed if chooser else measured, device=device)
    with Terminal() as progress:
        return measure(opened, out, cases[index::of], one, limit_s=limit_s, progress=progress)


def _chooser(name: str, sweeps: Sequence[Sweep]) -> Chooser:
    if name not in CHOOSERS:
        raise UsageError("unknown chooser", received=name, hint=did_you_mean(name, tuple(CHOOSERS)))
    return CHOOSERS[name](sweeps)


@click.command()
@json_option
@click.option("--chooser", "names", multiple=True, help="ranker, search, random; repeat for several (default: all).")
@click.option("--part", "parts", multiple=True, help="fit, choose, test; repeat for several (default: choose).")
@click.option("--why", default="", help="Who looks at test and what for: a line of looks.txt beside the file.")
@click.option("--file", type=SOURCE, default=FILE, help="Frozen problems (default: those of the H200).")
def first(as_json: bool, names: tuple[str, ...], parts: tuple[str, ...], why: str, file: Path) -> None:
    """What first choices are worth on random problems that were timed: the ranker's beside a search's and chance.

    A ratio is the time of a chain over the best that was ever timed of its problem, or so of what the kernel adds to
    the chain. Of a list the best of its first 4, 8 and 32 counts too. --json prints {file, parts, choosers: [{name,
    choices, figures, missing}]}.
    """
    parts = parts or ("choose",)
    sweeps = read_frozen(file, parts, why=why)
    found = {name: scores(sweeps, _chooser(name, sweeps)) for name in names or CHOOSERS}
    if as_json:
        choosers = [{"name": name, **plain(one)} for name, one in found.items()]
        show({"file": str(file), "parts": parts, "choosers": choosers})
        return
    click.echo(f"{file.name}: {len(sweeps)} problems of {', '.join(parts)}")
    rows = [row for name, one in found.items() for row in _rows(name, one)]
    click.echo(table(HEAD, rows))
    for name, one in found.items():
        for choice in one.choices:
            for place, schedule in choice.untimed:
                click.echo(f"{name}: choice {place + 1} of {choice.problem} was not timed: {schedule}")


@click.command()
@json_option
@click.argument("files", nargs=-1, type=SOURCE)
@click.option("--part", "parts", multiple=True, help="fit, choose, test; repeat for several (default: fit and choose).")
@click.option("--why", default="", help="Who looks at test and what for: a line of looks.txt beside the file.")
@click.option("--out", "-o", type=NewFile(), help="Fit to all of them and write the ranker here.")
@click.option(
    "--score",
    "is_scored",
    is_flag=True,
    help="Say what rankers are worth on problems, and operations, left out of a fit.",
)
def rank(
    as_json: bool, files: tuple[Path, ...], parts: tuple[str, ...], why: str, out: Path | None, is_scored: bool
) -> None:
    """Fit the ranker of first choices to frozen problems and trials (default: those that come with normgen).

    LightGBM must be installed (`pip install 'normgen[study]'`). The same FILES give the same ranker. --json prints
    {file, problems, points, scores: [{left_out, choices, figures, missing}]}.
    """
    if out is None and not is_scored:
        raise UsageError("a ranker is written or scored", received="neither", hint="--out FILE, --score or both")
    files, parts = files or (FILE, MORE, TRIALS), parts or SEEN
    known = [one for file in files for one in _known(file, parts, why)]
    found = dict[str, Scores]()
    with LiveLine() as line:
        if is_scored:
            for name, by in LEFT_OUT.items():
                found[name] = left_out(known, by, progress=partial(_told, line, name))
        if out is not None:
            line.say(f"fitting {len(known)} problems")
            ranker = fit(known, sources(files, known))
            write_output(out, json.dumps(ranker.as_dict(SCALE), separators=(",", ":")) + "\n")
    points = sum(len(one.behind) for one in known)
    if as_json:
        left = [{"left_out": name, **plain(one)} for name, one in found.items()]
        show({"file": str(out) if out else None, "problems": len(known), "points": points, "scores": left})
        return
    click.echo(f"{len(known)} problems, {points} points" + (f": {out}" if out else ""))
    if found:
        click.echo(table(HEAD, [row for name, one in found.items() for row in _rows(f"{name} left out", one)]))


def _known(file: Path, parts: Sequence[str], why: str) -> Iterator[Examples]:
    """Of a file of frozen problems, or of trials."""
    if "salt" in peeked(file):
        yield from map(examples, read_frozen(file, parts, why=why))
    else:
        yield from raced(read(Trials, file, is_strict=True).trials, parts)


def _told(line: LiveLine, name: str, text: str) -> None:
    line.say(f"{name} left out: {text}")


def _rows(name: str, found: Scores) -> list[list[str]]:
    return [
        [
            name if i == 0 else "",
            str(one.count),
            "chain" if one.measure == "chain" else "kernel",
            f"{one.timed}/{one.problems}",
            *("-" if ratio is None else f"{ratio:.4f}" for ratio in (one.median, one.p95, one.worst)),
            *(f"{share:.2f}" for share in one.within.values()),
        ]
        for i, one in enumerate(found.figures)
    ]
