"""The stages of the compiler as the tuner calls them, in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from normgen.codegen.module import Module
from normgen.device import Device, target
from normgen.errors import NoDeviceError, UsageError
from normgen.problem import Problem
from normgen.schedule.schedule import Schedule

if TYPE_CHECKING:
    from normgen.schedule.space import Space


def legal_space(problem: Problem, device: Device) -> Space:
    """Every legal schedule of the problem, with the refusals."""
    from normgen.schedule.space import space

    return space(problem, device)


def default_schedule(problem: Problem, device: Device) -> Schedule:
    from normgen.schedule import space

    return space.default_schedule(problem, device)


def with_default(legal: Sequence[Schedule], default: Schedule) -> list[Schedule]:
    """The legal schedules with the default among them: a spec's own search space may leave it out."""
    return list(legal) if default in legal else [default, *legal]


def emit(problem: Problem, schedule: Schedule) -> Module:
    from normgen.codegen.emit import emit as emit_module

    return emit_module(problem, schedule)


@cache
def stages_of(problem: Problem) -> int:
    """The longest chain of dependent row reductions in the program as its author wrote it."""
    from normgen.program.ir import stage_of
    from normgen.program.source import written_program

    program = written_program(problem)
    stages = stage_of(program)
    return max((stages[name] for reduce in program.row_reduces for name in reduce.names), default=0)


def predicted_us(
    problem: Problem, schedule: Schedule, device: Device, figures: Mapping[str, Any] | None = None, *, hot: bool = False
) -> float:
    """The cost model's µs; with a kernel's figures (`run.resources_of`) it need not guess its registers."""
    from normgen.schedule.cost import predict

    stages = stages_of(problem)
    if figures is None:
        return predict(problem, schedule, device, stages=stages, hot=hot).us
    return predict(
        problem,
        schedule,
        device,
        stages=stages,
        hot=hot,
        registers=int(figures["registers"]),
        spill_bytes=int(figures["spill_bytes"]),
        shared_bytes=int(figures["static_shared_bytes"]) + int(figures["dynamic_shared_bytes"]),
    ).us


def find_gpu(device: int | str | None) -> tuple[int, Device] | None:
    """(index, facts) of the GPU to measure on; None when there is none, or "cpu" asks for a prediction.

    Raises NoDeviceError when a GPU is asked for by number and there is no usable one, UsageError for other names.
    """
    if device == "cpu":
        return None
    if device is not None and not isinstance(device, int):
        raise UsageError("a device is the number of a GPU, or 'cpu'", received=repr(device))
    from normgen.cuda.runtime import device_facts

    try:
        return device or 0, device_facts(device or 0)
    except NoDeviceError:
        if device is not None:
            raise
        return None


def target_device(name: str) -> Device:
    return target(name)
