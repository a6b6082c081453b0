"""The kernels of a rung at one of its launches."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from normgen.choice.repair import repair
from normgen.codegen.module import Module
from normgen.device import Device
from normgen.ladder.rungs import Block, Ladder, Rung, RungKernel, steps_folder
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule, schedule_from
from normgen.schedule.tiles.cut import contraction
from normgen.spec.reader import load

OWN = ("\n\nstruct Cols", "\n\nstruct AnyCols", "\n\nstruct Pass1")  # a Config, else the state of a pass
CERTAIN = ("normal",)  # rows on which every rung is right: a kernel is timed only where its check passes


@dataclass(frozen=True, kw_only=True)
class RungPart:
    """One kernel of a rung. `timed` is its problem, held to rows that an unsafe rung, too, gets right."""

    problem: Problem
    timed: Problem
    schedule: Schedule

    @property
    def module(self) -> Module:
        return emit(self.problem, self.schedule)


def problem_of(ladder: Ladder, rung: Rung | None = None, op: str = "") -> Problem:
    """What a rung computes; of a rung of several kernels, what they compute together, or with `op` one of them."""
    asked = {**ladder.problem, **(rung.problem if rung else {})}
    name = op or str(asked["op"])
    options = {key: value for key, value in asked.items() if key != "op" and not (op and key == "without")}
    return problem_for(load(name, [steps_folder()]), **options)


def knobs_of(text: str) -> dict[str, str]:
    """`a=1 b=2` of a ladder's file."""
    return {name: value for name, _, value in (pair.partition("=") for pair in text.split())}


def parts_of(ladder: Ladder, rung: Rung, block: Block, device: Device) -> tuple[RungPart, ...]:
    """The kernels of a launch, in their order. Raises UsageError where the language or the device refuses one."""
    steps = rung.kernels or (RungKernel(op="", knobs=rung.knobs),)
    return tuple(_part(ladder, rung, step, block, device) for step in steps)


def _part(ladder: Ladder, rung: Rung, step: RungKernel, block: Block, device: Device) -> RungPart:
    problem = problem_of(ladder, rung, step.op)
    knobs = knobs_of(step.knobs) | ({} if step.is_fixed else knobs_of(block.knobs))
    schedule = schedule_from(knobs)
    refused = repair(problem, schedule, device, knobs)
    if refused is not None:
        raise refused.error(schedule)
    spec = replace(problem.spec, accuracy_rows=CERTAIN) if rung.unsafe else problem.spec
    return RungPart(problem=problem, timed=replace(problem, spec=spec), schedule=schedule)


def around_tile(part: RungPart) -> tuple[RungPart, ...]:
    """A product's kernel at sizes on both sides of its tile, by as little as its vectors allow along cols and inner.

    The CPU executor does not get through the sizes that a product is timed at. Rows are those of a batch, of which
    there are two, where each has tiles of its own.
    """
    s, cut = part.schedule, contraction(part.problem)
    tiles = {cut.m: s.tile_m, cut.n: s.tile_n, cut.k: 2 * s.tile_k}
    found = []
    for way in (-1, 1):
        at = {axis: tile + way * (1 if axis == "rows" else s.vector) for axis, tile in tiles.items()}
        batches = {"batches": 2} if part.problem.rows_per_batch else {}
        shape = f"{at['rows'] * batches.get('batches', 1)}x{at['cols']}"
        around = {"shape": shape, "inner": at["inner"], "pitch": None, **batches}
        asked = part.problem.arguments() | around
        problem = problem_for(part.problem.spec, **asked)
        found.append(RungPart(problem=problem, timed=problem, schedule=s))
    return tuple(found)


def own_text(module: Module) -> str:
    """The kernels alone, with what is theirs in front of the first: the device library's helpers stand before them."""
    start = module.text.rindex("\n\n", 0, module.text.index("__global__"))
    own = next((mark for mark in OWN if mark in module.text[:start]), None)
    start = module.text.index(own) if own else start
    return module.text[start + 2 :].rstrip() + "\n"


def comparable(text: str) -> str:
    """A kernel's text without the digits that name it: what is left differs where kernels do."""
    return re.sub(r"\b(Cols\w+?|Pass\d+|\w+_per_row|\w+_finish)_[0-9a-f]{4}\b", r"\1", text)
