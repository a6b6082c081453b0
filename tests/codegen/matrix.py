"""The body that both executors share: schedules of many problems, run and compared with the float64 reference."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence

from normgen import verify
from normgen.codegen.emit import emit
from normgen.problem import Direction, Problem
from normgen.schedule.schedule import Schedule
from normgen.spec_reader import load
from tests.codegen.covering import Case, cover, pool
from tests.codegen.executors import Executor
from tests.codegen.layouts import DEVICE, SETS, problems

FULL = os.environ.get("NORMGEN_MATRIX") == "full"
SEEDS = range(4) if FULL else range(1)
CHECKED_ROWS = 48
# What a rewrite is known to lose, as its spec's accuracy contract says: E[x²] - mean² cancels when the mean is large.
LOST = {"sum_of_squares": ("large_mean", "constant")}


def sample(op: str, layouts: str, seed: int, *, extra: int, **more: object) -> list[Case]:
    """Cases that cover the knobs over all problems of a set of layouts, and `extra` at random."""
    rng = random.Random(f"{op} {layouts} {seed}")
    pools = [pool(p, DEVICE, rng) for p in problems(load(op), SETS[layouts], seed, every_format=FULL, **more)]
    cases = [case for pool_ in pools for case in pool_]
    return [*cover(cases), *rng.sample(cases, min(extra, len(cases)))]


def by_problem(cases: Sequence[Case]) -> dict[Problem, list[Schedule]]:
    found: dict[Problem, list[Schedule]] = {}
    for problem, schedule in cases:
        found.setdefault(problem, []).append(schedule)
    return found


def families(problem: Problem, schedule: Schedule) -> tuple[str, ...] | None:
    """The rows a schedule has to get right; None: all that there are."""
    lost = LOST.get(schedule.variance, ())
    if problem.direction is Direction.BACKWARD or not lost:
        return None
    return tuple(name for name in verify.ALL if name not in lost)


def wrong(cases: Sequence[Case], executor: Executor, *, seed: int) -> Iterator[str]:
    """What is wrong with each forward kernel that is: faults, elements out of bounds, bytes written outside."""
    built = executor.build([emit(problem, schedule) for problem, schedule in cases])
    inputs: dict[tuple[Problem, tuple[str, ...] | None], verify.Inputs] = {}
    for (problem, schedule), kernel in zip(cases, built, strict=True):
        key = (problem, families(problem, schedule))
        if key not in inputs:
            inputs[key] = verify.make_inputs(problem, seed=seed, families=key[1])
        outputs = verify.make_outputs(problem)
        faults = kernel.run(inputs[key], outputs, seed=seed)
        chain = verify.longest_chain(problem, schedule)
        verdict = verify.check(problem, inputs[key], outputs, rows=CHECKED_ROWS, chain=chain)
        if faults or not verdict.ok:
            yield f"{problem}, pitch {problem.pitch}, align {problem.align}: {schedule}\n{faults}\n{verdict.summary()}"


def report(found: Sequence[str], cases: Sequence[Case]) -> str:
    return f"{len(found)} of {len(cases)} kernels are wrong:\n" + "\n".join(found[:5])
