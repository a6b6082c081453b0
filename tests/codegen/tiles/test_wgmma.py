"""Kernels of warpgroups on the CPU executor, against float64: edges, all that follows, and one line wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.cpu import build_many, find_compiler
from normgen.knobs import Copy, Fragment, Hold
from normgen.program.ir import Map, Store
from normgen.program.monoid import symbol
from normgen.schedule.schedule import Schedule
from normgen.spec.spec import Kind
from tests.codegen.tiles.cases import STORE, STREAMED, TURNED, product
from tests.codegen.tiles.handmade import BEFORE, Case, Sizes, dot, ran
from tests.codegen.tiles.test_tensor_mutants import survivors

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
x, w, h, bias, scale = map(symbol, ("x", "w", "h", "bias", "scale"))
OF_WORDS = {**TURNED, "bias": ("cols",), "scale": ("rows",), "top": ("rows",)}
CASES = {
    **STREAMED,
    "linear to 16 bits": replace(STREAMED["linear, f16"], dtypes=dict.fromkeys("xwy", "f16")),
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
    "of seven": TWO.varied(tile_n=224, thread_n=56, stages=2),
    "broadest": TWO.varied(tile_n=256, thread_n=64, stages=2),
    "two teams of 128 lines": TWO.varied(tile_m=256, thread_m=4, tile_n=128, thread_n=32, stages=2),
}
NAMES = ("linear", "linear, f16", "two sums", "two sums of four sides", "added to y", "values of all kinds behind")
NAMES += ("numbers of rows and columns", "all of 16 bits", "dx", *(name for name in CASES if name not in STREAMED))
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
# Tiles of 128 x 64: 3 x 2, four of k, on four blocks; a group of lines of tiles and a part of one; one of each.
SIZES: tuple[Sizes, ...] = ((328, 200, 72), (2184, 8, 16), (72, 104, 72))
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
        ("(kTileM + kTileN) * kTileK * 2", "(kTileM + kTileN) * kTileK"),
        ("(kTileM + kTileN) * kTileK * 2", "kTileM * kTileK * 2"),
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
        ("tensor_load(&x_tiles[stage * kTileM * kTileK]", "tensor_load(&x_tiles[0]"),
        ("tensor_load(&w_tiles[stage * kTileN * kTileK]", "tensor_load(&w_tiles[stage * kTileN * kTileK + 8]"),
        ("k0, n0, &full[stage]", "k0, n0, &full[0]"),
        ("k0 + step > 0", "true"),
        ("k0 + step > 0", "step > 0"),
        ("k0 + step > 0", "k0 > 0"),
        ("+ 16 * step],\n", "],\n"),
        ("&w_tiles[stage * kTileN * kTileK + 16 * step]", "&w_tiles[16 * step]"),
        ("warp / 4 * (32 * kThreadM) + 64 * i", "64 * i"),
        ("warp % 4 * 16 + lane / 4", "lane / 4"),
        ("tm + i / 2 * 64 + i % 2 * 8", "tm + i / 2 * 64 + i % 2"),
        ("kept(lane % 4)", "kept(lane / 8)"),
        ("y_piece[2 * i], y_piece[2 * i + 1]", "y_piece[2 * i + 1], y_piece[2 * i]"),
        ("[2 * j]", "[j]"),
        ("tile += gridDim.x", "tile += gridDim.x + 1"),
        ("(rows + kTileM - 1) / kTileM", "rows / kTileM"),
        ("min(blocks_m - group_m, kGroup)", "kGroup"),
        ("m < rows", "true"),
        ("kWholeN || n < kCols", "true"),
        ("warp >= kWarps", "warp > kWarps"),
        ("kStages * kTileM * kTileK", "kTileM * kTileK"),
        ("(w_tiles + kStages * kTileN * kTileK)", "(w_tiles + kTileN * kTileK)"),
        ("empty = full + kStages", "empty = full + 1"),
    ],
    ("two sums", "a team"): [
        ("wgmma_f16<kTileN>(u_part[i]", "wgmma_f16<kTileN>(g_part[i]"),
        ("&up_tiles[stage * kTileN * kTileK + 16", "&w_tiles[stage * kTileN * kTileK + 16"),
        ("(kTileM + 2 * kTileN)", "(kTileM + kTileN)"),
        ("&up_map", "&w_map"),
    ],
    ("linear", "a team of 128 lines"): [("64 * i)", "i)"), ("tm + i / 2 * 64", "tm + i / 2 * 8")],
    ("values of all kinds behind", "a team"): [("scale + m", "scale + m0"), ("bias + n", "bias + n0")],
    ("values of lines added beside f32", "a team"): [("n0 == 0 && tn == 0 && j == 0", "n0 == 0 && tn == 0")],
    ("values of lines and columns to 16 bits", "a team of 128 lines"): [
        ("n0 == 0 && tn == 0 && piece == 0", "n0 == 0 && tn == 0"),
        ("whole_words(y_pieces[i].bits);", ""),
        ("whole_words(y_pieces[i].bits);", "whole_words(y_pieces[0].bits);"),
        ("4 * piece + 8 * tn", "4 * piece"),
        ("4 * piece + 8 * tn", "piece + 8 * tn"),
        ("(j - piece) / kWidth", "(j - piece) / 4"),
        ("[2 * j + i % 2 * 2 + e]", "[2 * j + e]"),
        ("[2 * j + i % 2 * 2 + e]", "[2 * piece + i % 2 * 2 + e]"),
        ("h_part[i / 2]", "h_part[0]"),
        ("if (m < rows)", "if (true)"),
        ("kWholeN || n < kCols", "true"),
        ("scale + m", "scale + m0"),
        ("bias + n", "bias + n0"),
    ],
}


@pytest.mark.parametrize("key", MUTANTS, ids=" ".join)
def test_whatever_is_wrong_in_a_kernel_of_warpgroups_shows(key: tuple[str, str]) -> None:
    name, way = key
    modules = {sizes: CASES[name].module(sizes, WAYS[way]) for sizes in SIZES}
    assert not survivors(CASES[name], modules, MUTANTS[key])
