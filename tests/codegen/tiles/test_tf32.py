"""Kernels of tensor cores that multiply float32 rounded to TF32, on the CPU executor, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from normgen.cpu import build_many, find_compiler
from normgen.dtypes import TF32
from normgen.program.functions import Stored, cast
from normgen.program.ir import Reduce
from normgen.program.monoid import symbol
from tests.codegen.tiles.cases import COPIED, turned
from tests.codegen.tiles.handmade import Case, Sizes, ran
from tests.codegen.tiles.test_tensor_cores import WARP
from tests.codegen.tiles.test_wgmma import TEAM, TWO

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


def rounded(case: Case) -> Case:
    """The same with the factors of its products rounded to TF32; what else is made of them is not."""
    dots = [s for s in case.statements if isinstance(s, Reduce) and s.is_dot]
    factors = {arg for s in dots for arg in s.args}

    def truth(arrays: Any) -> Any:
        near = {name: TF32.stored(a).astype(np.float64) for name, a in arrays.items() if symbol(name) in factors}
        return case.truth({**arrays, **near})

    made = {s: replace(s, args=tuple(cast(arg, Stored("tf32")) for arg in s.args)) for s in dots}
    return replace(case, statements=tuple(made.get(s, s) for s in case.statements), truth=truth)


NAMES = ("linear", "two sums", "two sums of four sides", "added to y", "values of all kinds behind")
CASES = {name: rounded(turned(COPIED[name])) for name in NAMES} | {"dx": rounded(COPIED["dx"])}
WORDS = {"vector": 4, "tile_k": 32}
WAYS = {
    "a team": TEAM.varied(**WORDS),
    "two teams": TWO.varied(**WORDS),
    "a team of 128 lines": TEAM.varied(**WORDS, tile_m=128, thread_m=4),
    "broad": TWO.varied(**WORDS, tile_n=128, thread_n=32, stages=4),
    "broadest": TWO.varied(**WORDS, tile_n=256, thread_n=64, stages=2),
}
WARPS = {
    "a warp": WARP.varied(tile_k=16),
    "two stages": WARP.varied(stages=2, vector=4),
    "four warps": WARP.varied(stages=2, tile_m=64, tile_n=64, thread_m=4, thread_n=8),
}
AROUND: tuple[Sizes, ...] = ((63, 36, 60), (64, 32, 64), (65, 28, 68), (1, 4, 4), (0, 32, 8), (200, 164, 140))
FEW: tuple[Sizes, ...] = ((200, 132, 76), (130, 36, 264))


@pytest.mark.parametrize("name", CASES)
def test_teams_are_right_on_both_sides_of_every_edge(name: str) -> None:
    """A tile less some, a tile, a tile and some, and 1 line, in each of m, n and k; more tiles than blocks."""
    for way, all_sizes in (("a team", AROUND), ("two teams", AROUND[-1:])):
        programs = build_many([CASES[name].module(sizes, WAYS[way]) for sizes in all_sizes])
        for number, (program, sizes) in enumerate(zip(programs, all_sizes, strict=True)):
            assert not ran(CASES[name], program, sizes, pad=4 * (number % 2), seed=number), (way, sizes)


@pytest.mark.parametrize("way", WAYS)
def test_teams_own_their_part_of_any_tile(way: str) -> None:
    programs = build_many([CASES["linear"].module(sizes, WAYS[way]) for sizes in FEW])
    for program, sizes in zip(programs, FEW, strict=True):
        assert not ran(CASES["linear"], program, sizes, pad=4, seed=2), sizes


@pytest.mark.parametrize("way", WARPS)
@pytest.mark.parametrize("name", ["linear", "two sums", "dx"])
def test_warps_are_right_on_both_sides_of_every_edge(name: str, way: str) -> None:
    programs = build_many([CASES[name].module(sizes, WARPS[way]) for sizes in AROUND])
    for number, (program, sizes) in enumerate(zip(programs, AROUND, strict=True)):
        assert not ran(CASES[name], program, sizes, pad=4 * (number % 2), seed=number), sizes
