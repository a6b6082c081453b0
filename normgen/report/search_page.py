"""docs/search.md: what `normgen replay` found on sweeps, as a table. `normgen replay FILE... --page docs/search.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from normgen.studies.replay import EVALUATIONS, Landscape, ReplayReport
from normgen.studies.sweep_file import Sweep

_HEAD = """\
# How many measurements a search needs

The project's [words](measuring.md#words) stand in one table.

Each table replays search strategies on one recorded sweep (`normgen sweep`), without a GPU: the sweep's optimum over
the best found after so many evaluations, for the median and the worst of {seeds} seeds. 1.000 is the optimum. What is
compared are marginal times: what a kernel adds to the chain that it stands in.
`normgen` is the tuner's own strategy in the tuner's batches, `random` the exact distribution of random search without
replacement, `tpe` Optuna's TPESampler with its default settings (a point it suggests again is answered from memory, \
1000
suggestions at most). A candidate that does not compile, faults or is wrong costs an evaluation.

No strategy is told a time before it asks, but the cost model that `normgen` takes its first candidates from ships with
constants that were fitted to sweeps, these among them.

Written by `{command}`; not edited by hand.
"""


def search_page(found: Sequence[tuple[Path, Sweep, Landscape, Sequence[ReplayReport]]], *, seeds: int) -> str:
    """The page of some sweeps and their reports, in the order given."""
    files = " ".join(path.as_posix() for path, *_ in found)
    command = f"normgen replay {files} --seeds {seeds} --page docs/search.md"
    return "\n".join([_HEAD.format(seeds=seeds, command=command), *(_section(*one) for one in found)])


def _section(path: Path, sweep: Sweep, land: Landscape, reports: Sequence[ReplayReport]) -> str:
    key = sweep.problem
    dtypes = "/".join(dict.fromkeys(key["dtypes"].values()))
    title = f"{key['op']} {key['direction']} {key['rows']}x{key['cols']} {dtypes} {sweep.place}"
    share = "all" if len(land.legal) >= sweep.legal else f"a stratified sample of {len(land.legal)} of"
    facts = f"`{path.name}`, {sweep.device['name']}: {share} {sweep.legal} legal schedules"
    facts += f", optimum {land.optimum_us:.4g} µs"
    roof = f", roofline {sweep.roof_us:.4g} µs" if sweep.roof_us else ""
    return f"## {title}\n\n{facts}{roof}.\n\n{_table(reports)}"


def _table(reports: Sequence[ReplayReport]) -> str:
    lines = ["| strategy | seed | " + " | ".join(map(str, EVALUATIONS)) + " |"]
    lines.append("| --- | --- |" + " ---: |" * len(EVALUATIONS))
    for report in reports:
        for what, values in (("median", report.median), ("worst", report.worst)):
            lines.append(f"| {report.strategy} | {what} | {_cells(values)} |")
    return "\n".join(lines) + "\n"


def _cells(values: Mapping[int, float]) -> str:
    return " | ".join(f"{values[n]:.3f}" for n in EVALUATIONS)
