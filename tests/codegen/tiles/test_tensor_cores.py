"""Kernels of tensor cores on the CPU executor, against float64: edges, orders of the sides, all that follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from normgen.codegen.module import Module
from normgen.cpu import build_many, find_compiler
from normgen.knobs import Copy, DependentLaunch, Fragment, Hold
from normgen.schedule.schedule import Schedule
from tests.codegen.tiles.cases import OF_TENSORS, STREAMED
from tests.codegen.tiles.handmade import Case, Sizes, ran

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
WARP = Schedule(hold=Hold.SHARED, fragment=Fragment.MMA, tile_m=16, tile_n=16, tile_k=32, thread_m=2, thread_n=4)
AHEAD = WARP.varied(copy=Copy.CP_ASYNC, stages=3, vector=8)
FOUR = {"tile_m": 64, "tile_n": 64, "thread_m": 4, "thread_n": 8}  # warps, two along m and two along n
PLAIN = {"shared": WARP, "two stages": WARP.varied(stages=2)}
WAYS = {
    **PLAIN,
    "copied": AHEAD.varied(stages=1),
    "copied two ahead": AHEAD.varied(stages=2, vector=4),
    "copied ahead": AHEAD,
    "copied in pairs": AHEAD.varied(stages=4, vector=2, tile_k=64),
}
AROUND = ((15, 33, 16), (16, 31, 15), (17, 32, 17), (1, 1, 1), (0, 3, 5))
PAIRS = ((14, 34, 18), (18, 62, 16), (16, 32, 14), (2, 2, 2))  # no vectors of more than two elements
WIDE = ((24, 72, 40), (8, 136, 24), (16, 32, 16), (40, 8, 8))
BROAD = ((72, 104, 40), (136, 64, 72))


def modules(case: Case, way: Schedule) -> Iterator[tuple[Module, tuple[Sizes, ...]]]:
    if way.copy is Copy.DIRECT:
        yield case.module((1, 1, 1), way, any_cols=True), AROUND
        yield case.module((16, 32, 16), way), ((16, 32, 16),)
        return
    for sizes in PAIRS if way.vector == 2 else WIDE:
        yield case.module(sizes, way), (sizes,)
    for sizes in BROAD:
        yield case.module(sizes, way.varied(**FOUR)), (sizes,)


def faults(case: Case, way: Schedule) -> list[str]:
    built = [*modules(case, way)]
    programs = build_many([module for module, _ in built])
    found = []
    for program, (_, all_sizes) in zip(programs, built, strict=True):
        for number, sizes in enumerate(all_sizes):
            found += [f"{sizes}: {one}" for one in ran(case, program, sizes, pad=8 * (number % 2), seed=1)]
    return found


@pytest.mark.parametrize("name", OF_TENSORS)
def test_a_kernel_is_right_on_both_sides_of_every_edge(name: str) -> None:
    """A tile less one, a tile, a tile and one, and 1, in each of m, n and k; by registers and by copies."""
    case = OF_TENSORS[name]
    often = name in ("linear", "linear, w turned", "two sums")
    ways = WAYS if often else {way: WAYS[way] for way in ("two stages", "copied ahead")}
    for way in ways:
        if name == "a cast" and "copied" in way:
            continue  # of what is cast nothing is copied; the other side is, below
        assert not faults(case, ways[way]), way


@pytest.mark.parametrize("name", ["a cast", "linear, both turned", "dw and dbias"])
def test_a_side_may_pass_through_registers_while_the_other_is_copied(name: str) -> None:
    case = OF_TENSORS[name]
    case = case if name == "a cast" else replace(case, null_as={"x": 1.0})
    for stages in (1, 2):
        assert not faults(case, AHEAD.varied(stages=stages, vector=4)), stages


@pytest.mark.parametrize(
    "knobs",
    [
        {"tile_m": 128, "tile_n": 64, "thread_m": 8, "thread_n": 16, "tile_k": 64},
        {"tile_m": 16, "tile_n": 256, "thread_m": 2, "thread_n": 8},
        {"tile_m": 256, "tile_n": 16, "thread_m": 16, "thread_n": 4, "stages": 4},
        {"tile_m": 64, "tile_n": 64, "thread_m": 8, "thread_n": 4, "stages": 2},
    ],
    ids=str,
)
def test_warps_own_their_part_of_any_tile(knobs: dict[str, int]) -> None:
    for name in ("linear", "linear, both turned", "two sums of four sides", "reductions of the result"):
        sizes = (136, 72, 72)
        [program] = build_many([OF_TENSORS[name].module(sizes, AHEAD.varied(**knobs))])
        assert not ran(OF_TENSORS[name], program, sizes, pad=8), name


def test_groups_of_lines_of_tiles_reach_every_tile_once() -> None:
    """More than two groups, and a part of one, whatever the order in which blocks run."""
    case = OF_TENSORS["linear"]
    [program] = build_many([case.module((1, 1, 1), WARP, any_cols=True)])
    for sizes in ((16 * 19, 8, 40), (16 * 8, 8, 16), (16 * 7 + 1, 8, 33)):
        assert not ran(case, program, sizes, seed=3), sizes


STRAIGHT = Schedule(hold=Hold.RELOAD, fragment=Fragment.MMA, vector=8, tile_m=16, tile_n=16, tile_k=32, thread_n=4)
STREAMS = {
    "two warps": STRAIGHT.varied(thread_m=1),
    "a warp": STRAIGHT.varied(thread_m=2),
    "eight lines": STRAIGHT.varied(tile_m=8, tile_n=32, tile_k=128, thread_m=1),
    "early": STRAIGHT.varied(thread_m=2, dependent_launch=DependentLaunch.START),
    "four vectors ahead": STRAIGHT.varied(tile_m=32, tile_n=32, tile_k=128, thread_m=1, thread_n=2),
    "broad": STRAIGHT.varied(tile_m=64, tile_n=64, thread_m=16, thread_n=2),
}
LONG = ((15, 64, 16), (17, 72, 24), (1, 8, 8), (16, 32, 16), (33, 520, 40), (0, 16, 8))


@pytest.mark.parametrize("name", STREAMED)
def test_factors_straight_from_memory_are_right_on_both_sides_of_every_edge(name: str) -> None:
    for way in STREAMS if name == "linear" else ("two warps", "four vectors ahead"):
        programs = build_many([STREAMED[name].module(sizes, STREAMS[way]) for sizes in LONG])
        for program, sizes in zip(programs, LONG, strict=True):
            assert not ran(STREAMED[name], program, sizes, pad=8, seed=2), (way, sizes)


ACROSS = {
    "a warp": STRAIGHT.varied(tile_m=8, tile_n=64, thread_m=4, thread_n=4),
    "two vectors ahead": STRAIGHT.varied(tile_n=128, tile_k=64, thread_m=2, thread_n=4),
    "early parts": STRAIGHT.varied(tile_n=64, thread_m=4, cluster=2, dependent_launch=DependentLaunch.START),
}


@pytest.mark.parametrize("name", ["linear", "linear, f16", "two sums", "squares beside the products", "added to y"])
def test_a_matrix_across_k_is_read_by_columns(name: str) -> None:
    case = OF_TENSORS[name]
    for way in ACROSS if name == "linear" else ("two vectors ahead", "early parts"):
        for sizes in ((15, 64, 16), (17, 72, 136), (1, 40, 8), (9, 520, 72)):
            [program] = build_many([case.module(sizes, ACROSS[way])])
            assert not ran(case, program, sizes, pad=8, seed=2), (way, sizes)


IN_PARTS = {
    "streamed": STREAMS["two warps"].varied(cluster=2),
    "streamed, early": STREAMS["four vectors ahead"].varied(cluster=4, dependent_launch=DependentLaunch.START),
    "copied": AHEAD.varied(cluster=2),
    "by registers": WARP.varied(stages=2, vector=8, cluster=4, **FOUR),
}


@pytest.mark.parametrize("name", sorted(STREAMED.keys() - {"reductions of the result", "dx"}))
def test_blocks_of_a_cluster_share_k(name: str) -> None:
    """Parts that end with a tile, within one, and where the last one has one vector."""
    case = STREAMED[name]
    for way, schedule in IN_PARTS.items():
        parts, tile = schedule.cluster, schedule.tile_k
        for rows, inner, cols in (
            (15, parts * tile, 16),
            (17, 2 * parts * tile - 8, 40),
            (1, (parts - 1) * tile + 8, 8),
        ):
            [program] = build_many([case.module((rows, inner, cols), schedule)])
            assert not ran(case, program, (rows, inner, cols), pad=8, seed=2), (way, rows, inner, cols)


def test_a_row_has_the_same_bits_beside_any_other_rows() -> None:
    case, bits = STREAMED["linear"], []
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((40, 136), (24, 136)))
    for rows in (1, 3, 40):
        [program] = build_many([case.module((rows, 136, 24), STREAMS["four vectors ahead"])])
        y = np.full((rows, 24), np.nan, np.float32)
        assert not program.run({"x": x[:rows].copy(), "w": w, "y": y}, rows=rows, cols=24, inner=136, seed=rows).faults
        bits.append(y[0].tobytes())
    assert bits[0] == bits[1] == bits[2]
