"""Kernels whose left side waits for its rows' statistics, and of batches: right ones pass, each wrong one shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen.choice.first import default_schedule
from normgen.codegen.module import Module
from normgen.cpu import Program, build_many, find_compiler
from normgen.device import target
from normgen.knobs import Copy, Hold, SoftmaxMethod
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.plan import tile_problem_plan
from normgen.spec.reader import list_specs, load, parse
from normgen.verify import check, make_inputs, make_outputs

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
SMALL = Schedule(hold=Hold.SHARED, vector=4, tile_m=16, tile_n=16, tile_k=8, thread_m=2, thread_n=4)
WAYS = {
    "reload": SMALL.varied(hold=Hold.RELOAD, vector=1),
    "ahead": SMALL.varied(stages=2),
    "ahead, one stage": SMALL,
    "online": SMALL.varied(stages=2, softmax=SoftmaxMethod.ONLINE),
    "online, one stage": SMALL.varied(softmax=SoftmaxMethod.ONLINE, tile_k=16),
    "copied": SMALL.varied(copy=Copy.CP_ASYNC, stages=3),
}
SPECS = ("softmax_v", "masked_softmax_v", "causal_softmax_v")
SHAPE, INNER = (2, 20, 24), 44  # a tile would have rows of two batches


def problem(op: str, **asked: object) -> Problem:
    return problem_for(load(op), shape=SHAPE, inner=INNER, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("op", SPECS)
@pytest.mark.parametrize("way", WAYS)
def test_a_softmax_times_v_is_right_however_its_maximum_is_found(op: str, way: str) -> None:
    for dtype in ("f32", "bf16") if way in ("ahead", "online") else ("f32",):
        found = problem(op, dtype=dtype)
        assert refusal(found, WAYS[way], target("h200")) is None
        checked = check_on_cpu(found, emit(found, WAYS[way]))
        assert checked.ok, checked.summary


@pytest.mark.parametrize("axes", ['"batches", "inner", "cols"', '"batches", "cols", "inner"'])
@pytest.mark.parametrize("gradient", ["s", "v"])
def test_the_gradients_of_a_softmax_times_v_are_right(gradient: str, axes: str) -> None:
    """Its rows' statistics and its result are saved: those of each batch are of its own matrix."""
    for op in SPECS:
        spec = parse(list_specs()[op].read_text().replace('"batches", "inner", "cols"', axes))
        asked = {"direction": "backward", "gradients": (gradient,)}
        found = problem_for(spec, shape=SHAPE, inner=INNER, **asked)  # type: ignore[arg-type]
        checked = check_on_cpu(found, emit(found, WAYS["ahead"].varied(vector=1)), most_elements=1 << 12)
        assert checked.ok, checked.summary


def test_what_the_forward_pass_saves_of_a_batch_is_made_of_its_own_matrix() -> None:
    """Three batches of 20 rows; of rows with an infinity nothing is said here."""
    found = problem_for(load("softmax_v"), shape=(3, 20, 24), inner=INNER, direction="backward", gradients=("s",))
    inputs = make_inputs(found, seed=1)
    s, v, y = (inputs.arrays[name].astype(np.float64) for name in ("s", "v", "y"))
    with np.errstate(all="ignore"):
        z = s * inputs.scalars["scale"]
        e = np.exp(z - z.max(axis=1, keepdims=True))
        want = (e / e.sum(axis=1, keepdims=True)).reshape(3, 20, INNER) @ v
    known = np.isfinite(want).reshape(y.shape)
    assert known.mean() > 0.5
    np.testing.assert_allclose(y[known], want.reshape(y.shape)[known], rtol=1e-5, atol=1e-6)


NORMED = """\
name = "normed"
summary = "a product whose left side waits"
[tensors]
x = { role = "input", axes = ["rows", "inner"] }
w = { role = "parameter", axes = ["inner", "cols"], follows = "x" }
y = { role = "output", follows = "x" }
[formulas]
"""
WAITING = {
    "a mean, then a variance, then the product": 'c = "x - mean(x)"\ny = "(c * rsqrt(mean(c * c) + 1e-5)) @ w"',
    "what is rounded below a row's factor": 's = "rsqrt(mean(x * x) + 1e-5)"\ny = "cast(x * s, bf16) @ w"',
    "a statistic of a statistic, beside the product": 'y = "(x @ w) * sum(abs(x - max(x)))"',
    "a maximum that shows": 'm = "max(x)"\ny = "exp(x - m) @ w + m"',
    "sums without their quotient": 'm = "max(x)"\ny = "exp(x - m) @ w + sum(exp(x - m))"',
    "a maximum and its sum": 'm = "max(x)"\ny = "exp(x - m) @ w / sum(exp(x - m)) + m"',
    "a sum of multiples": 'm = "max(x)"\ny = "exp(x - m) @ w + sum(x * exp(x - m))"',
    "a row's number": 'y = "(x * (term + row % 3) - mean(x)) @ w"',
}


GAINED = {
    "a weight": "y = '(x * g) @ w'",
    "weights of both sides": "y = '(x * g) @ (w * g)'",
    "what is not 0 of 0": "y = '(x + g) @ w'",
    "a term's number": "y = '(x * g * (term + 1)) @ w'",
    "a maximum beside it": "y = '(x * g) @ w * max(x * g)'",
}


@pytest.mark.parametrize("name", GAINED)
def test_what_a_matrix_becomes_with_gains_along_inner_is_made_where_cp_async_has_put_it(name: str) -> None:
    for axes in ('"inner", "cols"', '"cols", "inner"'):
        text = NORMED.replace("[formulas]", 'g = { role = "parameter", axes = ["inner"] }\n[formulas]')
        found = problem_for(parse(text.replace('"inner", "cols"', axes) + GAINED[name]), shape=(40, 24), inner=INNER)
        for way in (WAYS["copied"], WAYS["copied"].varied(stages=1, vector=1, tile_k=16)):
            plan = tile_problem_plan(found, way)
            assert plan.scales(plan.cut.left)
            checked = check_on_cpu(found, emit(found, way), most_elements=1 << 12)
            assert checked.ok, checked.summary


def normed(formulas: str) -> Problem:
    return problem_for(parse(NORMED + formulas), shape=(40, 24), inner=INNER)


@pytest.mark.parametrize("name", WAITING)
def test_a_side_that_waits_for_its_rows_is_right(name: str) -> None:
    found = normed(WAITING[name])
    for way in ("ahead", "reload"):
        checked = check_on_cpu(found, emit(found, WAYS[way]), most_elements=1 << 12)
        assert checked.ok, checked.summary


@pytest.mark.parametrize("name", ["sums without their quotient", "a maximum and its sum"])
def test_a_maximum_that_moves_shows_where_a_sum_of_its_exponentials_rides_along(name: str) -> None:
    found = normed(WAITING[name])
    for way in ("online", "online, one stage"):
        assert refusal(found, WAYS[way], target("h200")) is None
        checked = check_on_cpu(found, emit(found, WAYS[way]), most_elements=1 << 12)
        assert checked.ok, checked.summary


REFUSED = {
    "a mean, then a variance, then the product": "waits for one maximum of its rows, and for nothing else",
    "a maximum that shows": "the maximum itself is not kept",
    "a sum of multiples": "of a row of -inf they are 0, and 'y' must be NaN of these",
    "a statistic of a statistic, beside the product": "is a sum of exp(z - max(z)), or of multiples of that",
}


@pytest.mark.parametrize("name", REFUSED)
def test_only_a_softmax_moves_its_maximum(name: str) -> None:
    said = refusal(normed(WAITING[name]), WAYS["online"], target("h200"))
    assert said is not None
    assert REFUSED[name] in said


def test_a_maximum_moves_where_all_lanes_of_a_row_pass_through_registers() -> None:
    asked, online = problem("softmax_v"), WAYS["online"]
    for knobs, says in (
        ({"hold": Hold.RELOAD, "stages": 1, "vector": 1}, "hold = shared"),
        ({"tile_m": 32, "tile_n": 128, "thread_m": 4}, "each thread has as many vectors"),
        ({"vector": 1, "tile_k": 64}, "share a row of the tile whose maximum moves: tile_k = 32 or less"),
    ):
        said = refusal(asked, online.varied(**knobs), target("h200"))
        assert said is not None
        assert says in said


def test_keys_of_an_odd_number_have_a_first_choice_that_is_right() -> None:
    """Of which a lane reads an element at a time."""
    many, found = (
        problem_for(load("softmax_v"), shape=shape, inner=inner, dtype="bf16")
        for shape, inner in (((8, 1024, 64), 1023), ((2, 70, 64), 137))
    )
    checked = check_on_cpu(found, emit(found, default_schedule(many, target("h200"))), most_elements=1 << 12)
    assert checked.ok, checked.summary


def is_wrong(found: Problem, program: Program, seed: int) -> bool:
    """Faults of the executor, or elements off their bound."""
    inputs = make_inputs(found, seed=seed)
    outputs = make_outputs(found, seed=seed, inputs=inputs)
    done = program.run(
        {**inputs.arrays, **outputs.arrays},
        rows=found.rows,
        cols=found.cols,
        inner=found.inner,
        rows_per_batch=found.rows_per_batch,
        scalars=inputs.scalars,
        seed=seed,
    )
    return bool(done.faults) or not check(found, inputs, outputs).ok


# (spec, way) -> what stands in the text, and what a careless hand would write; with several places each is a mutant.
MUTANTS: dict[tuple[str, str], list[tuple[str, str]]] = {
    ("softmax_v", "online"): [
        ("y_dot_sum[i][j] *= row_max_moved;", ""),  # the sum moves and the accumulators do not
        ("row_sum_own[step] *= row_max_moved;", ""),
        ("expf(row_max_own[step] - row_max_seen)", "1.0f"),  # nothing moves
        ("row_max_own[step] = row_max_seen;", ""),  # a stale maximum
        ("moved[stage * kTileM + own_m(i)]", "moved[own_m(i)]"),
        ("moved[stage * kTileM + own_m(i)]", "moved[stage * kTileM + i]"),
        ("lanes < kLineM", "lanes < kLineM / 2"),
        ("-3.402823466e+38f", "0.0f"),
        ("if (inside_m[step])", "if (true)"),
        ("inside_m[step] ?", "true ?"),
        ("+ kSlots", "+ 0"),
        ("row_max_moved != 1.0f", "row_max_moved < 0.5f"),
        ("row_sum_own[step] += left_i;", "row_sum_own[step] += left_i + 1e-3f;"),
        ("line < kTileK / kVector", "line < kTileK / kVector - 1"),
        ("moved[m] = row_max_own[step];", "moved[m] = 0.0f;"),
        ("row_max_all[i] = moved[own_m(i)];", "row_max_all[i] = moved[i];"),
        ("row_sum_all[i] == 0.0f", "false"),  # sums of a row of -inf are 0
        ("row_sum_all[i] == 0.0f", "row_sum_all[i] == 1.0f"),
        ("row_sum_all[i] = row_max_all[i] - row_max_all[i];", ""),
        ("row_max_all[i] = __int_as_float(0xff800000);", ""),
    ],
    ("softmax_v", "ahead"): [
        ("__syncthreads();", ""),
        ("lanes = 16", "lanes = 8"),
        ("k += 32 * kVector", "k += 64 * kVector"),
        ("row_max_found[line] = row_max_ahead", "row_max_found[line] = 0.0f"),
        ("const int m = m0 + line", "const int m = line"),
        ("row_max_found[m]", "row_max_found[0]"),
        ("__int_as_float(0xff800000)", "0.0f"),
    ],
    ("rmsnorm_linear", "copied"): [
        ("complete(stage, k0);", ""),  # x, and not x * weight
        ("complete(stage, k0);", "complete(0, k0);"),
        ("cp_async_wait<kStages - 2>();", ""),
        ("fetch(k0 + kTileK)", "fetch(k0)"),  # the weights of the tile before
        ("x_squares_own[step] += x_i * x_i;", "x_squares_own[step] += left_values[i] * x_i * weight_i;"),
        ("left_values[i] = x_i * weight_i;", "left_values[i] = x_i;"),
        ("__syncthreads();  // this stage has arrived, and nobody reads the one before it", ""),
    ],
    ("bmm", "ahead"): [
        ("rows_begin + min(rows - rows_begin, rows_per_batch)", "rows"),  # a tile with rows of two batches
        ("rows_begin + blockIdx.x", "blockIdx.x"),
        ("static_cast<long long>(batch) * kInner", "static_cast<long long>(batch) * kCols"),
        ("static_cast<long long>(batch) * kInner", "static_cast<long long>(0) * kInner"),
        ("batch * rows_per_batch", "batch * kTileM"),
        ("(rows_per_batch + kTileM - 1) / kTileM", "rows_per_batch / kTileM"),
        ("blockIdx.x / blocks_n / blocks_m", "blockIdx.x / blocks_n % blocks_m"),
    ],
}


def wrong(module: Module, old: str, new: str) -> list[Module]:
    """The module with each of the places changed by itself."""
    pieces = module.text.split(old)
    assert len(pieces) > 1, old
    return [replace(module, text=old.join(pieces[:i]) + new + old.join(pieces[i:])) for i in range(1, len(pieces))]


@pytest.mark.parametrize("key", MUTANTS, ids=" ".join)
def test_whatever_is_wrong_in_a_look_or_in_a_batch_shows(key: tuple[str, str]) -> None:
    op, way = key
    # Rows of more than one trip of a warp that looks at them.
    found = problem_for(load(op), shape=SHAPE, inner=180 if key == ("softmax_v", "ahead") else INNER).with_rows(60)
    module = emit(found, WAYS[way])
    mutants = [(old, m) for old, new in MUTANTS[key] for m in wrong(module, old, new)]
    programs = build_many([module, *(m for _, m in mutants)])
    assert not is_wrong(found, programs[0], 1)
    survived = [
        old
        for (old, _), program in zip(mutants, programs[1:], strict=True)
        if not any(is_wrong(found, program, seed) for seed in (1, 2, 3))
    ]
    assert not survived
