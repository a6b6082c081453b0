"""The body that both executors share: schedules of many problems, run and compared with the float64 reference."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from normgen import verify
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.verify import default_families
from tests.codegen.covering import Case, cover, pool
from tests.codegen.executors import Built, Executor, new_workspace
from tests.codegen.layouts import DEVICE, Layout, problems
from tests.samples import CORE, is_full, sized

SEEDS = range(sized(1, 4))
MOST = None if is_full() else 30  # kernels of a sample: they show four in five pairs of values, the whole some 130
CHECKED_ROWS = 48
# What a rewrite is known to lose: E[x²] - mean² cancels when the mean, or its distance from the pivot, is large.
LOST = {
    "sum_of_squares": (
        *(
            "some_mean",
            "guarded_mean",
            "large_mean",
            "near_level",
            "sparse_steps",
            "fine_noise",
            "step_noise",
            "large_steps",
        ),
        *("constant", "large_constant"),
    ),
}


def sets_of(op: str, sets: Iterable[str]) -> list[str]:
    """The sets of layouts that an operation is drawn over: in a normal run one, another for the next operation."""
    return list(sets) if is_full() else [list(sets)[CORE.index(op) % 2]]


def sample(
    op: str, layouts: tuple[Layout, ...], seed: int, *, extra: int, most: int | None = None, direction: str = "forward"
) -> list[Case]:
    """Cases that cover the knobs over all problems of these layouts, at `most` so many, and `extra` at random."""
    rng = random.Random(f"{op} {direction} {len(layouts)} {seed}")
    drawn_from = problems(load(op), layouts, seed, every_format=is_full(), direction=direction)
    cases = [case for problem in drawn_from for case in pool(problem, DEVICE, rng)]
    return [*cover(cases, most), *rng.sample(cases, min(extra, len(cases)))]


def families(problem: Problem, schedule: Schedule) -> tuple[str, ...]:
    """The rows a schedule has to get right: all but those that its rewrite is known to lose."""
    lost = LOST.get(schedule.variance, ())
    return tuple(name for name in default_families(problem) if name not in lost)


class InputsOf:
    """The inputs of every problem that comes up, drawn once."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: dict[tuple[Problem, tuple[str, ...]], verify.Inputs] = {}

    def get(self, problem: Problem, schedule: Schedule) -> verify.Inputs:
        key = (problem, families(problem, schedule))
        if key not in self._made:
            self._made[key] = verify.make_inputs(problem, seed=self._seed, families=key[1])
        return self._made[key]


def wrong(cases: Sequence[Case], executor: Executor, *, seed: int) -> Iterator[str]:
    """What is wrong with each forward kernel that is: faults, elements out of bounds, bytes written outside."""
    built = executor.build([emit(problem, schedule) for problem, schedule in cases])
    made = InputsOf(seed)
    for (problem, schedule), kernel in zip(cases, built, strict=True):
        inputs = made.get(problem, schedule)
        outputs = verify.make_outputs(problem, inputs=inputs)
        faults = kernel.run(inputs, outputs, seed=seed)
        chain = verify.longest_chain(problem, schedule)
        verdict = verify.check(problem, inputs, outputs, rows=CHECKED_ROWS, chain=chain)
        if faults or not verdict.ok:
            yield describe(problem, schedule, faults, verdict.summary())


def wrong_backward(cases: Sequence[Case], executor: Executor, *, seed: int) -> Iterator[str]:
    """As `wrong` for backward kernels, each called three times with one workspace and other orders of blocks."""
    built = executor.build([emit(problem, schedule) for problem, schedule in cases])
    made = InputsOf(seed)
    for (problem, schedule), kernel in zip(cases, built, strict=True):
        chain = verify.longest_chain(problem, schedule)
        told = calls(kernel, made.get(problem, schedule), is_deterministic(problem, schedule), chain=chain, seed=seed)
        if told:
            yield describe(problem, schedule, *told)


def is_deterministic(problem: Problem, schedule: Schedule) -> bool:
    return not problem.sums_rows or schedule.columns.is_deterministic or problem.deterministic


def calls(kernel: Built, inputs: verify.Inputs, deterministic: bool, *, chain: int, seed: int) -> list[str]:
    """What three calls in a row do wrong; deterministic kernels must give the same bits in every order of blocks."""
    problem = inputs.problem
    workspace = new_workspace(kernel.module, problem.rows, problem.batches)
    zeroed = kernel.module.zeroed_bytes(problem.batches)
    first: dict[str, bytes] = {}
    for call in range(3):
        outputs = verify.make_outputs(problem, inputs=inputs)
        faults = kernel.run(inputs, outputs, workspace=workspace, seed=3 * seed + call)
        if faults:
            return [f"call {call}", faults]
        bits = {name: array.tobytes() for name, array in outputs.arrays.items()}
        if workspace is not None and workspace[:zeroed].any():
            return [f"call {call} leaves the workspace unfit for the next"]
        if call and deterministic:
            changed = [name for name in bits if bits[name] != first[name]]
            if changed:
                return [f"call {call} gives other bits of {', '.join(changed)}"]
            continue
        first = bits
        verdict = verify.check(problem, inputs, outputs, rows=CHECKED_ROWS, chain=chain)
        if not verdict.ok:
            return [f"call {call}", verdict.summary()]
    return []


def describe(problem: Problem, schedule: Schedule, *what: str) -> str:
    tensors = " ".join(f"{t.name}:{t.dtype}" for t in problem.tensors)
    where = f"pitch {problem.pitch}, align {problem.align}, any_cols {problem.any_cols}, {tensors}"
    return "\n  ".join([f"{problem} ({where})", str(schedule), *filter(None, what)])


def report(found: Sequence[str], cases: Sequence[Case]) -> str:
    return f"{len(found)} of {len(cases)} kernels are wrong:\n" + "\n".join(found[:5])
