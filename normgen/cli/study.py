"""Commands that study: exhaustive sweeps, replays of strategies on them, the cost model, the kernels' errors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from normgen.bench.accuracy.bits import PAIRS, VALUES, check_known, run_pairs
from normgen.bench.accuracy.cells import (
    COLS,
    CPU_ELEMENTS,
    CPU_ROWS,
    DTYPES_SHOWN,
    ELEMENTS,
    OPS,
    ROWS,
    CellsAsked,
)
from normgen.bench.accuracy.kernels import OnCpu, OnGpu
from normgen.bench.accuracy.table import fill, torch_versions
from normgen.cli.options import (
    CommandGroup,
    NewFile,
    json_option,
    parse_device,
    parse_names,
    place_options,
    problem_options,
    schedule_option,
    seed_option,
    show,
    target_option,
)
from normgen.cli.problems import read_problem
from normgen.cli.studies.frozen import first, frozen, rank
from normgen.cli.text.result import LiveLine, Terminal
from normgen.cost.checklist import checklist
from normgen.cost.constants import Constants, constants_of, file_name, read_constants, write_constants
from normgen.cost.model import predict
from normgen.cuda.driver import device_facts, find_gpu
from normgen.device import Device
from normgen.device import target as named_target
from normgen.errors import UsageError
from normgen.files.plain import plain
from normgen.files.private import write_output
from normgen.ladder.points import read_schedule
from normgen.problem.question import Direction
from normgen.program.source import stages_of
from normgen.records.place import place_named
from normgen.report.accuracy_page import accuracy_page
from normgen.report.search_page import search_page
from normgen.studies import evaluate
from normgen.studies.calibrate import calibrate_gpu, summary
from normgen.studies.fit import fit_constants, read_measured
from normgen.studies.repeat import Tuned, repeat_on_gpu
from normgen.studies.replay import EVALUATIONS, STRATEGIES, Landscape, ReplayReport, landscape_of
from normgen.studies.replay import replay as run
from normgen.studies.sweep import sweep_on_gpu
from normgen.studies.sweep_file import read_sweep


@click.command()
@problem_options
@json_option
@place_options
@click.option("--limit", type=click.IntRange(min=1), help="Measure a stratified sample of so many schedules.")
@click.option("--best", type=click.IntRange(min=0), default=0, help="And so many that the cost model calls fastest.")
@click.option("--out", type=NewFile(), help="File (default: named by the problem).")
@click.option("--device", type=int, default=0, show_default=True, help="Number of a GPU.")
@seed_option
@click.pass_context
def sweep(ctx: click.Context, /, as_json: bool, setting: str, context: str, out: Path | None, **options: Any) -> None:
    """Measure every legal schedule of a problem, or a sample, into one file that `replay` reads.

    Run again with the same file, it goes on where it was stopped. --json prints {file, points, outcomes, roof_us,
    noise_floor, best, best_us}.
    """
    from collections import Counter

    asked: dict[str, Any] = {name: options.pop(name) for name in ("limit", "best", "seed")}
    index, problem = options.pop("device"), read_problem(options)
    place = place_named(setting, context)
    where = str(place).replace(" ", "_")
    path = out or Path(f"{problem.name}_{problem.rows}x{problem.cols}_{where}.jsonl.xz")

    with Terminal() as progress:
        found = sweep_on_gpu(problem, place=place, path=path, index=index, progress=progress, **asked)
    outcomes = dict(sorted(Counter(p.outcome.value for p in found.points).items()))
    optimum = found.optimum
    if as_json:
        figures = {"roof_us": found.roof_us, "noise_floor": found.noise_floor}
        counts = {"file": str(path), "points": len(found.points), "outcomes": outcomes}
        show({**counts, **figures, "best": optimum.schedule.as_dict(), "best_us": optimum.us})
        ctx.exit(found.exit_code)
    click.echo(f"{path}: {len(found.points)} of {found.legal} legal schedules, {outcomes}")
    best_us = (optimum.us or 0.0) - (found.chain_us or 0.0)
    click.echo(f"best {best_us:.2f} us, roofline {found.roof_us:.2f} us, {place.words}: {optimum.schedule}")
    ctx.exit(found.exit_code)


@click.command()
@json_option
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--strategy", "names", multiple=True, help=f"{', '.join(STRATEGIES)}; repeat (default: all).")
@click.option("--seeds", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--workers", type=click.IntRange(min=1), help="Processes (default: the cores of this machine).")
@click.option("--page", type=NewFile(), help="Write the tables as Markdown too.")
def replay(
    as_json: bool, files: tuple[Path, ...], names: tuple[str, ...], seeds: int, workers: int | None, page: Path | None
) -> None:
    """What search strategies would have found on recorded sweeps, without a GPU.

    Prints the optimum over the best so far after 10, 25, 50, 64, 100 and 200 evaluations, median and worst seed, and a
    score: the share of what random search leaves to be won over 64 evaluations; behind the last file its means, over
    all sweeps and over those that the cost model was not fitted to.
    --json prints {sweeps: [{file, points, optimum_us, fitted, reports: [{strategy, seeds, median, worst, score}]}]}.
    """
    found = []
    chosen = names or STRATEGIES
    for number, file in enumerate(files):
        sweep = read_sweep(file)
        land = landscape_of(sweep)
        reports: list[ReplayReport] = []
        with LiveLine() as line:
            for name in chosen:
                done = number * len(chosen) + len(reports)
                line.say(f"replay  {done}/{len(files) * len(chosen)}  {name} on {file.name}, {seeds} seeds")
                reports.append(run(land, name, seeds=seeds, workers=workers))
        found.append((file, sweep, land, reports))
        if not as_json:
            _show_reports(file, land, reports)
    if not as_json:
        _show_means([(land, reports) for _, _, land, reports in found])
    if page is not None:
        write_output(page, search_page(found, seeds=seeds))
    if as_json:
        facts = [
            {"file": str(file), "points": len(land.legal), "optimum_us": land.optimum_us, "fitted": land.fitted}
            | {"reports": reports}
            for file, _, land, reports in found
        ]
        show({"sweeps": facts})


def _show_reports(file: Path, land: Landscape, reports: Sequence[ReplayReport]) -> None:
    click.echo(f"{file}: {len(land.legal)} schedules, optimum {land.optimum_us:.2f} us, {reports[0].seeds} seeds")
    click.echo("after".ljust(18) + "".join(f"{n:>8}" for n in EVALUATIONS))
    for report in reports:
        for what, values in (("median", report.median), ("worst", report.worst)):
            click.echo(f"{report.strategy:<10} {what:<7}" + "".join(f"{values[n]:8.3f}" for n in EVALUATIONS))
        click.echo(f"{report.strategy:<10} score  {report.score:8.3f}")


def _show_means(lands: Sequence[tuple[Landscape, Sequence[ReplayReport]]]) -> None:
    for what, chosen in (("all", lands), ("never fitted", [one for one in lands if not one[0].fitted])):
        scores: dict[str, list[float]] = {}
        for _, reports in chosen:
            for report in reports:
                scores.setdefault(report.strategy, []).append(report.score)
        means = ", ".join(f"{name} {sum(found) / len(found):.3f}" for name, found in scores.items())
        click.echo(f"mean score, {what} ({len(chosen)} sweeps): {means or 'none'}")


@click.command()
@problem_options
@target_option
@json_option
@place_options
@schedule_option
@click.argument("words", nargs=-1, metavar="[KNOBS]...")
def explain(
    target: str, as_json: bool, setting: str, context: str, knobs: str, words: tuple[str, ...], **options: Any
) -> None:
    """What the cost model makes of a schedule, and tutorials' checklist. KNOBS continue --schedule: plain vector=4.

    --json prints {problem, schedule, device, us, memory_us, latency_us, issue_us, starts_us, columns_us, tail_us,
    factor, bytes, registers, spilled, blocks_per_sm, occupancy, waves, looks, checklist: [{question, answer, is_good,
    knobs}]}.
    """
    problem, facts = read_problem(options), named_target(target)
    place = place_named(setting, context)
    schedule = read_schedule(problem, facts, " ".join([knobs, *words]).strip())
    cost = predict(problem, schedule, facts, stages=stages_of(problem), hot=place.is_hot)
    answers = checklist(problem, schedule, facts, cost)
    if as_json:
        head = {"problem": str(problem), "schedule": schedule, "device": facts.name, **plain(cost)}
        show(head | {"checklist": answers})
        return
    click.echo(f"{problem} on {facts.name}, {place.words}: {schedule}")
    click.echo("\n".join([*cost.lines(), "", *(answer.line() for answer in answers)]))


@click.command()
@json_option
@click.option("--device", type=int, default=0, show_default=True, help="Number of the GPU to measure.")
@click.option(
    "--fit", "files", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Fit to a sweep or a run's candidates.jsonl instead, without a GPU; repeat for several.",
)  # fmt: skip
@click.option(
    "--evaluate", "judged", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Only say how good the model's first choice is on a sweep or candidates.jsonl; repeat for several.",
)  # fmt: skip
@click.option("--from", "start_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Start here.")
@click.option("--out", type=NewFile(), help="File (default: named by the GPU).")
def calibrate(
    as_json: bool,
    device: int,
    files: tuple[Path, ...],
    judged: tuple[Path, ...],
    start_file: Path | None,
    out: Path | None,
) -> None:
    """Measure the cost model's constants on a GPU, or fit them to measured schedules, and write them to a file.

    --json prints {file, device, constants}. The files that ship stand in normgen/cost/devices. With --evaluate
    nothing is written: the constants of --from (default: those that ship) name the schedule they call fastest, and
    --json prints {median, largest, choices: [{problem, place, schedules, first, first_us, predicted_us, optimum,
    optimum_us, rank, ratio}]}, ratio being first_us / optimum_us.
    """
    start = read_constants(start_file) if start_file else None
    if judged:
        _evaluate(as_json, judged, start)
        return
    facts, constants, evidence = _fitted(files, start) if files else _calibrated(device, start)
    path = out or Path(file_name(facts.name))
    write_constants(path, constants, device=facts.name, evidence=evidence)
    if as_json:
        show({"file": str(path), "device": facts.name, "constants": constants.as_dict()})
    else:
        click.echo(f"{path}: constants of {facts.name}")


def _evaluate(as_json: bool, files: Sequence[Path], constants: Constants | None) -> None:
    choices = [evaluate.first_choice(m, constants) for m in read_measured(files, thinned=False)]
    show(evaluate.summary(choices) if as_json else "\n".join(evaluate.lines(choices)))


def _fitted(files: Sequence[Path], start: Constants | None) -> tuple[Device, Constants, dict[str, object]]:
    """Starts from the defaults, not from an earlier fit: a fit of a fit would wander."""
    measured = read_measured(files)
    constants = fit_constants(measured, start or Constants(), tell=lambda text: click.echo(text, err=True))
    evidence = {"fit": [f"{m.problem}: {len(m.points)} schedules" for m in measured]}
    return measured[0].device, constants, dict(evidence)


def _calibrated(device: int, start: Constants | None) -> tuple[Device, Constants, dict[str, object]]:
    facts = device_facts(device)
    found = calibrate_gpu(device, start or constants_of(facts))
    click.echo("\n".join(summary(found)), err=True)
    return facts, found.constants, {"copy_gb_per_s": found.copy_gb_per_s, "measured_us": found.measured_us}


@click.group(cls=CommandGroup)
def study() -> None:
    """Experiments on the tuner and on its kernels."""


study.add_command(frozen)
study.add_command(first)
study.add_command(rank)


@study.command()
@problem_options
@json_option
@place_options
@click.option("--seeds", type=click.IntRange(min=1), default=10, show_default=True, help="Tunes, seeds 0, 1, ...")
@click.option(
    "--against", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A sweep of the same problem: winners are compared with its fastest.",
)  # fmt: skip
@click.option("--trials", type=click.IntRange(min=1), help="Candidates of each tune at most.")
@click.option("--device", type=int, default=0, show_default=True, help="Number of a GPU.")
def repeat(as_json: bool, setting: str, context: str, seeds: int, against: Path | None, **options: Any) -> None:
    """Tune one problem again and again from empty caches, then time all winners in one interleaved run.

    --json prints {best: {schedule, us, of_sweep}, worst_ratio, median_candidates, median_timed, median_wall_s,
    noise_floor, tunes: [{seed, winner, candidates, timed, wall_s, phases_s, us, ratio}]}.
    """
    trials, device = options.pop("trials"), options.pop("device")
    asked = []
    for name, value in options.items():
        for one in value if isinstance(value, tuple) else (value,):
            if one not in (None, "", False):
                asked += [f"--{name.replace('_', '-')}", *([] if one is True else [str(one)])]
    place = place_named(setting, context)
    asked += [*place.options(), *(["--trials", str(trials)] if trials else [])]

    def tell(tuned: Tuned) -> None:
        click.echo(f"seed {tuned.seed}: {tuned.candidates} candidates, {tuned.wall_s:.1f} s: {tuned.winner}", err=True)

    swept = read_sweep(against) if against else None
    problem = read_problem(options)
    found = repeat_on_gpu(problem, asked, place=place, seeds=seeds, against=swept, index=device, tell=tell).as_dict()
    if as_json:
        show(found)
        return
    for one in found["tunes"]:
        counts = f"{one['candidates']:4} candidates {one['wall_s']:6.1f} s"
        click.echo(f"seed {one['seed']:2} {one['ratio']:.4f} x {one['us']:9.3f} us {counts}  {one['winner']}")
    best = found["best"]
    click.echo(f"{'of the sweep' if best['of_sweep'] else 'best'} {best['us']:.3f} us: {best['schedule']}")
    medians = f"median {found['median_candidates']:.0f} candidates, {found['median_wall_s']:.1f} s"
    click.echo(f"worst {found['worst_ratio']:.4f} x, {medians}, noise floor {found['noise_floor']:.2%}")


@study.command()
@click.argument("file", type=NewFile())
@json_option
@click.option("--ops", default=",".join(OPS), show_default=True)
@click.option("--directions", default=",".join(d.value for d in Direction), show_default=True)
@click.option("--dtypes", default=",".join(DTYPES_SHOWN), show_default=True)
@click.option("--families", default="", help="Families of rows (default: all finite ones that fit the formulas).")
@click.option("--cols", default=",".join(map(str, COLS)), show_default=True)
@click.option("--rows", type=click.IntRange(min=1), help=f"Of each cell (default: {ROWS}; on the CPU {CPU_ROWS}).")
@click.option(
    "--elements", type=click.IntRange(min=1),
    help=f"Of each cell at most: fewer rows of many cols (default: {ELEMENTS}; on the CPU {CPU_ELEMENTS}).",
)  # fmt: skip
@click.option("--device", help="Number of a GPU, or cpu (default: the first GPU, else cpu).")
@click.option("--workers", type=click.IntRange(min=1), help="Processes (default: the cores of this machine).")
@click.option("--page", type=NewFile(), help="Write the table as Markdown too.")
@seed_option
@click.pass_context
def accuracy(
    ctx: click.Context,
    /,
    file: Path,
    as_json: bool,
    rows: int | None,
    elements: int | None,
    device: str | None,
    workers: int | None,
    page: Path | None,
    seed: int,
    cols: str,
    **names: str,
) -> None:
    """Errors of our kernels and torch's against float64, cell by cell, into FILE; exit 4 if one is over its bound.

    Run again with the same FILE, it goes on where it was stopped. Without torch, or an operator of it, the table says
    so. On the CPU executor cells have fewer rows, and the default schedules are those for an H200.
    --json prints {file, where, torch, cells, over, worse, above}: the last three name cells and tensors; above: an
    error too far above torch's, which may be chance.
    """
    gpu = find_gpu(parse_device(device))
    index = gpu[0] if gpu else None
    asked = CellsAsked(
        **{name: parse_names(text) for name, text in names.items()},
        cols=_sizes(cols),
        rows=rows or (CPU_ROWS if index is None else ROWS),
        elements=elements or (CPU_ELEMENTS if index is None else ELEMENTS),
    )

    cores = workers or os.cpu_count() or 1
    with Terminal() as progress:
        table = fill(file, asked, index=index, seed=seed, workers=cores, torch=torch_versions(), progress=progress)
    if page is not None:
        write_output(page, accuracy_page(table))
    marked = {"over": table.over, "worse": table.worse, "above": table.above}
    if as_json:
        facts = {"file": file, "where": table.where, "torch": table.torch}
        show({**facts, "cells": len(table.cells), **marked})
    else:
        click.echo("".join(f"{mark}: {one}\n" for mark, found in marked.items() for one in found), nl=False)
        counts = f"{len(table.over)} over the bound, {len(table.worse)} worse than torch"
        click.echo(f"{file}: {len(table.cells)} cells on {table.where}, {counts}")
    ctx.exit(table.exit_code)


@study.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
@click.option("--specs", default="", help="Only these presets, by commas.")
@click.option("--values", type=click.IntRange(min=1), default=VALUES, show_default=True, help="Of each output.")
@click.option("--device", help="Number of a GPU, or cpu (default: the first GPU, else cpu).")
@seed_option
@click.pass_context
def bits(ctx: click.Context, file: Path, as_json: bool, specs: str, values: int, device: str | None, seed: int) -> None:
    """Presets beside the libraries whose bits they have: what share of each output's elements differs, into FILE.

    A library that is not installed, or does not run here, is named with the reason. On the CPU executor 10^5 values
    take seconds. --json prints what FILE holds, as one object.
    """
    gpu = find_gpu(parse_device(device))
    wanted = parse_names(specs)
    check_known(wanted)
    pairs = tuple(pair for pair in PAIRS if not wanted or pair.spec in wanted)
    place = OnCpu() if gpu is None else OnGpu(gpu[0])

    with Terminal() as progress:
        found = run_pairs(pairs, place, values=values, seed=seed, progress=progress, path=file)
    said = (f"{one.spec} beside {one.library}'s {one.function}: {one.words}" for one in found.found if one.function)
    show(found if as_json else "\n".join(said))
    ctx.exit(found.exit_code)


def _sizes(text: str) -> tuple[int, ...]:
    """Numbers of cols. Raises UsageError."""
    try:
        sizes = tuple(int(word) for word in text.split(","))
    except ValueError:
        sizes = (0,)
    if min(sizes) < 1:
        raise UsageError("--cols are whole numbers, with commas between them", received=text)
    return sizes
