"""Kernels of tensor cores with one line wrong: the executor or the numbers around the edges show it."""

from __future__ import annotations

import pytest

from normgen.cpu import build_many, find_compiler
from tests.codegen.tiles.cases import OF_TENSORS
from tests.codegen.tiles.handmade import Sizes, ran
from tests.codegen.tiles.test_mutants import wrong
from tests.codegen.tiles.test_tensor_cores import FOUR, WAYS

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
SYNC = "__syncthreads();"
SIZES: tuple[Sizes, ...] = ((584, 200, 136), (72, 104, 72), (40, 24, 40))  # the first: 10 x 3 tiles, seven of k
# (case, way) -> what stands in the text, and what a careless hand would write; with several places each is a mutant.
MUTANTS: dict[tuple[str, str], list[tuple[str, str]]] = {
    ("linear", "copied ahead"): [
        (SYNC, ""),
        ("cp_async_wait<kStages - 2>();", ""),
        ("cp_async_wait<kStages - 2>()", "cp_async_wait<kStages - 1>()"),
        ("    cp_async_commit();", ""),
        ("stage > 0 ? stage - 1 : kStages - 1", "stage"),
        ("k0 + (kStages - 1) * kTileK", "k0 + kStages * kTileK"),
        ("stage + 1 < kStages ? stage + 1 : 0", "stage"),
        ("if (kInner - k0 > kTileK) read_parts(stage, 0);", "read_parts(stage, 0);"),
        ("if (kInner - k0 > kTileK) read_parts(stage, 0);", ""),
        ("read_parts(stage, step + 1);", "read_parts(stage, step);"),
        ("add_products(kSteps - 1);", "add_products(0);"),
        ("add_products(step);", ""),
        ("m0 + m < rows", "true"),
        ("kWholeN || n0 + n < kCols", "true"),
        ("kWholeK || k0 + k < kInner", "true"),
        ("(inside, &", "(true, &"),
        ("m < rows", "true"),
        ("kWholeN || n < kCols", "true"),
        ("lane / 8 % 2 * kApartM", "lane / 16 * kApartM"),
        ("lane / 16 * 8", "lane / 8 % 2 * 8"),
        ("lane / 16 * kApartN", "lane / 8 % 2 * kApartN"),
        ("lane / 8 % 2 * 8", "lane / 16 * 8"),
        ("+ lane % 8", ""),
        ("warp / kWarpsN * 8", "warp % kWarpsN * 8"),
        ("warp % kWarpsN * 8", "warp / kWarpsN * 8"),
        ("read_matrices<false>", "read_matrices<true>"),
        ("read_matrices<true>", "read_matrices<false>"),
        ("16 * step + k_m", "16 * step"),
        ("i * kApartM", "i / 2 * kApartM"),
        ("j / 2 * kApartN", "j * kApartN"),
        ("&x_part[step % 2][2 * i], &w", "&x_part[step % 2][i], &w"),
        ("&w_part[step % 2][j], &y", "&w_part[step % 2][0], &y"),
        ("&w_part[step % 2][j], &y", "&w_part[0][j], &y"),
        ("&y_sum[i + 1][j]", "&y_sum[i][j]"),
        ("lane / kLanesN)", "lane % kLanesM)"),
        ("swizzled<kTileK>(stage * kTileM + m, k)", "(stage * kTileM + m) * kTileK + k"),
        ("swizzled<kTileN>(stage * kTileK + k, n)", "(stage * kTileK + k) * kTileN + n"),
        ("swizzled<kTileK>(stage * kTileM + at_m", "swizzled<kTileK>(at_m"),
        ("x_next += kTileK;", ""),
        ("w_next += kTileK * w_pitch;", "w_next += kTileK;"),
        ("min(blocks_m - group_m, kGroup)", "kGroup"),
        ("% lines) * kTileM", "% kGroup) * kTileM"),
        ("/ lines * kTileN", "/ kGroup * kTileN"),
        ("kStages * kTileM * kTileK", "kTileM * kTileK"),
    ],
    ("linear, both turned", "copied in pairs"): [
        ("k_m = lane / 16 * 8 + lane % 8", "k_m = lane / 16 * 8"),
        ("k_n = lane / 8 % 2 * 8;", "k_n = lane / 16 * 8;"),
        ("swizzled<kTileM>(stage * kTileK + k, m)", "(stage * kTileK + k) * kTileM + m"),
        ("read_matrices<true>", "read_matrices<false>"),
        ("read_matrices<false>", "read_matrices<true>"),
    ],
    ("linear", "two stages"): [
        (SYNC, ""),
        ("deposit(0);", "deposit(1);"),
        ("multiply(stage);", "multiply(0);"),
        ("if (step + 1 < kSteps) read_parts(stage, step + 1);", ""),
        ("(0.0f)", "(1.0f)"),
        ("write(&x_tiles[swizzled<kTileK>(", "write(&x_tiles[swizzled<kTileN>("),
    ],
    ("two sums", "copied ahead"): [
        ("&g_sum[i][j], &g_sum", "&u_sum[i][j], &g_sum"),
        ("&up_part[step % 2][j], &u", "&w_part[step % 2][j], &u"),
        ("w_tiles + kStages * kTileK * kTileN", "w_tiles"),
    ],
    ("squares beside the products", "copied ahead"): [
        (SYNC, ""),
        ("read<kVector>(&x_tiles[swizzled<kTileK>(stage", "read<kVector>(&x_tiles[swizzled<kTileK>(0 * stage"),
    ],
    ("reductions of the result", "copied ahead"): [
        (SYNC, ""),
        ("n0 / kTileN", "blockIdx.x % blocks_n"),
        ("[tn * kTileM + own_m(i)] =", "[tm * kTileM + own_m(i)] ="),
        ("part < kTileN / kThreadN", "part < kTileN / kThreadN - 1"),
    ],
    ("dw and dbias", "copied ahead"): [
        ("m0 == 0 && tm == 0 && i == 0", "tm == 0 && i == 0"),
        ("m0 == 0 && tm == 0 && i == 0", "m0 == 0 && i == 0"),
    ],
    ("values of all kinds behind", "copied ahead"): [("scale + m", "scale + m0"), ("bias + n", "bias + n0")],
}


@pytest.mark.parametrize("key", MUTANTS, ids=" ".join)
def test_whatever_is_wrong_in_a_kernel_of_tensor_cores_shows(key: tuple[str, str]) -> None:
    name, way = key
    modules = {sizes: OF_TENSORS[name].module(sizes, WAYS[way].varied(**FOUR)) for sizes in SIZES}
    mutants = [(old, new, [wrong(m, old, new) for m in modules.values()]) for old, new in MUTANTS[key]]
    flat = [(sizes, m) for _, _, of_sizes in mutants for sizes, ms in zip(SIZES, of_sizes, strict=True) for m in ms]
    programs = iter(build_many([m for _, m in flat]))
    survived = []
    for old, new, of_sizes in mutants:
        shown = [[bool(ran(OF_TENSORS[name], next(programs), sizes, pad=8, seed=seed)) for _ in ms]
                 for seed, (sizes, ms) in enumerate(zip(SIZES, of_sizes, strict=True))]  # fmt: skip
        survived += [f"{old} -> {new}: place {i}" for i, seen in enumerate(zip(*shown, strict=True)) if not any(seen)]
    assert not survived
