"""Blocks of the grid that share rows of a reduction: states cross them through memory, and all of them are resident."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen.choice.first import default_schedule
from normgen.codegen.module import Module
from normgen.cpu import FaultKind, Program, build, find_compiler
from normgen.cuda.compiler import compile_module
from normgen.device import MOST_TOGETHER, target
from normgen.errors import UsageError
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.plan import TICKET_BYTES
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import space
from normgen.spec.reader import load
from normgen.verify import make_inputs, make_outputs
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor, GpuExecutor, new_workspace
from tests.codegen.matrix import report, wrong, wrong_backward

H200 = target("h200")
THREE = Schedule(threads_per_row=32, parts=3, persistent=1, vector=4)
HELD = replace(THREE, hold="registers", unroll=0)
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


def problem(op: str, shape: str, dtype: str = "f32", **more: object) -> Problem:
    return problem_for(load(op), shape=shape, dtype=dtype, **more)


FORWARD: dict[str, Case] = {
    "softmax, two looks": (problem("softmax", "5x1536"), THREE),
    "softmax, one look": (problem("softmax", "5x1536", "bf16"), replace(THREE, vector=8, softmax="online")),
    "layernorm in registers": (problem("layernorm", "5x1536"), HELD),
    "layernorm in shared memory": (problem("layernorm", "5x1536"), replace(THREE, hold="shared", unroll=2)),
    "layernorm guarded": (problem("layernorm", "7x1536", "bf16"), replace(HELD, vector=8, variance="guarded")),
    "states of one number, then of two": (
        problem("layernorm", "5x1536"), replace(HELD, variance="corrected_two_pass")
    ),
    "two groups that walk": (
        problem("rmsnorm", "7x1024"), replace(HELD, parts=2, persistent=2, blocks_per_sm=2)
    ),
    "three blocks an SM": (problem("rmsnorm", "9x1024"), replace(HELD, parts=4, persistent=3, blocks_per_sm=3)),
    "ten parts": (problem("rmsnorm", "3x1536"), replace(HELD, parts=10, persistent=3, blocks_per_sm=3)),
    "a ragged tail": (problem("layernorm", "5x1531", pitch=1532), replace(HELD, edges="masked")),
    "rows that shift": (problem("softmax", "5x1531"), replace(THREE, edges="peel")),
    "the next row by cp.async": (
        problem("rmsnorm", "7x1536"), replace(THREE, hold="shared", copy="cp_async", stages=2)
    ),
    "the next row by bulk copies": (problem("rmsnorm", "7x1536"), replace(HELD, copy="bulk", stages=2, params="kept")),
    "the next row in registers": (problem("rmsnorm", "7x1536"), replace(HELD, stages=2)),
    "losses": (problem("cross_entropy", "7x1500"), replace(THREE, softmax="online")),
    "sums": (problem("row_sum", "7x1500", "bf16"), THREE),
    "a maximum and a sum": (problem("row_max_sum", "7x1500"), replace(THREE, parts=4)),
    "all elements": (problem("full_sum", "3x1500"), THREE),
    "one row": (problem("softmax", "1x1536"), THREE),
    "no rows": (problem("softmax", "0x1536"), THREE),
    "the last rows first": (problem("softmax", "7x1536"), replace(THREE, parts=2, row_order="descending")),
}  # fmt: skip
BACKWARD: dict[str, Case] = {
    "softmax": (problem("softmax", "5x1536", direction="backward"), THREE),
    "layernorm, partial rows": (problem("layernorm", "5x1536", direction="backward"), replace(HELD, params="kept")),
    "layernorm, read again": (problem("layernorm", "5x1536", direction="backward"), replace(THREE, parts=2, unroll=0)),
    "rmsnorm, last arrivers": (
        problem("rmsnorm", "5x1536", "bf16", direction="backward"), replace(HELD, columns="partials_last_tile")
    ),
    "rmsnorm, atomics of blocks": (
        problem("rmsnorm", "5x1536", direction="backward"), replace(HELD, columns="register_atomic")
    ),
    "layernorm, atomics of rows that shift": (
        problem("layernorm", "5x1531", direction="backward"), replace(THREE, columns="atomic", edges="peel")
    ),
    "no rows": (problem("layernorm", "0x1536", direction="backward"), HELD),
}  # fmt: skip
CASES = [*FORWARD.values(), *BACKWARD.values()]


@needs_compiler
@pytest.mark.parametrize("seed", [0, 1])
def test_rows_that_blocks_of_the_grid_share_are_right_on_the_cpu(seed: int) -> None:
    for case in CASES:
        assert refusal(*case, H200) is None, case
    found = [*wrong(list(FORWARD.values()), CpuExecutor(), seed=seed)]
    found += wrong_backward(list(BACKWARD.values()), CpuExecutor(), seed=seed)
    assert not found, report(found, CASES)


@pytest.mark.gpu
def test_rows_that_blocks_of_the_grid_share_are_right_on_the_gpu() -> None:
    found = [*wrong(list(FORWARD.values()), GpuExecutor(), seed=2)]
    found += wrong_backward(list(BACKWARD.values()), GpuExecutor(), seed=2)
    assert not found, report(found, CASES)


def test_they_need_no_cluster_and_compile_for_every_arch() -> None:
    module = emit(*FORWARD["softmax, two looks"])
    launch = module.kernels[0].launch
    assert (launch.cluster, launch.parts, launch.cooperates) == (1, 3, True)
    assert module.min_arch == 75
    assert compile_module(module, 75).data


def test_blocks_that_need_nothing_of_each_other_do_not_wait() -> None:
    module = emit(problem("swiglu", "37x1536", "bf16"), Schedule(threads_per_row=32, vector=8, parts=3))
    assert not module.kernels[0].launch.cooperates


@pytest.mark.parametrize(("parts", "persistent"), [(3, 1), (132, 1), (50, 2), (264, 2), (2, 16)])
def test_a_launch_has_whole_groups_and_no_more_blocks_than_are_resident(parts: int, persistent: int) -> None:
    schedule = replace(THREE, parts=parts, persistent=persistent, blocks_per_sm=0)
    module = emit(problem("softmax", "4x1048576"), schedule)
    (kernel,) = module.kernels
    for rows in (0, 1, 3, 64, 100_000):
        blocks = kernel.launch.grid(rows=rows, sm_count=132)
        assert blocks % parts == 0
        assert blocks <= min(persistent * 132, MOST_TOGETHER)
        assert blocks >= parts * min(rows, 1)
        assert blocks // parts * TICKET_BYTES <= module.workspace.fixed
        assert module.workspace_bytes(rows=rows, sm_count=132) == module.workspace.fixed + blocks * 2 * 4


def test_a_grid_whose_rows_shift_is_no_larger_than_what_is_resident() -> None:
    """A grid of one block a row would have a multiple of the vector's elements of them: eight groups here, not one."""
    schedule = Schedule(threads_per_row=64, parts=132, persistent=1, vector=4, edges="peel")
    (kernel,) = emit(problem("softmax", "9x65537"), schedule).kernels
    assert kernel.launch.grid(rows=9, sm_count=132) == 132


def test_sums_over_rows_have_a_partial_row_for_each_group_behind_the_counters() -> None:
    module = emit(*BACKWARD["layernorm, partial rows"])
    first, second = module.kernels
    (partials,) = (p for p in first.params if p.name == "partials")
    (states,) = (p for p in first.params if p.name == "states")
    assert partials.offset == states.offset == module.workspace.fixed > 0
    assert [p.offset for p in second.params if p.name == "partials"] == [partials.offset]
    assert module.workspace.block == 2 * 1536 * 4 // 3 + 2 * 2 * 4  # a third of a partial row, and two states


def run_of(program: Program, case: Problem, outputs: dict[str, np.ndarray], **how: object) -> tuple[FaultKind, ...]:
    inputs = make_inputs(case, seed=0)
    run = program.run(
        {**inputs.arrays, **outputs}, rows=case.rows, cols=case.cols, scalars=inputs.scalars, **how
    )  # fmt: skip
    return tuple(fault.kind for fault in run.faults)


@needs_compiler
def test_every_block_finds_the_same_bits_whatever_the_number_of_groups_and_of_rows() -> None:
    """Softmax of 6 rows alone, and as the first of 11, by one group and by three."""
    few, schedule = problem("softmax", "6x1536"), replace(THREE, softmax="online")
    program, found = build(emit(few, schedule)), []
    x = np.random.default_rng(0).standard_normal((11, 1536), dtype=np.float32)
    for rows, sms in ((6, 3), (6, 9), (11, 9)):
        y = np.full((rows, 1536), np.nan, dtype=np.float32)
        assert program.run({"x": x[:rows], "y": y}, rows=rows, cols=1536, sm_count=sms).faults == ()
        found.append(y[:6].copy())
    assert np.abs(found[0].sum(axis=1) - 1).max() < 1e-5
    assert all(np.array_equal(one.view(np.uint32), found[0].view(np.uint32)) for one in found)


@needs_compiler
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_the_counters_are_zero_again_after_any_number_of_exchanges(rows: int) -> None:
    """A replayed graph sets nothing to zero: two calls share a workspace, and the second finds it as the first did."""
    case, schedule = problem("rmsnorm", f"{rows}x1536"), replace(HELD, parts=2)
    module = emit(case, schedule)
    workspace, program = new_workspace(module, rows), build(module)
    for _ in range(2):
        assert run_of(program, case, make_outputs(case).arrays, sm_count=2, workspace=workspace) == ()
        assert not workspace[: module.workspace.fixed].any()


def faults_of(module: Module, case: Problem) -> set[FaultKind]:
    return set(run_of(build(module), case, make_outputs(case).arrays, sm_count=9))


@needs_compiler
@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("atomicAdd(counter, arrival<kParts>(part));\n      await", "await", FaultKind.DEADLOCK),
        ("fence_device();  // the state", "// the state", FaultKind.MISSING_FENCE),
        ("fence_device();  // what", "// what", FaultKind.MISSING_FENCE),
        ("await_turn(counter, exchange % 2);", "", FaultKind.GLOBAL_RACE),
        ("sets + exchanges % 2 * kParts * kStateWords", "sets", FaultKind.GLOBAL_RACE),
        ("arrivals + group * kCounterWords", "arrivals", FaultKind.GLOBAL_RACE),
    ],
)
def test_the_executor_finds_what_an_exchange_lacks(before: str, after: str, kind: FaultKind) -> None:
    case, schedule = problem("rmsnorm", "7x1536"), replace(THREE, threads_per_row=64)
    module = emit(case, schedule)
    assert faults_of(module, case) == set()
    assert module.text.count(before) == 1
    assert kind in faults_of(replace(module, text=module.text.replace(before, after)), case)


@needs_compiler
def test_a_counter_that_nobody_turns_is_told_with_what_it_counts() -> None:
    case = problem("rmsnorm", "7x1536")
    module = emit(case, THREE)
    stuck = replace(module, text=module.text.replace("0x80000000u - (kParts - 1) : 1u", "0u : 1u"))
    inputs = make_inputs(case, seed=0)
    run = build(stuck).run(
        {**inputs.arrays, **make_outputs(case).arrays}, rows=7, cols=1536, scalars=inputs.scalars, sm_count=3
    )
    (fault,) = run.faults
    assert fault.kind is FaultKind.DEADLOCK
    assert "no block arrives any more: its top bit is 0, and 0x2 is counted" in fault.message
    assert "wait for a counter in memory" in fault.message


@needs_compiler
def test_more_blocks_than_the_executor_runs_together_are_refused_with_their_number() -> None:
    case = problem("softmax", "2x1048576")
    module = emit(case, replace(THREE, parts=256, persistent=2, blocks_per_sm=2))
    with pytest.raises(UsageError, match="at most 255 blocks that wait for each other"):
        run_of(build(module), case, make_outputs(case).arrays, sm_count=132)


@pytest.mark.parametrize(
    ("op", "knobs", "words"),
    [
        ("softmax", {"persistent": 0}, "resident together, whatever rows is: persistent >= 1"),
        ("softmax", {"parts": 134}, "134 blocks share a row: no more than 1 for each of 132 SMs"),
        ("softmax", {"persistent": 2}, "blocks_per_sm >= persistent"),
        ("softmax", {"reduce_with": "shared_tree"}, "reduce_with = shuffle"),
        ("softmax", {"dependent_launch": "end"}, "dependent_launch = off"),
        ("softmax", {"cluster": 2}, "a block's only one"),
        ("softmax", {"threads_per_row": 16, "rows_per_block": 2}, "a block's only one"),
        ("swiglu", {"persistent": 0, "parts": 66}, "no more than 64 parts"),
    ],
)
def test_what_blocks_of_the_grid_cannot_share(op: str, knobs: dict[str, object], words: str) -> None:
    assert words in str(refusal(problem(op, "4x1048576"), replace(THREE, **knobs), H200))


def test_sums_over_rows_that_need_nothing_of_a_row_as_a_whole_are_not_shared() -> None:
    case = problem("layernorm", "4x1048576", direction="backward", gradients=["bias"])
    assert "find blocks enough in its rows" in str(refusal(case, replace(HELD, unroll=0), H200))


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (replace(THREE, edges="peel", columns="partials_two_kernels", unroll=0), "go straight to memory"),
        (replace(THREE, edges="peel", columns="atomic", params="kept"), "no parameters are kept"),
        (replace(HELD, edges="peel", columns="atomic", stages=2), "no row comes ahead"),
    ],
)
def test_nothing_of_rows_that_shift_stays_with_a_thread(schedule: Schedule, words: str) -> None:
    case = problem("layernorm", "5x1531", direction="backward")
    assert words in str(refusal(case, schedule, H200))


def test_columns_are_counted_beyond_their_end_by_an_int() -> None:
    long = problem("row_sum", f"1x{2**31 - 1}", "f32", align=4)
    assert "an int counts the columns" in str(refusal(long, replace(THREE, vector=1, unroll=1), H200))
    fits = problem("row_sum", f"1x{2**31 - 2**20}", "f32")
    assert refusal(fits, replace(THREE, parts=132, threads_per_row=1024, unroll=8), H200) is None


@needs_compiler
def test_the_last_columns_of_a_row_of_2_to_the_31_have_addresses_of_64_bits() -> None:
    module = emit(problem("row_sum", f"1x{2**31 - 2**20}"), replace(THREE, parts=132, threads_per_row=1024, unroll=8))
    assert "x_row + first_col + step * kStride" in module.text  # within a row an int; between rows 64 bits
    assert "x + row * x_pitch" in module.text


@pytest.mark.parametrize("op", ["softmax", "layernorm", "rmsnorm", "cross_entropy", "row_sum"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("shape", ["1x16777216", "4x16777216", "16x4194304", "64x4194304"])
def test_giant_rows_are_shared_by_the_grid_untuned(op: str, dtype: str, shape: str) -> None:
    found = default_schedule(problem(op, shape, dtype), H200)
    assert found.meets_in_memory
    assert found.strategy == "blocks_per_row"
    groups = found.persistent * H200.sm_count // found.parts
    assert min(groups, int(shape.split("x")[0])) * found.parts >= 0.9 * H200.sm_count  # hardly an SM has no part


@pytest.mark.parametrize("shape", ["4096x4096", "1x65536", "128x131072", "2048x262144", "100000x262144"])
def test_rows_that_fill_the_gpu_in_clusters_and_blocks_are_not(shape: str) -> None:
    assert default_schedule(problem("rmsnorm", shape, "bf16"), H200).parts == 1


def test_the_look_back_begins_where_the_look_before_it_ended_if_it_reads_from_memory() -> None:
    text = emit(*FORWARD["softmax, two looks"]).text
    assert text.count("for (int step = 0; step < kSteps; ++step)") == 2
    assert text.count("for (int step = kSteps - 1; step >= 0; --step)") == 1
    assert "--step" not in emit(*FORWARD["layernorm in registers"]).text


def test_the_space_of_giant_rows_has_all_places_for_rows_to_wait() -> None:
    found = [s for s in space(problem("softmax", "16x4194304"), H200).legal if s.meets_in_memory]
    assert {s.hold for s in found} == {"registers", "shared", "hybrid", "reload"}
    assert {s.copy for s in found} >= {"direct", "cp_async"}
    assert len({s.parts for s in found}) > 10
    assert not [s for s in space(problem("softmax", "4096x4096"), H200).legal if s.meets_in_memory]
