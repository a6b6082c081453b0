"""What `normgen explain` says of a product's schedule."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.cost.checklist import bank_ways, checklist, unfused_bytes
from normgen.cost.model import predict
from normgen.cost.work import arithmetic_us, flops, roof_of
from normgen.cpu import build_many, find_compiler
from normgen.cpu.trace import StepKind
from normgen.device import target
from normgen.knobs import Fragment
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.statistics import Ratio
from normgen.schedule.schedule import Schedule, schedule_from
from normgen.schedule.tiles.clocks import busy_clocks
from normgen.schedule.tiles.plan import tile_problem_plan
from normgen.spec.reader import load
from normgen.trials.contest import Contest
from tests.verify.contraction import linear

H200 = target("h200")
TILED = Schedule(hold="shared", vector=4, tile_m=64, tile_n=64, tile_k=16, thread_m=4, thread_n=4)


QUESTIONS = ["intensity", "coalescing", "bank conflicts", "reuse", "edges", "registers", "occupancy"]
QUESTIONS += ["vector width", "fusion"]


def answers(problem: Problem, schedule: Schedule) -> dict[str, tuple[str, bool]]:
    cost = predict(problem, schedule, H200)
    return {a.question: (a.answer, a.is_good) for a in checklist(problem, schedule, H200, cost)}


def test_the_questions_of_a_product_are_those_of_its_tiles() -> None:
    found = answers(linear.problem_of("linear", (256, 256, 64)), TILED)
    assert list(found) == QUESTIONS
    assert found["edges"] == ("all tiles are whole", True)
    assert found["reuse"] == ("32 products for an element from L2, 2.0 for one from shared memory", True)
    lines = predict(linear.problem_of("linear", (256, 256, 64)), TILED, H200).lines()
    assert not any(line.startswith(("looks", "columns", "starts")) for line in lines)


@pytest.mark.parametrize(
    ("sizes", "share"), [((65, 64, 16), "49%"), ((64, 65, 16), "49%"), ((64, 64, 17), "47%"), ((1, 1, 1), "100%")]
)
def test_products_beyond_the_edges_are_counted(sizes: tuple[int, int, int], share: str) -> None:
    said, is_good = answers(linear.problem_of("linear", sizes), TILED.varied(vector=1))["edges"]
    assert said == f"{share} of the products lie beyond the result's edges"
    assert not is_good


def test_narrow_vectors_along_a_short_line_touch_more_than_they_use() -> None:
    wide = answers(linear.problem_of("linear", (256, 256, 64)), TILED)["coalescing"]
    narrow = answers(linear.problem_of("linear", (256, 256, 63)), TILED.varied(vector=1, tile_k=8))["coalescing"]
    assert wide[1]
    assert not narrow[1]
    assert "'x'" in narrow[0]


def test_apart_every_side_is_read_and_written_by_itself() -> None:
    problem = linear.problem_of("normed", (8, 16, 32), without=("rstd",))
    assert unfused_bytes(problem) > problem.compulsory_bytes


def test_the_roof_of_a_product_is_its_bytes_or_its_flops_whichever_takes_longer() -> None:
    problem = linear.problem_of("linear", (256, 128, 64))
    assert flops(problem) == 2 * 256 * 128 * 64
    least = arithmetic_us(problem, H200)
    assert least == pytest.approx(256 * 128 * 64 / (132 * 128 * 1.98e3))
    assert roof_of({"copy": 2 * least, "elementwise": 3 * least, "arithmetic": least}) == ("copy", 2 * least)
    assert roof_of({"copy": least / 2, "elementwise": 3 * least, "arithmetic": least}) == ("arithmetic", least)
    assert roof_of({}) is None
    contest = Contest(series={"ours": [10.0, 11.0, 12.0, 11.0, 10.0, 11.0, 11.0]}, arithmetic={"arithmetic": 5.0})
    assert contest.price_ratio("ours", "arithmetic") == Ratio(median=2.2, low=2.0, high=2.4)


def test_the_model_knows_waves_and_what_hides_latency() -> None:
    problem = linear.problem_of("linear", (4096, 4096, 4096))
    wide = TILED.varied(tile_m=128, tile_n=128, thread_m=8, thread_n=16, copy="cp_async", stages=3)
    us = {name: predict(problem, s, H200).us for name, s in {
        "wide": wide, "narrow threads": wide.varied(thread_m=4, thread_n=4, tile_m=64, tile_n=64),
        "nothing ahead": wide.varied(stages=1),
    }.items()}  # fmt: skip
    assert us["wide"] == min(us.values())
    assert arithmetic_us(problem, H200) < us["wide"] < 1.3 * arithmetic_us(problem, H200)
    one, two = (busy_clocks(linear.problem_of("linear", (128, n, 4096)), wide, H200) for n in (128 * 132, 128 * 265))
    assert two > 1.4 * one, "a tile more than two for each SM is a wave more"


def test_a_product_says_how_many_operations_it_has_for_a_byte() -> None:
    said, is_good = answers(linear.problem_of("linear", (4096, 4096, 4096)), TILED)["intensity"]
    assert said.startswith("683 operations for a byte of memory (products bound: "), "2 * 4096**3 / (3 * 4096**2 * 4)"
    assert "16 for one from L2 (12.8)" in said, "2 * 64 * 64 / (128 * 4), of 256 a clock over 20 bytes"
    assert is_good
    small = TILED.varied(tile_m=16, tile_n=16, thread_m=2, thread_n=2)
    assert not answers(linear.problem_of("linear", (4096, 4096, 4096)), small)["intensity"][1]
    assert "memory bound" in answers(linear.problem_of("linear", (1, 4096, 4096)), small)["intensity"][0]


SHARED = [
    TILED,
    TILED.varied(thread_m=8, thread_n=8, tile_m=128, tile_n=128),
    TILED.varied(vector=1, tile_k=8),
    TILED.varied(tile_k=32, thread_m=2, thread_n=2, tile_m=32, tile_n=32),
    TILED.varied(vector=2, tile_m=16, tile_n=16, thread_m=2, thread_n=1, tile_k=8),
    TILED.varied(tile_m=32, tile_n=128, thread_m=16, thread_n=8),
]
MMA = TILED.varied(fragment=Fragment.MMA, vector=8, tile_k=32, thread_m=4, thread_n=8)
OF_TENSORS = [
    MMA,
    MMA.varied(tile_k=64, tile_n=128),
    MMA.varied(tile_m=16, tile_n=32, thread_m=2, thread_n=4),
    MMA.varied(tile_m=32, tile_n=16, thread_m=4, thread_n=4, vector=4),
    MMA.varied(tile_m=256, tile_n=64, thread_m=16, vector=2),
]


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("name", ["linear", "torch_linear"])
def test_banks_are_counted_on_the_addresses_that_a_kernel_has(name: str) -> None:
    """Each step of the first warp in shared memory, as the executor saw it: the busiest bank of all is what is said."""
    for schedule in (*SHARED, *OF_TENSORS):
        dtype = "bf16" if schedule.fragment is Fragment.MMA else "f32"
        problem = linear.problem_of(name, (schedule.tile_m, schedule.tile_n, schedule.tile_k), dtype=dtype)
        plan = tile_problem_plan(problem, schedule)
        seen = bank_ways_seen(problem, schedule)
        for kind, lanes in ((StepKind.READ, plan.fragment.reads), (StepKind.WRITE, plan.fragment.writes)):
            told = max(bank_ways(*lanes(side)) for side in plan.cut.sides)
            assert told == seen[kind], (schedule, kind)
            assert told == 1 or schedule.fragment is not Fragment.MMA or schedule.vector < 8, "what is swizzled"


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("columns", [64, 96])
def test_lanes_of_teams_meet_on_no_bank_where_results_pass(columns: int) -> None:
    """Boxes have lines of 128 bytes there, and of 64."""
    knobs = {"hold": "shared", "copy": "bulk", "fragment": "wgmma", "vector": 8, "stages": 2}
    knobs |= {"tile_m": 64, "tile_n": columns, "tile_k": 64, "thread_m": 2, "thread_n": columns // 4}
    asked = {"shape": (64, columns), "inner": 64, "dtype": "bf16", "layout": {"w": "cols_inner"}}
    problem = problem_for(load("linear_add"), **asked)
    assert bank_ways_seen(problem, schedule_from(knobs)) == {StepKind.READ: 1, StepKind.WRITE: 1}


def bank_ways_seen(problem: Problem, schedule: Schedule) -> dict[StepKind, int]:
    """The most of all steps of the first warp in shared memory."""
    [program] = build_many([emit(problem, schedule)])
    arrays = {t.name: np.zeros(problem.shape_of(t), t.dtype.numpy) for t in problem.tensors}
    run = program.run(arrays, rows=problem.rows, **problem.lengths, trace=True)
    assert not run.faults
    seen: dict[StepKind, int] = {}
    for kind in (StepKind.READ, StepKind.WRITE):
        of_lane = [
            [s for s in run.steps if s.thread == lane and s.kind is kind and s.place == "shared"] for lane in range(32)
        ]
        seen[kind] = max(
            bank_ways([step.col for step in steps if step], steps[0].count) for steps in zip(*of_lane, strict=True)
        )
    return seen
