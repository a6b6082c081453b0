"""The operations of a problem's products, and the time that a device takes for these at least."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from normgen.device import Device
from normgen.problem.problem import Problem
from normgen.program.source import written_program
from normgen.schedule.tiles.cut import contraction
from normgen.schedule.tiles.fragment import FMAS_PER_CLOCK, tensor_fmas

ARITHMETIC = "arithmetic"  # the roof of products, beside those of bytes


@lru_cache(maxsize=1024)
def flops(problem: Problem) -> int:
    """Additions and multiplications of a problem's products; 0 of one without products."""
    if not written_program(problem).dots:
        return 0
    cut, sizes = contraction(problem), problem.sizes
    return 2 * len(cut.sums) * sizes.along(cut.m) * sizes.along(cut.n) * sizes.along(cut.k)


def arithmetic_us(problem: Problem, device: Device) -> float:
    """What the products take in µs at the peak of tensor cores where these multiply them, else of float32 fmas."""
    if not flops(problem):
        return 0.0
    fmas = tensor_fmas(problem, device) or FMAS_PER_CLOCK
    return flops(problem) / (2 * fmas * device.sm_count * device.sm_clock_ghz * 1e3)


def roof_of(costs_us: Mapping[str, float]) -> tuple[str, float] | None:
    """The name and the µs of the roof: the cheapest way to move the bytes, or the products where they take longer."""
    moved = [(us, name) for name, us in costs_us.items() if name != ARITHMETIC]
    if not moved:
        return None
    us, name = max(min(moved), (costs_us.get(ARITHMETIC, 0.0), ARITHMETIC))
    return name, us
