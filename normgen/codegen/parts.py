"""Plan -> the pieces of a CUDA text: kernels, and the files of the device library that they need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from normgen.codegen.kernel import KernelText, MainKernel
from normgen.codegen.library import File, needed
from normgen.codegen.module import Kernel, Launch, Module
from normgen.codegen.spelling import Spelling, marked, unmarked
from normgen.codegen.statements import pruned, reads_of, text_of
from normgen.codegen.templates import environment, tidy
from normgen.problem.problem import Problem
from normgen.program.ir import RowProgram
from normgen.schedule.plan import Plan, plan_of
from normgen.schedule.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A module before its pieces are printed: what a header needs to merge several modules into one text.

    library  the files of the device library that the kernels need
    text     the kernels, each `extern "C" __global__`
    """

    library: tuple[File, ...]
    text: str
    kernels: tuple[Kernel, ...]
    min_arch: int
    workspace_fixed_bytes: int
    workspace_column_bytes: int
    workspace_block_bytes: int

    def module(self) -> Module:
        headers = headers_of(self.library)
        includes = "".join(f"#include <{h}>\n" for h in headers)
        hardware, portable = (
            "\n".join(file.text for file in self.library if file.is_hardware is is_hardware)
            for is_hardware in (True, False)
        )
        return Module(
            instructions=f"{tidy(hardware)}\n" if hardware else "",
            text=tidy("\n".join([includes, portable, self.text])),
            kernels=self.kernels,
            min_arch=self.min_arch,
            headers=headers,
            workspace_fixed_bytes=self.workspace_fixed_bytes,
            workspace_column_bytes=self.workspace_column_bytes,
            workspace_block_bytes=self.workspace_block_bytes,
        )


def headers_of(library: Iterable[File]) -> tuple[str, ...]:
    """The headers of CUDA that files of the library include."""
    return tuple(dict.fromkeys(header for file in library for header in file.headers))


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
    spelling = Spelling(parts.text)
    kernels = tuple(
        replace(
            kernel,
            params=tuple(replace(p, name=spelling.within(p.name), key=unmarked(p.key)) for p in kernel.params),
        )
        for kernel in parts.kernels
    )
    return replace(parts, text=spelling.within(parts.text), kernels=kernels)


def marked_parts(plan: Plan) -> Parts:
    """The pieces of the text, built around whatever names the problem and the program have."""
    name = kernel_name(plan.problem, plan.schedule)
    main = MainKernel(plan, name)
    texts, kernels = [main.text()], [Kernel(name=name, params=main.params, launch=launch_of(plan))]
    second = main.columns.second_kernel(name)
    if second is not None:
        kernels.append(second.kernel)
        texts.append(
            KernelText(
                name=second.kernel.name,
                comment=(second.comment,),
                params=second.declared,
                bounds=str(second.kernel.launch.threads),
                body=pruned(second.body),
            )
        )
    sums = plan.sums
    return Parts(
        library=tuple(needed(frozenset().union(*(reads_of(text.body) for text in texts)))),
        text="\n".join(map(print_kernel, texts)),
        kernels=tuple(kernels),
        min_arch=plan.min_arch,
        workspace_fixed_bytes=sums.fixed_bytes if sums else 0,
        workspace_column_bytes=sums.column_bytes if sums else 0,
        workspace_block_bytes=sums.block_bytes if sums else 0,
    )


def print_kernel(kernel: KernelText) -> str:
    """The kernel in its frame."""
    frame = environment().get_template("kernel.cu.j2")
    return frame.render(kernel=kernel, body=text_of(kernel.body, indent=2))


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
