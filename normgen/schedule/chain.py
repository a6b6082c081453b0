"""How many numbers a schedule's row sums add one to the other: what their rounding errors grow with."""

from __future__ import annotations

from normgen.problem.problem import Problem
from normgen.schedule.schedule import Schedule


def longest_chain(problem: Problem, schedule: Schedule) -> int:
    """The most terms added up one after the other in a row sum of this schedule; the rest of a sum is a tree.

    A thread's running sums share each vector's elements.
    A vector more for each ragged end; then what a lane adds of the warps' sums before a tree of 32 or fewer lanes.
    """
    if problem.col_stride > 1:  # a part adds its columns one after another, then the parts' sums
        return min(problem.cols, -(-problem.cols // schedule.threads_per_row) + schedule.threads_per_row)
    step = schedule.threads_per_row * schedule.row_blocks * schedule.vector
    each = schedule.vector // schedule.running_sums
    warps = -(-schedule.threads_per_row // 32) * schedule.row_blocks
    lanes = min(32, 1 << (warps.bit_length() - 1))
    return min(problem.cols, (-(-problem.cols // step) + 2) * each + -(-warps // lanes) - 1)
