"""Wrong lines of kernels with gradients of parameters of groups of columns: which columns, cells, rows and groups.

Their kernels are changed by these classes alone.
"""

from __future__ import annotations

from normgen.knobs import ColumnWay
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import parse
from tests.codegen.kernels import Named
from tests.mutation.classes import MutationClass

SPEC = """
name = "by_groups"
[tensors]
x = "input"
weight = { role = "ROLE", group = WEIGHT }
bias = { role = "parameter", group = BIAS }
gain = "parameter"
y = "output"
[formulas]
y = "x * rsqrt(mean(x * x) + 1e-5) * weight * gain + bias"
"""
WALKING: dict[str, object] = {"hold": "registers", "unroll": 0, "persistent": 2}


def of(role: str, groups: tuple[int, int], shape: str, knobs: dict[str, object], **more: object) -> Named:
    text = SPEC.replace("ROLE", role).replace("WEIGHT", str(groups[0])).replace("BIAS", str(groups[1]))
    problem = problem_for(parse(text), shape=shape, direction="backward", **more)  # type: ignore[arg-type]
    return Named(problem=problem, schedule=Schedule(**{"vector": 4, **knobs}))  # type: ignore[arg-type]


TEAM: dict[str, object] = {"threads_per_row": 32, "rows_per_block": 2}
GROUP_CASES: dict[str, Named] = {
    "groups_two_kernels": of("parameter", (4, 48), "4096x384", {**TEAM, **WALKING}),
    "groups_of_one_size": of(
        "parameter", (40, 40), "4096x240", {**TEAM, **WALKING}, gradients=["weight", "bias"]
    ),
    "groups_of_batches": of("batch_parameter", (24, 6), "6x700x240", {**TEAM, **WALKING}),
    "groups_of_heads": of("head_parameter", (128, 2), "700x6x256", {"threads_per_row": 64, **WALKING}),
    "groups_masked": of(
        "parameter", (41, 3), "4096x123", {**TEAM, "vector": 2, "edges": "masked", **WALKING}, pitch=124
    ),
    "groups_added": of("parameter", (12, 48), "4096x384", {**TEAM, **WALKING}, accumulate=True),
    "groups_cluster": of("parameter", (256, 64), "4096x1024", {"threads_per_row": 64, "cluster": 2, **WALKING}),
    "groups_register_atomic": of(
        "parameter", (40, 5), "4096x240", {**TEAM, "columns": "register_atomic", **WALKING}
    ),
    "groups_shared_atomic": of("batch_parameter", (160, 20), "6x700x320", {**TEAM, "columns": "shared_atomic"}),
    "groups_atomic": of("head_parameter", (77, 7), "700x6x231", {**TEAM, "vector": 1, "columns": "atomic"}),
    "groups_any_cols": of(
        "parameter", (11, 33), "4096x231", {**TEAM, "edges": "masked", "columns": "atomic"}, any_cols=True, pitch=232
    ),
}  # fmt: skip


def has_two_kernels(kernel: Named) -> bool:
    return kernel.schedule.columns is ColumnWay.PARTIALS_TWO_KERNELS


def takes_groups(kernel: Named) -> bool:
    return not has_two_kernels(kernel)


def has_vectors(kernel: Named) -> bool:
    """Sums of neighbouring columns lie apart: a thread has them in registers."""
    return kernel.schedule.columns in (ColumnWay.PARTIALS_TWO_KERNELS, ColumnWay.REGISTER_ATOMIC)


def has_turns(kernel: Named) -> bool:
    """A block, or a warp, has several groups."""
    return min(t.group for t in kernel.problem.tensors if t.group) < (8 if has_two_kernels(kernel) else 100)


CELL = r"column % kVector \* kVectors \+ column / kVector"
NEXT = r"\(next \+ i \* kThreads\)"
C = MutationClass
GROUP_SUMS: tuple[MutationClass, ...] = (
    # Which columns.
    C("group_second_column", "a group begins a column late", r"group \* (\d+)(?=, warp_sums\)|\);)", r"group * \1 + 1"),
    C("group_one_wide", "groups of one column", r"group \* \d+(?=, warp_sums\)|\);)", "group"),
    C("group_first_of_row", "the first group for all", r"\(first \+ ", "("),
    C("group_halved", "half of a group", r"next < (partial_rows \* )?kGroup;", r"next < \1kGroup / 2;"),
    C("group_column_more", "a column too many", r"column < kGroup\) parts", "column <= kGroup) parts", takes_groups),
    C("group_column_less", "a column too few", r"column < kGroup\) parts", "column < kGroup - 1) parts", takes_groups),
    C("group_lane_step", "columns that no lane adds", r"next \+= 4 \* 32", "next += 5 * 32", takes_groups),
    C("group_part_step", "columns twice", r"column = next \+ i \* 32", "column = next + i * 16", takes_groups),
    C("group_column_of_trip", "one column for all loads of a trip", NEXT + " % kGroup", "next % kGroup",
      lambda kernel: any(t.group and 512 % t.group for t in kernel.problem.tensors)),
    C("group_row_of_trip", "one row for all loads of a trip", rf"row = {NEXT} / kGroup", "row = next / kGroup"),
    C("group_row_by_column", "rows and columns are turned", rf"row = {NEXT} / kGroup",
      "row = (next + i * kThreads) % partial_rows"),
    C("group_trip_late", "a load is left out in each trip", r"next \+= kInFlight \* kThreads",
      "next += (kInFlight + 1) * kThreads"),
    C("group_tensor", "another tensor's columns", r"(add_partial_group<[^;]*), tensor,",
      r"\1, (tensor + 1) % kTensors,", has_two_kernels),
    # Which cells.
    C("group_cells_in_order", "cells as if they lay in the order of columns", CELL, "column", has_vectors),
    C("group_cells_turned", "rows and columns of cells", CELL, "column % kVectors * kVector + column / kVectors",
      has_vectors),
    C("group_edge_cells", "the columns behind the last vector", r"column < kVector \* kVectors \?", "true ?",
      lambda kernel: kernel.problem.cols % kernel.schedule.vector != 0 and has_vectors(kernel)),
    C("group_not_zero", "cells are not 0 for the next call", r"sums\[cell_of<[^=]*\] = 0\.0f;", ""),
    C("group_half_zero", "half of the cells are not", r"column < kGroup; column \+= 32",
      "column < kGroup; column += 64"),
    C("group_last_not_zero", "the last cell is not", r"column < kGroup; column \+= 32",
      "column < kGroup - 1; column += 32"),
    # Whose sums.
    C("group_lanes_lost", "lanes that are not added", r"offset = 16; offset > 0; offset /= 2\) (sum|total) \+=",
      r"offset = 16; offset > 2; offset /= 2) \1 +="),
    C("group_lanes_twice", "lanes that are added twice", r"offset = 16; offset > 0; offset /= 2\) (sum|total) \+=",
      r"offset = 16; offset > 0; offset /= 2) \1 += 2.0f *"),
    C("group_first_warp", "one warp's sum for all", r"total_of_warps<kThreads / 32>\(warp_sums, 0\)",
      "warp_sums[0][0]", has_two_kernels),
    C("group_warp_behind", "every warp leaves the first one's", r"warp_sums\[threadIdx\.x / 32\]\[0\] = sum",
      "warp_sums[0][0] = sum", has_two_kernels),
    C("group_no_barrier", "sums are read before they are there",
      r"(warp_sums\[threadIdx\.x / 32\]\[0\] = sum;\s+)__syncthreads\(\);", r"\1", has_two_kernels),
    C("group_no_barrier_behind", "the next group's sums overtake",
      r"(group < kCols / [2-6]; group \+= kPitch / kCells\) \{(?:(?!__sync)[^}]|\}(?=\s+[i_]))*)__syncthreads\(\);",
      r"\1", lambda kernel: has_two_kernels(kernel) and has_turns(kernel)),
    # Which groups.
    C("group_one_a_block", "groups that nobody adds", r"group \+= (kPitch / kCells|kThreads / 32)", "group += kCols",
      lambda kernel: has_turns(kernel) and not kernel.problem.any_cols),
    C("group_step", "a group in two is left out", r"group \+= (kPitch / kCells|kThreads / 32)", r"group += 2 * (\1)",
      has_turns),
    C("group_last", "the last group is left out", r"group < (kCols|cols) / (\d+);", r"group < \1 / \2 - 1;"),
    C("group_more", "a group behind the last", r"group < (kCols|cols) / (\d+);", r"group < \1 / \2 + 1;"),
    C("group_by_two_warps", "two warps take one group", r"group = threadIdx\.x / 32;", "group = threadIdx.x / 64;",
      takes_groups),
    C("group_written_behind", "the sum of the group before", r"write_element\((\w+(?: \+ [^,;]*)?), group,",
      r"write_element(\1, group + 1,"),
    C("group_other_tensor", "another tensor's sums", r"take_group<(\d+[^>]*)>\(sums \+ ([^,;]*?)(2 \* )?kPitch,",
      r"take_group<\1>(sums + \2kPitch * 2 - kPitch,",
      lambda kernel: takes_groups(kernel) and not kernel.problem.any_cols),
    C("group_first_batch", "the first batch for all", r"take_group<([^>]*)>\(sums \+ static_cast<long long>\(batch\)",
      r"take_group<\1>(sums + static_cast<long long>(0)", takes_groups),
    C("group_batch_for_all", "a batch's rows for all rows", r"(add_partial_group<[^;]*), partial_rows, ",
      r"\1, batch_rows, ", lambda kernel: has_two_kernels(kernel) and kernel.problem.sums_batches),
    C("group_all_for_batch", "all rows for those of a batch", r"(add_partial_group<[^;]*), batch_rows, ",
      r"\1, partial_rows, ", has_two_kernels),
    C("group_added_to_first", "the first group's start for all", r"read<1>\((\w+) \+ group\)", r"read<1>(\1)"),
    C("group_not_added", "what was there is lost", r"element\(read<1>\(\w+ \+ group\), 0\) \+ ", ""),
)  # fmt: skip
