"""problem x schedule -> CUDA text: the pipeline, one line a step."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from normgen.codegen import prelude
from normgen.codegen.builder import KernelBuilder
from normgen.codegen.columns import WARP
from normgen.codegen.module import Kernel, Launch, Module
from normgen.codegen.prelude import SHUFFLED, Vectors, tidy
from normgen.codegen.spelling import Spelling, marked, unmarked
from normgen.codegen.view import State
from normgen.problem.problem import Problem
from normgen.program.ir import RowProgram
from normgen.program.rewrites import reductions
from normgen.program.rewrites.approximate import approximate_exponentials
from normgen.program.rewrites.hoist import hoist_row_divisions
from normgen.program.source import written_program
from normgen.schedule.knobs import (
    Arithmetic,
    Columns,
    Copy,
    DependentLaunch,
    Edges,
    Hold,
    Params,
    ReduceWith,
    Softmax,
    Variance,
)
from normgen.schedule.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A module before its pieces are printed: what a header needs to merge several modules into one text.

    vectors  which vector accesses the kernels use
    method   the tree that combines the threads of a row, of reduce.cu.j2
    states   what that tree combines, one state a look
    kernels_text  the kernels, each `extern "C" __global__`
    """

    dtypes: tuple[str, ...]
    headers: tuple[str, ...]
    vectors: Vectors
    method: str
    states: tuple[State, ...]
    kernels_text: str
    kernels: tuple[Kernel, ...]
    min_arch: int
    workspace_fixed_bytes: int
    workspace_column_bytes: int
    workspace_block_bytes: int

    def module(self) -> Module:
        includes = "".join(f"#include <{h}>\n" for h in self.headers)
        shuffles = self.method in SHUFFLED
        reduce = prelude.states_text(self.states, shuffles=shuffles) + "\n" + prelude.trees_text([self.method])
        text = tidy("\n".join([includes, self.vectors.text(), reduce if self.states else "", self.kernels_text]))
        return Module(
            instructions=tidy(prelude.instructions_of(text, self.dtypes)),
            text=text,
            kernels=self.kernels,
            min_arch=self.min_arch,
            headers=self.headers,
            workspace_fixed_bytes=self.workspace_fixed_bytes,
            workspace_column_bytes=self.workspace_column_bytes,
            workspace_block_bytes=self.workspace_block_bytes,
        )


def kernel_name(problem: Problem, schedule: Schedule) -> str:
    """For example layernorm_fwd_f32_768_warp_per_row_3f2a91; absent tensors are named: ..._without_bias_..."""
    cols = "any_cols" if problem.any_cols else str(problem.cols)
    absent = "".join(f"_without_{name}" for name in problem.absent)
    return f"{problem.name}_{cols}{absent}_{schedule.strategy}_{schedule.key[:6]}"


def passes_of(problem: Problem, schedule: Schedule) -> list[tuple[str, RowProgram]]:
    """The program after every pass, named: what `normgen show --ir` prints."""
    return list(_passes(problem, schedule.variance, schedule.softmax, schedule.arithmetic))


@functools.lru_cache(maxsize=32)
def _passes(
    problem: Problem, variance: Variance, softmax: Softmax, arithmetic: Arithmetic
) -> tuple[tuple[str, RowProgram], ...]:
    """Thousands of schedules share a few programs, and a program takes four times as long as its text."""
    steps = reductions.passes(written_program(problem), Schedule(variance=variance, softmax=softmax))
    steps.append(("hoist row divisions", hoist_row_divisions(steps[-1][1])))
    if arithmetic is Arithmetic.APPROXIMATE:
        steps.append(("approximate exponentials", approximate_exponentials(steps[-1][1])))
    return tuple(steps)


def emit(problem: Problem, schedule: Schedule) -> Module:
    """CUDA text for a problem under a schedule."""
    return emit_parts(problem, schedule).module()


def emit_parts(problem: Problem, schedule: Schedule) -> Parts:
    """As `emit`, with the pieces of the text still apart."""
    return program_parts(problem, passes_of(problem, schedule)[-1][1], schedule)


def emit_program(problem: Problem, program: RowProgram, schedule: Schedule) -> Module:
    """The module of a program that is already rewritten for `schedule`."""
    return program_parts(problem, program, schedule).module()


def program_parts(problem: Problem, program: RowProgram, schedule: Schedule) -> Parts:
    return spelled_parts(marked_parts(*marked(problem, program), schedule))


def spelled_parts(parts: Parts) -> Parts:
    """Parts whose text has marks for names, with the names spelled; arguments keep the spec's names as their keys."""
    states = (line for state in parts.states for line in (*state.components, *state.combine_lets, *state.combine))
    spelling = Spelling("\n".join([parts.kernels_text, *states]))
    kernels = tuple(
        replace(
            kernel,
            params=tuple(replace(p, name=spelling.within(p.name), key=unmarked(p.key)) for p in kernel.params),
        )
        for kernel in parts.kernels
    )
    text, spelled_states = spelling.within((parts.kernels_text, parts.states))
    return replace(parts, kernels_text=text, states=spelled_states, kernels=kernels)


def marked_parts(problem: Problem, program: RowProgram, schedule: Schedule) -> Parts:
    """The pieces of the text, built around whatever names the problem and the program have."""
    builder = KernelBuilder(problem, program, schedule, kernel_name(problem, schedule))
    view = builder.view()
    columns = builder.columns
    finish = columns.finish_kernel()
    method = reduction_method(schedule, row_barriers=builder.row_barriers) if builder.states else "none"
    text = prelude.environment().get_template("kernel.cu.j2").render(kernel=view)
    if finish is not None:
        text += prelude.environment().get_template("finish.cu.j2").render(**finish[1])
    main = Kernel(name=view.name, params=builder.params, launch=launch_of(builder))
    cooperative = method.startswith("cooperative")
    return Parts(
        dtypes=tuple(sorted({t.dtype.name for t in problem.tensors})),
        headers=("cooperative_groups.h", "cooperative_groups/reduce.h") if cooperative else (),
        vectors=vectors_of(problem, schedule, program),
        method=method,
        states=tuple(builder.states),
        kernels_text=text,
        kernels=(main, finish[0]) if finish is not None else (main,),
        min_arch=min_arch(schedule),
        workspace_fixed_bytes=columns.fixed_bytes,
        workspace_column_bytes=columns.column_bytes,
        workspace_block_bytes=columns.block_bytes,
    )


def launch_of(builder: KernelBuilder) -> Launch:
    s = builder.schedule
    in_order = (
        builder.problem.deterministic and s.columns is Columns.ATOMIC
    )  # one walker adds its rows one after another
    rows = s.rows_per_block * (s.cluster // s.row_blocks)
    return Launch(
        blocks=s.cluster if in_order else 0,
        threads=s.threads,
        rows_per_block=rows,
        cluster=s.cluster,
        persistent=s.persistent,
        shared_bytes=builder.shared_bytes,
        period=s.vector // math.gcd(s.vector, rows) if builder.one_shift else 1,
        min_blocks=1 if builder.columns else 0,
        dependent=s.chained,
    )


def reduction_method(schedule: Schedule, *, row_barriers: bool) -> str:
    """Which tree of reduce.cu.j2 combines the threads of a row; `_rows`: with a barrier for each row side by side."""
    if schedule.row_blocks > 1:
        return "cluster_rows" if schedule.persistent else "cluster"
    if schedule.threads_per_row == 1:
        return "none"
    if schedule.reduce_with is ReduceWith.SHARED_TREE:
        return "tree"
    wide = schedule.threads_per_row > WARP
    rows = "_rows" if row_barriers else ""
    if schedule.reduce_with is ReduceWith.COOPERATIVE_GROUPS:
        return f"cooperative_block{rows}" if wide else "cooperative_warp"
    return f"block_shuffle{rows}" if wide else "lanes"


def vectors_of(problem: Problem, schedule: Schedule, program: RowProgram) -> Vectors:
    """The reads and writes this schedule uses, hint by hint."""
    elem_reads: list[str] = [schedule.load]
    if schedule.hold is Hold.RELOAD:
        elem_reads.append("default")
    reads = sorted({*elem_reads, "default"})
    writes = [schedule.store] if any(t.is_written for t in problem.elem_tensors) else []
    slots = schedule.hold in (Hold.SHARED, Hold.HYBRID) and schedule.copy is Copy.DIRECT
    shared_writes = ["default"] if slots or program.col_terms else []
    return Vectors(
        ctypes=tuple(sorted({t.dtype.ctype for t in problem.tensors})),
        reads=tuple(reads),
        writes=tuple(sorted({*writes, *shared_writes})),
        slot_copies=("cp_async",) if schedule.copy is Copy.CP_ASYNC else (),
        packed=("opaque",) if schedule.params is Params.PACKED else (),
        windows=("default",) if schedule.edges is Edges.PEEL and problem.parameter_bytes else (),
    )


def min_arch(schedule: Schedule) -> int:
    if schedule.cluster > 1 or schedule.copy is Copy.BULK or schedule.dependent_launch is not DependentLaunch.OFF:
        return 90
    hints = {schedule.load, schedule.store}
    return 80 if schedule.copy is Copy.CP_ASYNC or hints & {"evict_first", "evict_last"} else 75
