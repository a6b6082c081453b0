"""Commands that study a problem: exhaustive sweeps, replays of strategies on them, the cost model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from normgen.cli_options import (
    json_option,
    problem_options,
    read_problem,
    show,
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


STUDY_COMMANDS: tuple[click.Command, ...] = (sweep,)
