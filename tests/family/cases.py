"""The problems of each operation, with the tensors and scalars that bring out what it has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from normgen import verify
from normgen.choice.first import default_schedule
from normgen.device import target
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.verify import Expectation, Inputs
from tests.family.references import BACKWARD, FORWARD, Array

H200 = target("h200")
# What is not at its default: drawn labels reach from -1 to the last column.
SCALARS = {"ignore_index": -1.0, "label_smoothing": 0.1, "z_loss": 1e-2, "scale": 0.125}


@dataclass(frozen=True, kw_only=True)
class Case:
    problem: Problem
    schedule: Schedule

    def __str__(self) -> str:
        bare = "-bare" if self.problem.absent else ""
        return f"{self.problem.name}-{self.problem.rows}x{self.problem.cols}{bare}"


def case(op: str, shape: str, dtype: str, direction: str, *, bare: bool = False) -> Case:
    """`bare`: every optional tensor is absent."""
    spec = load(op)
    without = [t.name for t in spec.tensors if t.optional] if bare else []
    problem = problem_for(spec, shape=shape, dtype=dtype, direction=direction, without=without)
    return Case(problem=problem, schedule=default_schedule(problem, H200))


def cases() -> list[Case]:
    """Each operation whole in bf16; and bare in f32, with odd cols where there are no groups."""
    found = [case(op, "40x256", "bf16", "forward") for op in FORWARD]
    found += [case(op, "23x384" if load(op).group else "23x123", "f32", "forward", bare=True) for op in FORWARD]
    found += [case(op, "40x256", "bf16", "backward") for op in BACKWARD]
    return found


@cache
def inputs_of(problem: Problem) -> Inputs:
    """Adversarial rows in the first input; scales that are scales, masks with whole rows of -inf, targets with 0."""
    made = verify.make_inputs(problem)
    scalars = made.scalars | {name: float(np.float32(SCALARS[name])) for name in made.scalars.keys() & SCALARS.keys()}
    for name, value in {"scale": 0.03125, "scale_ub": 2.5, "grad_scale": 0.25}.items():
        if name in made.arrays:
            made.arrays[name][...] = value
    if "mask" in made.arrays:
        made.arrays["mask"][:, 1::3] = -np.inf
        made.arrays["mask"][3] = -np.inf
    if "target" in made.arrays:
        made.arrays["target"][:, ::5] = 0
    return replace(made, scalars=scalars)


@cache
def by_hand(problem: Problem) -> dict[str, Array]:
    """Every written tensor as the references have it, in the shape that a check compares."""
    inputs, op = inputs_of(problem), problem.spec.name
    tensors = {}
    for use in problem.tensors:
        if not use.is_written:
            shape = use.kind.broadcast_shape(problem.sizes)
            tensors[use.name] = inputs.arrays[use.name].astype(np.float64).reshape(shape)
    dtype = problem.dtype
    scalars = {**inputs.scalars, "stored": lambda x: dtype.stored(x).astype(np.float64)}
    with np.errstate(all="ignore"):
        return (FORWARD if problem.direction == "forward" else BACKWARD)[op](tensors, scalars)


@cache
def expected(problem: Problem, schedule: Schedule) -> Expectation:
    """The project's own reference and bounds; of a backward problem by the derived program, proven first."""
    chain = verify.longest_chain(problem, schedule)
    return verify.prepare(problem, inputs_of(problem), chain=chain)
