"""Kernels of the family whose rows belong to a thread, part of a warp, a warp, a block and a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.choice.first import default_schedule
from normgen.cpu import find_compiler
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.spec.reader import load
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong, wrong_backward

# cols, threads per row, rows per block, blocks per row
TEAMS = ((24, 1, 64, 1), (512, 8, 16, 1), (512, 32, 4, 1), (512, 64, 2, 1), (512, 32, 1, 2))
FORWARD = ("add_rmsnorm_to_fp8_group", "silu_mul_to_fp8_token", "cross_entropy_grad", "softmax_sink")
BACKWARD = ("add_rmsnorm", "cross_entropy")


def cases(op: str, direction: str) -> list[Case]:
    """The default schedule with other owners of a row, as far as they are legal."""
    found = []
    for cols, threads, rows, cluster in TEAMS:
        if cols % (load(op).group or 1):
            continue
        problem = problem_for(load(op), shape=(21, cols), dtype="bf16", direction=direction)
        default = default_schedule(problem, DEVICE)
        team = replace(default, threads_per_row=threads, rows_per_block=rows, cluster=cluster, vector=4)
        if refusal(problem, team, DEVICE) is None:
            found.append((problem, team))
    return found


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_kernels_are_right_whoever_owns_a_row(direction: str) -> None:
    drawn = [case for op in (FORWARD if direction == "forward" else BACKWARD) for case in cases(op, direction)]
    owners = (
        {1, 8, 32, 64} if direction == "forward" else {8, 32, 64}
    )  # a thread has too few registers for sums of columns
    assert {s.threads_per_row for _, s in drawn} >= owners
    assert {s.row_blocks for _, s in drawn} == {1, 2}
    compare = wrong if direction == "forward" else wrong_backward
    found = list(compare(drawn, CpuExecutor(), seed=0))
    assert not found, report(found, drawn)
