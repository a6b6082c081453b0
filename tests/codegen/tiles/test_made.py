"""Factors that lanes make in registers for tensor cores: right at all edges, and each wrong line shows."""

from __future__ import annotations

from typing import Any

import pytest

from normgen.cpu import build_many, find_compiler
from normgen.device import target
from normgen.knobs import ArithmeticMode, Copy, Fragment, Hold, SoftmaxMethod
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import space
from normgen.schedule.tiles.online import leaves_out
from normgen.spec.reader import list_specs, load, parse
from tests.codegen.tiles.test_looks import is_wrong, wrong

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
MADE = Schedule(hold=Hold.REGISTERS, fragment=Fragment.MMA, copy=Copy.CP_ASYNC, stages=2, vector=8, tile_k=32)
MADE = MADE.varied(tile_m=32, tile_n=32, thread_m=2, thread_n=8)
ONLINE = MADE.varied(softmax=SoftmaxMethod.ONLINE)
DEEP = {"tile_m": 64, "thread_m": 4, "tile_n": 64, "thread_n": 16, "tile_k": 64, "stages": 3}
WAYS = {
    "online": ONLINE,
    "deep": ONLINE.varied(**DEEP),
    "by powers of two": ONLINE.varied(**DEEP, arithmetic=ArithmeticMode.APPROXIMATE),
    "ahead": MADE.varied(tile_n=16, thread_n=4),
    "in slots": ONLINE.varied(hold=Hold.SHARED, vector=4),
}
SPECS = ("softmax_v", "masked_softmax_v", "causal_softmax_v")
SHAPES = (((2, 20, 24), 48), ((1, 1, 8), 8), ((3, 33, 40), 72), ((2, 150, 24), 136))


def problem(op: str, shape: tuple[int, ...], inner: int, **asked: Any) -> Problem:
    return problem_for(load(op), shape=shape, inner=inner, **{"dtype": "bf16", **asked})


@pytest.mark.parametrize("op", SPECS)
@pytest.mark.parametrize("way", WAYS)
def test_a_softmax_times_v_is_right_on_tensor_cores(op: str, way: str) -> None:
    """Rows that are no whole tile, batches of odd rows, inner no multiple of a tile or less than one."""
    for (shape, inner), dtype in zip(SHAPES, ("bf16", "f16", "f16", "bf16"), strict=True):
        found = problem(op, shape, inner, dtype=dtype)
        assert refusal(found, WAYS[way], target("a100")) is None
        checked = check_on_cpu(found, emit(found, WAYS[way]), most_elements=1 << 12)
        assert checked.ok, checked.summary


@pytest.mark.parametrize("gradient", ["s", "v"])
def test_the_gradients_of_a_softmax_times_v_are_right_on_tensor_cores(gradient: str) -> None:
    for op in SPECS:
        found = problem(op, (3, 33, 40), 72, direction="backward", gradients=(gradient,))
        legal = [s for s in space(found, target("h200")).legal if s.fragment is not Fragment.SIMT]
        for schedule in (legal[0], legal[-1]):
            checked = check_on_cpu(found, emit(found, schedule), most_elements=1 << 12)
            assert checked.ok, checked.summary


CAST = """\
name = "computed"
summary = "a left side that is computed"
[tensors]
x = { role = "input", axes = ["rows", "inner"] }
w = { role = "parameter", axes = ["inner", "cols"], follows = "x" }
y = { role = "output", follows = "x" }
[formulas]
"""
COMPUTED = {
    "an activation": 'y = "cast(x * sigmoid(x), w) @ w"',
    "a sum beside it": 'y = "cast(exp(x), w) @ w / sum(exp(x))"',
    "a maximum beside it": 'y = "cast(x + 1, w) @ w + max(x)"',
    "what waits for its row": 'm = "mean(x)"\ny = "cast(x - m, w) @ w"',
    "a term's number": 'y = "cast(x * (term + 1), w) @ w"',
}


@pytest.mark.parametrize("name", COMPUTED)
def test_any_side_that_is_cast_may_be_made_in_registers(name: str) -> None:
    found = problem_for(parse(CAST + COMPUTED[name]), shape=(40, 24), inner=72, dtype="bf16")
    for way in (MADE, MADE.varied(**DEEP)):
        assert refusal(found, way, target("h200")) is None
        checked = check_on_cpu(found, emit(found, way), most_elements=1 << 12)
        assert checked.ok, checked.summary


def test_what_lanes_cannot_make_is_refused_with_a_way_out() -> None:
    found = problem("softmax_v", (2, 20, 24), 48)
    turned = list_specs()["softmax_v"].read_text().replace('"batches", "inner", "cols"', '"batches", "cols", "inner"')
    for asked, knobs, says in (
        (found, {"fragment": Fragment.SIMT}, "with fragment = mma"),
        (found, {"copy": Copy.DIRECT, "stages": 1}, "copy = cp_async"),
        (found, {"vector": 4}, "vector = 8"),
        (problem_for(parse(turned), shape=(2, 20, 24), inner=48, dtype="bf16"), {}, "across it of the other"),
        (problem("softmax_v", (2, 20, 24), 48, dtypes={"s": "f32"}), {}, ""),
    ):
        said = refusal(asked, ONLINE.varied(**knobs), target("h200"))
        assert said is not None
        assert says in said


def test_tiles_behind_the_diagonal_are_not_read() -> None:
    """Of scores that lie there no element is touched: the rows end before, with NaN in their place."""
    assert leaves_out(problem("causal_softmax_v", (2, 20, 24), 48))
    assert not leaves_out(problem("softmax_v", (2, 20, 24), 48))
    assert not leaves_out(problem("causal_softmax_v", (2, 20, 24), 48, direction="backward", gradients=("s",)))
    text = emit(problem("causal_softmax_v", (2, 64, 24), 64), ONLINE).text
    assert "k0 < k_stop" in text
    assert "k_stop" not in emit(problem("causal_softmax_v", (2, 64, 24), 64), WAYS["ahead"]).text


# What stands in the text, and what a careless hand would write; with several places each is a mutant.
MUTANTS: dict[tuple[str, str], list[tuple[str, str]]] = {
    ("softmax_v", "online"): [
        ("row_max_by[i] = row_max_moved;", "row_max_by[i] = 1.0f;"),
        ("y_dot_sum[i][j] *= row_max_by[i];", ""),
        ("row_sum_own[ahead][i] *= row_max_moved;", ""),
        ("row_max_own[i] = row_max_seen;", ""),
        ("lanes < 4", "lanes < 2"),
        ("row_max_seen = maximum(row_max_seen, row_max_part);", "row_max_seen = row_max_part;"),
        ("moved = moved || row_max_by[i] != 1.0f;", "moved = row_max_by[i] != 1.0f;"),
        ("fetch(i, next);", "fetch(i, k0);"),
        ("fetch(i, 0);", "fetch(0, 0);"),
        ("make(k0);", "make(0);"),
        ("rows_end - 1", "rows_end"),
        ("inside ? read", "true ? read"),
        ("inside ? expf", "true ? expf"),
        ("pair % 2 * 2", "pair % 2"),
        ("2 * ahead + pair / 2", "2 * ahead + pair % 2"),
        ("+ lane % 4 * kVector", ""),
        ("spread_pairs(k)", "k"),
        ("stage * kTileK * kTileN", "0"),
        ("stage * kTileK + 16 * step)", "stage * kTileK)"),
        ("if (part + 1 < kParts) read_parts(stage, part + 1);", ""),
        ("&v_part[part % 2][j], &y", "&v_part[0][j], &y"),
        ("__syncthreads();  // this stage", "// this stage"),
        ("cp_async_wait<kStages - 2>();", ""),
        ("row_max_all[i] = row_max_own[i];", "row_max_all[i] = 0.0f;"),
        ("row_sum_all[i] = row_sum_own[0][i];", "row_sum_all[i] = row_sum_own[0][0];"),
    ],
    ("causal_softmax_v", "deep"): [
        ("k0 < k_stop", "k0 + kTileK < k_stop"),
        ("kInner + 1);", "kInner);"),
        ("int k_stop = 0;", "int k_stop = kTileK;"),
        ("line < kTileM; line += 32", "line < 32; line += 32"),
        ("max(k_stop, __shfl_xor_sync(0xffffffffu, k_stop, lanes))", "__shfl_xor_sync(0xffffffffu, k_stop, lanes)"),
        ("k_stop = min(k_stop, kInner);", "k_stop = min(k_stop, kTileK);"),
        ("(m0 + line) % kInner", "line % kInner"),
        ("row_sum_all[i] += row_sum_own[ahead][i];", ""),
        ("32 * ahead + lane % 4 * kVector", "lane % 4 * kVector"),
        ("+ k0 + 32 * ahead", "+ k0"),
        ("i / 2 * 4 + i % 2", "i"),
        ("part % (kThreadN / kTogether) * kTogether", "0"),
        ("&left_part[step][2 * i]", "&left_part[step][i]"),
    ],
}
# What only takes longer: a tile more is read, and its factors are 0.
HARMLESS = {"int k_stop = 0;"}


@pytest.mark.parametrize("key", MUTANTS, ids=" ".join)
def test_whatever_is_wrong_in_what_lanes_make_shows(key: tuple[str, str]) -> None:
    op, way = key
    # Of the second batch's first tile the last row is number 128 of all: a tile of k begins with its last term.
    found = problem(op, (2, 65, 40), 136 if way == "deep" else 72)
    module = emit(found, WAYS[way])
    mutants = [(old, m) for old, new in MUTANTS[key] for m in wrong(module, old, new)]
    programs = build_many([module, *(m for _, m in mutants)])
    assert not is_wrong(found, programs[0], 1)
    survived = {
        old
        for (old, _), program in zip(mutants, programs[1:], strict=True)
        if not any(is_wrong(found, program, seed) for seed in (1, 2, 3))
    }
    assert survived <= HARMLESS
