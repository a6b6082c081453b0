"""The default schedule against what was measured: near the optimum of every shipped sweep, and of winners' kind."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from pathlib import Path

import pytest

from normgen.choice.first import default_schedule, first_choices
from normgen.cost.model import predicted_us
from normgen.device import Device, target
from normgen.errors import NothingValidError
from normgen.knobs import TABLE, Group
from normgen.problem.question import Direction
from normgen.program.source import problem_for
from normgen.records.questions import problem_of
from normgen.records.winners import kept, shipped_folder
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.studies.frozen.file import read_frozen
from normgen.studies.frozen.first import scores
from normgen.studies.replay import swept_problem
from normgen.studies.sweep_file import read_sweep
from tests.samples import sized

H200 = target("h200")
SWEEPS = sorted((Path(__file__).parents[2] / "generated" / "sweeps").glob("*.jsonl.xz"))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.name.split(".")[0])
def test_the_default_reaches_nine_tenths_of_a_sweeps_optimum(path: Path) -> None:
    sweep = read_sweep(path)
    times = {point.schedule: point.us for point in sweep.points if point.us is not None}
    listed = first_choices(swept_problem(sweep.problem), Device(**dict(sweep.device)))
    near = [times[s] for s in listed if s in times]
    assert near, "none of the first choices is in the sample"
    assert min(times.values()) >= 0.9 * near[0]


def test_the_default_is_of_the_shipped_winners_kind() -> None:
    """More than half cut rows as the winner does; on average threads of a row differ by less than a factor of 1.5."""
    winners = [r for r in kept(shipped_folder() / "h200.jsonl") if r.measured][:: sized(3, 1)]
    found = [(default_schedule(problem_of(r.problem, load(r.problem.op)), H200), r.schedule) for r in winners]
    threads = [(a.threads_per_row * a.row_blocks, b.threads_per_row * b.row_blocks) for a, b in found]
    assert len(found) >= sized(140, 400)
    assert sum(a == b for a, b in threads) >= 0.5 * len(found)
    assert statistics.mean(abs(math.log2(a / b)) for a, b in threads) < math.log2(1.5)
    assert sum(a.vector == b.vector for a, b in found) >= 0.6 * len(found)


def default(op: str, shape: str, dtype: str = "bf16", direction: str = "forward", gpu: Device = H200) -> Schedule:
    return default_schedule(problem_for(load(op), shape=shape, dtype=dtype, direction=direction), gpu)


@pytest.mark.parametrize("shape", ["1x1", "1x2", "3x7", "200x1", "1x8", "40000x1"])
@pytest.mark.parametrize("op", ["rmsnorm", "layernorm", "softmax", "swiglu", "adaln"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_rows_of_a_column_or_two_have_a_default(op: str, shape: str, direction: str) -> None:
    found = default(op, shape, direction=direction)
    assert found.cluster == 1


@pytest.mark.parametrize("gpu", [H200, target("a100"), target("t4")], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize(
    ("op", "shape"),
    [
        *(("layernorm", "2048x16384"), ("rmsnorm", "2048x32768"), ("rmsnorm", "4096x4097")),
        *(("layernorm", "2048x65537"), ("layernorm", "512x262145")),
    ],
)
def test_column_sums_of_rows_too_long_for_registers_do_not_go_to_memory_row_by_row(
    op: str, shape: str, gpu: Device
) -> None:
    """Atomics a row took 12 to 16 x as long as the winners there (H200); in the order of rows one block adds them."""
    for deterministic in (False, True):
        problem = problem_for(load(op), shape=shape, dtype="bf16", direction="backward", deterministic=deterministic)
        assert default_schedule(problem, gpu).columns == "partials_two_kernels"


@pytest.mark.parametrize("gpu", [H200, target("b200"), target("t4")], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize(("op", "cols"), [("full_sum", 3), ("rmsnorm", 8), ("layernorm", 4)])
def test_many_tiny_rows_whose_columns_are_summed_fill_the_sms(op: str, cols: int, gpu: Device) -> None:
    """One warp an SM takes 12 times as long as 16 by the cost model (1048576x3 f32, H200)."""
    direction = "forward" if op == "full_sum" else "backward"
    found = default(op, f"1048576x{cols}", "f32", direction, gpu)
    assert found.persistent * found.threads >= 256


@pytest.mark.parametrize(
    ("op", "asked"),
    [
        ("quantize_to_fp8_group", {"align": 8}),
        ("rmsnorm_to_nvfp4", {"align": 4}),
        ("te_quantize_to_fp8_group", {"pitch": 5121}),
    ],
)
def test_groups_that_no_schedule_reads_are_refused_with_the_alignment_that_helps(
    op: str, asked: dict[str, int]
) -> None:
    with pytest.raises(NothingValidError, match="align=16, and such a pitch"):
        default_schedule(problem_for(load(op), shape="64x5120", **asked), H200)
    assert default(op, "64x5120", "f32").vector > 1


def test_few_columns_that_one_block_sums_have_a_default_of_any_columns() -> None:
    for cols, dtype in itertools.product((1, 7, 16, 17), ("bf16", "f32")):
        asked = {"direction": "backward", "deterministic": True, "any_cols": True}
        problem = problem_for(load("rmsnorm"), shape=(100, cols), dtype=dtype, **asked)
        found = default_schedule(problem, H200)
        assert (found.threads, found.columns) == (32, "atomic")


@pytest.mark.parametrize(("op", "shape"), [("rmsnorm", "4096x4096"), ("quantize_to_fp8_group", "4096x3072")])
def test_the_first_rows_come_first_where_l2_holds_all(op: str, shape: str) -> None:
    """33 MB fit: the other way round costs 9 % (H200)."""
    assert default(op, shape).row_order == "ascending"


def test_the_rows_of_a_batch_are_walked_from_its_first_one() -> None:
    assert default("adaln", "4x4096x4096", direction="backward").row_order == "ascending"


def test_a_kernel_of_any_columns_knows_no_size_and_begins_with_the_first_rows() -> None:
    problem = problem_for(load("rmsnorm"), shape="8192x4096", dtype="bf16", any_cols=True)
    assert default_schedule(problem, H200).row_order == "ascending"


@pytest.mark.parametrize("gpu", [H200, target("a100")], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize(
    ("op", "shape", "dtype"),
    [("swiglu", "1x393216", "bf16"), ("dyt", "16x8388608", "f32"), ("swiglu", "100x8388608", "bf16")],
)
def test_few_long_rows_without_a_reduction_are_in_parts(op: str, shape: str, dtype: str, gpu: Device) -> None:
    """Blocks of a cluster wait for each other, and one block a row leaves SMs idle: 16 rows took 16 of them."""
    found = default(op, shape, dtype, gpu=gpu)
    assert found.parts > 1
    assert found.cluster == 1


FARTHEST = {"a100": 1.3, "l4": 1.3, "t4": 1.3, "b200": 1.3, "rtx4090": 1.4, "rtx5090": 1.4, "h100": 2.0, "h200": 2.0}


@pytest.mark.parametrize("gpu", FARTHEST)
def test_no_default_is_far_behind_a_neighbour_of_two_knobs_by_the_cost_model(gpu: str) -> None:
    """Of neighbours drawn at random; where GPUs were measured, choices follow that and not the model."""
    device, rng = target(gpu), random.Random(gpu)
    for _ in range(6):
        op, direction = rng.choice(("rmsnorm", "layernorm", "softmax", "swiglu")), rng.choice(tuple(Direction))
        shape = (int(2 ** rng.uniform(0, 16)), 8 * int(2 ** rng.uniform(2, 14)))
        problem = problem_for(load(op), shape=shape, dtype=rng.choice(("bf16", "f32")), direction=direction)
        own = default_schedule(problem, device)
        own_us = predicted_us(problem, own, device)
        for _ in range(200):
            knobs = rng.sample([k for k in TABLE if k.group is not Group.TILE], 2)
            near = own.varied(**{k.name: rng.choice(k.values) for k in knobs})
            if refusal(problem, near, device) is None:
                assert own_us <= FARTHEST[gpu] * predicted_us(problem, near, device), (problem, near)


def test_first_choices_are_close_to_the_best_that_was_timed() -> None:
    """Of the problems that the ranker was fitted to: what is left of their tail, and that the file is theirs."""
    found = scores(read_frozen(), first_choices)
    one, four = (next(f for f in found.figures if (f.count, f.measure) == (n, "chain")) for n in (1, 4))
    assert one.timed >= 0.5 * one.problems
    assert ((one.median or 9) <= 1.01, (one.p95 or 9) <= 1.06, (four.p95 or 9) <= 1.04) == (True,) * 3, found.figures


@pytest.mark.parametrize("cols", [7, 1 << 20])
def test_a_shape_without_rows_has_a_default_and_an_estimate(cols: int) -> None:
    for op, direction in itertools.product(("softmax", "rmsnorm"), ("forward", "backward")):
        problem = problem_for(load(op), shape=(0, cols), direction=direction)
        schedule = default_schedule(problem, H200)
        assert predicted_us(problem, schedule, H200) > 0
