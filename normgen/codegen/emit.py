"""problem x schedule -> CUDA text: the pipeline, one line a step."""

from __future__ import annotations

import re

from normgen.codegen import prelude
from normgen.codegen.builder import WARP, KernelBuilder
from normgen.codegen.module import Kernel, Launch, Module
from normgen.problem import Problem
from normgen.program import rewrites
from normgen.program.hoist import hoist_row_divisions
from normgen.program.ir import RowProgram
from normgen.program.source import written_program
from normgen.schedule.schedule import Schedule


def kernel_name(problem: Problem, schedule: Schedule) -> str:
    """For example layernorm_fwd_f32_768_warp_per_row_3f2a91."""
    cols = "any_cols" if problem.any_cols else str(problem.cols)
    return f"{problem.name}_{cols}_{schedule.strategy}_{schedule.key[:6]}"


def passes_of(problem: Problem, schedule: Schedule) -> list[tuple[str, RowProgram]]:
    """The program after every pass, named: what `normgen show --ir` prints."""
    steps = rewrites.passes(written_program(problem), schedule)
    return [*steps, ("hoist row divisions", hoist_row_divisions(steps[-1][1]))]


def emit(problem: Problem, schedule: Schedule) -> Module:
    """CUDA text for a problem under a schedule."""
    return emit_program(problem, passes_of(problem, schedule)[-1][1], schedule)


def emit_program(problem: Problem, program: RowProgram, schedule: Schedule) -> Module:
    """The module of a program that is already rewritten for `schedule`."""
    builder = KernelBuilder(problem, program, schedule, kernel_name(problem, schedule))
    view = builder.view()
    columns = builder.columns
    finish = columns.finish_kernel()
    method = reduction_method(schedule) if builder.states else "none"
    kernel = prelude.environment().get_template("kernel.cu.j2").render(kernel=view)
    reduce = (
        prelude.environment()
        .get_template("reduce.cu.j2")
        .render(
            states=builder.states,
            method=method,
            shuffles=method in ("lanes", "block_shuffle"),
            row_barriers=builder.row_barriers,
        )
    )
    if finish is not None:
        kernel += prelude.environment().get_template("finish.cu.j2").render(**finish[1])
    vectors = vectors_text(problem, schedule, program)
    headers = ("cooperative_groups.h", "cooperative_groups/reduce.h") if method.startswith("cooperative") else ()
    includes = "".join(f"#include <{h}>\n" for h in headers)
    text = tidy(includes + "\n" + vectors + "\n" + (reduce if builder.states else "") + "\n" + kernel)
    features = ["extremum"] if re.search(r"\b(maximum|minimum)\(", text) else []
    features += [name for name in ("dynamic_shared", "named_barrier") if f"{name}(" in text]
    features += ["dependent_launch"] if "dependency_wait()" in text else []
    main = Kernel(name=view.name, params=builder.params, launch=launch_of(builder))
    return Module(
        instructions=tidy(
            prelude.instructions(
                dtypes=[t.dtype.name for t in problem.tensors],
                loads=re.findall(r"\bload_([a-z_]+)\(", text),
                stores=re.findall(r"\bstore_([a-z_]+)\(", text),
                features=features,
            )
        ),
        text=text,
        kernels=(main, finish[0]) if finish is not None else (main,),
        min_arch=min_arch(schedule),
        headers=headers,
        workspace_fixed_bytes=columns.fixed_bytes,
        workspace_block_bytes=columns.block_bytes,
    )


def launch_of(builder: KernelBuilder) -> Launch:
    s = builder.schedule
    return Launch(
        threads=s.threads,
        rows_per_block=s.rows_per_block,
        cluster=s.cluster,
        persistent=s.persistent,
        shared_bytes=builder.shared_bytes,
        min_blocks=1 if builder.columns else 0,
    )


def reduction_method(schedule: Schedule) -> str:
    """Which tree of reduce.cu.j2 combines the threads of a row."""
    if schedule.threads_per_row == 1:
        return "none"
    if schedule.reduce_with == "shared_tree":
        return "tree"
    wide = schedule.threads_per_row > WARP
    if schedule.reduce_with == "cooperative_groups":
        return "cooperative_block" if wide else "cooperative_warp"
    return "block_shuffle" if wide else "lanes"


def vectors_text(problem: Problem, schedule: Schedule, program: RowProgram) -> str:
    """Vector types and the reads and writes this schedule uses, hint by hint."""
    elem_reads = [schedule.load]
    if schedule.hold == "reload":
        elem_reads.append("default")
    reads = sorted({*elem_reads, "default"})
    partial = schedule.edges != "exact"
    writes = [schedule.store] if any(t.is_written for t in problem.elem_tensors) else []
    shared_writes = ["default"] if schedule.hold == "shared" or program.col_reduces else []
    return (
        prelude.environment()
        .get_template("vectors.cu.j2")
        .render(
            dtypes=sorted({t.dtype.name for t in problem.tensors}),
            ctypes=sorted({t.dtype.ctype for t in problem.tensors}),
            reads=reads,
            writes=sorted({*writes, *shared_writes}),
            partial=partial,
            partial_reads=reads,
            partial_writes=sorted(set(writes)),
        )
    )


def min_arch(schedule: Schedule) -> int:
    if schedule.cluster > 1 or schedule.copy == "bulk" or schedule.dependent_launch == "on":
        return 90
    hints = {schedule.load, schedule.store}
    return 80 if schedule.copy == "cp_async" or hints & {"evict_first", "evict_last"} else 75


def tidy(text: str) -> str:
    """No trailing spaces, no more than one blank line in a row: the templates need not care."""
    lines = [line.rstrip() for line in text.split("\n")]
    out = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
    return out + "\n"
