"""Kernels of contractions with one thing wrong: the executor or the numbers around the edges show it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.codegen.module import Module
from normgen.cpu import build_many, find_compiler
from tests.codegen.tiles.cases import CASES
from tests.codegen.tiles.handmade import Sizes, ran
from tests.codegen.tiles.test_kernels import WAYS

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
SIZES: tuple[Sizes, ...] = ((17, 25, 15), (41, 41, 34))
PIECES = {"tile_m": 32, "thread_m": 8, "tile_n": 32}  # two warps; a thread's rows lie in two places of a line
SYNC = "__syncthreads();"
# (case, way) -> what stands in the text, and what a careless hand would write; with several places each is a mutant.
MUTANTS: dict[tuple[str, str], list[tuple[str, str]]] = {
    ("linear", "shared"): [
        (SYNC, ""),
        ("m0 + m < rows", "true"),
        ("n0 + n < cols", "true"),
        ("k0 + k < inner", "true"),
        ("(0.0f)", "(1.0f)"),
        ("fetch(k0 + kTileK)", "fetch(k0)"),
        ("inner - k0 > kTileK", "inner - k0 > 2 * kTileK"),
        ("x_part[i][e], w_part[j]", "x_part[j][e], w_part[i]"),
        ("lane / 2 % kLanesN", "lane % kLanesN"),
        ("warp / kWarpsN", "warp % kWarpsN"),
        ("m * kPitchM + k]", "m * kPitchN + k]"),
        ("m * kPitchM + k]", "k * kPitchM + m]"),
        ("x_next += kTileK;", ""),
        ("w_next += kTileK * w_pitch;", "w_next += kTileK;"),
        ("* x_pitch", "* inner"),
        ("* w_pitch", "* cols"),
        ("blockIdx.x / blocks_n", "blockIdx.x % blocks_n"),
        ("(m < rows)", "(true)"),
        ("(n < cols)", "(true)"),
        ("i % kPieceM; }", "i; }"),
        ("threadIdx.x / kLineN", "threadIdx.x / kLineM"),
        ("return tm + i", "return tn + i"),
        ("+ tn * kPieceN, w_part", "+ tm * kPieceN, w_part"),
    ],
    ("linear", "two stages"): [
        (SYNC, ""),
        ("stage + 1 < kStages ? stage + 1 : 0", "stage"),
        ("deposit(0);", "deposit(1);"),
        ("multiply(stage);", "multiply(0);"),
    ],
    ("linear", "copied"): [(SYNC, ""), ("cp_async_wait<0>()", "cp_async_wait<1>()"), ("k0 + k < inner", "true")],
    ("linear", "copied ahead"): [
        (SYNC, ""),
        ("cp_async_wait<kStages - 2>()", "cp_async_wait<kStages - 1>()"),
        ("stage > 0 ? stage - 1 : kStages - 1", "stage"),
        ("k0 + (kStages - 1) * kTileK", "k0 + kStages * kTileK"),
        ("stage + 1 < kStages", "stage + 1 < kStages - 1"),
        ("    cp_async_commit();", ""),
        ("m0 + m < rows", "true"),
        ("(inside, &", "(true, &"),
    ],
    ("linear, w turned", "copied ahead"): [
        (SYNC, ""),
        ("x_part[i][at], w_line[at]", "x_part[i][at], w_line[0]"),
        ("x_part[i][at], w_line[at]", "x_part[i][e], w_line[at]"),
        ("line_n(j)", "line_n(0)"),
        ("n % kPieceN * (kTileN / kPieceN)", "n % kPieceN * kPieceN"),
    ],
    ("linear", "reload"): [
        ("const bool inside = m < rows", "const bool inside = true"),
        ("k < inner", "k < inner - 1"),
    ],
    ("reductions of the result", "copied ahead"): [
        (SYNC, ""),
        ("[tn * kTileM + own_m(i)] =", "[tm * kTileM + own_m(i)] ="),
        ("part < kTileN / kThreadN", "part < kTileN / kThreadN - 1"),
        ("tile < blocks_n", "tile < 1"),
        ("2 * blocks_n + tile", "blocks_n + tile"),
        ("blocks_n + blockIdx.x % blocks_n", "blockIdx.x % blocks_n"),
        ("takes_last_ticket(ticket, is_last)", "blockIdx.x == 0"),
        ("(m < rows)", "(true)"),
        ("line < kTileM", "line < kTileM / 2"),
    ],
    ("extrema beside the products", "two stages"): [
        (SYNC, ""),
        ("n0 == 0 && tn == 0", "tn == 0"),
        ("n0 == 0 && tn == 0", "n0 == 0"),
        ("__int_as_float(0xff800000)", "0.0f"),
        ("__int_as_float(0x7f800000)", "0.0f"),
        ("if (inside_m[step])", "if (true)"),
        ("if (inside_n[step])", "if (true)"),
        ("top_left[line * kTileM + own_m(i)]", "top_left[line * kTileM + i]"),
        ("line < kTileK / kVector", "line < kTileK / kVector - 1"),
        ("top_left + kTileK / kVector * kTileM", "top_left"),
    ],
    ("extrema beside the products", "copied ahead"): [("if (k0 + k < inner)", "if (true)")],
    ("dw and dbias", "shared"): [
        ("m0 == 0 && tm == 0 && i == 0", "tm == 0 && i == 0"),
        ("m0 == 0 && tm == 0 && i == 0", "m0 == 0 && i == 0"),
        ("k0 + k < rows", "true"),
        ("write<Store>(dw + m *", "write<Store>(dw + n *"),
    ],
    ("exponentials of both sides", "two stages"): [("[step] ?", "[step] || true ?")],
    ("added to y", "shared"): [("y_values[e] +=", "y_values[e] =")],
}


def wrong(module: Module, old: str, new: str) -> list[Module]:
    """The module with each of the places changed by itself; of what one side alone makes 0, with all."""
    pieces = module.text.split(old)
    assert len(pieces) > 1, old
    texts = [old.join(pieces[:i]) + new + old.join(pieces[i:]) for i in range(1, len(pieces))]
    if old in ("k0 + k < inner", "(0.0f)", "[step] ?"):  # beyond the edge of k
        texts = [module.text.replace(old, new)]
    return [replace(module, text=text) for text in texts]


@pytest.mark.parametrize("key", MUTANTS, ids=" ".join)
def test_whatever_is_wrong_in_a_kernel_shows(key: tuple[str, str]) -> None:
    name, way = key
    module = CASES[name].module((1, 1, 1), WAYS[way].varied(**PIECES), any_cols=True)
    mutants = [(old, m) for old, new in MUTANTS[key] for m in wrong(module, old, new)]
    survived = []
    for (old, _), program in zip(mutants, build_many([m for _, m in mutants]), strict=True):
        if not any(ran(CASES[name], program, sizes, pad=4, seed=seed) for seed, sizes in enumerate(SIZES)):
            survived.append(old)
    assert not survived
