"""Kernels that start while the kernels in front of them in the stream still run (programmatic dependent launch)."""

from __future__ import annotations

from normgen.codegen.looks import Looks
from normgen.codegen.module import Param, Source
from normgen.codegen.view import SectionList
from normgen.schedule.knobs import DependentLaunch, Params


class Chain(Looks):
    """Where a kernel waits for those in front of it, what it reads before, and where it lets the next one start."""

    @property
    def loops_rows(self) -> bool:
        """A persistent grid loops over rows; column sums are written after the loop even if rows is 0."""
        return self.schedule.persistent > 0 or bool(self.columns)

    def declare(self, param: Param) -> str:
        """A parameter of the kernel, `__restrict__` where that is true while kernels in front of this one still run.

        To the compiler it means memory that nobody else touches: it reads inputs through the non-coherent cache
        (ld.global.nc), and may move accesses over a wait that tells of another kernel's writes. It also moves the
        parameters' early reads behind the wait (ptxas 13, sm_90).
        """
        restricted = param.ctype.endswith("*")
        if self.schedule.chained:
            written = param.source is Source.TENSOR and "const" not in param.ctype and not self.problem.accumulate
            restricted = written or (param.stable and not self.reads_params_ahead)
        return f"{param.ctype}{' __restrict__' if restricted else ''} {param.name}"

    @property
    def reads_params_ahead(self) -> bool:
        """Column parameters are read before the kernels in front have ended: the caller promises they do not change."""
        ahead = self.schedule.keeps_params if self.loops_rows else self.schedule.params is Params.EARLY
        stable = all(load.name in self.problem.stable_tensors for load in self.early_params)
        return self.schedule.chained and ahead and stable

    def start_of_chain(self, out: SectionList) -> None:
        """Wait for the kernels in front, before the first access to anything they may write or still read.

        All threads wait, so that the end of this kernel implies the end of those: whoever waits for this one may
        rely on it, even if this one let it start first.
        """
        if self.schedule.dependent_launch is DependentLaunch.START:
            out.lines("dependency_trigger();  // the next kernel may take its place, and waits there")
        if self.reads_params_ahead:
            self.param_loops(out)
        out.lines("dependency_wait();  // nothing before it depends on the kernels in front of this one")

    def chain_comment(self) -> tuple[str, ...]:
        ahead = " and ".join(load.name for load in self.early_params) if self.reads_params_ahead else ""
        early = f"; {ahead} may be read before it has ended" if ahead else ""
        return (f"It may start while the kernel in front of it in the stream ends{early}.",)
