"""Kernels of contractions on the CPU executor, which sees races and strays, against float64, around all edges."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from normgen.codegen.module import Launch, Module, Source
from normgen.cpu import build_many, find_compiler
from normgen.knobs import Copy, Hold
from normgen.schedule.schedule import Schedule
from tests.codegen.tiles.cases import CASES, COPIED, PARTLY_COPIED, TWO_ORDERS
from tests.codegen.tiles.handmade import LINEAR, SMALL, Case, Sizes, ran

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
WAYS = {
    "reload": SMALL.varied(hold=Hold.RELOAD),
    "shared": SMALL,
    "two stages": SMALL.varied(stages=2),
    "copied": SMALL.varied(copy=Copy.CP_ASYNC),
    "copied ahead": SMALL.varied(copy=Copy.CP_ASYNC, stages=3),
}
WIDE = {"vector": 4, "tile_n": 32, "thread_n": 4}  # a thread's columns lie in two places of a line
SHORT = ("reload", "two stages", "copied ahead")  # of most cases; the others differ in the loop over k alone
AROUND = ((15, 9, 16), (16, 8, 15), (17, 7, 17), (1, 1, 1), (0, 3, 5))
WHOLE = (20, 20, 36)  # whole vectors, and no whole tiles


def modules(case: Case, way: Schedule) -> Iterator[tuple[Module, tuple[Sizes, ...]]]:
    yield case.module((1, 1, 1), way, any_cols=True), AROUND
    yield case.module((16, 16, 16), way), ((16, 16, 16),)  # sizes that the text knows to be whole tiles
    if way.hold is Hold.SHARED:
        yield case.module(WHOLE, way.varied(**WIDE)), (WHOLE,)


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_is_right_on_both_sides_of_every_edge(name: str) -> None:
    """A tile less one, a tile, a tile and one, and 1, in each of m, n and k; with gaps behind lines, and without."""
    case = CASES[name]
    ways = [WAYS[way] for way in (WAYS if name in ("linear", "silu of x") else SHORT)]
    ways = [way for way in ways if way.copy is Copy.DIRECT or name in (*COPIED, *PARTLY_COPIED)]
    built = [one for way in ways for one in modules(case, way)]
    programs = build_many([module for module, _ in built])
    for program, (module, all_sizes) in zip(programs, built, strict=True):
        for number, sizes in enumerate(all_sizes):
            assert not ran(case, program, sizes, pad=4 * (number % 2), seed=1), f"{sizes}: {module.kernels[0].name}"


@pytest.mark.parametrize(
    "knobs",
    [
        {"tile_m": 64, "tile_n": 32, "tile_k": 16, "thread_m": 8, "thread_n": 8, "vector": 8},
        {"tile_m": 32, "tile_n": 128, "tile_k": 16, "thread_m": 16, "thread_n": 8, "vector": 4},
        {"tile_m": 32, "tile_n": 16, "tile_k": 32, "thread_m": 1, "thread_n": 2, "vector": 2},
        {"tile_m": 256, "tile_n": 16, "tile_k": 8, "thread_m": 8, "thread_n": 4, "vector": 1},
    ],
    ids=str,
)
def test_a_thread_owns_its_pieces_of_any_tile(knobs: dict[str, int]) -> None:
    """More and fewer vectors than threads, pieces of 1, 2 and 4 floats, several pieces a line."""
    sizes = (40, 24, 72)
    for name, way in (
        ("extrema beside the products", "copied ahead"),
        ("dw and dbias", "shared"),
        ("16-bit types", "shared"),
    ):
        [program] = build_many([CASES[name].module(sizes, WAYS[way].varied(**knobs))])
        assert not ran(CASES[name], program, sizes), name


def test_a_tensor_that_is_not_given_stands_for_its_number_and_one_that_is_not_wanted_is_not_written() -> None:
    case, sizes = CASES["a gain along inner"], (17, 9, 15)
    for way in (WAYS["reload"], WAYS["shared"]):
        [program] = build_many([case.module(sizes, way, any_cols=True)])
        assert not ran(case, program, sizes, absent=("gain", "rstd"))


def test_offsets_have_64_bits_and_a_launch_has_a_block_for_each_tile() -> None:
    launch = LINEAR.module((100, 9, 33)).kernels[0].launch
    assert launch.tiles == ((Source.ROWS, 16), (Source.COLS, 16))
    assert launch.grid(rows=100, cols=33, inner=9, sm_count=2) == 7 * 3
    assert launch.grid(rows=0, cols=33, inner=9, sm_count=2) == 0
    text = LINEAR.module((100, 9, 33)).text
    assert len(re.findall(r"long long \w+_pitch", text)) == len(set(re.findall(r"\w+_pitch", text))) == 3
    assert repr(Launch(threads=32)) == repr(Launch(threads=32, tiles=((Source.ROWS, 1),))), (
        "launches keep their digests"
    )


def test_the_lines_of_a_tensor_may_lie_further_apart_than_they_are_long() -> None:
    case, sizes = CASES["linear, w turned"], (17, 20, 15)
    [program] = build_many([case.module(sizes, SMALL.varied(stages=2))])
    assert not ran(case, program, sizes, pad=12)


def test_tensors_of_one_side_may_lie_along_different_axes() -> None:
    """A thread moves several elements of each tile: along one tensor's lines, and across the other's."""
    sizes = (70, 21, 37)
    for knobs in ({"tile_m": 64, "tile_n": 32, "thread_m": 8, "thread_n": 8}, {"tile_k": 16, "stages": 2}):
        [program] = build_many([TWO_ORDERS.module(sizes, SMALL.varied(vector=1, **knobs))])
        assert not ran(TWO_ORDERS, program, sizes, pad=3), knobs


def test_what_reduces_its_result_gives_the_same_bits_in_whatever_order_blocks_arrive() -> None:
    """And leaves the ticket for the next call."""
    case, sizes = CASES["reductions of the result"], (37, 9, 41)
    module = case.module(sizes, SMALL, any_cols=True)
    [program] = build_many([module])
    rng, lengths = np.random.default_rng(0), dict(zip(("rows", "inner", "cols"), sizes, strict=True))
    arrays: dict[str, Any] = {
        name: rng.standard_normal([lengths[axis] for axis in axes] or [1]).astype(np.float32)
        for name, axes in case.tensors.items()
    }
    given = {"cols": sizes[2], "inner": sizes[1]}
    workspace = np.full(module.workspace_bytes(rows=sizes[0], sm_count=4, **given), 0xFF, np.uint8)
    workspace[: module.zeroed_bytes()] = 0
    found = []
    for seed in (0, 1, 2):
        run = program.run(arrays, rows=sizes[0], **given, scalars=case.scalars, seed=seed, workspace=workspace)
        assert not run.faults
        assert not workspace[: module.zeroed_bytes()].any()
        found.append({name: arrays[name].tobytes() for name in case.stores})
    assert found[0] == found[1] == found[2]
