"""The operations of a problem's products, and the time that a device takes for these at least."""

from __future__ import annotations

from functools import lru_cache

from normgen.device import Device
from normgen.problem.problem import Problem
from normgen.program.classes import ProgramClass, class_of
from normgen.schedule.tiles.plan import contraction

FMAS_PER_CLOCK = 128  # of an SM, in float32


@lru_cache(maxsize=1024)
def flops(problem: Problem) -> int:
    """Additions and multiplications of a problem's products; 0 of one without products."""
    if class_of(problem) is not ProgramClass.TILES:
        return 0
    cut, sizes = contraction(problem), problem.sizes
    return 2 * len(cut.sums) * sizes.along(cut.m) * sizes.along(cut.n) * sizes.along(cut.k)


def arithmetic_us(problem: Problem, device: Device) -> float:
    """What the products take in µs where every SM issues a float32 fma for each lane in each clock."""
    return flops(problem) / (2 * FMAS_PER_CLOCK * device.sm_count * device.sm_clock_ghz * 1e3)
