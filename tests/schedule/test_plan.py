"""What legality and cost model derive without a program is what the plan has with one."""

from __future__ import annotations

import pytest

from normgen.device import target
from normgen.pipeline import programs_of
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.plan import held_register_limit, plan_of, slot_bytes
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load

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
