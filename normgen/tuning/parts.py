"""The stages of the compiler as the tuner calls them, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from normgen.codegen.module import Module
from normgen.device import Device, target
from normgen.errors import NoDeviceError, UsageError
from normgen.problem import Problem
from normgen.schedule.schedule import Schedule

if TYPE_CHECKING:
    from normgen.cuda.compiler import Cubin
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


def predicted_us(problem: Problem, schedule: Schedule, device: Device, cubin: Cubin | None = None) -> float:
    """The cost model's µs; with a cubin it knows the registers of the first kernel."""
    from normgen.schedule.cost import predict

    resources = next(iter(cubin.resources.values())) if cubin is not None else None
    return predict(problem, schedule, device, resources).us


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
