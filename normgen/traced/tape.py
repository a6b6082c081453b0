"""A problem's program as a straight list of calls of any arithmetic: what a compiler of tensors can trace.

The program is the one that a schedule has not touched yet: the formulas as written, or the derived gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

from normgen.dtypes import DType
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.program.source import written_program
from normgen.spec.spec import Kind
from normgen.verify.interpret import Arithmetic
from normgen.verify.program_walk import ProgramWalk

V = TypeVar("V")
Step = Callable[[Any, list[Any]], Any]  # from an arithmetic and the values so far to the next value


class Tape:
    """An arithmetic whose values are places: each operation notes down how another one will find the next value.

    A sum over the row that cols divide is its mean, in one operation: what frameworks, and those who read their
    programs, have for it.

    cols  the place of the number of columns
    """

    def __init__(self, given: int, *, cols: int) -> None:
        self.given, self.cols = given, cols
        self.steps: list[Step] = []
        self.used: set[int] = set()
        self._sums: dict[int, int] = {}  # over the row: place -> of what

    def noted(self, step: Step, *args: int) -> int:
        self.steps.append(step)
        self.used.update(args)
        return self.given + len(self.steps) - 1

    def constant(self, value: float) -> int:
        return self.noted(lambda do, _: do.constant(value))

    def add(self, a: int, b: int) -> int:
        return self.noted(lambda do, v: do.add(v[a], v[b]), a, b)

    def subtract(self, a: int, b: int) -> int:
        return self.noted(lambda do, v: do.subtract(v[a], v[b]), a, b)

    def multiply(self, a: int, b: int) -> int:
        return self.noted(lambda do, v: do.multiply(v[a], v[b]), a, b)

    def divide(self, a: int, b: int) -> int:
        if b == self.cols and a in self._sums:
            return self.reduce("mean", self._sums[a])
        return self.noted(lambda do, v: do.divide(v[a], v[b]), a, b)

    def negate(self, a: int) -> int:
        return self.noted(lambda do, v: do.negate(v[a]), a)

    def named(self, a: int) -> int:
        return a

    def power(self, base: int, exponent: float) -> int:
        return self.noted(lambda do, v: do.power(v[base], exponent), base)

    def call(self, name: str, *args: int) -> int:
        return self.noted(lambda do, v: do.call(name, *[v[a] for a in args]), *args)

    def cast(self, a: int, dtype: DType) -> int:
        return self.noted(lambda do, v: do.cast(v[a], dtype), a)

    def in_any_order(self, above: list[int], below: list[int], found: int) -> int:  # noqa: ARG002
        return found

    def reduce(self, name: str, arg: int, group: int = 0) -> int:
        place = self.noted(lambda do, v: do.reduce(name, v[arg], group), arg)
        if name == "sum" and not group:
            self._sums[place] = arg
        return place

    def roll(self, arg: int, share: Fraction, by: int) -> int:
        return self.noted(lambda do, v: do.roll(v[arg], share, by), arg)

    def without_unused(self, wanted: Collection[int]) -> tuple[Step, ...]:
        """The steps, of which those that nobody asks for do nothing: sums whose mean alone is."""
        unused = self._sums.keys() - self.used - set(wanted)
        return tuple(_nothing if i in unused else step for i, step in enumerate(self.steps, start=self.given))

    def sum_rows(self, arg: int, row: int | None = None) -> int:
        if row is None:
            return self.noted(lambda do, v: do.sum_rows(v[arg]), arg)
        return self.noted(lambda do, v: do.sum_rows(v[arg], v[row]), arg, row)

    def dot(self, a: int, b: int, over: Kind | None = None) -> int:
        return self.noted(lambda do, v: do.dot(v[a], v[b], over), a, b)


def _nothing(_do: Any, _values: list[Any]) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A function from what a program knows to its written tensors.

    names   what it is given: the tensors read, the scalars, cols and inner, and row, col and term, the numbers along
            rows, columns and inner; "random 0", "random 1", ...: the random numbers that it draws
    used    of these, what it reads
    places  where each written tensor is; of one with a sum for each batch, what each row adds to that of its own
    """

    names: tuple[str, ...]
    used: frozenset[str]
    steps: tuple[Step, ...]
    places: tuple[tuple[str, int], ...]

    def __call__(self, do: Arithmetic[V], given: Mapping[str, V]) -> dict[str, V]:
        """By the arithmetic `do`. Nothing of the program is looked at: its list of calls is gone through."""
        values: list[Any] = [given.get(name) for name in self.names]
        for step in self.steps:
            values.append(step(do, values))
        return {name: values[place] for name, place in self.places}


def lengths(reads: Sequence[TensorUse], tensors: Mapping[str, Any], first: Any) -> tuple[Any, Any]:
    """How long cols is, and inner, 0 where there is no such axis, of the arrays of a call; `first` is one of rows."""
    if not any(use.kind.by_inner for use in reads):
        return first.shape[-1], 0
    found: dict[str, Any] = {}
    for use in reads:
        axes = [axis for axis in use.axes if axis in ("cols", "inner")]
        found |= dict(zip(axes, tensors[use.name].shape[-len(axes) :], strict=True)) if axes else {}
    return found["cols"], found["inner"]


def batches_of(reads: Sequence[TensorUse], tensors: Mapping[str, Any], sizes: tuple[Any, Any]) -> Any:
    """How many batches, or heads, the arrays of a call have; 1 where none has any. `sizes`: see `lengths`."""
    use = next((use for use in reads if use.kind.by_batch), None)
    if use is None:
        return 1
    cols, inner = sizes
    own = (inner, cols) if use.kind.is_batch_matrix else use.kind.within(cols, use.group)
    return math.prod(tensors[use.name].shape) // math.prod(own)


def replayed(problem: Problem) -> Replay:
    """The problem's program for any rows, cols and scalars."""
    reads = (t.name for t in problem.tensors if not t.is_written)
    program = written_program(problem)
    drawn = (f"random {random.draw}" for random in program.randoms)
    sizes = ("cols", *(["inner", "term"] if problem.inner else []))
    names = (*reads, *(name for name, _ in problem.spec.scalars), *sizes, "row", "col", *drawn)
    tape = Tape(len(names), cols=names.index("cols"))
    walk = ProgramWalk(tape, program, {name: place for place, name in enumerate(names)})
    places = tuple(
        (t.name, walk.column_term(t.name) if t.is_row_sum and t.kind.by_batch else walk.value(t.name))
        for t in problem.tensors
        if t.is_written
    )
    return Replay(
        names=names,
        used=frozenset(names[place] for place in (*tape.used, *(p for _, p in places)) if place < len(names)),
        steps=tape.without_unused([place for _, place in places]),
        places=places,
    )
