"""docs/search.md: what `normgen replay` found on sweeps, as a table. `normgen replay FILE... --page docs/search.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from normgen.studies.replay import EVALUATIONS, TRIALS, Landscape, ReplayReport
from normgen.studies.sweep_file import Sweep

_HEAD = """\
# How many measurements a search needs

The project's [words](measuring.md#words) stand in one table.

Each table replays search strategies on one recorded sweep (`normgen sweep`), without a GPU: the sweep's optimum over
the best found after so many evaluations, for the median and the worst of {seeds} seeds. 1.000 is the optimum. What is
compared are marginal times: what a kernel adds to the chain that it stands in. A candidate that does not compile,
faults or is wrong costs an evaluation.

* `normgen`: the tuner's own sampler in the tuner's batches. Its prior, the cost model, ships with constants that were
  fitted to sweeps; {fitted}.
* `misled`: the same sampler with a prior of noise, the cost model's words given to the schedules by lot.
* `random`: the exact distribution of random search without replacement.
* `tpe`: Optuna's TPESampler with its default settings, one trial after another. A suggestion that is not legal, or was
  proposed before, is moved to the legal schedule nearest to it that was not: as `normgen tune --sampler tpe` does.

All but `random` begin with the default schedule where the sweep has it.

Written by `{command}`; not edited by hand.

## Score

How much of what random search leaves to be won a sampler wins, on average over the {trials} evaluations of a tune: 0 is
random search, 1 the optimum at once. It is the score by which Kernel Tuner compares optimizers
([arXiv 2509.26300](https://arxiv.org/abs/2509.26300)), with evaluations as the time.

{scores}
## The sampler in your own study

`normgen.SurrogateSampler` is an Optuna sampler for any enumerated set of legal points, without anything else of
normgen. Optuna's storages, dashboard, callbacks and parallel workers work as with any sampler.

```python
import itertools
import math

import optuna

from normgen import SurrogateSampler

legal = [
    {{"threads": threads, "unroll": unroll, "layout": layout}}
    for threads, unroll, layout in itertools.product((32, 64, 128, 256, 512), range(1, 9), ("rows", "columns", "tiles"))
    if threads * unroll <= 1024  # what else would be refused
]


def time_us(trial: optuna.Trial) -> float:
    threads = trial.suggest_categorical("threads", [32, 64, 128, 256, 512])
    unroll = trial.suggest_int("unroll", 1, 8)
    layout = trial.suggest_categorical("layout", ["rows", "columns", "tiles"])
    return 5 + abs(math.log2(threads / 128)) + 0.1 * abs(unroll - 6) + (layout != "tiles")


study = optuna.create_study(sampler=SurrogateSampler(legal, seed=0))
study.optimize(time_us, n_trials=40)
print(study.best_params, study.best_value)
assert study.best_params == {{"threads": 128, "unroll": 6, "layout": "tiles"}}
assert len({{tuple(trial.params.items()) for trial in study.trials}}) == 40  # each point once
```

`normgen tune --sampler tpe`, `gp` or `random` gives the tuner's study one of Optuna's own samplers instead.
"""


def search_page(found: Sequence[tuple[Path, Sweep, Landscape, Sequence[ReplayReport]]], *, seeds: int) -> str:
    """The page of some sweeps and their reports, in the order given."""
    files = " ".join(path.as_posix() for path, *_ in found)
    command = f"normgen replay {files} --seeds {seeds} --page docs/search.md"
    head = _HEAD.format(
        seeds=seeds,
        command=command,
        trials=TRIALS,
        scores=_scores(found),
        fitted=_fitted([land for _, _, land, _ in found]),
    )
    return "\n".join([head, *(_section(*one) for one in found)])


def _fitted(lands: Sequence[Landscape]) -> str:
    """Which sweeps the cost model has seen."""
    seen = [land.fitted for land in lands]
    if all(seen):
        return "these among them"
    return f"those that it never saw are marked ({len(seen) - sum(seen)} of {len(seen)})"


def _scores(found: Sequence[tuple[Path, Sweep, Landscape, Sequence[ReplayReport]]]) -> str:
    """Each strategy's score on each sweep, and the means: over all, and over the sweeps that no fit saw."""
    names = [report.strategy for report in found[0][3]]
    rows = {_title(sweep): {r.strategy: r.score for r in reports} for _, sweep, _, reports in found}
    unseen = [_title(sweep) for _, sweep, land, _ in found if not land.fitted]
    lines = ["| sweep | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names)]
    for title, row in rows.items():
        mark = " (never fitted)" if title in unseen and len(unseen) < len(rows) else ""
        lines.append(f"| {title}{mark} | " + " | ".join(f"{row[name]:.2f}" for name in names) + " |")
    for what, titles in (("mean", list(rows)), ("mean of those never fitted", unseen)):
        if titles:
            means = (sum(rows[t][name] for t in titles) / len(titles) for name in names)
            lines.append(f"| **{what}** | " + " | ".join(f"{mean:.2f}" for mean in means) + " |")
    return "\n".join(lines) + "\n"


def _title(sweep: Sweep) -> str:
    key = sweep.problem
    dtypes = "/".join(dict.fromkeys(key["dtypes"].values()))
    return f"{key['op']} {key['direction']} {key['rows']}x{key['cols']} {dtypes} {sweep.place}"


def _section(path: Path, sweep: Sweep, land: Landscape, reports: Sequence[ReplayReport]) -> str:
    share = "all" if len(land.legal) >= sweep.legal else f"a stratified sample of {len(land.legal)} of"
    facts = f"`{path.name}`, {sweep.device['name']}: {share} {sweep.legal} legal schedules"
    facts += f", optimum {land.optimum_us:.4g} µs"
    roof = f", roofline {sweep.roof_us:.4g} µs" if sweep.roof_us else ""
    return f"## {_title(sweep)}\n\n{facts}{roof}.\n\n{_table(reports)}"


def _table(reports: Sequence[ReplayReport]) -> str:
    lines = ["| strategy | seed | " + " | ".join(map(str, EVALUATIONS)) + " |"]
    lines.append("| --- | --- |" + " ---: |" * len(EVALUATIONS))
    for report in reports:
        for what, values in (("median", report.median), ("worst", report.worst)):
            lines.append(f"| {report.strategy} | {what} | {_cells(values)} |")
    return "\n".join(lines) + "\n"


def _cells(values: Mapping[int, float]) -> str:
    return " | ".join(f"{values[n]:.3f}" for n in EVALUATIONS)
