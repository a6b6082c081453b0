"""Kernels of tensor cores that multiply float32 rounded to TF32, on the CPU executor, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from normgen.cpu import build_many, find_compiler
from normgen.device import target
from normgen.dtypes import TF32
from normgen.program.functions import Stored, cast
from normgen.program.ir import Reduce
from normgen.program.monoid import symbol
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.tiles.plan import TilePlan, tile_plan_of
from normgen.spec.reader import load
from tests.codegen.tiles.asked import TURNED
from tests.codegen.tiles.cases import COPIED, turned
from tests.codegen.tiles.handmade import SMALL, Case, Sizes, ran
from tests.codegen.tiles.test_mutants import wrong
from tests.codegen.tiles.test_tensor_cores import WARP
from tests.codegen.tiles.test_tensor_mutants import survivors
from tests.codegen.tiles.test_wgmma import TEAM, TWO

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

NEAR = 4e-7  # of a factor that is rounded another way the product is farther off


def rounded(case: Case) -> Case:
    """The same with the factors of its products rounded to TF32; what else is made of them is not."""
    dots = [s for s in case.statements if isinstance(s, Reduce) and s.is_dot]
    factors = {arg for s in dots for arg in s.args}

    def truth(arrays: Any) -> Any:
        near = {name: TF32.stored(a).astype(np.float64) for name, a in arrays.items() if symbol(name) in factors}
        return case.truth({**arrays, **near})

    made = {s: replace(s, args=tuple(cast(arg, Stored("tf32")) for arg in s.args)) for s in dots}
    return replace(case, statements=tuple(made.get(s, s) for s in case.statements), truth=truth, bound=NEAR)


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


@pytest.mark.parametrize("way", ["a team", "a warp", "threads"])
def test_the_nearest_is_taken_and_of_two_the_even_one(way: str) -> None:
    """Times 1, by the copy engine and in registers: as an H200 rounds these, numbers below the normal ones too."""
    bits = np.random.default_rng(5).integers(0, 1 << 32, (64, 64), dtype=np.uint32)
    bits[::2] = bits[::2] & 0xFFFFE000 | 0x1000
    bits[1::4] &= 0x807FFFFF
    x = np.where((bits >> 23 & 255) < 254, bits, 1).view(np.float32)
    given = {"x": x, "w": np.eye(64, dtype=np.float32), "y": np.zeros((64, 64), np.float32)}
    module = CASES["linear"].module((64, 64, 64), (WAYS | WARPS | {"threads": SMALL})[way])
    changed = [wrong(module, "0xfffu + (bits >> 13 & 1u)", "0x1000u")[0]] if way != "a team" else []
    right, *away = build_many([module, *changed])
    assert not right.run(given, rows=64, cols=64, inner=64).faults
    np.testing.assert_array_equal(given["y"], TF32.stored(x.astype(np.float64)))
    for program in away:
        program.run(given, rows=64, cols=64, inner=64)
        assert (given["y"] != TF32.stored(x.astype(np.float64))).any()


def test_what_is_stored_so_or_of_16_bits_no_copy_rounds() -> None:
    """A factor of 16 bits is a TF32 as it is, but no word; results of 16 bits pass through stages."""
    wide = problem_for(load("linear_tf32"), shape=(64, 68), inner=64, dtype="f32", layout=TURNED)
    assert refusal(wide, WAYS["a team"], target("h200")) is None
    for case, problem in (("x", CASES["linear"]), ("y", CASES["linear"])):
        mixed = replace(problem, dtypes={case: "bf16"})
        why = tile_plan(mixed).fragment.refusal()
        assert (why is None) == (case == "y"), why
    narrow = replace(CASES["linear"], dtypes={"y": "bf16"}, bound=1e-2)
    sizes = ((70, 36, 68), (70, 36, 72))  # lines of 16 bits that boxes do not start, and lines that they do
    modules = [narrow.module(each, WAYS["a team"]) for each in sizes]
    assert ["tensor_store" in module.text for module in modules] == [False, True]
    for program, each in zip(build_many(modules), sizes, strict=True):
        assert not ran(narrow, program, each)


def test_results_of_8_bits_are_written_in_pieces_of_8_where_lines_have_whole_ones() -> None:
    """Vectors of four columns let lines end in the middle of a piece, or start there."""
    narrow = replace(CASES["linear"], dtypes={"y": "f8e4m3"}, bound=1e-2)
    sizes = ((70, 36, 68), (70, 36, 4), (70, 36, 72))
    modules = [narrow.module(each, WAYS["a team"]) for each in sizes]
    assert ["whole_halves" in module.text for module in modules] == [False, False, True]
    for program, each in zip(build_many(modules), sizes, strict=True):
        assert not ran(narrow, program, each), each


def tile_plan(case: Case) -> TilePlan:
    return tile_plan_of(case.problem((64, 64, 64)), case.program(), WAYS["a team"])


SIZES: tuple[Sizes, ...] = ((328, 100, 68), (2184, 4, 12), (72, 52, 76))
MUTANTS: dict[tuple[str, str], list[tuple[str, str]]] = {
    ("linear", "two teams"): [
        ("4 * kStage", "2 * kStage"),
        ("kSteps = kTileK / 8", "kSteps = kTileK / 16"),
        ("+ 8 * step],\n", "],\n"),
        ("&right_tiles[stage * kStage + 8 * step]", "&right_tiles[8 * step]"),
        ("&right_tiles[stage * kStage + 8 * step]", "&right_tiles[stage * kStage + 16 * step]"),
        ("k0 + step > 0", "step > 0"),
        ("[2 * j + i % 2 * 2 + e]", "[2 * j + e]"),
        ("kWholeN || n < kCols", "true"),
        ("m < rows", "true"),
    ],
    ("linear", "four warps"): [
        ("0xfffu + (bits >> 13 & 1u)", "0xfffu"),
        ("0xfffu + (bits >> 13 & 1u)", "0u"),
        ("lane / 16 * 4", "lane / 8 % 2 * 4"),
        ("lane / 8 % 2 * 4;", "lane / 16 * 4;"),
        ("8 * step + k_m", "8 * step"),
        ("kSteps = kTileK / 8", "kSteps = kTileK / 16"),
        ("if (step + 1 < kSteps) read_parts(stage, step + 1);", ""),
        ("(place ^ kind * 4)", "(place ^ kind)"),
        ("swizzled_words<kTileK>(stage * kTileM + m, k)", "(stage * kTileM + m) * kTileK + k"),
    ],
}


@pytest.mark.parametrize("key", MUTANTS, ids=" ".join)
def test_whatever_is_wrong_in_a_kernel_of_words_shows(key: tuple[str, str]) -> None:
    name, way = key
    modules = {sizes: CASES[name].module(sizes, (WAYS | WARPS)[way]) for sizes in SIZES}
    assert not survivors(CASES[name], modules, MUTANTS[key])
