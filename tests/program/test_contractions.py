"""Contractions in programs: what a `dot` may sum, what leaves its sum, which programs are of tiles."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sympy as sp

from normgen.errors import ProgramError, SpecError
from normgen.program.classes import ProgramClass, class_of, class_of_formulas, program_class, tile_axes
from normgen.program.functions import Stored, cast
from normgen.program.ir import (
    Load,
    Map,
    Random,
    Reduce,
    RowProgram,
    Statement,
    Store,
    check,
    kind_of,
    show_statement,
    stage_of,
)
from normgen.program.lower import lower
from normgen.program.monoid import DOT, MAX, SUM, symbol
from normgen.program.ordered import Ordered, opened
from normgen.program.rewrites.contractions import factors_join, factors_leave
from normgen.program.source import problem_for, written_program
from normgen.spec.reader import load, parse
from normgen.spec.spec import Kind, Spec
from tests.program.evaluate import Array, evaluate
from tests.program.symbolic_rows import run_row, symbols

x, w, y, dy, gain = (symbol(name) for name in ("x", "w", "y", "dy", "gain"))
LOADS = (
    Load("x", Kind.LEFT),
    Load("w", Kind.MATRIX),
    Load("dy", Kind.ELEM),
    Load("gain", Kind.INNER),
    Load("b", Kind.COL),
)


def program(*statements: Statement) -> RowProgram:
    return RowProgram("linear", (*LOADS, *statements))


def dot(name: str, kind: Kind, left: sp.Expr, right: sp.Expr, over: Kind) -> Reduce:
    return Reduce((name,), kind, DOT, (left, right), over=over)


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (dot("y", Kind.ELEM, x * gain, w, Kind.INNER), "  reduce y : elem = dot_inner(gain*x, w)"),
        (dot("dx", Kind.LEFT, dy, w, Kind.COL), "  reduce dx : left = dot_cols(dy, w)"),
        (dot("dw", Kind.MATRIX, x, dy, Kind.ROW), "  reduce dw : matrix = dot_rows(x, dy)"),
    ],
)
def test_a_contraction_drops_any_of_three_axes_and_its_result_is_stored(statement: Reduce, text: str) -> None:
    name = statement.names[0]
    found = check(program(statement, Store(name, name, statement.kind)))
    assert show_statement(statement) == text
    assert found.dots == (statement,)
    assert not found.row_reduces
    assert not found.col_reduces
    assert stage_of(found)[name] == 1


def test_sides_are_reduced_over_inner_and_are_neither_rows_nor_sums_of_columns() -> None:
    squares = Reduce(("s",), Kind.ROW, SUM, (x**2,), over=Kind.INNER)
    largest = Reduce(("top",), Kind.COL, MAX, (w,), over=Kind.INNER)
    scaled = Map("y", Kind.ELEM, symbol("h") * symbol("s") + symbol("top"))
    found = check(program(squares, largest, dot("h", Kind.ELEM, x, w, Kind.INNER), scaled, Store("y", "y", Kind.ELEM)))
    assert [show_statement(s) for s in (squares, largest)] == [
        "  reduce s : row = sum_inner(x**2)",
        "  reduce top : col = max_inner(w)",
    ]
    assert (found.row_reduces, found.col_reduces) == ((), ())
    assert [stage_of(found)[name] for name in ("s", "top", "h", "y")] == [1, 1, 1, 1]


DROPS = "a contraction drops one of the axes rows, inner and cols, which its sides have together"
SIDES = "each side of a contraction has the axis that it drops, and one of the two others"
OVER_INNER = "a reduction over inner gives a row of a left value, or a col of a matrix value"


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        (dot("y", Kind.ELEM, x, x, Kind.INNER), DROPS),
        (dot("y", Kind.LEFT, x, w, Kind.INNER), DROPS),
        (dot("y", Kind.ELEM, x, w, Kind.COL), DROPS),
        (dot("y", Kind.ROW, dy, w, Kind.ELEM), DROPS),
        (dot("y", Kind.ELEM, x * gain, dy, Kind.INNER), SIDES),
        (dot("y", Kind.ELEM, x * symbol("b"), w, Kind.INNER), SIDES),
        (dot("y", Kind.LEFT, x * dy, w, Kind.COL), SIDES),
        (dot("y", Kind.LEFT, symbol("b"), x, Kind.COL), SIDES),
        (Reduce(("y",), Kind.ELEM, DOT, (x, w, w), over=Kind.INNER), "monoid .dot. takes 2"),
        (Reduce(("y",), Kind.ROW, SUM, (x,)), OVER_INNER),
        (Reduce(("y",), Kind.ROW, SUM, (w,), over=Kind.INNER), OVER_INNER),
        (Reduce(("y",), Kind.SCALAR, SUM, (gain,), over=Kind.INNER), OVER_INNER),
        (Reduce(("y",), Kind.INNER, SUM, (w,)), OVER_INNER),
        (Map("y", Kind.ELEM, x * w), "no value varies along rows, inner and cols"),
        (Map("y", Kind.PRODUCT, x * w), "no value varies along rows, inner and cols"),
        (Map("y", Kind.ELEM, x), "this map's kind is left"),
        (Map("y", Kind.LEFT, dy), "this map's kind is elem"),
    ],
)
def test_what_is_no_contraction_is_refused(statement: Statement, rule: str) -> None:
    with pytest.raises(ProgramError, match=rule):
        check(program(statement))


def test_a_value_of_one_axis_is_broadcast_to_a_side() -> None:
    check(program(Map("y", Kind.LEFT, gain), Store("y", "y", Kind.LEFT)))
    check(program(Map("y", Kind.MATRIX, symbol("b")), Store("y", "y", Kind.MATRIX)))


TENSORS = {
    "x": 'x = { role = "input", axes = ["rows", "inner"] }',
    "u": 'u = { role = "input", axes = ["rows", "inner"] }',
    "w": 'w = { role = "parameter", axes = ["inner", "cols"] }',
    "up": 'up = { role = "parameter", axes = ["inner", "cols"] }',
    "gain": 'gain = { role = "parameter", axes = ["inner"] }',
    "bias": 'bias = "parameter"',
    "scale": 'scale = "row_input"',
    "h": 'h = "input"',
    "g": 'g = { role = "output", optional = true }',
    "z": 'z = { role = "output", optional = true }',
    "rstd": 'rstd = { role = "statistic", optional = true }',
    "top": 'top = { role = "statistic", optional = true }',
}


def spec_of(*formulas: str, saved: str = "") -> Spec:
    names = set(re.findall(r"[a-z0-9]+", " ".join(formulas)))
    lines = ['name = "product"', "[tensors]", *(line for n, line in TENSORS.items() if n in names), 'y = "output"']
    lines += ["[formulas]", *('{} = "{}"'.format(*formula.split(" = ", 1)) for formula in formulas)]
    return parse("\n".join(lines + ([f'[backward]\nsaved = ["{saved}"]'] if saved else [])), file="product.toml")


LINEAR = ("y = x @ w + bias",)
GELU = ("h2 = x @ w + bias", "y = 0.5 * h2 * (1 + erf(h2 * 0.7071067811865476))")
SWIGLU = ("gate = x @ w", "y = gate * sigmoid(gate) * (x @ up)")
NORMED = ("rstd = rsqrt(mean(x * x) + 1e-6)", "y = (x * rstd * gain) @ w")
ADDED = ("y = h + x @ w",)


def silu(g: Array) -> Array:
    return g / (1 + np.exp(-g))


def arrays(rows: int = 5, inner: int = 7, cols: int = 4) -> dict[str, Array]:
    """Random numbers; no two sizes are equal."""
    rng = np.random.default_rng(7)
    shapes = {
        "x": (rows, inner),
        "u": (rows, inner),
        "w": (inner, cols),
        "up": (inner, cols),
        "gain": (inner,),
        "bias": (cols,),
    }
    shapes |= {"scale": (rows,), "h": (rows, cols), "dy": (rows, cols), "dz": (rows, cols)}
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


REFERENCES: dict[tuple[str, ...], Callable[..., Array]] = {
    LINEAR: lambda x, w, bias, **_: x @ w + bias,
    GELU: lambda x, w, bias, **_: 0.5 * (z := x @ w + bias) * (1 + np.vectorize(math.erf)(z / math.sqrt(2))),
    SWIGLU: lambda x, w, up, **_: silu(x @ w) * (x @ up),
    NORMED: lambda x, w, gain, **_: (x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * gain) @ w,
    ADDED: lambda x, w, h, **_: h + x @ w,
    ("y = x @ w * max(x) - min(x)",): lambda x, w, **_: x @ w * x.max(1, keepdims=True) - x.min(1, keepdims=True),
    ("y = (x * scale * 0.125) @ (w * bias)",): lambda x, w, scale, bias, **_: (0.125 * scale[:, None] * x) @ (w * bias),
    (
        "n = x * scale",
        "y = (n @ w) * (x @ w) / inner + col",
    ): lambda x, w, scale, **_: scale[:, None] * (x @ w) ** 2 / 7 + np.arange(4),
}


@pytest.mark.parametrize("formulas", REFERENCES, ids=" ".join)
def test_a_program_computes_what_its_formulas_say_as_written_and_with_factors_outside(
    formulas: tuple[str, ...],
) -> None:
    written = lower(spec_of(*formulas))
    given = arrays()
    wanted = REFERENCES[formulas](**given)
    for found in (written, factors_leave(written)):
        np.testing.assert_allclose(evaluate(found, given)["y"], wanted, rtol=1e-12, atol=1e-12)
    assert program_class(written) is ProgramClass.TILES
    assert tile_axes(factors_leave(written)) == (Kind.ROW, Kind.COL, Kind.INNER)


def texts(program: RowProgram) -> list[str]:
    return [show_statement(s).strip() for s in program.statements if not isinstance(s, Load)]


def test_a_factor_along_the_dropped_axis_joins_a_side_that_is_rounded() -> None:
    """Where that has float32's range, and the other side has something of its own."""
    r, s = map(symbol, ("r", "s"))
    loads = (Load("dy", Kind.ELEM), Load("r", Kind.ROW), Load("s", Kind.LEFT))

    def joined(to: str, other: sp.Expr) -> str:
        rounded = dot("dv", Kind.MATRIX, cast(sp.exp(s), Stored(to)), other, Kind.ROW)
        found = factors_join(RowProgram("dv", (*loads, rounded, Store("dv", "dv", Kind.MATRIX))))
        return texts(found)[0]

    assert joined("bf16", dy * r) == "reduce dv : matrix = dot_rows(cast(r*exp(s), bf16), dy)"
    assert joined("f16", dy * r) == "reduce dv : matrix = dot_rows(cast(exp(s), f16), dy*r)"
    assert joined("f32", dy * r) == "reduce dv : matrix = dot_rows(cast(exp(s), f32), dy*r)"
    assert joined("bf16", dy) == "reduce dv : matrix = dot_rows(cast(exp(s), bf16), dy)"


def test_a_formula_that_is_a_product_has_its_own_name_and_equal_products_are_one() -> None:
    assert texts(lower(spec_of("y = x @ w"))) == ["reduce y : elem = dot_inner(x, w)", "store  y"]
    assert texts(lower(spec_of("y = (x @ w) * sigmoid(x @ w)"))) == [
        "reduce y_dot : elem = dot_inner(x, w)",
        "map    y : elem = y_dot/(1 + exp(-y_dot))",
        "store  y",
    ]
    assert len(lower(spec_of("y = h2 * h2 + x @ w", "h2 = x @ w")).dots) == 1


def test_factors_leave_the_sum_and_inner_is_read_once() -> None:
    program = factors_leave(lower(spec_of(*NORMED)))
    assert texts(program)[-4:-2] == ["reduce y_dot : elem = dot_inner(gain*x, w)", "map    y : elem = rstd*y_dot"]
    assert {stage_of(program)[name] for name in ("x_squares", "y_dot", "y")} == {1}
    shared = factors_leave(lower(spec_of("y = ((x * scale) @ w) * ((x * 2) @ (w * bias))")))
    assert [show_statement(dot).strip() for dot in shared.dots] == ["reduce y_dot3 : elem = dot_inner(x, w)"]


@pytest.mark.parametrize(
    "side", ["cast(x * rstd, bf16)", "(x + rstd)", "maximum(x * rstd, 0)", "abs(x * scale)", "x**2", "(x * gain)"]
)
def test_what_is_no_factor_stays_in_the_sum(side: str) -> None:
    program = lower(spec_of("rstd = rsqrt(mean(x * x))", f"y = {side} @ w"))
    assert factors_leave(program) == program


n = 3  # of the axis that is dropped
SYMBOLIC = [
    (Kind.INNER, (x * symbol("s") * gain, w * symbol("b") / 3)),
    (Kind.INNER, (Ordered(x, Ordered(symbol("s"), gain), 1 / symbol("s")), w)),
    (Kind.COL, (dy * symbol("b") * symbol("s"), w * gain)),
    (Kind.ROW, (-x * gain * symbol("s"), dy * symbol("b"))),
]


@pytest.mark.parametrize(("over", "sides"), SYMBOLIC)
def test_a_sum_with_its_factors_outside_is_the_same_number(over: Kind, sides: tuple[sp.Expr, sp.Expr]) -> None:
    kind = Kind.PRODUCT & ~over
    loads = (*LOADS, Load("s", Kind.ROW))
    before = RowProgram("p", (*loads, dot("y", kind, *sides, over), Store("y", "y", kind)))
    after = factors_leave(before)
    inputs = {ld.name: symbols(ld.name, n) if over in ld.kind else [symbol(ld.name)] * n for ld in loads}
    found = [run_row(program, inputs)["y"][0] for program in (before, after)]
    assert after != before
    assert sp.expand(opened(found[0]) - opened(found[1])) == 0
    kinds = {ld.name: ld.kind for ld in loads}
    factors = [f for arg in after.dots[0].args for f in sp.Mul.make_args(opened(arg))]
    assert all(over in kind_of(factor, kinds) for factor in factors)


WAITING = [  # for statistics of their rows: a look at these gives them
    ("s = mean(x * x)", "y = cast(x * s, bf16) @ w"),
    ("y = (x - mean(x)) @ w",),
    ("c = x - mean(x)", "y = (c * rsqrt(mean(c * c))) @ w"),
    ("y = x @ w * sum((x - max(x))**2)",),
]


@pytest.mark.parametrize("formulas", WAITING)
def test_a_left_side_may_wait_for_statistics_of_its_rows(formulas: tuple[str, ...]) -> None:
    spec = spec_of(*formulas)
    present = frozenset(t.name for t in spec.tensors)
    assert class_of_formulas(spec, lower(spec), present) is ProgramClass.TILES


REFUSED_GRADIENTS = {  # a row's statistic is known behind inner, where dv sums rows, and ds has its result
    "v": ("a kernel of products reduces its sides over rows, to values along inner or cols", "row_max : row"),
    "s": ("what waits for a reduction of the result's rows is known behind all of it", "exp(z - row_max)"),
}


NOT_IN_THE_FORWARD: dict[tuple[str, ...], Callable[[Array, Array], Array]] = {
    ("y = 2 * (x @ w)",): lambda x, w: 2 * (x @ w),
    ("y = (x - mean(x)) @ w",): lambda x, w: (x - x.mean(-1, keepdims=True)) @ w,
    ("c = x - mean(x)", "y = (c * rsqrt(mean(c * c) + 0.5)) @ w"): lambda x, w: (
        ((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.5)) @ w
    ),
    ("y = (x * sum(x * x)) @ w * 3",): lambda x, w: 3 * (x * (x * x).sum(-1, keepdims=True)) @ w,
}


@pytest.mark.parametrize("formulas", NOT_IN_THE_FORWARD, ids=" ".join)
def test_a_gradient_through_rows_of_a_side_is_the_quotient_of_differences(formulas: tuple[str, ...]) -> None:
    """Of what stands before the product for each row, and of a multiple of a product."""
    rng, run = np.random.default_rng(0), NOT_IN_THE_FORWARD[formulas]
    x, w, dy = rng.standard_normal((3, 4)), rng.standard_normal((4, 2)), rng.standard_normal((3, 2))
    problem = problem_for(spec_of(*formulas), shape=(3, 2), inner=4, direction="backward", gradients=("x", "w"))
    found = evaluate(written_program(problem), {"x": x, "w": w, "dy": dy})
    for name, value in (("x", x), ("w", w)):
        for at in np.ndindex(value.shape):
            moved = [value.copy() for _ in range(2)]
            moved[0][at] += 1e-6
            moved[1][at] -= 1e-6
            ends = [run(m, w) if name == "x" else run(x, m) for m in moved]
            slope = ((ends[0] - ends[1]) * dy).sum() / 2e-6
            assert abs(slope - found[f"d{name}"][at]) < 1e-6 * max(1, abs(slope))


def test_a_maximum_of_a_side_has_a_gradient_only_where_it_cancels() -> None:
    spec = spec_of("y = (x - max(x)) @ w")
    with pytest.raises(SpecError, match="the gradient of max is supported only where it cancels"):
        written_program(problem_for(spec, shape=(2, 8), inner=4, direction="backward", gradients=("x",)))


@pytest.mark.parametrize("gradient", REFUSED_GRADIENTS)
def test_the_gradients_of_a_softmax_times_v_name_the_reduction_that_one_kernel_has_not(gradient: str) -> None:
    rule, received = REFUSED_GRADIENTS[gradient]
    question: dict[str, Any] = {"direction": "backward", "gradients": (gradient,)}
    assert class_of(problem_for(load("softmax_v"), shape=(2, 8, 16), inner=12, **question)) is ProgramClass.TILES

    def asked() -> None:
        without = ("row_max", "row_sum")
        class_of(problem_for(load("softmax_v"), shape=(2, 8, 16), inner=12, without=without, **question))

    with pytest.raises(SpecError) as caught:
        asked()
    assert rule in caught.value.rule
    assert received in str(caught.value)
    assert "a statistic of rows is stored and saved" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "statement",
    [
        Reduce(("s",), Kind.SCALAR, SUM, (symbol("r"),)),
        Reduce(("s",), Kind.ROW, SUM, (dy,)),
        Reduce(("s",), Kind.COL, SUM, (dy * symbol("dw_sum"),)),
        Load("r_first", Kind.ROW, of="dy"),
        Random("u", "seed", 0),
        Map("s", Kind.LEFT, x * symbol("b_sum")),
        dot("s", Kind.LEFT, dy, w, Kind.COL),
    ],
)
def test_a_statement_that_a_kernel_of_tiles_does_not_do_is_named(statement: Statement) -> None:
    """Beside dw = dot_rows(x, dy), whose sums over the rows ride along, and whose rows of the result nobody has."""
    loads = (*LOADS, Load("r", Kind.ROW), Load("seed", Kind.SCALAR))
    sums = (
        Reduce(("b_sum",), Kind.COL, SUM, (dy,)),
        dot("dw", Kind.MATRIX, x, dy, Kind.ROW),
        Map("dw_sum", Kind.COL, symbol("b_sum") * 2),
    )
    right = RowProgram("p", (*loads, *sums, Store("dw", "dw", Kind.MATRIX)))
    assert tile_axes(check(right)) == (Kind.INNER, Kind.COL, Kind.ROW)
    with pytest.raises(ProgramError) as caught:
        tile_axes(replace(right, statements=(*right.statements, statement)))
    assert caught.value.received == show_statement(statement).strip()


OF_RESULT = {
    "what waits for a reduction of the result's rows is known behind all of it": Map(
        "s", Kind.ELEM, symbol("y") * symbol("top")
    ),
    "a reduction of the result waits for another one": Reduce(("s",), Kind.ROW, SUM, (symbol("y") * symbol("top"),)),
    "what waits for a reduction of the result is made of no other sum": Map(
        "s", Kind.ROW, symbol("top") * symbol("squares")
    ),
}


@pytest.mark.parametrize("rule", OF_RESULT)
def test_what_a_kernel_of_tiles_does_not_do_with_statistics_of_its_result_is_named(rule: str) -> None:
    """Beside the maximum of the result's rows, and squares of the side, which ride along."""
    sums = (
        dot("y", Kind.ELEM, x, w, Kind.INNER),
        Reduce(("squares",), Kind.ROW, SUM, (x**2,), over=Kind.INNER),
        Reduce(("top",), Kind.ROW, MAX, (symbol("y"),)),
    )
    right = RowProgram("p", (*LOADS, *sums, Store("y", "y", Kind.ELEM), Store("top", "top", Kind.ROW)))
    assert tile_axes(check(right)) == (Kind.ROW, Kind.COL, Kind.INNER)
    with pytest.raises(ProgramError, match=rule) as caught:
        tile_axes(replace(right, statements=(*right.statements, OF_RESULT[rule])))
    assert caught.value.received == show_statement(OF_RESULT[rule]).strip()


def test_a_program_of_sides_without_a_contraction_is_refused() -> None:
    with pytest.raises(ProgramError, match="values along inner are the sides of a contraction"):
        program_class(RowProgram("p", (Load("x", Kind.LEFT), Store("y", "x", Kind.LEFT))))


SHIPPED: dict[str, Callable[..., Array]] = {
    "linear": REFERENCES[LINEAR],
    "linear_add": lambda x, w, residual, **_: residual + x @ w,
    "linear_add_rms": lambda x, w, residual, **_: residual + x @ w,
    "linear_bias_gelu": REFERENCES[GELU],
    "linear_swiglu": lambda x, w_gate, w_up, **_: silu(x @ w_gate) * (x @ w_up),
    "rmsnorm_linear": lambda x, w, weight, **_: REFERENCES[NORMED](x=x, w=w, gain=weight),
}


@pytest.mark.parametrize("op", SHIPPED)
def test_the_products_that_ship_compute_what_they_say(op: str) -> None:
    known = arrays()
    known |= {"w_gate": known["w"], "w_up": known["up"], "weight": known["gain"], "residual": known["h"]}
    absent = {"bias": np.zeros(4), "weight": np.ones(7)}
    spec = load(op)
    for left_out in (frozenset(), frozenset(t.name for t in spec.tensors if t.optional)):
        given = known | {name: absent[name] for name in left_out if name in absent}
        program = written_program(problem_for(spec, shape=(5, 4), inner=7, without=[*left_out]))
        found = evaluate(factors_leave(program), given, {"eps": 1e-6})
        close = 1e-6 if op == "rmsnorm_linear" else 1e-12  # it casts to float32
        np.testing.assert_allclose(found.get("y", found.get("h")), SHIPPED[op](**given), rtol=close, atol=close)
        assert program_class(program) is ProgramClass.TILES
