"""Kernels that start while the kernels in front of them in the stream still run (programmatic dependent launch)."""

from __future__ import annotations

from normgen.codegen.module import Param, Source
from normgen.codegen.statements import ConfigSetting, Do, Gap, Statement, type_setting
from normgen.knobs import DependentLaunch
from normgen.problem.problem import Problem
from normgen.schedule.plan import Plan
from normgen.schedule.schedule import Schedule

# The library's type that knows where a kernel waits, and where it lets the next one start.
CHAINS = {
    DependentLaunch.OFF: "InOrder",
    DependentLaunch.ON: "EarlyPartner",
    DependentLaunch.START: "EarlyAtStart",
    DependentLaunch.LOADS: "EarlyAtLoads",
    DependentLaunch.END: "EarlyAtEnd",
}
AT_LOADS = Do("Chain::at_loads()")
AT_END = (Gap(), Do("Chain::at_end()"))


def chain_of(schedule: Schedule) -> str:
    return CHAINS[schedule.dependent_launch]


def chain_setting(schedule: Schedule) -> ConfigSetting:
    return type_setting("Chain", chain_of(schedule))


def start_of_chain(ahead: list[Statement], asked: list[Statement]) -> list[Statement]:
    """Wait for the kernels in front, before the first access to anything they may write or still read.

    All threads wait, so that the end of this kernel implies the end of those: whoever waits for this one may rely on
    it, even if this one let it start first.

    ahead  reads of what no kernel in front writes
    asked  what comes to L2 meanwhile: no value is read, so that a kernel in front may still write it
    """
    wait = Do("Chain::wait()", "nothing before it depends on the kernels in front of this one")
    return [Gap(), *asked, Do("Chain::at_start()"), *([Gap(), *ahead] if ahead else []), wait, Gap()]


def tensor_params(problem: Problem) -> list[Param]:
    """Pointers in the problem's order, then pitches of those that have some."""
    params = []
    for t in problem.passed_tensors:
        const = "const " if t.is_const else ""
        params.append(
            Param(
                name=t.name,
                ctype=f"{const}{t.dtype.ctype}*",
                source=Source.TENSOR,
                key=t.name,
                nullable=t.may_be_null,
                stable=t.name in problem.stable_tensors,
            )
        )
    for t in problem.pitched_tensors:
        pitch = f"{t.name}_pitch"
        params.append(Param(name=pitch, ctype="long long", source=Source.PITCH, key=t.name, nullable=t.may_be_null))
    return params


def declare(problem: Problem, param: Param) -> str:
    """A parameter of the kernel. What it alone writes is `__restrict__`; of its inputs the chain says.

    What it reads and then writes may have been written by a kernel in front: its loads must not move over a wait.
    """
    if param.ctype.startswith("const "):
        ctype = param.ctype.removeprefix("const ").removesuffix("*")
        return f"Input<Config, {ctype}> {param.name}"
    alone = param.source is Source.TENSOR and not problem.accumulate and not problem.tensor(param.key).under
    return f"{param.ctype}{' __restrict__' if alone else ''} {param.name}"


def chain_comment(plan: Plan) -> tuple[str, ...]:
    """What a reader must know of a kernel that reads something ahead."""
    ahead = " and ".join(load.name for load in plan.early_params) if plan.reads_params_ahead else ""
    return (f"It may read {ahead} before the kernels in front have ended.",) if ahead else ()
