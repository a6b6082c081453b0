"""What legality and cost model derive without a program is what the plan has with one."""

from __future__ import annotations

import pytest

from normgen.device import target
from normgen.errors import NormgenError
from normgen.pipeline import emit, planned, programs_of
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.plan import (
    Waiting,
    held_register_limit,
    param_bytes_per_thread,
    plan_of,
    register_steps,
    shared_bytes,
    slot_bytes,
    sums_in_registers,
)
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import list_presets, list_specs, load

H200 = target("h200")
RING = {"copy": "bulk", "persistent": 2, "hold": "registers", "unroll": 0}
SLOTS = {
    "none": ({"hold": "registers", "unroll": 0}, 0),
    "a row": ({"hold": "shared"}, 4096 * 2),
    "a copied row": ({"hold": "shared", "copy": "cp_async"}, 4096 * 2),
    "one row ahead": (RING, 4096 * 2),
    "three rows on their way": ({**RING, "stages": 3}, 3 * 4096 * 2),
    "two tiles of two rows": ({**RING, "stages": 2, "rows_per_block": 2}, 2 * 2 * 4096 * 2),
}


@pytest.mark.parametrize("case", SLOTS)
def test_slots_hold_every_row_that_waits_or_is_on_its_way(case: str) -> None:
    knobs, size = SLOTS[case]
    problem = problem_for(load("rmsnorm"), shape="4096x4096", dtype="bf16")
    schedule = Schedule(threads_per_row=256, vector=8, **knobs)
    assert refusal(problem, schedule, H200) is None
    assert slot_bytes(problem, schedule) == size
    assert plan_of(problem, programs_of(problem, schedule)[-1][1], schedule).slot_bytes == size


@pytest.mark.parametrize(
    ("threads", "blocks", "limit"), [(128, 0, 179), (256, 0, 179), (512, 0, 84), (1024, 0, 36), (128, 4, 84)]
)
def test_three_quarters_of_a_threads_registers_hold_rows(threads: int, blocks: int, limit: int) -> None:
    """Less twelve for addresses and state; a thread has at most 255."""
    assert held_register_limit(Schedule(threads_per_row=threads, blocks_per_sm=blocks), H200) == limit


def test_a_hybrid_row_fills_registers_with_what_the_kernel_reads() -> None:
    asked = {"shape": "64x65536", "dtype": "bf16", "direction": "backward", "gradients": ("weight",)}
    added, plain = (problem_for(load(op), **asked) for op in ("add_rmsnorm", "rmsnorm"))
    schedule = Schedule(threads_per_row=256, vector=8, hold="hybrid", unroll=1)
    assert added.elem_tensors != added.elem_inputs
    assert register_steps(added, schedule) == register_steps(plain, schedule) == 21


TWO_ROWS = {"rows_per_block": 2, "threads_per_row": 256}
WAYS = (
    {"hold": "shared"},
    {"hold": "hybrid", "unroll": 1},
    {"hold": "shared", "copy": "cp_async", "persistent": 1, "stages": 2},
    {"hold": "registers", "copy": "bulk", "persistent": 1, "stages": 3, "unroll": 0},
    {"hold": "shared", "columns": "shared_atomic"},
    {"hold": "registers", "unroll": 0, "columns": "partials_two_kernels", "persistent": 1, **TWO_ROWS},
    {"hold": "reload", "columns": "partials_last_tile", "persistent": 1, "unroll": 0},
)


def built_in_problems() -> list[Problem]:
    """Of every operation that comes with the project: forward, backward, and backward for one tensor at a time."""
    found = []
    for name in (*list_specs(), *list_presets()):
        spec = load(name)
        if spec.has_inner:
            continue  # kernels of tiles have facts of their own
        asked = [{}, {"direction": "backward"}]
        asked += [{"direction": "backward", "gradients": [t.name]} for t in spec.tensors if not t.role.is_written]
        for number, question in enumerate(asked):
            cols = (40960, 4096, 24576)[number % 3]
            try:
                found.append(problem_for(spec, shape=(4096, cols), dtype="bf16", **question))
            except NormgenError:
                assert question, f"{name} has no forward problem"  # what is rounded to integers has no gradient
    return found


def test_legality_plan_and_launch_count_the_same_bytes_of_every_built_in_problem() -> None:
    """What waits in shared memory is counted from what the program loads, and so are parameters, sums and bytes."""
    problems = built_in_problems()
    seen, most = set(), target("h200").shared_per_block - 4096
    for number, problem in enumerate(problems):
        for way, knobs in enumerate(WAYS):
            schedule = Schedule(**{"threads_per_row": 512, "vector": 8, **knobs})
            reason = refusal(problem, schedule, H200)
            if reason is not None and "bytes of shared memory" not in reason:
                continue
            plan = planned(problem, schedule)
            rolled = {ld.of for ld in plan.program.loads if ld.roll is not None}  # alone, or not: it is counted
            names = {load.name for load in plan.held} | {n for n in rolled if problem.tensor(n).kind.is_elem}
            waiting = sum(problem.tensor(name).dtype.bytes for name in names)
            is_slotted = Waiting.SHARED in plan.places or plan.copies
            steps = plan.cut.steps - (plan.held_steps if plan.is_hybrid else 0)
            slots = steps * plan.cut.vector * schedule.threads * waiting * schedule.stages if is_slotted else 0
            assert slots == slot_bytes(problem, schedule) == plan.slot_bytes, (problem, schedule)
            needed = slots + (plan.sums.shared_bytes if plan.sums else 0)
            assert needed == shared_bytes(problem, schedule) == plan.shared_bytes, (problem, schedule)
            assert (needed > most) == (reason is not None), (problem, schedule, reason)
            assert reason is None or f" {needed} bytes" in reason, (reason, needed)
            params = {load.name for load in plan.col_params} | {n for n in rolled if problem.tensor(n).kind.is_col}
            loaded = sum(problem.tensor(name).dtype.bytes for name in params)
            assert loaded * plan.cut.steps * plan.cut.vector == param_bytes_per_thread(problem, schedule), problem
            sums = len(plan.sums.stores) if plan.sums and plan.sums.in_registers else 0
            assert sums * plan.cut.steps * plan.cut.vector == sums_in_registers(problem, schedule), problem
            if reason is None and (number + way) % 13 == 0:
                assert emit(problem, schedule).kernels[0].launch.shared_bytes == needed, (problem, schedule)
            seen.add((way, reason is None))
    assert {way for way, is_legal in seen if is_legal} == set(range(len(WAYS)))
    assert len([way for way, is_legal in seen if not is_legal]) > 3
