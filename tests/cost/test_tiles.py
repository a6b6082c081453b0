"""What `normgen explain` says of a product's schedule."""

from __future__ import annotations

import pytest

from normgen.cost.checklist import checklist, unfused_bytes
from normgen.cost.model import predict
from normgen.device import target
from normgen.problem.problem import Problem
from normgen.schedule.schedule import Schedule
from tests.verify.contraction import linear

H200 = target("h200")
TILED = Schedule(hold="shared", vector=4, tile_m=64, tile_n=64, tile_k=16, thread_m=4, thread_n=4)


def answers(problem: Problem, schedule: Schedule) -> dict[str, tuple[str, bool]]:
    cost = predict(problem, schedule, H200)
    return {a.question: (a.answer, a.is_good) for a in checklist(problem, schedule, H200, cost)}


def test_the_questions_of_a_product_are_those_of_its_tiles() -> None:
    found = answers(linear.problem_of("linear", (256, 256, 64)), TILED)
    assert list(found) == ["coalescing", "reuse", "edges", "registers", "occupancy", "vector width", "fusion"]
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
