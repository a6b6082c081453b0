"""Kernels of warpgroups on the CPU executor, against float64: edges, all that follows, and one line wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.cpu import build_many, find_compiler
from normgen.knobs import Copy, Fragment, Hold
from normgen.program.ir import Map, Reduce, Store
from normgen.program.monoid import MAX, SUM, symbol
from normgen.python.handle import kernel
from normgen.schedule.schedule import Schedule
from normgen.spec.spec import Kind
from tests.codegen.tiles.cases import STORE, STREAMED, TURNED, product
from tests.codegen.tiles.handmade import BEFORE, Case, Sizes, dot, ran
from tests.codegen.tiles.test_tensor_mutants import survivors

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
x, w, h, y, bias, scale, res, eps = map(symbol, ("x", "w", "h", "y", "bias", "scale", "res", "eps"))
OF_WORDS = {**TURNED, "bias": ("cols",), "scale": ("rows",), "top": ("rows",)}
OF_RESIDUAL = {**TURNED, "res": ("rows", "cols")}


def in_two_places(a: Any) -> dict[str, Any]:
    h = product(a["x"], a["w"])
    of_rows = h + a["res"] + a["bias"]
    total, top = of_rows.sum(2, keepdims=True), (of_rows - 30).max(2, keepdims=True)
    return {"y": of_rows, "z": h - a["res"], "total": total + 2 * a["eps"], "top": top}


CASES = {
    **STREAMED,
    "linear to 16 bits": replace(STREAMED["linear, f16"], dtypes=dict.fromkeys("xwy", "f16")),
    "two sums to 16 bits": replace(
        STREAMED["two sums"], dtypes=dict.fromkeys(STREAMED["two sums"].tensors, "bf16"), bound=1e-4
    ),
    "values of lines and columns to 16 bits": Case(
        OF_WORDS,
        (
            *(dot("h", x, w), Map("y", Kind.ELEM, (h + bias) * scale), Map("twice", Kind.ROW, 2 * scale), STORE),
            Store("top", "twice", Kind.ROW, accumulate=True),
        ),
        lambda a: {"y": (product(a["x"], a["w"]) + a["bias"]) * a["scale"], "top": 2 * a["scale"] + BEFORE},
        dtypes=dict.fromkeys("xwy", "bf16"),
    ),
    "added to 16 bits": Case(
        TURNED,
        (dot("y", x, w), Store("y", "y", Kind.ELEM, accumulate=True)),
        lambda a: {"y": product(a["x"], a["w"]) + BEFORE},
        dtypes=dict.fromkeys("xwy", "bf16"),
    ),
    "a residual of 16 bits": Case(
        OF_RESIDUAL,
        (dot("h", x, w), Map("y", Kind.ELEM, h + res), STORE),
        lambda a: {"y": product(a["x"], a["w"]) + a["res"]},
        dtypes=dict.fromkeys(("x", "w", "y", "res"), "bf16"),
    ),
    "results in two places and reduced": Case(
        {**OF_RESIDUAL, "bias": ("cols",), "z": ("rows", "cols"), "total": ("rows",), "top": ("rows",)},
        (
            *(dot("h", x, w), Map("y", Kind.ELEM, h + res + bias), Map("z", Kind.ELEM, h - res)),
            *(Reduce(("all",), Kind.ROW, SUM, (y,)), Reduce(("top",), Kind.ROW, MAX, (y - 30,))),
            *(Map("twice", Kind.SCALAR, 2 * eps), Map("total", Kind.ROW, symbol("all") + symbol("twice"))),
            *(STORE, Store("z", "z", Kind.ELEM), Store("total", "total", Kind.ROW), Store("top", "top", Kind.ROW)),
        ),
        in_two_places,
        dtypes=dict.fromkeys(("x", "w", "y", "z", "res"), "f16"),
        scalars={"eps": 3.0},
        nullable=("total",),
        bound=1e-4,
    ),
    "values of lines added beside f32": Case(
        OF_WORDS,
        (*(dot("y", x, w), STORE, Map("twice", Kind.ROW, 2 * scale)), Store("top", "twice", Kind.ROW, accumulate=True)),
        lambda a: {"y": product(a["x"], a["w"]), "top": 2 * a["scale"] + BEFORE},
        dtypes=dict.fromkeys("xw", "bf16"),
    ),
}
TEAM = Schedule(
    **{"hold": Hold.SHARED, "copy": Copy.BULK, "fragment": Fragment.WGMMA, "vector": 8, "stages": 2},
    **{"tile_m": 64, "tile_n": 64, "tile_k": 64, "thread_m": 2, "thread_n": 16},
)
TWO = TEAM.varied(tile_m=128, stages=3)
WAYS = {
    "a team": TEAM,
    "two teams": TWO,
    "a team of 128 lines": TEAM.varied(tile_m=128, thread_m=4),
    "broad": TWO.varied(tile_n=128, thread_n=32, stages=4),
    "of three times 32 columns": TEAM.varied(tile_n=96, thread_n=24),
    "of five": TWO.varied(tile_n=160, thread_n=40),
    "of seven": TWO.varied(tile_n=224, thread_n=56, stages=2),
    "broadest": TWO.varied(tile_n=256, thread_n=64, stages=2),
    "two teams of 128 lines": TWO.varied(tile_m=256, thread_m=4, tile_n=128, thread_n=32, stages=2),
}
NAMES = ("linear", "linear, f16", "two sums", "two sums of four sides", "added to y", "values of all kinds behind")
NAMES += (
    "numbers of rows and columns",
    "all of 16 bits",
    "dx",
    "reductions of the result",
    *(name for name in CASES if name not in STREAMED),
)
AROUND = ((63, 72, 56), (64, 64, 64), (65, 56, 72), (1, 8, 8), (0, 64, 8), (200, 328, 136))  # of 200: several a block
FEW = ((200, 264, 72), (130, 72, 264))


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_right_on_both_sides_of_every_edge(name: str) -> None:
    """A tile less some, a tile, a tile and some, and 1 line, in each of m, n and k; more tiles than blocks."""
    case = CASES[name]
    turned = [(m, n, k) if name == "dx" else (m, k, n) for m, k, n in AROUND]
    for way, all_sizes in (("a team", turned), ("two teams", turned[-1:])):
        programs = build_many([case.module(sizes, WAYS[way]) for sizes in all_sizes])
        for number, (program, sizes) in enumerate(zip(programs, all_sizes, strict=True)):
            assert not ran(case, program, sizes, pad=8 * (number % 2), seed=number), (way, sizes)


@pytest.mark.parametrize("way", WAYS)
def test_teams_own_their_part_of_any_tile(way: str) -> None:
    for name in ("linear", "linear to 16 bits"):
        programs = build_many([CASES[name].module(sizes, WAYS[way]) for sizes in FEW])
        for program, sizes in zip(programs, FEW, strict=True):
            assert not ran(CASES[name], program, sizes, pad=8, seed=2), (name, sizes)


PARTS = {"two of two teams": TWO.varied(tile_m=256, thread_m=4, cluster=2), "four": TEAM.varied(cluster=4, stages=4)}
IN_PARTS: tuple[Sizes, ...] = ((130, 200, 72), (40, 232, 72))  # the last of four parts is short


@pytest.mark.parametrize("way", PARTS)
def test_blocks_share_k(way: str) -> None:
    for name in ("linear to 16 bits", "two sums", "values of all kinds behind"):
        programs = build_many([CASES[name].module(sizes, PARTS[way]) for sizes in IN_PARTS])
        for program, sizes in zip(programs, IN_PARTS, strict=True):
            assert not ran(CASES[name], program, sizes, pad=8, seed=3), (name, sizes)


@pytest.mark.parametrize("way", PARTS)
def test_whatever_is_wrong_in_blocks_of_teams_that_share_k_shows(way: str) -> None:
    sizes = {"four": IN_PARTS, "two of two teams": ((200, 520, 72),)}[way]
    modules = {of: CASES["two sums"].module(of, PARTS[way]) for of in sizes}
    assert not survivors(CASES["two sums"], modules, MISSED[way])


MISSED_BY_TWO = [
    ("lane == 0 && k0 > k_begin", "lane == 0 && k0 > 0"),
    ("_part[i / 2][i % 2 * kThreadN", "_part[0][i % 2 * kThreadN"),
    ("(32 * kWarps)", "128"),
]
MISSED_BY_FOUR = [
    ("cluster_rank() * kPartK", "0"),
    ("min(kInner, k_begin + kPartK)", "kInner"),
    ("blockIdx.x / kParts", "blockIdx.x"),
    ("k0 + step > k_begin", "k0 + step > 0"),
    ("    cluster_arrive();\n    cluster_wait();  // nobody reads the slots of the first block any more\n", ""),
    ("    cluster_arrive();\n    cluster_wait();\n", ""),
    ("(cluster_rank() - 1) * kLeft", "0 * kLeft"),
    ("part * kLeft", "0 * kLeft"),
    ("kParts - 1", "kParts - 2"),
    ("kThreadM * kThreadN + i", "i"),
    ("i % 2 * kThreadN + j", "j"),
    ("kThreadN + j + 2", "kThreadN + j + 3"),
    ("kThreadN + j + e", "kThreadN + j"),
    ("element(handed, e)", "element(handed, 0)"),
    ("j += 4", "j += 8"),
    (" / 4 * (", " * ("),
    (" / 4 * (32 * kWarps)", " / 4 * 32"),
    ("+ threadIdx.x) * 4", "+ threadIdx.x)"),
    ("threadIdx.x) * 4, 0,", "threadIdx.x) * 4, 1,"),
    ("if (cluster_rank() > 0) return;", ""),
]
MISSED = {"four": MISSED_BY_FOUR, "two of two teams": MISSED_BY_TWO}


# In boxes of 32 columns: three at a time, and one of five or seven; the last tile is a part of one, or of a box.
NARROW: tuple[tuple[str, Sizes], ...] = (
    ("of three times 32 columns", (130, 72, 176)),
    ("of five", (200, 72, 168)),
    ("of seven", (130, 136, 472)),
)


@pytest.mark.parametrize("at", NARROW, ids=lambda at: at[0])
def test_results_pass_in_narrow_boxes(at: tuple[str, Sizes]) -> None:
    way, sizes = at
    names = ("a residual of 16 bits", "two sums to 16 bits", "results in two places and reduced", "linear to 16 bits")
    modules = [CASES[name].module(sizes, WAYS[way]) for name in names]
    for name, module, program in zip(names, modules, build_many(modules), strict=True):
        assert "cell_of" in module.text
        assert not ran(CASES[name], program, sizes, pad=8, seed=4), name


@pytest.mark.parametrize("name", ["results in two places and reduced", "values of lines and columns to 16 bits"])
def test_results_pass_in_any_number_of_passes(name: str) -> None:
    """Two of each tile, one of two boxes; more lines of tiles than tickets."""
    for way, sizes in (("broadest", (200, 72, 520)), ("broad", (130, 72, 200)), ("a team", (4200, 8, 72))):
        [program] = build_many([CASES[name].module(sizes, WAYS[way])])
        assert not ran(CASES[name], program, sizes, pad=8, seed=3), way


def test_a_result_may_take_the_place_of_what_is_added_to_it() -> None:
    """Each stage brings what it stores in the same place; a second call finds tickets as the first one did."""
    asked: dict[str, Any] = {"dtype": "bf16", "layout": {"w": "cols_inner"}, "in_place": {"h": "residual"}}
    added = kernel("linear_add_rms", shape=(200, 136), inner=72, device="cpu", schedule=TEAM, **asked)
    for seed in range(2):
        drawn, shapes = np.random.default_rng(seed), ((200, 72), (136, 72), (200, 136))
        x, w, h = (drawn.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes)
        wanted = h.astype(np.float64) + x.astype(np.float64) @ w.astype(np.float64).T
        _, rstd = added(x, residual=h, w=w)
        np.testing.assert_allclose(h.astype(np.float64), wanted, atol=0.1, rtol=0.01)
        np.testing.assert_allclose(rstd, 1 / np.sqrt((wanted**2).mean(1) + 1e-6), rtol=1e-4)


@pytest.mark.parametrize("cols", [1, 63, 64, 201])
def test_statistics_need_no_whole_pairs_of_columns(cols: int) -> None:
    """A vocabulary of 50257 classes has an odd number of logits a row, of which none is stored."""
    asked = {"shape": (70, cols), "inner": 72, "dtype": "f16", "device": "cpu"}
    loss_of = kernel("linear_cross_entropy", **asked, schedule=TEAM)
    drawn = np.random.default_rng(cols)
    x, w = (drawn.standard_normal((lines, 72)).astype(np.float16) / 4 for lines in (70, cols))
    label = drawn.integers(0, cols, 70)
    loss, lse = loss_of(x, w, label)
    logits = x.astype(np.float64) @ w.astype(np.float64).T
    wanted = np.log(np.exp(logits).sum(1))
    np.testing.assert_allclose(lse, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(loss, wanted - logits[np.arange(70), label], rtol=1e-5, atol=1e-5)


# Tiles of 128 x 64: 3 x 2, four of k, on four blocks; a group of lines of tiles and a part of one; one of each.
SIZES: tuple[Sizes, ...] = ((328, 200, 72), (2184, 8, 16), (72, 104, 72))
# ... 1 x 3 and 3 x 2 of 128 x 256, on four blocks; 66 lines of tiles, of which there are tickets for 64.
OF_CASES: dict[str, tuple[Sizes, ...]] = {
    **dict.fromkeys(("linear to 16 bits", "a residual of 16 bits"), ((328, 136, 328), (72, 72, 1096))),
    "results in two places and reduced": ((200, 72, 136), (4200, 8, 72)),
}
OF_NARROW: dict[str, tuple[Sizes, ...]] = {way: (sizes,) for way, sizes in NARROW}
MUTANTS: dict[tuple[str, str], list[tuple[str, str]]] = {
    ("linear", "two teams"): [
        ("__syncthreads();", ""),
        ("mbarrier_fence();", ""),
        ("mbarrier_init(&full[stage], 1);", "mbarrier_init(&full[stage], 2);"),
        ("mbarrier_init(&empty[stage], kWarps);", "mbarrier_init(&empty[stage], 1);"),
        ("mbarrier_init(&empty[stage], kWarps);", "mbarrier_init(&empty[stage], kWarps + 1);"),
        ("mbarrier_wait(&empty[stage], parity ^ 1);", ""),
        ("mbarrier_wait(&empty[stage], parity ^ 1);", "mbarrier_wait(&empty[stage], parity);"),
        ("mbarrier_wait(&full[stage], parity);", ""),
        ("mbarrier_wait(&full[stage], parity);", "mbarrier_wait(&full[stage], 0);"),
        ("2 * kStage);", "kStage);"),
        ("(kTileM + kTileN) * kTileK", "kTileM * kTileK"),
        ("(kTileM + kTileN) * kTileK", "(kTileM + kTileN + 64) * kTileK"),
        ("parity ^= stage == kStages - 1;", ""),
        ("stage + 1 < kStages ? stage + 1 : 0", "stage"),
        ("stage + 1 < kStages ? stage + 1 : 0", "stage + 1 < kStages - 1 ? stage + 1 : 0"),
        ("wgmma_fence();", ""),
        ("wgmma_commit();", ""),
        ("wgmma_wait<1>();", ""),
        ("wgmma_wait<1>();", "wgmma_wait<2>();"),
        ("wgmma_wait<0>();", ""),
        ("wgmma_wait<0>();", "wgmma_wait<1>();"),
        ("if (lane == 0 && k0 > 0) mbarrier_arrive(&empty[before]);", ""),
        ("if (lane == 0 && k0 > 0) mbarrier_arrive(&empty[before]);", "if (lane == 0) mbarrier_arrive(&empty[stage]);"),
        ("if (lane == 0 && k0 > 0)", "if (lane == 0)"),
        ("if (lane == 0) mbarrier_arrive(&empty[before]);", ""),
        ("before = stage;", "before = 0;"),
        ("&x_map, k0, m0", "&x_map, k0, n0"),
        ("&x_map, k0, m0", "&x_map, 0, m0"),
        ("&x_map, k0, m0", "&w_map, k0, m0"),
        ("&w_map, k0, n0", "&w_map, k0 + kTileK, n0"),
        ("tensor_load(&x_tiles[stage * kStage]", "tensor_load(&x_tiles[0]"),
        ("tensor_load(&w_tiles[stage * kStage]", "tensor_load(&w_tiles[stage * kStage + 8]"),
        ("k0, n0, &full[stage]", "k0, n0, &full[0]"),
        ("k0 + step > 0", "true"),
        ("k0 + step > 0", "step > 0"),
        ("k0 + step > 0", "k0 > 0"),
        ("+ 16 * step],\n", "],\n"),
        ("&w_tiles[stage * kStage + 16 * step]", "&w_tiles[16 * step]"),
        ("&x_tiles[stage * kStage + (", "&x_tiles[("),
        ("warp / 4 * (32 * kThreadM) + 64 * i", "64 * i"),
        ("warp % 4 * 16 + lane / 4", "lane / 4"),
        ("tm + i / 2 * 64 + i % 2 * 8", "tm + i / 2 * 64 + i % 2"),
        ("kept(lane % 4)", "kept(lane / 8)"),
        ("[2 * j + i % 2 * 2 + e]", "[2 * j + e]"),
        ("tile += gridDim.x", "tile += gridDim.x + 1"),
        ("(rows + kTileM - 1) / kTileM", "rows / kTileM"),
        ("min(blocks_m - group_m, kGroup)", "kGroup"),
        ("m < rows", "true"),
        ("kWholeN || n < kCols", "true"),
        ("warp >= kWarps", "warp > kWarps"),
        ("x_tiles + kTileM * kTileK", "x_tiles"),
        ("(x_tiles + kStages * kStage)", "(x_tiles + kStage)"),
        ("empty = full + kStages", "empty = full + 1"),
    ],
    ("two sums", "a team"): [
        ("wgmma_f16<kTileN>(u_part[i]", "wgmma_f16<kTileN>(g_part[i]"),
        ("&up_tiles[stage * kStage + 16", "&w_tiles[stage * kStage + 16"),
        ("(kTileM + 2 * kTileN)", "(kTileM + kTileN)"),
        ("&up_map", "&w_map"),
    ],
    ("linear", "a team of 128 lines"): [
        ("64 * i)", "i)"),
        ("tm + i / 2 * 64", "tm + i / 2 * 8"),
        ("y_part[i / 2]", "y_part[0]"),
    ],
    ("values of all kinds behind", "a team"): [("scale + m", "scale + m0"), ("bias + n", "bias + n0")],
    ("values of lines and columns to 16 bits", "a team of 128 lines"): [
        ("n0 == 0 && tn == 0 && pass == 0", "n0 == 0 && pass == 0"),
        ("n0 == 0 && tn == 0 && pass == 0", "tn == 0 && pass == 0"),
        ("if (m < rows)", "if (true)"),
        ("kWholeN || n < kCols", "true"),
        ("scale + m", "scale + m0"),
        ("bias + n", "bias + n0"),
    ],
    ("linear to 16 bits", "broadest"): [
        ("shared_fence();", ""),
        ("        __syncwarp();\n", ""),
        ("if (lane == 0) mbarrier_arrive(&made[stage]);", ""),
        ("if (lane == 0) mbarrier_arrive(&made[stage]);", "mbarrier_arrive(&made[stage]);"),
        ("mbarrier_init(&made[stage], kWarps);", "mbarrier_init(&made[stage], 1);"),
        ("made = empty + kStages", "made = empty"),
        ("mbarrier_wait(&made[stage], made_parity >> stage & 1);", ""),
        ("made_parity >> stage & 1", "0"),
        ("made_parity ^= 1u << stage;", ""),
        ("made_parity ^= 1u << stage;", "made_parity ^= 1u;"),
        ("tensor_stores_read();", ""),
        ("mbarrier_arrive_for(&empty[stage], kWarps);", ""),
        ("mbarrier_arrive_for(&empty[stage], kWarps);", "mbarrier_arrive_for(&empty[stage], 1);"),
        (
            "tensor_stores_read();\n            mbarrier_arrive_for(&empty[stage], kWarps);",
            "mbarrier_arrive_for(&empty[stage], kWarps);\n            tensor_stores_read();",
        ),
        ("n + at, m0", "n, m0"),
        ("n + at, m0", "n + at, 0"),
        ("n + at, m0", "n0 + at, m0"),
        ("at * kTileM]", "at]"),
        ("&y_tiles[stage * kStage + at", "&y_tiles[at"),
        ("at += 64", "at += 128"),
        ("n += kPassN", "n += 2 * kPassN"),
        ("(stage + (kInner + kTileK - 1) / kTileK) % kStages", "stage"),
        ("(stage + (kInner + kTileK - 1) / kTileK) % kStages", "(stage + kInner / kTileK) % kStages"),
        ("mbarrier_arrive(&full[stage]);", ""),
        ("next_stage();", ""),
        ("(pass + 1) * (kPassN / 4)", "kPassN / 4"),
        ("pass < kTileN / kPassN", "pass < 1"),
        ("return stage * kStage + ", "return "),
        ("j / 16 % (kPassN / 64) * kTileM", "0"),
        ("j / 16 % (kPassN / 64)", "j / 16"),
        ("own_m(i)) * 64", "tm) * 64"),
        ("(j / 2 % 8 ^ tm % 8) * 8", "j / 2 % 8 * 8"),
        ("+ 2 * tn", "+ tn"),
        ("if (warp == kWarps + 1)", "if (warp == kWarps)"),
    ],
    ("a residual of 16 bits", "broadest"): [
        ("kTileM * kPassN * 2);", "kTileM * kPassN);"),
        ("n + at, m0, &full[stage]", "n0 + at, m0, &full[stage]"),
        ("n + at, m0, &full[stage]", "n + at, 0, &full[stage]"),
        ("&res_tiles[stage * kStage + at * kTileM]", "&res_tiles[stage * kStage]"),
        ("&res_map", "&y_map"),
        ("j % (kPassN / 4) / kWidth", "j % 2"),
        ("cell_of(i, j)", "cell_of(0, j)"),
        ("mbarrier_wait(&full[stage], parity);", ""),
    ],
    ("a residual of 16 bits", "of three times 32 columns"): [
        ("kTileM * kPassN * 2);", "kTileM * kPassN);"),
        ("kTileM * kPassN * 2);", "kTileM * kPassN / 32 * 64 * 2);"),
        ("at += 32", "at += 64"),
        ("at += 32", "at += 16"),
        ("&res_tiles[stage * kStage + at * kTileM]", "&res_tiles[stage * kStage + at * kTileM / 2]"),
        ("j / 8 % (kPassN / 32)", "j / 16 % (kPassN / 32)"),
        ("j / 8 % (kPassN / 32)", "j / 8 % 2"),
        ("own_m(i)) * 32", "own_m(i)) * 64"),
        ("(j / 2 % 4 ^ tm / 2 % 4)", "(j / 2 % 8 ^ tm % 8)"),
        ("(j / 2 % 4 ^ tm / 2 % 4)", "(j / 2 % 4 ^ tm % 4)"),
        ("(j / 2 % 4 ^ tm / 2 % 4)", "(j / 2 % 4 ^ tm / 2 % 2)"),
        ("(j / 2 % 4 ^ tm / 2 % 4)", "(j / 2 % 4)"),
    ],
    ("results in two places and reduced", "of five"): [
        ("kTileM * kPassN * 2);", "kTileM * kTileN * 2);"),
        ("n += kPassN", "n += 64"),
        ("+ kTileM * kPassN", ""),
        ("j / 8 % (kPassN / 32)", "j / 8"),
        ("(j / 2 % 4 ^ tm / 2 % 4)", "(j / 2 % 4 ^ tm % 4)"),
        ("pass + 1 == kTileN / kPassN", "pass == 0"),
        ("pass < kTileN / kPassN", "pass < kTileN / 64"),
        ("(pass + 1) * (kPassN / 4)", "(pass + 1) * (kPassN / 8)"),
    ],
    ("results in two places and reduced", "a team"): [
        ("+ kTileM * kPassN", ""),
        ("all_own[i] = 0.0f", "all_own[0] = 0.0f"),
        ("lanes < 4", "lanes < 2"),
        ("lanes = 1; lanes", "lanes = 2; lanes"),
        ("tn == 0 && m < rows", "m < rows"),
        ("tn == 0 && m < rows", "tn == 0"),
        ("n0 / kTileN) * rows", "0) * rows"),
        ("1 * blocks_n + n0 / kTileN", "n0 / kTileN"),
        ("m0 / kTileM % kTickets", "0"),
        ("m0 / kTileM % kTickets", "m0 / kTileM"),
        ("lines * blocks_n", "blocks_n"),
        ("first += kTickets * kTileM", "first += rows"),
        ("kBeside + beside]", "kBeside]"),
        ("first + 32 * beside + lane", "first + lane"),
        ("min(first + kTileM, rows)", "rows"),
        ("min(first + kTileM, rows)", "first + kTileM"),
        ("beside == 0 ? kWarps - kBeside + 1 : 1", "kWarps"),
        ("if (beside == 0 && lane == 0)", "if (lane == 0)"),
        ("tile = 0; tile < blocks_n", "tile = 1; tile < blocks_n"),
        ("    fence_device();\n    mine", "    mine"),
        ("+ 1;\n    fence_device();", "+ 1;"),
    ],
}


@pytest.mark.parametrize("key", MUTANTS, ids=" ".join)
def test_whatever_is_wrong_in_a_kernel_of_warpgroups_shows(key: tuple[str, str]) -> None:
    name, way = key
    modules = {sizes: CASES[name].module(sizes, WAYS[way]) for sizes in OF_NARROW.get(way) or OF_CASES.get(name, SIZES)}
    assert not survivors(CASES[name], modules, MUTANTS[key])
