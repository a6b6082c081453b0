"""Random legal schedules of the operations that come with normgen, each for a random awkward problem."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from normgen.choice.first import default_schedule
from normgen.device import TARGETS, Device
from normgen.errors import NormgenError, NothingValidError
from normgen.knobs import KNOBS, VarianceMethod
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.problem.scales import ScaleLayout
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import list_specs, load
from tests.codegen.in_place import pairs_of
from tests.codegen.layouts import BACKWARD_SETS, FORMATS, SETS, problem_of

H200 = TARGETS["h200"]
STEPS = 600  # some 100 of them are legal
SAME_BITS = 0.2  # share of the backward problems that promise them
STABLE = 0.3  # share of the problems whose parameters no kernel in front writes
BY_COLUMN = 0.5  # share of the tensors of groups that are column-major
# Blocks of the grid that share rows need more knobs at once than a step changes: a share of the walks comes to them.
SHARED = 0.2
TOGETHER: dict[str, Any] = {"persistent": 1, "cluster": 1, "rows_per_block": 1, "dependent_launch": "off"}
IN_PLACE = 0.3  # share of those whose outputs take the place of inputs, where they may
# The check finds kernels that use it wrong as they are, on rows of a large mean.
LOSSY = VarianceMethod.SUM_OF_SQUARES


@dataclass(frozen=True)
class Legal:
    """A problem and one of its legal schedules."""

    asked: Problem
    schedule: Schedule

    def problem(self) -> Problem:
        return self.asked

    def schedules(self, problem: Problem) -> list[Schedule]:  # noqa: ARG002 - it was drawn for this problem
        return [self.schedule]

    @property
    def text(self) -> str:
        return self.asked.spec.text

    def kept(self) -> dict[str, Any]:
        return {"question": self.asked.arguments(), "schedules": [self.schedule.chosen]}

    def __str__(self) -> str:
        tensors = " ".join(f"{t.name}:{t.dtype}" for t in self.asked.tensors)
        told = f"pitch {self.asked.pitch}, align {self.asked.align}, any_cols {self.asked.any_cols}, {tensors}"
        return f"{self.asked} ({told})\n{self.schedule}\n"


def draw_legal(rng: Random, device: Device = H200) -> Legal:
    """A random walk over legal points, from the default one: most random points are not legal."""
    while True:
        problem = _problem(rng)
        try:
            return Legal(problem, walk(problem, rng, device))
        except NothingValidError:
            continue  # groups of 128 elements need vectors, which rows an odd pitch apart have not


def walk(problem: Problem, rng: Random, device: Device = H200) -> Schedule:
    schedule, is_shared = default_schedule(problem, device), rng.random() < SHARED
    for _ in range(STEPS):
        changed = rng.sample(tuple(KNOBS), rng.randint(1, 4))
        point = replace(schedule, **{name: rng.choice(KNOBS[name].values) for name in changed})
        if is_shared and rng.random() < SHARED:
            threads, parts = rng.choice((32, 64, 96, 128)), rng.choice((2, 3, 4, 5, 7, 8, 12))
            point = replace(point, **TOGETHER, reduce_with="shuffle", threads_per_row=threads, parts=parts)
        if point.variance != LOSSY and refusal(problem, point, device) is None:
            schedule = point
    return schedule


def _problem(rng: Random) -> Problem:
    while True:
        direction = rng.choice(tuple(Direction))
        layouts = (BACKWARD_SETS if direction is Direction.BACKWARD else SETS)[rng.choice(("small", "large"))]
        spec = load(rng.choice(sorted(list_specs())))
        deterministic = direction is Direction.BACKWARD and rng.random() < SAME_BITS
        stable = bool(spec.parameters) and rng.random() < STABLE
        try:
            problem = problem_of(spec, rng.choice(layouts), rng.choice(FORMATS), direction.value)
            question = problem.arguments() | {"deterministic": deterministic, "stable_parameters": stable}
            scales = [t.name for t in problem.tensors if t.group and rng.random() < BY_COLUMN]
            question |= {"layout": dict.fromkeys(scales, ScaleLayout.COLUMN_MAJOR.value)}
            places = pairs_of(problem) if not problem.accumulate and rng.random() < IN_PLACE else {}
            return problem_for(spec, **question | {"in_place": places})
        except NormgenError:
            continue  # no such gradient, or a promise about tensors that this problem has not
