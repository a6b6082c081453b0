"""Groups of columns behind products: on the CPU executor at all edges, any number of rounds, and one line wrong."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.cpu import Program, build_many, find_compiler
from normgen.device import target
from normgen.knobs import Copy, Fragment, Hold
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.cut import contraction
from normgen.spec.reader import load
from normgen.spec.spec import Spec
from tests import samples
from tests.codegen.tiles.test_mutants import wrong

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
H200, SPECS = target("h200"), Path(__file__).parents[3] / "specs"
OP, TURNED = "linear_swiglu_to_fp8_group", {"w_gate": "cols_inner", "w_up": "cols_inner"}
THREADS = Schedule(hold=Hold.SHARED, tile_m=16, tile_n=128, tile_k=8, thread_m=2, thread_n=8, vector=1, stages=2)
WARPS = Schedule(
    **{"hold": Hold.SHARED, "fragment": Fragment.MMA, "copy": Copy.CP_ASYNC, "vector": 8, "stages": 2},
    **{"tile_m": 16, "tile_n": 128, "tile_k": 32, "thread_m": 2, "thread_n": 8},
)
STREAMS = WARPS.varied(hold=Hold.RELOAD, copy=Copy.DIRECT, stages=1, tile_m=8, thread_n=4)
TEAM = WARPS.varied(fragment=Fragment.WGMMA, copy=Copy.BULK, tile_m=64, tile_k=64, thread_n=32)
# Warps share a group, or a warp has whole ones; pieces of a thread lie in one group, or in several.
WAYS = {
    "threads": ("f32", THREADS),
    "threads of whole groups": ("f32", THREADS.varied(tile_n=256, thread_n=32, thread_m=1)),
    "warps": ("bf16", WARPS),
    "broad warps": ("f16", WARPS.varied(tile_n=256, thread_n=16)),
    "streams": ("bf16", STREAMS),
    "two blocks a tile": ("bf16", WARPS.varied(cluster=2)),
    "a team": ("bf16", TEAM),
    "two teams": ("f16", TEAM.varied(tile_m=128)),
}
NORMED = """
name = "normed_groups"
summary = "A norm of each 32 columns, quantised: three reductions, each of which waits for the one before."
[tensors]
x = { role = "input", axes = ["rows", "inner"], dtypes = ["f32", "f16", "bf16"] }
w_gate = { role = "parameter", axes = ["inner", "cols"], follows = "x" }
w_up = { role = "parameter", axes = ["inner", "cols"], follows = "x" }
bias = { role = "parameter", follows = "x" }
factor = "row_input"
mean = "group_statistic"
scale = "group_statistic"
h = { role = "output", follows = "x" }
q = { role = "output", dtypes = ["i8"] }
[scalars]
eps = 1e-5
[formulas]
h = "(x @ w_gate + bias) * factor + x @ w_up"
mean = "sum(h, 32) / 32"
c = "h - mean"
z = "c * rsqrt(sum(c * c, 32) / 32 + eps * factor * factor)"
scale = "max(z, 32) - min(z, 32) + factor * factor + 1"
q = "clamp(z / scale * 100, -127, 127)"
"""
PACKED = """
name = "packed_groups"
summary = "MXFP4 behind a product."
[tensors]
x = { role = "input", axes = ["rows", "inner"], dtypes = ["f32", "f16", "bf16"] }
w_gate = { role = "parameter", axes = ["inner", "cols"], follows = "x" }
w_up = { role = "parameter", axes = ["inner", "cols"], follows = "x" }
scale = { role = "group_statistic", dtypes = ["f8e8m0"] }
q = { role = "output", dtypes = ["f4e2m1"] }
[formulas]
y = "x @ w_gate + x @ w_up"
amax = "absmax(y, 32)"
scale = "cast(amax / 6, f8e8m0)"
q = "y * where(amax == 0, 0, 1 / scale)"
"""


@cache
def spec(text: str, folder: Path) -> Spec:
    path = folder / "op.toml"
    path.write_text(text)
    return load(str(path))


def problem(op: Spec | str, shape: str, dtype: str, inner: int = 72, **asked: Any) -> Problem:
    found = load(op) if isinstance(op, str) else op
    return problem_for(found, shape=shape, inner=inner, dtype=dtype, **{"layout": TURNED, **asked})


def proven(asked: Problem, schedule: Schedule) -> None:
    assert refusal(asked, schedule, H200) is None
    checked = check_on_cpu(asked, emit(asked, schedule), most_elements=1 << 17)
    assert checked.ok, checked.summary


@pytest.mark.parametrize("way", WAYS)
def test_a_group_lies_in_a_tile_however_threads_share_it(way: str) -> None:
    dtype, schedule = WAYS[way]
    proven(problem(OP, "24x384", dtype), schedule)


OF_NARROW_GROUPS = WAYS | {"a team of three groups": ("bf16", TEAM.varied(tile_n=96, thread_n=24))}


@pytest.mark.parametrize("way", ["threads", "warps", "streams", "a team", "a team of three groups"])
def test_reductions_of_groups_may_wait_for_each_other(way: str, tmp_path: Path) -> None:
    dtype, schedule = OF_NARROW_GROUPS[way]
    proven(problem(spec(NORMED, tmp_path), "24x160", dtype), schedule)


@pytest.mark.parametrize("layout", ["row_major", "column_major", "packed", "swizzled"])
def test_elements_may_share_a_byte_and_scales_lie_in_any_order(layout: str, tmp_path: Path) -> None:
    asked = problem(spec(PACKED, tmp_path), "24x160", "bf16", layout={**TURNED, "scale": layout})
    proven(asked, WARPS)
    one = "a thread writes whole bytes of 2 elements: vector and thread_n are multiples of it"
    assert refusal(asked, WARPS.varied(vector=1, copy=Copy.DIRECT), H200) == one


def test_scales_of_a_team_may_lie_by_columns() -> None:
    proven(problem(OP, "24x256", "bf16", layout={**TURNED, "scale": "column_major"}), TEAM)


def test_the_general_kernel_has_tiles_of_whole_groups() -> None:
    asked = problem_for(load(OP), shape="24x256", inner=20, dtype="f32", any_cols=True)
    for schedule in fallback_schedules(asked):
        proven(asked, schedule)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tile_n": 64}, "a tile has whole groups of 128 columns: tile_n = 64 is no multiple"),
        ({"tile_n": 32, "thread_n": 4, "tile_m": 32}, "a tile has whole groups of 128 columns: tile_n = 32 is no"),
    ],
)
def test_a_tile_of_part_of_a_group_is_refused(change: dict[str, int], said: str) -> None:
    assert (refusal(problem(OP, "64x384", "bf16"), WARPS.varied(**change), H200) or "").startswith(said)


def test_a_group_narrower_than_what_a_thread_has_side_by_side_is_refused(tmp_path: Path) -> None:
    asked = problem(spec(PACKED.replace(", 32)", ", 2)"), tmp_path), "24x160", "f32")
    said = "a thread has whole groups or parts of one: 4 columns side by side are more than a group"
    assert refusal(asked, THREADS.varied(vector=4), H200) == said


def test_a_round_keeps_the_elements_that_a_later_one_reads(tmp_path: Path) -> None:
    grouped = contraction(problem(spec(NORMED, tmp_path), "24x160", "bf16")).grouped
    assert grouped is not None
    assert [[r.monoid.name for r in one.reduces] for one in grouped.rounds] == [["sum"], ["sum"], ["max", "min"]]
    assert [one.kept for one in grouped.rounds] == [("h",), ("c",), ("z",)]
    assert {name for one in grouped.rounds for name in one.values} > {"mean", "scale"}
    assert "mean" in grouped.held  # of z, too
    assert {s.tensor for s in grouped.last if hasattr(s, "tensor")} == {"h", "q"}


# ---- one line wrong ------------------------------------------------------------------------------------------------

MUTANTS: dict[str, list[tuple[str, str]]] = {
    "warps": [
        ("combine_lanes<kLanesN, 1, Maximum>(y_absmax_own[i][g])", "y_absmax_own[i][g]"),
        ("combine_lanes<kLanesN, 1,", "combine_lanes<kLanesN / 2, 1,"),
        ("combine_lanes<kLanesN, 1,", "combine_lanes<kLanesN, 2,"),
        ("(warp_n * kGroups + g) * kTileM + own_m(i)", "(warp_n * kGroups + g) * kTileM"),
        ("(warp_n * kGroups + g)", "g"),
        ("((first + other) * kGroups + g)", "(first * kGroups + g)"),
        ("other < kMeeting", "other < kMeeting - 1"),
        ("__syncthreads();", ""),
        ("tn % kSharers == 0", "true"),
        ("m < rows && (kWholeN || n < kCols)", "kWholeN || n < kCols"),
        ("scale + m * ", "scale + m0 * "),
        ("fabsf(y_e)", "y_e"),
        ("y_kept[i][j + e] = y_e", "y_kept[i][j] = y_e"),
        ("scale_inverse_own[i][g] = scale_inverse_g", "scale_inverse_own[0][g] = scale_inverse_g"),
        ("/ 448.0f", "/ 447.0f"),
    ],
    "warps of four groups": [
        ("j / kOwnN", "0"),
        ("n0 + own_n(g * kOwnN)", "n0 + own_n(g)"),
        ("warp_n / kMeeting * kMeeting", "0"),
        ("m < rows && (kWholeN || n < kCols)", "m < rows"),
        ("n / kGroupN", "n0 / kGroupN"),
    ],
    "threads": [("combine_lanes<kLanesN, 2,", "combine_lanes<kLanesN, 1,")],
    "a team": [
        ("combine_lanes<kSharers, 1,", "combine_lanes<kSharers, 2,"),
        ("combine_lanes<kSharers, 1,", "combine_lanes<2, 1,"),
        ("tn % kSharers == 0 && m < rows", "tn % kSharers == 0"),
        ("whole_halves(q_pieces[piece / 8].bits);", ""),
        ("whole_halves(q_pieces[piece / 8].bits);", "whole_halves(q_pieces[0].bits);"),
        ("j % 4 == 0 ?", "j % 4 == 2 ?"),
        ("q_vec.bits[0] << 16", "q_vec.bits[0] << 8"),
        ("j % 8 / 4", "0"),
        ("q_pieces[j / 8]", "q_pieces[0]"),
        ("4 * piece + 8 * tn", "4 * piece"),
        ("y_kept[i][j + e] * ", "y_kept[0][j + e] * "),
    ],
    "two teams of two groups": [("j / kOwnN", "0"), ("n0 + own_n(g * kOwnN)", "n0"), ("n / kGroupN", "n0 / kGroupN")],
}
LIBRARY = [
    ("is_high ? parts[0] : parts[1]", "is_high ? parts[1] : parts[0]"),
    ("low >> 16 | high", "low >> 16 | low"),
    ("first & 0xffffu | second << 16", "first & 0xffffu | first << 16"),
    ("is_odd ? even_halves : odd_halves, 1", "is_odd ? odd_halves : even_halves, 1"),
    ("is_odd ? even_halves : odd_halves, 1", "is_odd ? even_halves : odd_halves, 2"),
]
ROWS, COLS, INNER = 70, 384, 72


WRONG_WAYS = WAYS | {
    "warps of four groups": ("bf16", WARPS.varied(tile_n=256, thread_n=4)),
    "two teams of two groups": WAYS["two teams"],
}


def group_of(way: str) -> int:
    return 64 if "groups" in way else 128


def seen_wrong(program: Program, dtype: str, group: int) -> bool:
    """Whether a run shows that a kernel is not the operation's."""
    number = np.dtype({"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[dtype])
    random = np.random.default_rng(5)
    x, gate, up = (random.standard_normal(shape).astype(number) for shape in ((ROWS, INNER), *[(COLS, INNER)] * 2))
    x = (x * np.exp(random.standard_normal((ROWS, 1)))).astype(number)  # rows have scales of their own
    memory = {
        "q": np.zeros((ROWS + 1, COLS), np.uint8),
        "scale": np.full((ROWS + 1, COLS // group), np.nan, np.float32),
    }
    given = {"x": x, "w_gate": gate, "w_up": up}
    arrays = {**{name: array[:ROWS] for name, array in memory.items()}, **given}
    arrays["q"] = arrays["q"].view(ml_dtypes.float8_e4m3fn)
    run = program.run(arrays, rows=ROWS, cols=COLS, inner=INNER, scalars={"amax_min": 1e-10}, sm_count=2)
    if run.faults:
        return True
    x, gate, up = (array.astype(np.float64) for array in (x, gate, up))
    y = x @ gate.T / (1 + np.exp(-(x @ gate.T))) * (x @ up.T)
    scale = np.abs(y.reshape(ROWS, -1, group)).max(2) / 448
    with np.errstate(all="ignore"):
        if not np.allclose(arrays["scale"], scale, rtol=1e-5, atol=0):
            return True
        off = np.abs(arrays["q"].astype(np.float64) - y / np.repeat(scale, group, 1))
    return not bool((off <= 0.07 * np.abs(y / np.repeat(scale, group, 1)) + 2.0**-9).all())


@pytest.mark.parametrize("way", MUTANTS)
def test_whatever_is_wrong_in_what_is_made_of_groups_shows(way: str, tmp_path: Path) -> None:
    dtype, schedule = WRONG_WAYS[way]
    group, text = group_of(way), (SPECS / f"{OP}.toml").read_text(encoding="utf-8")
    op = spec(text.replace(", 128)", f", {group})"), tmp_path)
    module = emit(problem(op, f"{ROWS}x{COLS}", dtype, INNER), schedule)
    changes = [*MUTANTS[way], *(LIBRARY if way == "a team" else [])]
    mutants = [(f"{old} -> {new}", m) for old, new in changes for m in wrong(module, old, new)][:: samples.sized(5, 1)]
    right, *programs = build_many([module, *(m for _, m in mutants)])
    assert not seen_wrong(right, dtype, group)
    survived = [
        said for (said, _), program in zip(mutants, programs, strict=True) if not seen_wrong(program, dtype, group)
    ]
    assert not survived
