"""When a knob's values win: counts and ratios from the evidence that ships.

    ratio = cost of the best kernel without the value / cost of the best one with it     above 1 the value wins

from three kinds of evidence: ablations (`generated/evidence/techniques_<gpu>.json`), where the kernel without is the
best found near the tuned one; sweeps (`generated/sweeps`), where both are the best of all measured schedules; and
measured ladders (`generated/evidence/ladder_<gpu>.json`), where two rungs differ in that knob alone. Winners are the
shipped records. Nothing here is predicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from normgen.knobs import TABLE
from normgen.ladder.climb import Climb, shipped_climbs
from normgen.ladder.kernels import knobs_of, problem_of
from normgen.ladder.rungs import Block, Rung, load_ladder
from normgen.problem.question import Direction
from normgen.records.questions import problem_of as problem_of_key
from normgen.records.winners import kept
from normgen.report.techniques import ablation_lines
from normgen.schedule.schedule import Schedule, changed, schedule_from
from normgen.spec.reader import load
from normgen.studies.sweep_file import Sweep, read_sweep
from normgen.studies.techniques import changes

Value = tuple[str, Any]  # a knob's name and one of its values


@dataclass(frozen=True, kw_only=True)
class MeasuredRatio:
    """One measured ratio; `where` names the problem and the kind of evidence."""

    ratio: float
    where: str


@dataclass(frozen=True, kw_only=True)
class Winners:
    """`count` of `of` tuned kernels have a value, and the range of their cols."""

    count: int
    of: int
    least_cols: int
    most_cols: int


@dataclass(frozen=True, kw_only=True)
class KnobEvidence:
    """Value -> its ratios, largest first, and its winners."""

    ratios: dict[Value, tuple[MeasuredRatio, ...]]
    winners: dict[Value, Winners]


def evidence(root: Path) -> KnobEvidence:
    """All that the files under `root/generated` say about values of knobs."""
    found: dict[Value, list[MeasuredRatio]] = {}
    for value, ratio in (*_of_ablations(root), *_of_sweeps(root), *_of_ladders(root)):
        found.setdefault(value, []).append(ratio)
    ratios = {value: tuple(sorted(some, key=lambda one: -one.ratio)) for value, some in found.items()}
    return KnobEvidence(ratios=ratios, winners=_winners(root))


def _of_ablations(root: Path) -> Iterator[tuple[Value, MeasuredRatio]]:
    for file in sorted((root / "generated" / "evidence").glob("techniques_*.json")):
        for line in ablation_lines(file)[0]:
            knob = line.technique.partition("=")[0]
            knob = "rows_per_block" if knob == "row_barriers" else knob
            if line.gain:
                value = getattr(changed(Schedule(), line.schedule), knob)
                yield (knob, value), MeasuredRatio(ratio=line.gain.median, where=f"{line.label}, ablation")


def _of_sweeps(root: Path) -> Iterator[tuple[Value, MeasuredRatio]]:
    for file in sorted((root / "generated" / "sweeps").glob("*.xz")):
        sweep = read_sweep(file)
        where = f"{_swept(sweep)}, sweep"
        for knob in TABLE:
            best = _best_of_values(sweep, knob.name)
            for value, us in best.items():
                others = [other for name, other in best.items() if name != value]
                if others:
                    yield (knob.name, value), MeasuredRatio(ratio=min(others) / us, where=where)


def _best_of_values(sweep: Sweep, knob: str) -> dict[Any, float]:
    """Value -> the least price of a measured schedule that has it; alone: the least time."""
    base = sweep.chain_us or 0.0
    best: dict[Any, float] = {}
    for point in sweep.points:
        if point.us is not None:
            value = getattr(point.schedule, knob)
            best[value] = min(best.get(value, point.us - base), point.us - base)
    return best


def _swept(sweep: Sweep) -> str:
    key = sweep.problem  # a backward pass may read no input
    dtype = key["dtypes"].get(load(key["op"]).inputs[0].name) or next(iter(key["dtypes"].values()))
    return f"{key['op']} {Direction(key['direction']).short} {key['rows']}x{key['cols']} {dtype} {sweep.place}"


def _of_ladders(root: Path) -> Iterator[tuple[Value, MeasuredRatio]]:
    """Launches of rungs of one problem that differ in one knob."""
    for climb in (one for one in shipped_climbs(root) if one.measured):
        timed = list(_timed(climb))
        for (problem, mine, us), (other_problem, other, other_us) in permutations(timed, 2):
            differ = changes(mine, other)
            if problem == other_problem and len(differ) == 1:
                value = (differ[0], getattr(mine, differ[0]))
                yield value, MeasuredRatio(ratio=other_us / us, where=f"{problem} {climb.place}, ladder")


def _timed(climb: Climb) -> Iterator[tuple[str, Schedule, float]]:
    """(problem, schedule, µs) of each measured launch of a rung that is one kernel."""
    ladder = load_ladder(climb.ladder)
    rungs: dict[str, Rung] = {rung.name: rung for rung in ladder.rungs if not rung.kernels}
    for found in climb.rungs:
        rung = rungs.get(found.name)
        blocks: dict[str, Block] = {block.block: block for block in rung.blocks} if rung else {}
        for launch in found.launches:
            if rung and launch.us is not None and launch.block in blocks:
                knobs = knobs_of(rung.knobs) | knobs_of(blocks[launch.block].knobs)
                yield str(problem_of(ladder, rung)), schedule_from(knobs), launch.us


def _winners(root: Path) -> dict[Value, Winners]:
    """A way of summing columns is counted where there are column sums; every other knob in all tuned kernels."""
    cols: dict[Value, list[int]] = {}
    of: Counter[str] = Counter()
    for file in sorted((root / "generated" / "records").glob("*.jsonl")):
        for record in kept(file):
            spec = load(record.problem.op)
            if not record.measured or record.problem.spec_sha256 != spec.sha256:
                continue
            problem = problem_of_key(record.problem, spec)
            for knob in TABLE:
                if knob.name != "columns" or problem.sums_rows:
                    of[knob.name] += 1
                    cols.setdefault((knob.name, getattr(record.schedule, knob.name)), []).append(problem.cols)
    return {
        (knob, value): Winners(count=len(some), of=of[knob], least_cols=min(some), most_cols=max(some))
        for (knob, value), some in cols.items()
    }
