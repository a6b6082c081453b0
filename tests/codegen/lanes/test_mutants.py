"""Kernels of rows side by side with one thing wrong: a check shows it, by the executor or by its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.codegen.module import Module
from normgen.cpu import find_compiler
from normgen.measure.cpu_check import check_on_cpu
from tests.codegen.lanes.cases import CASES
from tests.codegen.lanes.test_kernels import MOST_ELEMENTS

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
SYNC = "__syncthreads();"
# case -> what stands in the text, and what a careless hand would write; with several places each is a mutant.
MUTANTS: dict[str, list[tuple[str, str]]] = {
    "held, lanes combine": [
        ("threadIdx.x % kSlots", "threadIdx.x / kParts"),
        ("threadIdx.x / kSlots", "threadIdx.x % kParts"),
        ("outer = row / lanes", "outer = row % lanes"),
        ("lane = row % lanes", "lane = row / lanes"),
        ("* x_pitch + lane", "* x_pitch + outer"),
        ("* x_pitch + lane", "* lanes + lane"),
        ("* y_pitch + lane", "* x_pitch + lane"),
        ("own_row < rows", "true"),
        ("if (active) write", "if (true) write"),
        ("part == 0 && active", "part == 0"),
        ("part + kWholeSteps * kParts < kCols", "true"),
        ("!kEven && part", "!kEven && 1 + part"),
        ("offset = kSlots", "offset = 2 * kSlots"),
        ("offset < 32", "offset < 16"),
        (SYNC, ""),
        ("int other = 1", "int other = 2"),
        ("group * kRows + slot", "slot"),
        ("other * kRows", "0 * kRows"),
        ("slot * kVector + i]", "slot + i]"),
        ("read<1>(weight + col)", "read<1>(weight + step)"),
        ("read<1>(bias + col)", "read<1>(bias + part)"),
        ("static_cast<long long>(part) * lanes", "static_cast<long long>(part)"),
        ("static_cast<long long>(kParts) * lanes", "static_cast<long long>(kParts)"),
        ("static_cast<long long>(kParts) * lanes", "static_cast<long long>(kSlots) * lanes"),
        ("mean[row + i]", "mean[row]"),
        ("outer * x_pitch", "outer * static_cast<int>(x_pitch)"),
    ],
    "a warp of parts": [("threadIdx.x % kSlots", "threadIdx.x % 32"), ("offset < 32", "offset < 16")],
    "warps combine": [
        (SYNC, ""),
        ("(step * kThreads + static_cast<int>(threadIdx.x))", "(step * kSlots + static_cast<int>(threadIdx.x))"),
        ("(step * kThreads + static_cast<int>(threadIdx.x))", "(static_cast<int>(threadIdx.x))"),
        ("dynamic_shared() +", "dynamic_shared() + 0 *"),
    ],
    "sums of rows": [
        ("group = part / 8", "group = part"),
        ("threadIdx.x % 32 < kSlots", "threadIdx.x % 32 < 1"),
    ],
    "online": [
        ("first += kChunk", "first += 1"),
        ("first + kChunk <= kWholeSteps", "first + kChunk <= kWholeSteps + 1"),
        ("kWholeSteps / kChunk * kChunk", "kWholeSteps"),
        ("kWholeSteps / kChunk * kChunk", "0"),
        ("step = first + e", "step = first"),
        ("element(x_chunk[e], i)", "element(x_chunk[0], i)"),
        ("1 * kGroups * kRows", "0 * kGroups * kRows"),
    ],
    "labels": [("kCols, lanes)", "kCols, 1)"), ("x_row + i, row_label", "x_row, row_label")],
    "gradients of parameters": [
        ("column_sums[col] = 0.0f;", ""),
        ("if (!active)", "if (false)"),
        ("offset = 16; offset > 0", "offset = 8; offset > 0"),
        ("if (slot == 0)", "if (true)"),
        ("column_sums[kPitch + col] += dbias_part", "column_sums[col] += dbias_part"),
        (SYNC, ""),
        ("first_row += static_cast<long long>(gridDim.x) * kRows", "first_row += kRows"),
        ("static_cast<long long>(blockIdx.x) * kRows", "static_cast<long long>(blockIdx.x)"),
        ("first_row + slot * kVector", "first_row + slot"),
        ("cell < kCols", "cell < kCols - 1"),
    ],
    "gradients, one look": [(SYNC, "")],
    "guarded, lanes combine": [
        ("|| !(", "|| ("),
        ("pass2_needed = pass2_needed ||", "pass2_needed ="),
        ("if (__any_sync(0xffffffffu, pass2_needed))", "if (pass2_needed)"),
        ("if (row_x_margin[i] >= 0.0f)", "if (true)"),
        (SYNC, ""),
    ],
    "random numbers": [("(row + i), col", "row, col"), ("(row + i), col", "(row + i), part")],
    "gradients are added": [("element(dx_before, i) + ", "")],
}


def mutants() -> list[tuple[str, str, str, int]]:
    """(case, old, new, which of the places)."""
    found = []
    for name, pairs in MUTANTS.items():
        text = CASES[name].module.text
        for old, new in pairs:
            found += [(name, old, new, place) for place in range(text.count(old))]
            assert text.count(old), f"{name}: {old}"
    return found


def changed(module: Module, old: str, new: str, place: int) -> Module:
    at = -1
    for _ in range(place + 1):
        at = module.text.index(old, at + 1)
    return replace(module, text=module.text[:at] + new + module.text[at + len(old) :])


@pytest.mark.parametrize(("name", "old", "new", "place"), mutants(), ids=str)
def test_a_wrong_kernel_is_refused(name: str, old: str, new: str, place: int) -> None:
    case = CASES[name]
    checked = check_on_cpu(case.problem, changed(case.module, old, new, place), most_elements=MOST_ELEMENTS)
    assert not checked.ok, checked.summary
