"""Kernels that start while the kernels in front of them in the stream still run (programmatic dependent launch)."""

from __future__ import annotations

from normgen.codegen.module import Param, Source
from normgen.codegen.statements import Do, Gap, Statement, TypeSetting, type_setting
from normgen.knobs import DependentLaunch, Params
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
UNCHAINED = (CHAINS[DependentLaunch.OFF], CHAINS[DependentLaunch.ON])  # their first kernel waits for nobody in front
_CALLS = ("wait", "wait_for_partner", "at_start", "at_loads", "at_end")
AT_LOADS = Do("Chain::at_loads()")
AT_END = (Gap(), Do("Chain::at_end()"))


def chain_of(schedule: Schedule) -> str:
    return CHAINS[schedule.dependent_launch]


def chain_setting(schedule: Schedule) -> TypeSetting:
    """The type of a Config, and what its functions do (library/early*.cuh)."""
    launch = schedule.dependent_launch
    waits = {"wait_for_partner"} if launch is DependentLaunch.ON else {"wait", "wait_for_partner"}
    waits = set() if launch is DependentLaunch.OFF else waits
    starts = {DependentLaunch.OFF: "", DependentLaunch.ON: "at_start"}.get(launch, f"at_{launch.value}")
    does = {"wait": "griddepcontrol_wait()", "start": "griddepcontrol_launch_dependents()", "": ""}
    what = {call: "wait" if call in waits else "start" if call == starts else "" for call in _CALLS}
    return type_setting("Chain", chain_of(schedule), {f"Chain::{call}": does[kind] for call, kind in what.items()})


def asking(params: Params) -> str:
    """The library's type for column parameters that are asked for ahead of the row, or read in their turn."""
    return "Ahead" if params.asked_ahead else "InTurn"


def params_setting(params: Params) -> TypeSetting:
    """That type of a Config; one that asks for nothing does nothing (library/in_turn.cuh)."""
    return type_setting("Params", asking(params), {} if params.asked_ahead else {"Params::to_l2": ""})


def start_of_chain(ahead: list[Statement], asked: list[Statement]) -> list[Statement]:
    """Wait for the kernels in front, before the first access to anything they may write or still read.

    All threads wait, so that the end of this kernel implies the end of those: whoever waits for this one may rely on
    it, even if this one let it start first.

    ahead  reads of what no kernel in front writes
    asked  what comes to L2 meanwhile: no value is read, so that a kernel in front may still write it
    """
    wait = Do("Chain::wait()", "what follows may read what earlier kernels in the stream wrote")
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
