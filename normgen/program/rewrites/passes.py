"""The passes: what is rewritten in a program before a kernel is planned for it, in this order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from normgen.knobs import ArithmeticMode, Division, Keep, SoftmaxMethod, VarianceMethod
from normgen.program.ir import RowProgram, check
from normgen.program.rewrites.approximate import approximate_exponentials
from normgen.program.rewrites.contractions import factors_join, factors_leave
from normgen.program.rewrites.hoist import hoist_row_divisions
from normgen.program.rewrites.kept import name_kept_values
from normgen.program.rewrites.quotients import divide_by_remainders
from normgen.program.rewrites.reductions import online_results, softmax, variance
from normgen.program.rewrites.rolls import is_rolled, rolls_to_loads
from normgen.program.rewrites.taken import load_taken_elements
from normgen.program.rewrites.totals import totals_of_elements


class Choices(Protocol):
    """What of a Schedule decides the passes."""

    @property
    def variance(self) -> VarianceMethod: ...

    @property
    def softmax(self) -> SoftmaxMethod: ...

    @property
    def arithmetic(self) -> ArithmeticMode: ...

    @property
    def division(self) -> Division: ...

    @property
    def keep(self) -> Keep: ...


def passes(choices: Choices, *, means: bool = True) -> list[tuple[str, Callable[[RowProgram], RowProgram]]]:
    """(name, pass), first to last. `means` False: cols is a power of two, what it divides an exact product."""
    listed: list[tuple[str, Callable[[RowProgram], RowProgram]]] = [
        ("totals of elements", totals_of_elements),
        ("load taken elements", load_taken_elements),
        (f"variance={choices.variance}", partial(variance, method=choices.variance)),
        (f"softmax={choices.softmax}", partial(softmax, method=choices.softmax)),
        ("hoist row divisions", partial(hoist_row_divisions, corrected=choices.arithmetic is ArithmeticMode.EXACT)),
    ]
    if choices.division is Division.REMAINDER:
        listed.append(("divide by the remainder", partial(divide_by_remainders, means=means)))
    if choices.arithmetic is ArithmeticMode.APPROXIMATE:
        listed.append(("approximate exponentials", approximate_exponentials))
    if choices.keep is Keep.VALUES:
        listed.append(("name kept values", name_kept_values))
    return listed


def passed(program: RowProgram, choices: Choices, *, means: bool = True) -> list[tuple[str, RowProgram]]:
    """The program as lowered and after each pass, every one checked: what `normgen show --ir` prints."""
    steps = [("lower", check(program))]
    if program.dots:
        steps.append(("factors leave sums", check(factors_leave(program))))
        if (online := online_results(steps[-1][1])) != steps[-1][1]:
            steps.append(("results online", check(online)))
        if (joined := factors_join(steps[-1][1])) != steps[-1][1]:
            steps.append(("factors join what is rounded", joined))
    if is_rolled(program):
        steps.append(("rolls to loads", check(rolls_to_loads(program))))
    for name, rewrite in passes(choices, means=means):
        steps.append((name, check(rewrite(steps[-1][1]))))
    return steps
