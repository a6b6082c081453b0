"""Which tuned problem is nearest, and what of its schedule fits another shape."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

import pytest

from normgen.choice.first import default_schedule
from normgen.cpu import find_compiler
from normgen.device import TARGETS
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.nearest import FARTHEST, Neighbour, distance, fitted, is_trusted, nearest, neighbours
from normgen.records.place import DEFAULT_PLACE, Context, Place, Setting
from normgen.records.questions import problem_of
from normgen.records.record import Outcome, Record
from normgen.records.statistics import summarise
from normgen.records.winners import read, shipped_folder
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from tests.samples import sized

H200 = TARGETS["h200"]
ROW_IN_BLOCK = Schedule(
    threads_per_row=256, vector=8, hold="registers", unroll=0, load="streaming", store="streaming", params="early"
)


def make(
    shape: str, *, op: str = "rmsnorm", dtype: str = "bf16", without: Collection[str] = (), direction: str = "forward"
) -> Problem:
    return problem_for(load(op), shape=shape, dtype=dtype, without=without, direction=direction)


def in_place(shape: str) -> Problem:
    return problem_for(load("rmsnorm"), shape=shape, dtype="bf16", in_place={"y": "x"})


def tuned(
    problem: Problem, schedule: Schedule | None = None, *, place: Place = DEFAULT_PLACE, us: float = 10.0
) -> Record:
    return Record(
        problem=problem.question,
        place=place,
        schedule=schedule or default_schedule(problem, H200),
        outcome=Outcome.OK,
        measured=True,
        times_us=summarise([us] * 8),
        bytes=problem.compulsory_bytes,
    )


def nearest_shape(problem: Problem, *records: Record, place: Place = DEFAULT_PLACE) -> tuple[int, int] | None:
    found = next(neighbours(problem, H200, records, place=place), None)
    return (found.record.problem.rows, found.record.problem.cols) if found else None


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("4096x5120", (4096, 4096)),
        ("4096x7168", (4096, 8192)),
        ("20000x4096", (16384, 4096)),
        ("16384x6144", (16384, 4096)),  # 0.585 octaves of cols, against 0.415 and two octaves of rows
        ("4096x16384", (4096, 8192)),
        ("4096x32768", None),  # two octaves of cols from everything
        ("16x4096", None),  # eight octaves of rows
    ],
)
def test_cols_count_four_times_as_much_as_rows(asked: str, expected: tuple[int, int] | None) -> None:
    records = [tuned(make(shape)) for shape in ("4096x4096", "16384x4096", "4096x8192")]
    assert nearest_shape(make(asked), *records) == expected


def test_the_problem_itself_another_dtype_op_or_direction_is_no_neighbour() -> None:
    asked = make("4096x4096")
    others = [
        tuned(asked),
        tuned(make("4096x4096", dtype="f16")),
        tuned(make("4096x4096", op="layernorm")),
        tuned(make("4096x4096", direction="backward")),
    ]
    assert nearest_shape(asked, *others) is None


def test_a_statistic_more_or_less_is_a_neighbour_at_the_same_shape() -> None:
    bare = make("16x4096", without=["rstd"])
    assert nearest_shape(make("16x4096"), tuned(bare)) == (16, 4096)
    assert 0 < distance(bare.question, make("16x4096")) < distance(make("8x4096").question, make("16x4096"))


def test_a_promise_may_be_left_unused_but_not_taken_for_given() -> None:
    plain, stable = make("16x4096"), replace(make("16x4096"), stable_parameters=True)
    asked = replace(make("8x4096"), stable_parameters=True)
    assert nearest_shape(make("8x4096"), tuned(stable)) is None
    assert nearest_shape(asked, tuned(plain)) == (16, 4096)
    assert distance(stable.question, asked) < distance(plain.question, asked)


def test_a_kernel_in_place_takes_the_schedule_of_one_that_is_not_but_not_the_other_way_round() -> None:
    plain, placed = make("16x4096"), in_place("16x4096")
    assert nearest_shape(placed, tuned(plain)) == (16, 4096)
    assert nearest_shape(plain, tuned(placed)) is None
    asked = in_place("8x4096")
    assert distance(placed.question, asked) < distance(plain.question, asked)


def test_scales_of_another_layout_are_farther_but_lend_their_schedule() -> None:
    spec = load("quantize_to_fp8_group")
    asked, plain, laid_out = (
        problem_for(spec, shape=shape, dtype="bf16", layout={"scale": layout})
        for shape, layout in (("8x4096", "column_major"), ("16x4096", "row_major"), ("16x4096", "column_major"))
    )
    assert nearest_shape(asked, tuned(plain)) == (16, 4096)
    assert distance(laid_out.question, asked) < distance(plain.question, asked)


def test_rows_of_whole_vectors_are_nearer_to_their_like() -> None:
    aligned, odd = tuned(make("8192x4096")), tuned(make("8192x5121"))
    assert nearest_shape(make("8192x4099"), aligned, odd) == (8192, 5121)
    assert nearest_shape(make("8192x5120"), aligned, odd) == (8192, 4096)
    assert nearest_shape(make("8192x4099"), aligned) == (8192, 4096)
    assert nearest_shape(make("65536x5120"), odd) is None  # its narrow accesses are worth no more than the default


def test_the_asked_setting_is_nearer_and_measured_comes_before_predicted() -> None:
    fresh, hot = tuned(make("16x4096")), tuned(make("32x4096"), place=Place(setting=Setting.HOT))
    assert nearest_shape(make("20x4096"), fresh, hot, place=Place(setting=Setting.HOT)) == (32, 4096)
    assert nearest_shape(make("20x4096"), fresh, hot) == (16, 4096)
    guess = Record(
        problem=fresh.problem, schedule=fresh.schedule, outcome=Outcome.PREDICTED, measured=False, predicted_us=1.0
    )
    assert nearest_shape(make("20x4096"), guess, hot, place=Place(setting=Setting.HOT)) == (32, 4096)
    assert nearest_shape(make("20x4096"), guess, tuned(make("32x4096"))) == (32, 4096)
    cold, hot = (Place(context=Context.ALONE, setting=setting) for setting in (Setting.COLD, Setting.HOT))
    alone, other = tuned(make("16x4096"), place=hot), tuned(make("16x4096"), place=cold)
    assert nearest_shape(make("16x2048"), alone, other) == (16, 4096)
    assert next(neighbours(make("16x2048"), H200, [alone, other], place=Place())).record is other


def test_what_was_timed_in_place_comes_before_what_was_timed_alone() -> None:
    alone = tuned(make("16x4096"), place=Place(context=Context.ALONE, setting=Setting.COLD))
    assert nearest_shape(make("20x4096"), alone, tuned(make("32x4096"))) == (32, 4096)
    assert nearest_shape(make("20x4096"), alone) == (16, 4096)


def test_another_place_serves_only_who_names_it() -> None:
    elsewhere = Place(context=Context.CHAIN)
    record = tuned(make("16x4096"), place=elsewhere)
    assert nearest_shape(make("20x4096"), record) is None
    assert nearest_shape(make("20x4096"), record, place=elsewhere) == (16, 4096)
    assert nearest_shape(make("20x4096"), tuned(make("32x4096")), place=elsewhere) == (32, 4096)


def test_threads_grow_with_the_cols_and_nothing_else_changes() -> None:
    record = tuned(make("4096x4096"), ROW_IN_BLOCK)
    wide = fitted(record, make("4096x8192"), H200)
    assert wide is not None
    assert (wide.threads_per_row, wide.vector, wide.load, wide.params) == (512, 8, "streaming", "early")
    assert fitted(record, make("2048x5120"), H200) == ROW_IN_BLOCK
    assert fitted(record, make("128x4096"), H200) == ROW_IN_BLOCK


def test_a_block_keeps_whole_warps_when_rows_get_shorter() -> None:
    record = tuned(make("65536x256"), Schedule(threads_per_row=32, vector=8, hold="registers", unroll=0))
    narrow = fitted(record, make("65536x128"), H200)
    assert narrow is not None
    assert (narrow.threads_per_row, narrow.rows_per_block) == (16, 2)


@pytest.mark.parametrize(("threads", "rows", "cols"), [(96, 4, 2048), (96, 1, 12288), (768, 1, 2048), (352, 2, 2048)])
def test_uneven_threads_scale_to_whole_warps(threads: int, rows: int, cols: int) -> None:
    own = replace(ROW_IN_BLOCK, threads_per_row=threads, rows_per_block=rows)
    found = fitted(tuned(make("4096x4096"), own), make(f"4096x{cols}"), H200)
    assert found is not None
    assert found.threads % 32 == 0


def test_edges_follow_what_cols_divides_into() -> None:
    record = tuned(make("8192x4096"), ROW_IN_BLOCK)
    for shape in ("8192x4097", "8192x4095", "8192x4100"):
        schedule = fitted(record, make(shape), H200)
        assert schedule is not None
        assert schedule.edges != "exact"
        assert refusal(make(shape), schedule, H200) is None


def test_a_mean_of_a_power_of_two_is_no_longer_divided_by_the_remainder() -> None:
    record = tuned(make("2048x5120"), replace(ROW_IN_BLOCK, division="remainder"))
    assert fitted(record, make("2048x7168"), H200) == record.schedule
    assert fitted(record, make("2048x4096"), H200) == ROW_IN_BLOCK


@pytest.mark.parametrize(
    ("there", "asked", "order", "expected"),
    [
        ("8192x4096", "4096x4096", "descending", "ascending"),  # fits L2
        ("8192x4096", "16384x4096", "ascending", "ascending"),
        ("8192x4096", "16384x4096", "descending", "descending"),
    ],
)
def test_rows_come_in_the_order_that_l2_asks_for(there: str, asked: str, order: str, expected: str) -> None:
    record = tuned(make(there), replace(ROW_IN_BLOCK, row_order=order))
    assert fitted(record, make(asked), H200) == replace(ROW_IN_BLOCK, row_order=expected)


def test_sums_that_take_rows_in_their_own_order_keep_it() -> None:
    atomic = Schedule(threads_per_row=128, vector=8, hold="registers", unroll=0, columns="atomic")
    found = fitted(
        tuned(make("4096x4096", direction="backward"), atomic), make("16384x4096", direction="backward"), H200
    )
    assert found is not None
    assert found.row_order == "ascending"


def test_what_cannot_be_made_legal_is_passed_over() -> None:
    """A cluster of blocks over one row of 262144 columns has no work for its threads at 64 columns."""
    cluster = Schedule(threads_per_row=1024, cluster=8, vector=8, hold="registers", unroll=0)
    record = tuned(make("64x65536"), cluster)
    assert fitted(record, make("64x64"), H200) is None
    assert distance(record.problem, make("64x64")) > FARTHEST


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("cols", [64, 127, 768, 1000, 4097, 30000])
def test_whatever_is_taken_is_legal(direction: str, cols: int) -> None:
    """From neighbours of every cols around, with their own default schedules."""
    tuned_cols = (60, 128, 129, 512, 1024, 4095, 4096, 8192, 32768)
    records = [tuned(make(f"4096x{c}", direction=direction)) for c in tuned_cols]
    for rows in (1, 2000, 100_000):
        asked = make(f"{rows}x{cols}", direction=direction)
        found = list(neighbours(asked, H200, records, place=Place()))
        assert found or rows != 2000, "a neighbour within an octave or two fits"
        for near in found:
            assert refusal(asked, near.schedule, H200) is None
            assert near.distance <= FARTHEST


@pytest.mark.parametrize(("dtype", "expected"), [("f32", "corrected_two_pass"), ("bf16", "two_pass")])
def test_of_float32_rows_the_mean_is_corrected_where_nobody_measured_what_that_costs(dtype: str, expected: str) -> None:
    walking = Schedule(threads_per_row=32, rows_per_block=2, vector=4, hold="registers", persistent=8, unroll=0)
    record = tuned(make("8192x768", op="layernorm", dtype=dtype), walking)
    found = fitted(record, make("10000x1000", op="layernorm", dtype=dtype), H200)
    assert found is not None
    assert found.persistent
    assert found.variance == expected


@pytest.mark.parametrize("cols", [8192, 8487])
def test_a_variance_method_that_is_searched_no_more_is_not_taken(cols: int) -> None:
    one_look = replace(ROW_IN_BLOCK, variance="sum_of_squares")
    asked = make(f"11013x{cols}", op="layernorm")
    found = fitted(tuned(make("16384x8192", op="layernorm"), one_look), asked, H200)
    assert found is not None
    assert found.variance == "two_pass"


def test_rows_that_no_longer_fit_an_sm_twice_take_the_default_schedule() -> None:
    """rmsnorm 8968x50432 bf16 on an H200: 585 us with the schedule of 8192x32768, 453 us by default, 433 us tuned."""
    twice = Schedule(threads_per_row=512, vector=8, hold="shared", copy="bulk", unroll=4, load="evict_last")
    record = tuned(make("8192x32768", without=["rstd"]), twice)
    assert nearest(make("8968x50432", without=["rstd"]), H200, [record], place=Place()) is None


def test_a_measurement_is_trusted_less_the_farther_away_it_was_made() -> None:
    asked = make("4096x5120")
    default = default_schedule(asked, H200)
    near = Neighbour(record=tuned(make("4096x4096")), distance=1.0, schedule=default)
    assert is_trusted(near, asked, H200)
    assert not is_trusted(replace(near, distance=FARTHEST), asked, H200)
    slow = replace(default, hold="reload", unroll=1)
    assert not is_trusted(replace(near, schedule=slow), asked, H200)


@pytest.mark.parametrize(
    ("op", "direction", "there", "asked", "knobs", "trusted"),
    [
        ("layernorm", "backward", "262144x256", "424714x320", {"threads_per_row": 16, "rows_per_block": 16}, False),
        ("layernorm", "forward", "4096x3072", "6504x2816", {"threads_per_row": 64, "vector": 4}, True),
        ("rmsnorm", "forward", "4096x4096", "3000x4032", {"threads_per_row": 128}, True),  # as the default's lanes
    ],
)
def test_lanes_that_would_idle_at_other_cols_are_not_trusted(
    op: str, direction: str, there: str, asked: str, knobs: dict[str, int], trusted: bool
) -> None:
    """The first took 18 % longer than the default."""
    schedule = Schedule(**{"vector": 8, "hold": "registers", "unroll": 0, "load": "no_allocate", **knobs})
    problem = make(asked, op=op, direction=direction)
    near = Neighbour(record=tuned(make(there, op=op, direction=direction), schedule), distance=0.5, schedule=schedule)
    assert is_trusted(near, problem, H200) == trusted


def untuned(record: Record, rng: random.Random) -> Problem:
    """Another shape near a record's: half of them with any number of cols."""
    key, spec = record.problem, load(record.problem.op)
    cols = min(int(key.cols * 2 ** rng.uniform(-0.8, 0.8)), 2000)
    unit = spec.group or (1 if rng.random() < 0.5 else 64)
    cols = max(unit, cols // unit * unit)
    rows = max(1, int(key.rows * 2 ** rng.uniform(-1, 1)) // key.batches) * key.batches
    return problem_of(replace(key, rows=rows, cols=cols, pitch=cols, align=16), spec)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_kernels_of_nearest_schedules_are_right_at_random_shapes() -> None:
    """Of such shapes nobody checks a kernel before it runs."""
    rng, known = random.Random(7), read(shipped_folder() / "h200.jsonl").records
    short = [r for r in known if r.problem.cols <= 4096]
    checked = 0
    drawn = sized(8, 60)
    for _ in range(drawn):
        record = rng.choice(short)
        problem = untuned(record, rng)
        found = next(neighbours(problem, H200, known, place=record.place), None)
        if found is not None:
            checked += 1
            told = check_on_cpu(problem, emit(problem, found.schedule), seed=rng.randrange(1000))
            assert told.ok, f"{problem}: {found.schedule}: {told.summary}"
    assert checked > drawn // 2
