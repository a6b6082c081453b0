"""Plan -> the pieces of a CUDA text: kernels, vector accesses, states, trees."""

from __future__ import annotations

from dataclasses import dataclass, replace

from normgen.codegen import prelude
from normgen.codegen.kernel import KernelText
from normgen.codegen.module import Kernel, Launch, Module
from normgen.codegen.prelude import Vectors, tidy
from normgen.codegen.spelling import Spelling, marked, unmarked
from normgen.codegen.view import State
from normgen.problem.problem import Problem
from normgen.program.ir import RowProgram
from normgen.schedule.plan import Place, Plan, plan_of
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
        shuffles = prelude.shuffles(self.method)
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


def parts_of(problem: Problem, program: RowProgram, schedule: Schedule) -> Parts:
    """The pieces of the text of a program that is already rewritten for `schedule`."""
    return spelled_parts(marked_parts(plan_of(*marked(problem, program), schedule)))


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


def marked_parts(plan: Plan) -> Parts:
    """The pieces of the text, built around whatever names the problem and the program have."""
    problem, name = plan.problem, kernel_name(plan.problem, plan.schedule)
    kernel = KernelText(plan, name)
    second = kernel.columns.second_kernel(name)
    text = prelude.environment().get_template("kernel.cu.j2").render(kernel=kernel.view())
    if second is not None:
        text += prelude.environment().get_template("finish.cu.j2").render(**second.view)
    main = Kernel(name=name, params=kernel.params, launch=launch_of(plan))
    sums = plan.sums
    return Parts(
        dtypes=tuple(sorted({t.dtype.name for t in problem.tensors})),
        headers=kernel.exchange.headers,
        vectors=vectors_of(plan),
        method=plan.tree,
        states=tuple(kernel.states),
        kernels_text=text,
        kernels=(main, second.kernel) if second is not None else (main,),
        min_arch=plan.min_arch,
        workspace_fixed_bytes=sums.fixed_bytes if sums else 0,
        workspace_column_bytes=sums.column_bytes if sums else 0,
        workspace_block_bytes=sums.block_bytes if sums else 0,
    )


def launch_of(plan: Plan) -> Launch:
    s = plan.schedule
    return Launch(
        blocks=plan.blocks,
        threads=s.threads,
        rows_per_block=plan.rows_per_tile,
        cluster=s.cluster,
        persistent=s.persistent,
        shared_bytes=plan.shared_bytes,
        period=plan.period,
        min_blocks=1 if plan.sums else 0,
        dependent=s.chained,
    )


def vectors_of(plan: Plan) -> Vectors:
    """The reads and writes that the kernels use, hint by hint."""
    problem, schedule = plan.problem, plan.schedule
    writes = [schedule.store] if any(t.is_written for t in problem.elem_tensors) else []
    slots = Place.SHARED in plan.places and not plan.copies
    shared_writes = ["default"] if slots or plan.sums else []
    return Vectors(
        ctypes=tuple(sorted({t.dtype.ctype for t in problem.tensors})),
        reads=tuple(sorted({schedule.load, "default"})),
        writes=tuple(sorted({*writes, *shared_writes})),
        slot_copies=("cp_async",) if plan.copies_by_threads else (),
        packed=("opaque",) if plan.packs_params else (),
        windows=("default",) if plan.cut.shifted and problem.parameter_bytes else (),
    )
