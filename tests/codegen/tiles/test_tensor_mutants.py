"""Kernels of tensor cores with one line wrong: the executor or the numbers around the edges show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from normgen.codegen.module import Module
from normgen.cpu import build_many, find_compiler
from tests import samples
from tests.codegen.tiles.cases import OF_TENSORS, STREAMED
from tests.codegen.tiles.handmade import Case, Sizes, ran
from tests.codegen.tiles.test_mutants import wrong
from tests.codegen.tiles.test_tensor_cores import ACROSS, FOUR, STREAMS, WAYS

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
# ... of factors that come straight from memory.
STRAIGHT: dict[str, list[tuple[str, str]]] = {
    "linear": [
        (SYNC, ""),
        ("k0 = warp * kTileK", "k0 = 0"),
        ("k0 += kWarps * kTileK", "k0 += kTileK"),
        ("m < rows", "true"),
        ("kWholeN || n < kCols", "true"),
        ("k < kInner", "true"),
        ("read_vectors(first, k0 + kWarps * kTileK)", "read_vectors(first, k0)"),
        ("read_vectors(first, k0 + kWarps * kTileK)", "read_vectors(0, k0 + kWarps * kTileK)"),
        ("kInner - k0 > kWarps * kTileK", "false"),
        ("read_vectors(first, warp * kTileK)", "read_vectors(first, 0)"),
        ("32 * (first + ahead) + lane % 4 * kVector", "32 * (first + ahead)"),
        ("k0 + 32 * (first + ahead)", "k0 + 32 * ahead"),
        ("_vec[first + ahead][i] =", "_vec[ahead][i] ="),
        ("add_products(first + ahead)", "add_products(ahead)"),
        ("min(m0 + 8 * i + line, rows - 1)", "m0 + 8 * i + line"),
        ("min(n0 + 8 * i + line, kCols - 1)", "n0 + 8 * i + line"),
        ("m0 + 8 * i + line", "m0 + 8 * i"),
        ("min(n0 + 8 * i + line", "min(n0 + line"),
        ("(0.0f)", "(1.0f)"),
        ("w_vec[ahead][2 * j + 1].bits[2 * step + 0]", "w_vec[ahead][2 * j].bits[2 * step + 0]"),
        ("w_vec[ahead][2 * j + 0].bits[2 * step + 1]", "w_vec[ahead][2 * j + 0].bits[2 * step]"),
        ("&x_vec[ahead][i].bits[2 * step]", "&x_vec[ahead][i].bits[0]"),
        ("&x_vec[ahead][i]", "&x_vec[0][i]"),
        ("step < 2", "step < 1"),
        ("ahead < kTogether", "ahead < 1"),
        ("first < kAhead", "first < 1"),
        ("&y_part[j][i][2]", "&y_part[j][i][0]"),
        ("e / 2 * 8", "e / 2 * 4"),
        ("lane % 4 * 2 + e % 2", "lane % 4 + e % 2 * 4"),
        ("(warp * kTileM", "(0 * kTileM"),
        ("(other * kTileM", "(0 * kTileM"),
        ("other < kWarps", "other < kWarps - 1"),
        ("* x_pitch", "* kInner"),
        ("* w_pitch", "* kInner"),
    ],
    "two sums": [("g_left + kWarps * kTileM", "g_left + kTileM"), ("(up_lines, &", "(w_lines, &")],
    "squares beside the products": [
        ("(warp * 4 + lane % 4) * kTileM", "(warp * 4) * kTileM"),
        ("other < 4 * kWarps", "other < kWarps"),
        ("own[i] +=", "own[0] +="),
    ],
    "reductions of the result": [(SYNC, "")],
}


@pytest.mark.parametrize("name", STRAIGHT)
def test_whatever_is_wrong_in_a_kernel_that_streams_shows(name: str) -> None:
    case, way = STREAMED[name], STREAMS["four vectors ahead"]
    assert not survivors(
        case, {sizes: case.module(sizes, way) for sizes in ((40, 2120, 72), (17, 264, 40))}, STRAIGHT[name]
    )


# ... of a matrix across k.
COLUMNS = [
    ("+ i % 8", ""),
    ("min(n0 + i / 8 * 64", "min(n0 + i / 8 * 32"),
    ("64 + line * kVector, kCols - kVector", "64 + line * kVector, kCols"),
    ("low_halves(w", "high_halves(w"),
    ("high_halves(w", "low_halves(w"),
    ("4 * step + 3", "4 * step + 2"),
    ("j / 4 * 8 + 4 * step", "4 * step"),
    (".bits[j % 4]", ".bits[0]"),
    ("j / 4 * 64 + line * kVector", "j / 4 * 64 + line"),
    ("2 + e / 2]", "2]"),
]


def test_whatever_is_wrong_in_columns_of_a_matrix_across_k_shows() -> None:
    case, way = OF_TENSORS["linear"], ACROSS["two vectors ahead"]
    assert not survivors(case, {sizes: case.module(sizes, way) for sizes in ((17, 520, 136), (9, 264, 72))}, COLUMNS)


# ... of blocks that share k.
IN_PARTS = [
    ("cluster_rank() * kPartK", "0"),
    ("min(kInner, k_begin + kPartK)", "kInner"),
    ("blockIdx.x / kParts", "blockIdx.x"),
    ("(cluster_rank() - 1) * kLeft", "0 * kLeft"),
    ("part * kLeft", "0 * kLeft"),
    ("kParts - 1", "kParts - 2"),
    ("kThreadM * kThreadN + i)", "i)"),
    ("threadIdx.x, 0,", "threadIdx.x, 1,"),
    ("+ kSlots", ""),
    ("if (cluster_rank() > 0) return;", ""),
    ("  cluster_arrive();\n  cluster_wait();\n", ""),
]


def test_whatever_is_wrong_in_blocks_that_share_k_shows() -> None:
    case, way = STREAMED["squares beside the products"], STREAMS["two warps"].varied(cluster=4)
    assert not survivors(case, {sizes: case.module(sizes, way) for sizes in ((40, 264, 72), (17, 120, 40))}, IN_PARTS)


@pytest.mark.parametrize("key", MUTANTS, ids=" ".join)
def test_whatever_is_wrong_in_a_kernel_of_tensor_cores_shows(key: tuple[str, str]) -> None:
    name, way = key
    modules = {sizes: OF_TENSORS[name].module(sizes, WAYS[way].varied(**FOUR)) for sizes in SIZES}
    assert not survivors(OF_TENSORS[name], modules, MUTANTS[key])


def survivors(case: Case, modules: Mapping[Sizes, Module], changes: Sequence[tuple[str, str]]) -> list[str]:
    """The changes that no size shows: of all of them, or in a normal run of a fifth. Each stands in the texts."""
    mutants = [(old, new, [wrong(module, old, new) for module in modules.values()]) for old, new in changes]
    mutants = mutants[:: samples.sized(5, 1)]
    programs = iter(build_many([m for _, _, of_sizes in mutants for ms in of_sizes for m in ms]))
    survived = []
    for old, new, of_sizes in mutants:
        shown = [[bool(ran(case, next(programs), sizes, pad=8, seed=seed)) for _ in ms]
                 for seed, (sizes, ms) in enumerate(zip(modules, of_sizes, strict=True))]  # fmt: skip
        survived += [f"{old} -> {new}: place {i}" for i, seen in enumerate(zip(*shown, strict=True)) if not any(seen)]
    return survived
