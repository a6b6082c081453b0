"""A look that blocks may be spared: its barrier keeps no other looks' states apart, which have areas of their own."""

from __future__ import annotations

import pytest

from normgen.cpu import find_compiler
from normgen.device import target
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import parse

# Nothing is saved: the gradient finds mean and variance again, and then looks at the row once more.
NORM = """
name = "norm"
[tensors]
x = "input"
weight = "parameter"
y = "output"
[formulas]
u = "mean(x)"
s = "mean((x - u)**2)"
y = "weight * ((x - u) / sqrt(s + 1e-6))"
"""


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("hold", ["registers", "shared", "reload"])
@pytest.mark.parametrize("gradients", [("x",), ("x", "weight")])
def test_looks_about_a_spared_one_do_not_race(hold: str, gradients: tuple[str, ...]) -> None:
    problem = problem_for(
        parse(NORM), shape="30x64", col_stride=15, direction="backward", gradients=gradients, dtype="f32"
    )
    walks = {"persistent": 1, "rows_per_block": 32, "threads_per_row": 4} if "weight" in gradients else {}
    schedule = Schedule(threads_per_row=16, rows_per_block=8, vector=1, hold=hold, variance="guarded").varied(
        unroll=0 if hold == "registers" else 4, **walks
    )
    assert refusal(problem, schedule, target("h200")) is None
    found = check_on_cpu(problem, emit(problem, schedule))
    assert found.ok, found.summary
