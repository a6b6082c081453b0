"""Commands that study a problem: exhaustive sweeps, replays of strategies on them, the cost model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from normgen.cli_options import (
    json_option,
    problem_options,
    read_problem,
    read_schedule,
    show,
    target_option,
)


@click.command()
@problem_options
@json_option
@click.option("--cache", type=click.Choice(["cold", "hot"]), default="cold", show_default=True)
@click.option("--limit", type=click.IntRange(min=1), help="Measure a stratified sample of so many schedules.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File (default: named by the problem).")
@click.option("--device", type=int, default=0, show_default=True, help="Number of a GPU.")
@click.option("--seed", type=int, default=0, show_default=True)
def sweep(
    as_json: bool, cache: str, limit: int | None, out: Path | None, device: int, seed: int, **options: Any
) -> None:
    """Measure every legal schedule of a problem, or a sample, into one file that `replay` reads.

    Run again with the same file, it goes on where it was stopped. --json prints {file, points, outcomes, roof_us,
    noise_floor, best, best_us}.
    """
    from collections import Counter

    from normgen.tuning.records import Cache
    from normgen.tuning.sweep import Progress, sweep_on_gpu

    problem = read_problem(options)
    path = out or Path(f"{problem.name}_{problem.rows}x{problem.cols}_{cache}.jsonl.xz")

    def tell(progress: Progress) -> None:
        best = f", best {progress.best_us:.2f} us" if progress.best_us else ""
        click.echo(f"{progress.done} of {progress.total}{best}", err=True)

    found = sweep_on_gpu(problem, cache=Cache(cache), path=path, limit=limit, index=device, seed=seed, tell=tell)
    outcomes = dict(sorted(Counter(p.outcome.value for p in found.points).items()))
    best, header = found.optimum, found.header
    if as_json:
        figures = {"roof_us": header.roof_us, "noise_floor": header.noise_floor}
        counts = {"file": str(path), "points": len(found.points), "outcomes": outcomes}
        show({**counts, **figures, "best": best.schedule.as_dict(), "best_us": best.us})
        return
    click.echo(f"{path}: {len(found.points)} of {header.legal} points, {outcomes}")
    click.echo(f"best {best.us:.2f} us, roof {header.roof_us:.2f} us: {best.schedule}")


@click.command()
@json_option
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--strategy", "names", multiple=True, help="normgen, random, tpe; repeat for several (default: all).")
@click.option("--seeds", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--workers", type=click.IntRange(min=1), help="Processes (default: the cores of this machine).")
def replay(as_json: bool, file: Path, names: tuple[str, ...], seeds: int, workers: int | None) -> None:
    """What search strategies would have found on a recorded sweep, without a GPU.

    Prints the optimum over the best so far after 10, 25, 50, 100 and 200 evaluations: median and worst seed.
    --json prints {file, points, optimum_us, reports: [{strategy, seeds, median, worst}]}.
    """
    from normgen.tuning.replay import EVALUATIONS, STRATEGIES, landscape_of
    from normgen.tuning.replay import replay as run
    from normgen.tuning.sweep_file import read_sweep

    land = landscape_of(read_sweep(file))
    reports = [run(land, name, seeds=seeds, workers=workers) for name in names or STRATEGIES]
    if as_json:
        facts = {"file": str(file), "points": len(land.legal), "optimum_us": land.optimum_us}
        show({**facts, "reports": [r.as_dict() for r in reports]})
        return
    click.echo(f"{file}: {len(land.legal)} points, optimum {land.optimum_us:.2f} us, {seeds} seeds")
    click.echo("after".ljust(18) + "".join(f"{n:>8}" for n in EVALUATIONS))
    for report in reports:
        for what, values in (("median", report.median), ("worst", report.worst)):
            click.echo(f"{report.strategy:<10} {what:<7}" + "".join(f"{values[n]:8.3f}" for n in EVALUATIONS))


@click.command()
@problem_options
@target_option
@json_option
@click.argument("knobs", nargs=-1)
def explain(target: str, as_json: bool, knobs: tuple[str, ...], **options: Any) -> None:
    """What the cost model thinks of a schedule: KNOBS that differ from the default, such as vector=4 load=streaming.

    --json prints {problem, schedule, device, us, memory_us, latency_us, issue_us, columns_us, tail_us, factor, bytes,
    registers, spilled, blocks_per_sm, occupancy, waves, looks}.
    """
    from dataclasses import asdict

    from normgen.schedule.cost import predict
    from normgen.tuning import parts

    problem, facts = read_problem(options), parts.target_device(target)
    schedule = read_schedule(problem, facts, " ".join(knobs))
    cost = predict(problem, schedule, facts, stages=parts.stages_of(problem))
    if as_json:
        show({"problem": str(problem), "schedule": schedule.as_dict(), "device": facts.name, **asdict(cost)})
        return
    click.echo(f"{problem} on {facts.name}: {schedule}")
    click.echo("\n".join(cost.lines()))


@click.command()
@json_option
@click.option("--device", type=int, default=0, show_default=True, help="Number of the GPU to measure.")
@click.option(
    "--fit", "files", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Fit to a sweep or a run's candidates.jsonl instead, without a GPU; repeat for several.",
)  # fmt: skip
@click.option("--from", "start_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Start here.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File (default: named by the GPU).")
def calibrate(as_json: bool, device: int, files: tuple[Path, ...], start_file: Path | None, out: Path | None) -> None:
    """Measure the cost model's constants on a GPU, or fit them to measured schedules, and write them to a file.

    --json prints {file, device, constants}. The files that ship stand in normgen/schedule/devices.
    """
    from normgen.schedule.constants import constants_of, file_name, read_constants, write_constants

    evidence: dict[str, object]
    if files:
        from normgen.tuning.fit import fit_constants, read_measured

        measured = read_measured(files)
        facts = measured[0].device
        start = read_constants(start_file) if start_file else constants_of(facts)
        constants = fit_constants(measured, start, tell=lambda text: click.echo(text, err=True))
        evidence = {"fit": [f"{m.problem}: {len(m.points)} schedules" for m in measured]}
    else:
        from normgen.cuda.runtime import device_facts
        from normgen.tuning.calibrate import calibrate_gpu, summary

        facts = device_facts(device)
        found = calibrate_gpu(device, read_constants(start_file) if start_file else constants_of(facts))
        constants = found.constants
        evidence = {"copy_gb_per_s": found.copy_gb_per_s, "measured_us": found.measured_us}
        click.echo("\n".join(summary(found)), err=True)
    path = out or Path(file_name(facts.name))
    write_constants(path, constants, device=facts.name, evidence=evidence)
    if as_json:
        show({"file": str(path), "device": facts.name, "constants": constants.as_dict()})
    else:
        click.echo(f"{path}: constants of {facts.name}")


STUDY_COMMANDS: tuple[click.Command, ...] = (sweep, replay, explain, calibrate)
