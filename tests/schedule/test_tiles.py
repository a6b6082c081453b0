"""Schedules of contractions: the rules, what is searched, the default, and what follows from a program."""

from __future__ import annotations

from typing import Any

import pytest
import sympy as sp

from normgen.choice.first import default_schedule
from normgen.choice.repair import repair
from normgen.cuda.compiler import job_of
from normgen.device import target
from normgen.errors import ProgramError, UsageError
from normgen.knobs import Fragment, Hold
from normgen.pipeline import emit, programs_of
from normgen.problem.problem import Problem
from normgen.program.frozen import Order
from normgen.program.functions import COL
from normgen.program.ir import COLS, Load, Map, Reduce, Store
from normgen.program.monoid import ABSMAX, ARGMAX, MAX, SUM, symbol
from normgen.program.ordered import Ordered
from normgen.program.source import problem_for
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule, schedule_from
from normgen.schedule.space import space
from normgen.schedule.tiles.clocks import busy_clocks
from normgen.schedule.tiles.cut import Side, contraction, contraction_of, is_neutral, vanishes
from normgen.schedule.tiles.fragment import has_tensor_cores
from normgen.schedule.tiles.plan import tile_plan_of, tile_problem_plan
from normgen.schedule.tiles.wgmma import Wgmma
from normgen.spec.formula import Name
from normgen.spec.reader import load, parse
from normgen.spec.spec import Kind
from tests.codegen.tiles.cases import CASES
from tests.codegen.tiles.handmade import LINEAR, SMALL, TENSORS, Case, dot

H200, T4 = target("h200"), target("t4")
x, w, gain, scale = map(symbol, ("x", "w", "gain", "scale"))
TOML = """
name = "product"
[tensors]
x = {{ role = "input", axes = ["rows", "inner"] }}
w = {{ role = "parameter", axes = {order} }}
bias = "parameter"
y = "output"
[formulas]
y = "{formula}"
"""


def problem(
    shape: str = "256x512",
    inner: int = 128,
    *,
    formula: str = "x @ w + bias",
    order: str = '["inner", "cols"]',
    **asked: Any,
) -> Problem:
    return problem_for(parse(TOML.format(formula=formula, order=order)), shape=shape, inner=inner, **asked)


CUT: dict[str, Any] = {"tile_m": 64, "tile_n": 64, "tile_k": 16, "thread_m": 4, "thread_n": 4, "hold": "shared"}
MMA: dict[str, Any] = {**CUT, "fragment": "mma", "tile_k": 32, "vector": 8, "copy": "cp_async", "stages": 3}
OF_16_BITS, MIXED = problem(dtype="bf16"), problem(dtype="bf16", dtypes={"w": "f16"})
COMPUTED = problem(formula="exp(x) @ w + bias", dtype="bf16")
CAST = problem(formula="cast(x, bias) @ w + bias", dtype="bf16", dtypes={"bias": "f16"})
LINEAR_16 = problem("16x512", dtype="bf16", order='["cols", "inner"]')  # lines of both sides along inner
STREAM: dict[str, Any] = {"hold": "reload", "fragment": "mma", "vector": 8, "tile_m": 16, "tile_n": 32, "tile_k": 32}
STREAM |= {"thread_m": 1, "thread_n": 4}
BACK = problem(direction="backward", gradients=["w"])
BACK_16 = problem(dtype="bf16", direction="backward", gradients=["w"])
ADDED = problem_for(load("linear_add_rms"), shape="256x512", inner=128, dtype="bf16")
WGMMA: dict[str, Any] = {"hold": "shared", "copy": "bulk", "fragment": "wgmma", "vector": 8, "stages": 4}
WGMMA |= {"tile_m": 128, "tile_n": 256, "tile_k": 64, "thread_m": 2, "thread_n": 64}
TURNED_16 = problem(dtype="bf16", order='["cols", "inner"]')
IN_16: dict[str, Any] = {"shape": "256x512", "inner": 128, "dtype": "bf16", "layout": {"w": "cols_inner"}}
ADDED_16, REDUCED_16 = (problem_for(load(name), **IN_16) for name in ("linear_add", "linear_add_rms"))
CAST_OF_W = problem("16x512", dtype="bf16", order='["cols", "inner"]', formula="x @ cast(exp(w), x) + bias")
SHIFTED_16 = problem("16x512", dtype="bf16", order='["cols", "inner"]', formula="cast(exp(x - max(x)), w) @ w + bias")
NORMED_16 = problem_for(load("rmsnorm_linear"), **IN_16, without=("weight",))
LONG_16 = problem(inner=512, dtype="bf16", order='["cols", "inner"]')
REFUSED = {
    "lines across": (OF_16_BITS, STREAM, "64 columns of a line across inner"),
    "rows across": (BACK_16, STREAM, "lines along rows of the side"),
    "teams: f32": (problem(order='["cols", "inner"]'), WGMMA | {"vector": 4}, "all in f16 or all in bf16"),
    "teams: a cast": (problem(formula="cast(exp(x), w) @ w + bias", dtype="bf16", order='["cols", "inner"]'), WGMMA,
                      "as they are stored: fragment = mma"),
    "teams: a norm in front": (NORMED_16, WGMMA, "reduce nothing of their sides: fragment = mma"),
    "teams: lines across": (OF_16_BITS, WGMMA, "boxes have lines along inner"),
    "teams: cp.async": (TURNED_16, WGMMA | {"copy": "cp_async"}, "hold = shared and copy = bulk"),
    "teams: narrow vectors": (TURNED_16, WGMMA | {"vector": 4}, "multiples of 16 bytes, in all tensors: vector = 8"),
    "teams: an odd pitch": (problem(dtype="bf16", order='["cols", "inner"]', pitch=513), WGMMA, "are not aligned"),
    "teams: short lines": (TURNED_16, WGMMA | {"tile_k": 32}, "a line of a slot is 128 bytes: tile_k = 64"),
    "teams: few columns": (TURNED_16, WGMMA | {"tile_n": 32, "thread_n": 8}, "64, 96, 128, 160, 192, 224, 256 columns"),
    "columns of teams": (OF_16_BITS, MMA | {"tile_n": 96}, "powers of two: tile_n = 96 is of teams"),
    "columns of a thread of teams": (OF_16_BITS, MMA | {"thread_n": 24}, "powers of two: thread_n = 24 is of teams"),
    "teams: half a line": (TURNED_16, WGMMA | {"thread_n": 32}, "four lanes share a line"),
    "teams: half a team": (TURNED_16, WGMMA | {"tile_m": 64, "thread_m": 4, "tile_n": 128, "thread_n": 32}, "one team"),
    "teams: four": (TURNED_16, WGMMA | {"tile_m": 256, "tile_n": 128, "thread_n": 32}, "one team or two"),
    "teams: one stage": (TURNED_16, WGMMA | {"stages": 1}, "stages = 2 or more"),
    "teams: many stages": (TURNED_16, WGMMA | {"stages": 6}, "bytes of shared memory"),
    "teams: many sums": (TURNED_16, WGMMA | {"thread_m": 4, "stages": 2}, "would hold 264 registers of data"),
    "teams: a hint": (TURNED_16, WGMMA | {"load": "evict_first"}, "carry no cache hint here: load = default"),
    "teams: parts of k": (TURNED_16, WGMMA | {"stages": 2, "cluster": 4}, "a part of inner, whole tiles of 64"),
    "teams: what parts hand on": (LONG_16, WGMMA | {"stages": 2, "cluster": 4}, "393216 bytes of other blocks' sums"),
    "teams: bound": (TURNED_16, WGMMA | {"blocks_per_sm": 2}, "blocks_per_sm = 0"),
    "narrow vectors straight": (LINEAR_16, STREAM | {"vector": 4}, "16 bytes of a line: vector = 8"),
    "few of a line": (LINEAR_16, STREAM | {"tile_k": 16}, "read 32 of a line"),
    "f32 straight": (problem("16x512", order='["cols", "inner"]'), STREAM | {"vector": 4}, "stored or cast"),
    "a cast straight": (CAST_OF_W, STREAM, "factors of cols that come straight from memory are as they are stored"),
    "a factor of a row straight": (SHIFTED_16, STREAM, "of each row lanes know what they read along inner"),
    "parts of rows": (BACK, CUT | {"cluster": 2}, "its length is known"),
    "parts of few": (LINEAR_16, STREAM | {"cluster": 8}, "a part of inner, whole tiles of 32"),
    "many parts": (LINEAR_16, STREAM | {"cluster": 16}, "at most 8 parts"),
    "parts of reduced rows": (ADDED, MMA | {"cluster": 2}, "no statistics of its rows but sums"),
    "f32 on tensor cores": (problem(), MMA | {"vector": 4}, "stored or cast, all in f16 or all in bf16"),
    "two types": (MIXED, MMA, "stored or cast, all in f16 or all in bf16"),
    "a side in float32": (COMPUTED, MMA, "anything else is float32 arithmetic"),
    "a cast to another type": (CAST, MMA, "stored or cast"),
    "a moving maximum": (OF_16_BITS, MMA | {"softmax": "online"}, "their side waits for one maximum of its rows"),
    "copies of 2 bytes": (OF_16_BITS, MMA | {"vector": 1}, "cp.async moves 4 bytes at least"),
    "half a matrix": (OF_16_BITS, MMA | {"thread_m": 1}, "a lane has 2 x 4 of a matrix"),
    "half a matrix of w": (OF_16_BITS, MMA | {"thread_n": 2}, "a lane has 2 x 4 of a matrix"),
    "half a warp": (OF_16_BITS, MMA | {"tile_m": 16, "tile_n": 128}, "a tile whole warps"),
    "one step": (OF_16_BITS, MMA | {"tile_k": 16}, "two a tile"),
    "many sums": (OF_16_BITS, MMA | {"tile_m": 128, "thread_m": 16, "thread_n": 16}, "registers of data"),
    "no tiles": (problem(), {"hold": "shared"}, "tile_m, tile_n, tile_k, thread_m, thread_n must not be 0"),
    "a knob of rows": (problem(), {**CUT, "persistent": 1}, "persistent is a knob of kernels of rows: persistent = 0"),
    "few threads": (problem(), {**CUT, "tile_m": 16, "thread_m": 16}, "32 to 1024 threads a block; here they are 16$"),
    "many threads": (problem(), {**CUT, "thread_m": 1, "thread_n": 1}, "here they are 4096"),
    "rows in registers": (problem(), {**CUT, "hold": "registers"}, "with fragment = mma: hold = shared"),
    "vectors without slots": (problem(), {**CUT, "hold": "reload", "vector": 4}, "element by element"),
    "bulk copies": (problem(), {**CUT, "copy": "bulk"}, "copy = direct or cp_async"),
    "three stages of registers": (problem(), {**CUT, "stages": 3}, "stages = 1 or 2"),
    "wide accesses": (problem(), {**CUT, "vector": 8}, "at most 16 bytes"),
    "any sizes": (problem(any_cols=True), {**CUT, "vector": 4}, "vector = 1"),
    "odd inner": (problem(inner=129), {**CUT, "vector": 4}, "inner = 129 is no whole vectors of 4"),
    "odd cols": (problem("256x510"), {**CUT, "vector": 4}, "cols = 510 is no whole vectors of 4"),
    "an odd pitch": (problem(pitch=513), {**CUT, "vector": 4}, "rows of 'y' are not aligned"),
    "no alignment": (problem(align=4), {**CUT, "vector": 4}, "are not aligned to vectors of 4 elements"),
    "short k": (problem(dtype="bf16"), {**CUT, "tile_k": 8, "vector": 16}, "at most 16 bytes"),
    "16 bits are converted": (problem(dtype="bf16"), {**CUT, "copy": "cp_async"}, "moves f32 as it is stored"),
    "a map": (problem(formula="exp(x) @ exp(w) + bias"), {**CUT, "copy": "cp_async"}, "moves f32 as it is stored"),
    "a side of both": (problem(formula="(x @ w) * (exp(x) @ exp(w)) + bias"), {**CUT, "copy": "cp_async"}, "moves f32"),
    "registers on their way": (
        problem(dtype="bf16"),
        {**CUT, "tile_m": 128, "tile_n": 128, "tile_k": 32, "thread_m": 16, "thread_n": 8, "vector": 2, "stages": 2},
        "would hold 232 registers of data",
    ),
    "an early second kernel": (problem(), {**CUT, "dependent_launch": "on"}, "no second kernel"),
    "a hint of copies": (problem(), {**CUT, "copy": "cp_async", "load": "streaming"}, "carries no cache hint"),
    "many registers": (
        problem(formula="(x @ w) * (x @ (w * w)) + bias"),
        {**CUT, "tile_m": 128, "tile_n": 128, "thread_m": 16, "thread_n": 8},
        "would hold 368 registers of data",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_tiles_do_not_allow_is_refused_with_its_rule(name: str) -> None:
    asked, knobs, rule = REFUSED[name]
    found = refusal(asked, schedule_from(knobs), H200)
    with pytest.raises(ValueError, match=rule):
        raise ValueError(found)


def test_slots_and_copies_need_a_device_that_has_them() -> None:
    threads = {"thread_m": 8, "thread_n": 8, "vector": 4}
    large = schedule_from({**CUT, **threads, "tile_m": 128, "tile_n": 128, "tile_k": 32, "stages": 2})
    assert refusal(problem(), large, H200) is None
    assert "bytes of shared memory; Tesla T4 has" in str(refusal(problem(), large, T4))
    assert "copy = cp_async needs sm_80" in str(refusal(problem(), schedule_from({**CUT, "copy": "cp_async"}), T4))


def test_tensor_cores_need_a_device_and_a_problem_that_have_them() -> None:
    assert refusal(OF_16_BITS, schedule_from(MMA), H200) is None
    assert refusal(OF_16_BITS, schedule_from(MMA), target("a100")) is None
    assert refusal(OF_16_BITS, schedule_from(MMA | {"copy": "direct", "stages": 1}), T4) == "fragment = mma needs sm_80"
    assert emit(OF_16_BITS, schedule_from(MMA)).min_arch == 80
    for asked in (problem(formula="cast(exp(x), w) @ w + bias", dtypes={"w": "bf16"}), OF_16_BITS):
        assert has_tensor_cores(asked, H200)
        assert not has_tensor_cores(asked, T4)
        assert {s.fragment for s in space(asked, H200).legal} == {default_schedule(asked, H200).fragment} == {"mma"}
        assert {s.fragment for s in space(asked, T4).legal} == {"simt"}
    assert not any(has_tensor_cores(asked, H200) for asked in (problem(), MIXED, problem(formula="exp(x) @ w + bias")))


def test_teams_need_the_one_architecture_that_has_their_instructions() -> None:
    assert refusal(TURNED_16, schedule_from(WGMMA), H200) is None
    assert refusal(TURNED_16, schedule_from(WGMMA), target("a100")) == "fragment = wgmma needs sm_90"
    assert "that sm_90 alone has; this is sm_100: fragment = mma" in str(
        refusal(TURNED_16, schedule_from(WGMMA), target("b200"))
    )
    module = emit(TURNED_16, schedule_from(WGMMA))
    assert (module.min_arch, job_of(module, 90).options[0]) == (90, "--gpu-architecture=sm_90a")
    assert job_of(emit(TURNED_16, schedule_from(MMA)), 90).options[0] == "--gpu-architecture=sm_90"
    many = problem("4096x4096", inner=4096, dtype="bf16", order='["cols", "inner"]')
    assert default_schedule(many, H200).fragment == "wgmma"
    assert default_schedule(many, target("b200")).fragment == "mma"


def test_what_teams_own_and_what_slots_hold_follow_from_the_tile() -> None:
    plan = tile_problem_plan(TURNED_16, schedule_from(WGMMA))
    assert (plan.schedule.threads, plan.threads) == (256, 384)
    assert [plan.piece(axis) for axis in ("rows", "cols")] == [1, 2]
    assert plan.shared_bytes == 4 * (128 + 256) * 64 * 2 + 4 * 3 * 8
    launch = emit(TURNED_16, schedule_from(WGMMA)).kernels[0].launch
    assert (launch.threads, launch.persistent, launch.walks) == (384, 1, True)
    sizes = {"cols": 512, "inner": 128}
    assert [launch.grid(rows=rows, sm_count=3, **sizes) for rows in (0, 1, 128, 129, 4096)] == [0, 2, 2, 3, 3]


def test_what_passes_through_stages_is_what_one_has_room_for() -> None:
    """Loads and stores of 16 bits and of the result's size: of 48 KiB of a 128 x 256 stage 128 columns take 32.

    Tiles of 96, 160 and 224 columns pass in boxes of 32.
    """

    def passing(problem: Problem, **knobs: Any) -> tuple[list[str], list[str], int]:
        own = tile_problem_plan(problem, schedule_from(WGMMA | knobs)).fragment
        assert isinstance(own, Wgmma)
        loads, stores = own.passing
        return [s.tensor for s in loads], [s.tensor for s in stores], own.pass_columns

    assert passing(TURNED_16) == ([], ["y"], 128)
    assert passing(ADDED_16, tile_n=96, thread_n=24) == (["residual"], ["y"], 96)
    assert passing(TURNED_16, tile_n=160, thread_n=40) == ([], ["y"], 32)
    assert passing(REDUCED_16, tile_n=224, thread_n=56) == (["residual"], ["h"], 32)
    assert passing(REDUCED_16, tile_n=224, thread_n=56, tile_m=64) == (["residual"], ["h"], 224)
    assert passing(ADDED_16) == (["residual"], ["y"], 128)
    assert passing(REDUCED_16) == (["residual"], ["h"], 128)
    assert passing(REDUCED_16, tile_m=64, thread_m=2) == (["residual"], ["h"], 256)
    assert passing(TURNED_16, tile_n=64, thread_n=16) == ([], ["y"], 64)
    assert passing(TURNED_16, store="streaming") == ([], [], 0)
    assert passing(REDUCED_16, store="streaming", tile_m=64) == (["residual"], [], 256)
    to_f32 = problem(dtype="bf16", order='["cols", "inner"]', dtypes={"y": "f32"})
    assert passing(to_f32) == ([], [], 0)


def test_what_a_lane_owns_and_what_slots_hold_follow_from_the_fragment() -> None:
    plan = tile_problem_plan(OF_16_BITS, schedule_from(MMA))
    assert plan.lanes == (8, 4)
    assert [plan.piece(axis) for axis in ("rows", "cols")] == [1, 2]
    assert plan.shared_bytes == 3 * (64 * 32 + 32 * 64) * 2
    assert plan.accumulators == 4 * 4 + 2 * (2 * 4 + 4)
    assert plan.runs_ahead
    assert not tile_problem_plan(OF_16_BITS, schedule_from(MMA | {"copy": "direct", "stages": 2})).runs_ahead


def test_few_lines_are_read_straight_from_memory() -> None:
    assert refusal(LINEAR_16, schedule_from(STREAM), H200) is None
    plan = tile_problem_plan(LINEAR_16, schedule_from(STREAM))
    assert plan.shared_bytes == 4 * 16 * (32 + 4) * 4, "each of four warps leaves its sums"
    assert not plan.in_shared
    for rows, straight, first in ((1, True, True), (16, True, True), (64, True, False), (65, False, False)):
        asked = problem(f"{rows}x4096", 4096, dtype="bf16", order='["cols", "inner"]')
        assert any(s.hold is Hold.RELOAD for s in space(asked, H200).legal) is straight
        assert (default_schedule(asked, H200).hold is Hold.RELOAD) is first


def test_few_tiles_are_shared_by_clusters() -> None:
    """6144 columns of 64 rows are fewer tiles than SMs: on an H200 a part of k each takes 20.3 us, all of it 23.6."""
    asked = problem("64x6144", 4096, dtype="bf16", order='["cols", "inner"]')
    ways = [s for s in space(asked, H200).legal if s.fragment is Fragment.MMA]
    found = min(ways, key=lambda s: busy_clocks(asked, s, H200))
    assert found.cluster == 2
    plan = tile_problem_plan(asked, found)
    assert (plan.part, plan.handed_floats) == (2048, found.tile_m * found.tile_n)
    whole = tile_problem_plan(asked, found.varied(cluster=1))
    assert plan.shared_bytes == whole.shared_bytes + 4 * plan.handed_floats
    assert default_schedule(problem("4096x4096", 4096, dtype="bf16"), H200).cluster == 1


def test_few_tiles_of_teams_are_shared_by_clusters() -> None:
    """4096 columns of 64 rows are 64 tiles of teams: a part of 14336 each takes 33.4 us on an H200, all of it 40.5."""
    found = default_schedule(problem("64x4096", 14336, dtype="bf16", order='["cols", "inner"]'), H200)
    assert (found.fragment, found.cluster) == (Fragment.WGMMA, 2)
    asked = problem("256x4096", 14336, dtype="bf16", order='["cols", "inner"]')
    tile = schedule_from(WGMMA | {"tile_n": 128, "thread_n": 32, "stages": 7, "cluster": 2})
    plan = tile_problem_plan(asked, tile)
    assert refusal(asked, tile, H200) is None
    assert 128 * 128 * 4 == 4 * plan.handed_floats <= plan.shared_bytes == 7 * (2 * 128 * 128 + 3 * 8)
    assert default_schedule(problem("32x4096", 4096, dtype="bf16"), H200).fragment is Fragment.MMA, "half a tile"


def test_a_kernel_of_rows_has_no_tiles() -> None:
    rows = problem_for(load("rmsnorm"), shape="64x256")
    assert "a row has no tiles" in str(refusal(rows, default_schedule(rows, H200).varied(tile_k=8), H200))
    assert "no products of matrices" in str(refusal(rows, default_schedule(rows, H200).varied(fragment="mma"), H200))


SIZES = ("4096x4096", 4096), ("1x4096", 4096), ("37x29", 19), ("4097x4095", 4093), ("1x1", 1), ("64x65536", 8)


@pytest.mark.parametrize(("shape", "inner"), SIZES)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_every_size_has_a_small_space_and_a_default_in_it(shape: str, inner: int, dtype: str) -> None:
    for order in ('["inner", "cols"]', '["cols", "inner"]'):
        asked = problem(shape, inner, dtype=dtype, order=order)
        for device in (H200, T4):
            found = space(asked, device)
            assert 0 < len(found) <= 700
            assert len(set(found.legal)) == len(found.legal)
            assert default_schedule(asked, device) in found.legal
    general = problem(dtype=dtype, any_cols=True)
    assert all(refusal(general, schedule, T4) is None for schedule in fallback_schedules(general))


def test_the_default_fills_the_device_and_reads_wide() -> None:
    for size in (2048, 4096, 8192):  # of those that are alike to the formula, the fastest one on an H200
        large = default_schedule(problem(f"{size}x{size}", size), H200)
        assert (large.tile_m * large.tile_n, large.thread_m, large.thread_n, large.vector) == (32768, 16, 8, 4)
    small = default_schedule(problem("256x256", 4096), H200)
    assert -(-256 // small.tile_m) * -(-256 // small.tile_n) >= 64
    assert default_schedule(problem("4096x4096", 4096, dtype="bf16"), H200).vector == 8


def test_m_and_n_are_the_axes_of_the_result_and_n_is_the_one_along_which_it_lies() -> None:
    found = {name: contraction_of(case.problem((3, 4, 5)), case.program()) for name, case in CASES.items()}
    axes = {name: (cut.m, cut.n, cut.k) for name, cut in found.items()}
    assert axes["linear"] == axes["linear, w turned"] == ("rows", "cols", "inner")
    assert axes["dx"] == axes["dx, w turned"] == ("rows", "inner", "cols")
    assert axes["dw and dbias"] == ("inner", "cols", "rows")
    assert axes["dw and dbias added, w turned"] == ("cols", "inner", "rows")
    two = found["two sums of four sides"]
    assert [len(side.slots) for side in two.sides] == [2, 2]
    assert [len(side.slots) for side in found["two sums"].sides] == [1, 2], "x is there once for both"
    assert [r.names for r in found["extrema beside the products"].riding] == [("top",), ("low",), ("high",)]


def test_slots_hold_a_tile_of_each_factor_in_every_stage_and_then_what_was_reduced_beside() -> None:
    case = CASES["two sums"]
    plan = tile_plan_of(case.problem((64, 64, 64)), case.program(), SMALL.varied(stages=2))
    assert plan.shared_bytes == 2 * (16 * (8 + 4) + 2 * 8 * (16 + 4)) * 4, "lines along k, and two times lines along n"
    riding = CASES["extrema beside the products"]
    plan = tile_plan_of(riding.problem((64, 64, 64)), riding.program(), SMALL)
    assert plan.shared_bytes == max(16 * (8 + 4) + 8 * (16 + 4), 3 * 8 * 16) * 4, "of each reduction a part for each k"
    by_reloads = Schedule(**{**SMALL.chosen, "hold": "reload"})
    assert tile_plan_of(riding.problem((64, 64, 64)), riding.program(), by_reloads).shared_bytes == 0


LOADS = (Load("x", Kind.LEFT), Load("gain", Kind.INNER), Load("scale", Kind.ROW))
ZERO = [x, x * gain, 3 * x, x**2, sp.sqrt(x), x * COLS, Ordered(x, gain), Ordered(x, sp.Rational(1, 3)), x / 3]
NOT_ZERO = [x + 1, sp.exp(x), x * scale, 1 / x, x / gain, Ordered(x, 1 / gain), scale, sp.Integer(2)]


@pytest.mark.parametrize("factor", [*ZERO, *NOT_ZERO], ids=str)
def test_products_of_what_is_loaded_are_0_beyond_an_edge_and_nothing_else_is(factor: sp.Expr) -> None:
    order = Order(())
    tree = order.tree(factor)
    side = Side("rows", (tree,), (), LOADS, ())
    assert vanishes(tree, side, "inner") is (factor in ZERO)
    for monoid in (SUM, ABSMAX, MAX):
        reduce = order.reduce(Reduce(("s",), Kind.ROW, monoid, (factor,), over=Kind.INNER))
        assert is_neutral(reduce, side, "inner") is (factor in ZERO and monoid is not MAX)


def test_what_a_kernel_of_tiles_does_not_find_is_refused_with_the_statement() -> None:
    where = Reduce(("at", "top"), Kind.ROW, ARGMAX, (x, x), over=Kind.INNER)
    result = Map("y", Kind.ELEM, symbol("h") + symbol("at"))
    positions = Case(TENSORS, (where, dot("h", x, w), result, Store("y", "y", Kind.ELEM)), LINEAR.truth)
    with pytest.raises(ProgramError, match=r"no columns that hold them[\s\S]*reduce at, top"):
        contraction_of(positions.problem((3, 4, 5)), positions.program())
    numbered = Case(
        {"dy": ("rows", "cols"), "w": ("inner", "cols"), "dx": ("rows", "inner")},
        (dot("dx", symbol("dy") * COL, w, over="cols"), Store("dx", "dx", Kind.LEFT)),
        LINEAR.truth,
    )
    found = contraction_of(numbered.problem((3, 4, 5)), numbered.program())
    assert found.left.numbered == {"cols"}, "a side may know the numbers of its elements"


def test_a_row_factor_leaves_the_sum_and_inner_is_read_once() -> None:
    asked = problem(formula="(x * rsqrt(mean(x * x) + 1e-6)) @ w + bias")
    cut = contraction(asked)
    assert (cut.left.slots, [r.monoid.name for r in cut.left.riding]) == ((Name("x"),), ["sum"])
    copied = schedule_from({**CUT, "copy": "cp_async", "stages": 3, "vector": 4})
    assert refusal(asked, copied, H200) is None


def test_a_side_that_is_stored_as_a_slot_is_copied_while_the_other_one_passes_through_registers() -> None:
    copied = schedule_from({**CUT, "copy": "cp_async", "stages": 3, "vector": 4})
    for formula, sides in (("exp(x) @ w", (False, True)), ("x @ exp(w)", (True, False)), ("x @ w", (True, True))):
        asked = problem(formula=f"{formula} + bias")
        assert refusal(asked, copied, H200) is None
        plan = tile_problem_plan(asked, copied)
        assert (plan.copies(plan.cut.left), plan.copies(plan.cut.right)) == sides
        words = 64 * 16 // copied.threads  # of a tile of a side on its way
        assert plan.held_registers == plan.accumulators + words * sides.count(False)


def test_a_weight_along_inner_waits_in_one_vector_of_registers_and_its_matrix_in_none() -> None:
    asked = problem_for(load("rmsnorm_linear"), shape=(4096, 4096), inner=4096)
    wide = {"tile_m": "128", "tile_n": "256", "tile_k": "32", "thread_m": "16", "thread_n": "8", "vector": "4"}
    copied = schedule_from({**CUT, **wide, "copy": "cp_async", "stages": "3"})
    assert refusal(asked, copied, H200) is None
    plan = tile_problem_plan(asked, copied)
    assert (plan.scales(plan.cut.left), plan.scales(plan.cut.right)) == (True, False)
    assert plan.held_registers == plan.accumulators + 4


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_schedule_of_tiles_has_a_least_change_that_is_legal(name: str) -> None:
    asked, knobs, _ = REFUSED[name]
    schedule = schedule_from(knobs)
    found = repair(asked, schedule, H200)
    assert found is not None
    assert found.changes, "where no few changes do, it is the default"
    assert refusal(asked, schedule.varied(**found.changes), H200) is None


def test_contractions_stay_contractions_where_exponentials_are_approximated() -> None:
    """The pass writes all reductions anew, with equal monoids that are not the same object."""
    asked = problem(formula="(x @ w) * exp(x @ (w * w)) + bias", dtype="bf16")
    programs = programs_of(asked, schedule_from({**CUT, "arithmetic": "approximate"}))
    assert [len(program.dots) for _, program in programs] == [2] * len(programs)
    assert "exp_approximate" in str(programs[-1][1])


def test_more_tiles_than_a_launch_has_blocks_are_refused() -> None:
    rows = cols = 2**20
    found = problem_for(load("linear"), shape=(rows, cols), inner=8)
    cut = {"hold": "reload", "tile_k": 8, "thread_m": 4, "thread_n": 4, "tile_n": 16}
    small, large = (schedule_from({**cut, "tile_m": tile}) for tile in (32, 64))
    assert "at most 2147483647 blocks, and 2147483648 tiles have one each" in str(refusal(found, small, H200))
    assert refusal(found, large, H200) is None
    (launch,) = (kernel.launch for kernel in emit(found, small).kernels)
    sizes = {"cols": cols, "sm_count": 132}
    with pytest.raises(UsageError, match=r"at most 2147483647 blocks\n  received: 2147483648 for rows 1048576, cols"):
        launch.grid(rows=rows, **sizes)
    assert launch.grid(rows=rows - 32, **sizes) == 2**31 - 2**16
