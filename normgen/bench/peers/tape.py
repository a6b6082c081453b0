"""A problem's program as a straight list of calls of any arithmetic: what a compiler of tensors can trace.

The program is the one that a schedule has not touched yet: the formulas as written, or the derived gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from normgen.dtypes import DType
from normgen.problem.problem import Problem
from normgen.program.source import written_program
from normgen.verify.interpret import Arithmetic
from normgen.verify.program_walk import ProgramWalk

V = TypeVar("V")
Step = tuple[Callable[..., Any], tuple[int, ...]]


class Tape(Generic[V]):
    """An arithmetic whose values are places: each operation notes down how `real` will find the next one."""

    def __init__(self, real: Arithmetic[V], given: int) -> None:
        self.real, self.given = real, given
        self.steps: list[Step] = []

    def noted(self, function: Callable[..., V], *args: int) -> int:
        self.steps.append((function, args))
        return self.given + len(self.steps) - 1

    def constant(self, value: float) -> int:
        return self.noted(partial(self.real.constant, value))

    def add(self, a: int, b: int) -> int:
        return self.noted(self.real.add, a, b)

    def subtract(self, a: int, b: int) -> int:
        return self.noted(self.real.subtract, a, b)

    def multiply(self, a: int, b: int) -> int:
        return self.noted(self.real.multiply, a, b)

    def divide(self, a: int, b: int) -> int:
        return self.noted(self.real.divide, a, b)

    def negate(self, a: int) -> int:
        return self.noted(self.real.negate, a)

    def power(self, base: int, exponent: float) -> int:
        return self.noted(partial(self.real.power, exponent=exponent), base)

    def call(self, name: str, *args: int) -> int:
        return self.noted(partial(self.real.call, name), *args)

    def cast(self, a: int, dtype: DType) -> int:
        return self.noted(partial(self.real.cast, dtype=dtype), a)

    def in_any_order(self, above: list[int], below: list[int], found: int) -> int:  # noqa: ARG002
        return found

    def reduce(self, name: str, arg: int, group: int = 0) -> int:
        return self.noted(partial(self.real.reduce, name, group=group), arg)

    def sum_rows(self, arg: int, row: int | None = None) -> int:
        return self.noted(self.real.sum_rows, arg, *(() if row is None else (row,)))


def replayed(problem: Problem, real: Arithmetic[V]) -> Callable[[Mapping[str, V]], dict[str, V]]:
    """A function from the values that the program knows (tensors read, row, col) to those of the written tensors.

    Nothing of the program is looked at when it is called: it goes through a list of calls of `real`.
    """
    names = [t.name for t in problem.tensors if not t.is_written] + ["row", "col"]
    tape = Tape(real, len(names))
    known = {name: place for place, name in enumerate(names)}
    known |= {name: tape.constant(value) for name, value in (*problem.spec.scalars, ("cols", float(problem.cols)))}
    walk = ProgramWalk(tape, written_program(problem), known)
    places = [(t.name, walk.value(t.name)) for t in problem.tensors if t.is_written]
    steps = tuple(tape.steps)

    def run(given: Mapping[str, V]) -> dict[str, V]:
        values: list[V] = [given[name] for name in names]
        for function, args in steps:
            values.append(function(*[values[place] for place in args]))
        return {name: values[place] for name, place in places}

    return run
