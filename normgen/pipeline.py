"""The page: how a question becomes a kernel. Everything else is reached from here.

    spec, question -> Problem        what is asked            spec/, problem/
    Problem        -> RowProgram     what is computed         program/: lowered; backward: derived from that
    RowProgram     -> RowProgram     a pass at a time         program/rewrites/
    with Schedule  -> Plan           all that follows         schedule/; its expressions are trees: program/frozen.py
    Plan           -> Module         the CUDA text            codegen/

What is done with a module stands in `tuning/tuner.py`: compile, check, race, record, export.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from normgen.codegen.kernel import MainKernel
from normgen.codegen.lanes.kernel import LaneKernel
from normgen.codegen.module import Module
from normgen.codegen.parts import KernelSource, Parts, parts_of
from normgen.codegen.spelling import marked
from normgen.codegen.tiles.kernel import TileKernel
from normgen.knobs import ArithmeticMode, Division, Keep, SoftmaxMethod, Statistics, VarianceMethod
from normgen.problem.problem import Problem
from normgen.program.classes import ProgramClass, class_of
from normgen.program.frozen import frozen
from normgen.program.ir import RowProgram
from normgen.program.rewrites.passes import passed
from normgen.program.source import kernel_problem, written_program
from normgen.schedule.chain import longest_chain
from normgen.schedule.lanes.plan import LanePlan
from normgen.schedule.plan import Plan, plan_of
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.plan import tile_plan_of


def emit(problem: Problem, schedule: Schedule) -> Module:
    """The kernel of a problem under a schedule: CUDA text, arguments, launch, workspace.

    The program says what is computed and nothing about threads; the schedule says how, and never changes the answer
    beyond rounding; the plan is what follows from both; only the emitter writes text.
    """
    return replace(emit_parts(problem, schedule).module(), chain=longest_chain(problem, schedule))


def emit_alone(problem: Problem, schedule: Schedule) -> Module:
    """As `emit`, for a reader: no template of a Config, which is written out. It computes the same."""
    return replace(emit_parts(problem, schedule, is_alone=True).module(), chain=longest_chain(problem, schedule))


def emit_parts(problem: Problem, schedule: Schedule, *, is_alone: bool = False) -> Parts:
    """As `emit`, or `emit_alone`, with the pieces of the text still apart: a header merges those of many kernels."""
    problem = answered(problem, schedule)
    program = programs_of(problem, schedule)[-1][1]
    return parts_of(SOURCES[class_of(problem)](*marked(problem, program), schedule), is_alone=is_alone)


def kernels_of_rows(problem: Problem, program: RowProgram, schedule: Schedule) -> KernelSource:
    """Those of a plan for rows."""
    return MainKernel(plan_of(problem, program, schedule))


def kernels_of_tiles(problem: Problem, program: RowProgram, schedule: Schedule) -> KernelSource:
    """That of a plan for tiles."""
    return TileKernel(tile_plan_of(problem, program, schedule))


def kernels_of_lanes(problem: Problem, program: RowProgram, schedule: Schedule) -> KernelSource:
    """Those of a plan for rows side by side."""
    return LaneKernel(LanePlan(problem=problem, program=frozen(program), schedule=schedule))


SOURCES: dict[ProgramClass, Callable[[Problem, RowProgram, Schedule], KernelSource]] = {
    ProgramClass.ROWS: kernels_of_rows,
    ProgramClass.TILES: kernels_of_tiles,
    ProgramClass.LANES: kernels_of_lanes,
}


def answered(problem: Problem, schedule: Schedule) -> Problem:
    """The problem that a schedule's kernel answers: it may take statistics nobody asked for, and null for them."""
    return problem if schedule.statistics is Statistics.LEFT_OUT else kernel_problem(problem)


def planned(problem: Problem, schedule: Schedule) -> Plan:
    """Every fact that follows from a problem and a schedule: what the kernel is built from."""
    problem = answered(problem, schedule)
    return plan_of(problem, programs_of(problem, schedule)[-1][1], schedule)


def programs_of(problem: Problem, schedule: Schedule) -> list[tuple[str, RowProgram]]:
    """The program as its author wrote it and after every pass, named: what `normgen show --ir` prints."""
    written = written_program(answered(problem, schedule))
    s = schedule
    means = not problem.divides_exactly
    return list(_programs(written, s.variance, s.softmax, s.arithmetic, s.division, s.keep, means))


@lru_cache(maxsize=128)
def _programs(
    written: RowProgram,
    variance: VarianceMethod,
    softmax: SoftmaxMethod,
    arithmetic: ArithmeticMode,
    division: Division,
    keep: Keep,
    means: bool,
) -> tuple[tuple[str, RowProgram], ...]:
    """Thousands of schedules share a few programs, and a program takes four times as long as its text."""
    choices = Schedule(variance=variance, softmax=softmax, arithmetic=arithmetic, division=division, keep=keep)
    return tuple(passed(written, choices, means=means))
