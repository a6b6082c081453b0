"""M2: the check of a kernel is as wide as its contract: each change that once passed is refused, and the call named."""

from __future__ import annotations

from dataclasses import replace
from functools import partialmethod

import pytest

from normgen.codegen.module import Module
from normgen.cpu import Program, find_compiler
from normgen.measure.cpu_check import check_on_cpu
from tests.measure.test_calls import NAMED

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

AT_1_ROW, OWN_PITCHES = "WRONG at 1 row:", "WRONG with pitches of their own"
# Kernel, its text, what is written in its place, and what the check says then.
MUTANTS = [
    ("warp_per_row", "valid_row * y_pitch", "valid_row * x_pitch", OWN_PITCHES),
    ("warp_per_row", "valid_row * y_pitch", "valid_row * kCols", OWN_PITCHES),
    ("backward_clusters", "+ row * dx_pitch", "+ row * x_pitch", OWN_PITCHES),
    ("ring", "fetched_row * x_pitch", "fetched_row * y_pitch", OWN_PITCHES),
    ("warp_per_row", "if (mean != nullptr) mean", "mean", "WRONG with null mean:"),
    ("warp_per_row", "if (rstd != nullptr) rstd", "if (mean != nullptr) rstd", "WRONG with null mean:"),
    ("block_per_row", "if (rstd != nullptr) rstd", "rstd", "WRONG with null rstd"),
    ("norm_ring", "if (rstd != nullptr) rstd", "rstd", "WRONG with null rstd:"),
    ("warp_per_row", "active ? row : rows - 1", "row", "WRONG"),
    ("sub_warp_per_row", "active ? row : rows - 1", "row", "WRONG"),
    ("warp_per_row", "|| row < rows;", "|| row < rows + 1;", "WRONG"),
    ("backward_persistent", "|| row < rows;", "|| row < rows + 1;", "WRONG"),
    ("backward_persistent", "min(first + block_row(), rows - 1)", "min(first + block_row(), rows + 1)", "WRONG"),
    ("backward_persistent", "if (active) dbias_sum[step][i] += dy_i", "dbias_sum[step][i] += dy_i", "WRONG"),
    (
        "ring",
        "if (row_thread == 0 && first_row < rows) fetch",
        "if (row_thread == 0 && first_row < rows - 1) fetch",
        AT_1_ROW,
    ),
    ("norm_ring", "&& first_row < rows) fetch", "&& first_row < rows - 1) fetch", "WRONG"),
    ("ring", "refill_row < rows", "refill_row < rows - 1", "WRONG"),
    ("ring", "phase ^= 1", "phase ^= 0", "WRONG"),
    ("backward_persistent", "first_row += gridDim.x", "first_row += 2 * gridDim.x", "WRONG"),
    ("backward_last_tile", "row += gridDim.x", "row += 2 * gridDim.x", "WRONG"),
    ("online", "{-3.402823466e+38f,", "{-1.0e30f,", "(masked)"),
    ("ring", "{__int_as_float(0xff800000)}", "{-1.0e30f}", "(masked)"),
    (
        *("warp_per_row", "valid_row * y_pitch", "static_cast<int>(valid_row * y_pitch)"),
        "WRONG with rows of y beyond 2^31 elements:",
    ),
    (
        *("block_per_row", "valid_row * x_pitch", "static_cast<int>(valid_row * x_pitch)"),
        "WRONG with rows of x beyond 2^31 elements:",
    ),
    ("backward_clusters", "+= kInFlight * kLanes", "+= 2 * kInFlight * kLanes", "WRONG with 209 partial rows"),
    ("backward_clusters", "row < partial_rows ?", "row <= partial_rows ?", "WRONG with 209 partial rows"),
    ("backward_last_tile", "if (row < rows) parts", "if (row <= rows) parts", "out_of_bounds"),
    ("backward_clusters", "first < partial_rows;", "first < min(partial_rows, kInFlight);", "WRONG"),
    ("backward_last_tile", "next += kInFlight *", "next += 2 * kInFlight *", "WRONG"),
    (
        *("backward_last_tile", "if (threadIdx.x == 0) tickets[tile * kTicketWords] = 0;", ""),
        "the workspace is left unfit",
    ),
    ("ring", "    mbarrier_fence();\n", "", "missing_fence: "),
    ("ring", "  __syncthreads();  // others wait only for a barrier that is set up\n", "", "mbarrier: "),
    ("backward_last_tile", "  if (is_last) __threadfence();\n", "", "missing_fence: "),
    ("backward_last_tile", "\n  __threadfence();\n", "\n", "missing_fence: "),
    ("backward_last_tile", "atomicAdd(ticket, 1u) + 1", "(*ticket)++ + 1", "global_race: "),
    (
        "guarded",
        "__any_sync(0xffffffffu, !(row_x_margin >= 0.0f))",
        "__any_sync(0xffffffffu, row_x_margin >= 0.0f)",
        "WRONG: layernorm",
    ),
    ("backward_persistent", "first_col + step * kStride", "first_col + step * (kStride - kVector)", "global_race: "),
]


def mutated(module: Module, old: str, new: str) -> Module:
    text = module.text.replace(old, new)
    assert text != module.text, f"not in the text: {old}"
    return replace(module, text=text)


@pytest.mark.parametrize(("name", "old", "new", "says"), MUTANTS)
def test_m2_a_wrong_kernel_is_refused_and_the_call_is_named(name: str, old: str, new: str, says: str) -> None:
    kernel = NAMED[name]
    check = check_on_cpu(kernel.problem, mutated(kernel.module(), old, new))
    assert not check.ok
    assert says in check.summary, check.summary


@pytest.mark.parametrize("name", sorted({name for name, *_ in MUTANTS}))
def test_m2_the_same_kernels_pass_as_they_are_emitted(name: str) -> None:
    check = check_on_cpu(NAMED[name].problem, NAMED[name].module())
    assert check.ok, check.summary
    assert check.verified is not None
    assert check.verified.calls > 5
    assert all(0 <= share <= 1 for share in check.error.values())
    assert not any("not made" in said for said in check.not_shown)


def test_m2_a_loop_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, "run", partialmethod(Program.run, time_limit_s=3.0))
    kernel = NAMED["backward_clusters"]
    endless = mutated(kernel.module(), "first += kInFlight * kLanes", "first = kInFlight * kLanes")
    check = check_on_cpu(kernel.problem, endless)
    assert not check.ok
    assert "timeout: " in check.summary
