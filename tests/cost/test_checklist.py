"""The checklist: addresses are counted as CUDA's programming guide counts them, and answers fit the classic kernels."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from normgen.choice.first import default_schedule
from normgen.cost.checklist import Answer, bank_ways, checklist, lane_addresses, sectors, unfused_bytes
from normgen.cost.model import predict
from normgen.device import target
from normgen.ladder.kernels import parts_of
from normgen.ladder.rungs import load_ladder
from normgen.problem.problem import Problem
from normgen.program.source import problem_for, stages_of
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load

H200 = target("h200")
# The list of the course whose kernels are the ladders softmax and layernorm_methods, and what the others ask besides.
QUESTIONS = ["coalescing", "bank conflicts", "divergence", "registers", "occupancy"]
QUESTIONS += ["vector width", "passes", "fusion"]


def answers(problem: Problem, schedule: Schedule) -> dict[str, Answer]:
    cost = predict(problem, schedule, H200, stages=stages_of(problem))
    found = checklist(problem, schedule, H200, cost)
    assert [answer.question for answer in found] == QUESTIONS
    assert all(answer.is_good or answer.knobs for answer in found)
    return {answer.question: answer for answer in found}


@pytest.mark.parametrize(
    ("stride", "width", "ways"),
    [(4, 4, 1), (8, 4, 2), (12, 4, 1), (16, 4, 4), (128, 4, 32), (0, 4, 1), (8, 8, 1), (16, 16, 1), (32, 16, 2)],
)
def test_lanes_a_stride_apart_meet_in_banks_as_the_programming_guide_says(stride: int, width: int, ways: int) -> None:
    assert bank_ways([lane * stride for lane in range(32)], width) == ways


def test_ways_are_the_most_different_words_of_a_bank_and_atomics_on_one_word_queue() -> None:
    draw = random.Random(3)
    for _ in range(50):
        addresses = [4 * draw.randrange(256) for _ in range(32)]
        banks: dict[int, set[int]] = defaultdict(set)
        for at in addresses:
            banks[at // 4 % 32].add(at)
        assert bank_ways(addresses, 4) == max(map(len, banks.values()))
        assert bank_ways(addresses, 4, is_atomic=True) == max(Counter(at // 4 % 32 for at in addresses).values())
    assert bank_ways([0] * 32, 4, is_atomic=True) == 32


def test_a_thread_a_row_touches_a_sector_a_lane_and_a_warp_a_row_four() -> None:
    row = 768 * 4
    assert sectors(lane_addresses(Schedule(threads_per_row=1, rows_per_block=64), 4, row), 4) == 32
    assert sectors(lane_addresses(Schedule(threads_per_row=32), 4, row), 4) == 4
    assert sectors(lane_addresses(Schedule(threads_per_row=32), 16, row), 16) == 16
    assert sectors(lane_addresses(Schedule(threads_per_row=8, rows_per_block=4), 4, row), 4) == 4


def test_answers_fit_the_rungs_of_the_ladders() -> None:
    ladder = load_ladder("layernorm")
    found = {}
    for name in ("v1", "v3", "v5"):
        rung = ladder.rung(name)
        assert rung.best is not None
        (part,) = parts_of(ladder, rung, rung.best, H200)
        found[name] = answers(part.problem, part.schedule)
    assert not found["v1"]["coalescing"].is_good
    assert "12% of them" in found["v1"]["coalescing"].answer
    assert found["v3"]["coalescing"].is_good
    assert "3 over" in found["v3"]["passes"].answer
    assert "2 over" in found["v5"]["passes"].answer
    given = problem_for(load("layernorm"), shape="8192x768")
    assert all(answer.is_good for answer in answers(given, default_schedule(given, H200)).values())


def test_column_sums_by_shared_atomics_of_vectors_conflict() -> None:
    given = problem_for(load("layernorm"), shape="8192x768", direction="backward")
    plain = Schedule(threads_per_row=32, rows_per_block=8, columns="shared_atomic")  # type: ignore[arg-type]
    assert answers(given, plain)["bank conflicts"].is_good
    assert "4-way" in answers(given, plain.varied(vector=4))["bank conflicts"].answer


def test_a_layernorm_apart_reads_its_row_three_times() -> None:
    rows, cols = 512, 256
    given = problem_for(load("layernorm"), shape=f"{rows}x{cols}")
    # x for the mean, x for the variance, x once more and y: all else is rows and columns.
    assert unfused_bytes(given) == pytest.approx(4 * 4 * rows * cols, rel=0.03)
