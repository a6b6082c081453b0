import re

import numpy as np
import pytest
import sympy as sp

from normgen.errors import UsageError
from normgen.knobs import KNOBS, ArithmeticMode, Division, VarianceMethod
from normgen.pipeline import emit
from normgen.program.functions import where
from normgen.program.ir import COLS, Column, Load, Map, Reduce, RowProgram, Store, looks, show_statement
from normgen.program.lower import lower
from normgen.program.monoid import ONLINE_SOFTMAX, SUM, WELFORD, Monoid, symbol
from normgen.program.rewrites.hoist import hoist_row_divisions
from normgen.program.rewrites.passes import passed
from normgen.program.rewrites.quotients import divide_by_remainders
from normgen.program.rewrites.reductions import SOFTMAX, VARIANCE, applicable, softmax, variance
from normgen.program.rewrites.taken import load_taken_elements
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse
from normgen.spec.spec import Kind
from tests.program.evaluate import evaluate, evaluate_expr
from tests.program.symbolic_rows import (
    associations,
    chain,
    combine,
    identity,
    lift,
    run_row,
    symbols,
    tree_reduce,
    vector_chain,
)

LENGTHS = (2, 3, 5)
TREES = [(n, tree) for n in LENGTHS for tree in associations(range(n))]


def spec_program(formulas: str, tensors: str = 'x = "input"\ny = "output"') -> RowProgram:
    return lower(parse(f'name = "made_up"\n[tensors]\n{tensors}\n[formulas]\n{formulas}\n'))


RESIDUAL = spec_program(
    'h = "x + r * w"\ny = "(h - mean(h)) * rsqrt(mean((x + r*w - mean(h))**2) + 1e-5)"',
    'x = "input"\nr = "input"\nw = "parameter"\ny = "output"',
)
TEMPERATURE = spec_program(
    'y = "exp(x*t - max(x*t)) / sum(exp(x*t - max(x*t)))"', 'x = "input"\nt = "parameter"\ny = "output"'
)


def inputs_of(program: RowProgram, n: int) -> dict[str, list[sp.Expr]]:
    return {load.name: symbols(load.name, n) for load in program.loads}


def without_clamp(expr: sp.Expr) -> sp.Expr:
    """Max(0, v) -> v: the clamp only acts on rounding, because v is a sum of squares."""
    return expr.replace(lambda e: isinstance(e, sp.Max) and 0 in e.args, lambda e: next(a for a in e.args if a != 0))


def without_choice(expr: sp.Expr) -> sp.Expr:
    """where(condition, v, v) -> v: a correction of nothing is 0 whether it is taken or not."""
    return expr.replace(lambda e: isinstance(e, where) and e.args[1] == e.args[2], lambda e: e.args[1])


def polynomial(expr: sp.Expr) -> sp.Expr:
    return sp.expand(without_choice(without_clamp(expr)))


def of_a_far_mean(expr: sp.Expr) -> sp.Expr:
    """Of a row whose mean is corrected."""
    return polynomial(expr.replace(where, lambda _, corrected, __: corrected))


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("method", VARIANCE[1:])
@pytest.mark.parametrize("program", [lower(load("layernorm")), RESIDUAL], ids=["layernorm", "residual"])
def test_every_variance_method_is_the_same_polynomial(program: RowProgram, method: str, n: int) -> None:
    inputs, names = inputs_of(program, n) | {"eps": [symbol("eps")] * n}, [r.names[0] for r in program.reduces]
    written = run_row(program, inputs, scalars=program.scalars, tidy=polynomial)
    got = run_row(variance(program, method), inputs, scalars=program.scalars, tidy=polynomial)
    for name in {*names, "mean", "y"} & written.keys() & got.keys():
        assert [sp.expand(a - b) for a, b in zip(written[name], got[name], strict=True)] == [0] * n
    assert got["y"] == written["y"]


@pytest.mark.parametrize(("n", "tree"), TREES)
def test_welford_is_the_mean_and_the_sum_of_squares_in_any_association(n: int, tree) -> None:
    x = symbols("x", n)
    mean = sum(x) / n
    want = [sp.Integer(n), mean, sum((v - mean) ** 2 for v in x)]
    for got in (tree_reduce(tree)(WELFORD, [[v] for v in x]), chain(WELFORD, [[v] for v in x])):
        assert [sp.expand(a - b) for a, b in zip(got, want, strict=True)] == [0, 0, 0]


def gathered(expr: sp.Expr) -> sp.Expr:
    """exp(a) * exp(b) -> exp(a + b) in every term."""
    return sp.powsimp(sp.expand(expr))


@pytest.mark.parametrize(("n", "tree"), TREES)
def test_online_softmax_is_the_max_and_the_shifted_sum_in_any_association(n: int, tree) -> None:
    x = symbols("x", n)
    top = sp.Max(*x)
    want = sum(sp.exp(v - top) for v in x)
    for got_max, got_sum in (
        tree_reduce(tree)(ONLINE_SOFTMAX, [[v] for v in x]),
        chain(ONLINE_SOFTMAX, [[v] for v in x]),
    ):
        assert got_max == top
        assert gathered(got_sum - want) == 0


@pytest.mark.parametrize("vectors", [(1, 1), (2,), (3, 1), (2, 2)])
def test_online_softmax_by_vectors_moves_its_sum_once_a_vector(vectors: tuple[int, ...]) -> None:
    x = symbols("x", 1 + sum(vectors))
    rest = [[v] for v in x[1:]]
    cuts = [rest[sum(vectors[:i]) : sum(vectors[: i + 1])] for i in range(len(vectors))]
    got_max, got_sum = vector_chain(ONLINE_SOFTMAX, cuts, lift(ONLINE_SOFTMAX, [x[0]]))
    top = sp.Max(*x)
    assert got_max == top
    assert gathered(got_sum - sum(sp.exp(v - top) for v in x)) == 0
    assert vector_chain(ONLINE_SOFTMAX, [[]], [got_max, got_sum]) == [got_max, got_sum]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("program", [lower(load(n)) for n in ("softmax", "log_softmax", "row_max_sum")] + [TEMPERATURE])
def test_online_softmax_gives_the_same_program_result(program: RowProgram, n: int) -> None:
    inputs = inputs_of(program, n)
    written, got = run_row(program, inputs), run_row(softmax(program, "online"), inputs, tidy=gathered)
    for store in program.stores:
        differences = [gathered(a - b) for a, b in zip(written[store.value], got[store.value], strict=True)]
        assert differences == [0] * n


@pytest.mark.parametrize("monoid", [WELFORD, ONLINE_SOFTMAX], ids=lambda m: m.name)
def test_the_identity_changes_nothing(monoid) -> None:
    state = lift(monoid, [symbol("x0")])
    assert [sp.expand(v) for v in combine(monoid, identity(monoid), state)] == state
    assert [sp.expand(v) for v in combine(monoid, state, identity(monoid))] == state


def lines(program: RowProgram) -> list[str]:
    return [" ".join(show_statement(s).split()) for s in program.statements]


def taken(correction: str) -> str:
    return f"where(4*cols*x_rough_mean**2 > x_shifted_squares, {correction}, 0)"


def test_the_rewritten_programs_read_like_textbooks() -> None:
    program = lower(load("layernorm"), present=frozenset({"x", "y"}))
    tail = ["map var : row = var_sum/cols", "map rstd : row = rsqrt(eps + var)", "map y : elem = (x - mean)*rstd"]
    assert lines(variance(program, "corrected_two_pass"))[1:8] == [
        "reduce x_rough_sum : row = sum(x)",
        "map x_rough_mean : row = x_rough_sum/cols",
        "reduce x_shifted_sum : row = sum(x - x_rough_mean)",
        "reduce x_shifted_squares : row = sum((x - x_rough_mean)**2)",
        "map x_shifted_mean : row = x_shifted_sum/cols",
        f"map mean : row = x_rough_mean + {taken('x_shifted_mean')}",
        "map var_sum : row = Max(0, x_shifted_squares - cols*x_shifted_mean**2)",
    ]
    assert lines(variance(program, "sum_of_squares")) == [
        "load x : elem",
        "reduce x_sum : row = sum(x)",
        "map mean : row = x_sum/cols",
        "reduce x_squares : row = sum(x**2)",
        "map var_sum : row = Max(0, x_squares - cols*mean**2)",
        *tail,
        "store y",
    ]
    assert lines(variance(program, "shifted"))[1:10] == [
        "load x_first : row = x[first]",
        "load x_middle : row = x[middle]",
        "load x_last : row = x[last]",
        "map x_pivot : row = Max(Min(x_first, x_middle), Min(x_last, Max(x_first, x_middle)))",
        "reduce x_shifted_sum : row = sum(x - x_pivot)",
        "reduce x_shifted_squares : row = sum((x - x_pivot)**2)",
        "map x_shifted_mean : row = x_shifted_sum/cols",
        "map mean : row = x_pivot + x_shifted_mean",
        "map var_sum : row = Max(0, x_shifted_squares - cols*x_shifted_mean**2)",
    ]
    assert lines(variance(program, "guarded"))[1:11] == [
        "reduce x_rough_sum : row = sum(x)",
        "reduce x_squares : row = sum(x**2)",
        "map x_rough_mean : row = x_rough_sum/cols",
        "map x_left : row = x_squares - cols*x_rough_mean**2",
        "map x_margin : row = x_left - 3*x_squares/4",
        "reduce x_shifted_sum : row = sum(x - x_rough_mean) unless 0 <= x_margin, then 0",
        "reduce x_shifted_squares : row = sum((x - x_rough_mean)**2) unless 0 <= x_margin, then x_left",
        "map x_shifted_mean : row = x_shifted_sum/cols",
        "map mean : row = x_rough_mean + x_shifted_mean",
        "map var_sum : row = Max(0, x_shifted_squares - cols*x_shifted_mean**2)",
    ]
    assert lines(variance(program, "welford")) == [
        "load x : elem",
        "reduce x_count, mean, var_sum : row = welford(x)",
        *tail,
        "store y",
    ]
    assert lines(softmax(lower(load("softmax")), "online")) == [
        "load x : elem",
        "reduce row_max, row_sum : row = online_softmax(x)",
        "map y : elem = exp(x - row_max)/row_sum",
        "store y",
    ]


@pytest.mark.parametrize(
    ("formulas", "shows"),
    [
        ('y = "exp(x - max(x)) / sum(exp(x - max(x)))"', False),
        ('y = "x - max(x) - log(sum(exp(x - max(x))))"', False),
        ('t = "max(x)"\nz = "exp(x - t) / sum(exp(x - t))"\ny = "z + (x - t)"', False),
        ('t = "max(x)"\ns = "sum(exp(x - t))"\nm = "t + log(s)"\ny = "exp(x - t) / s"', True),
        ('t = "max(x)"\nz = "x - t"\ny = "exp(z) / sum(exp(x - t))"', True),
    ],
)
def test_a_row_of_nothing_but_minus_infinity_is_set_right_where_a_row_value_shows(formulas: str, shows: bool) -> None:
    """The online state of such a row is (LOWEST, 0)."""
    more = 'm = "statistic"\n' if "log(s)" in formulas else 'z = "output"\n' if shows else ""
    program = spec_program(formulas, f'x = "input"\n{more}y = "output"')
    printed = "\n".join(lines(softmax(program, "online")))
    assert ("_running" in printed) is shows


def test_the_maximum_that_is_stored_is_reduced_by_itself() -> None:
    assert lines(softmax(lower(load("row_max_sum")), "online")) == [
        "load x : elem",
        "reduce row_max : row = max(x)",
        "reduce row_max_running, row_sum_running : row = online_softmax(x)",
        "map row_sum : row = row_sum_running*exp(row_max_running - row_max)",
        "store row_max",
        "store row_sum",
    ]


@pytest.mark.parametrize("method", VARIANCE)
def test_one_pass_methods_save_a_look(method: VarianceMethod) -> None:
    for program in (lower(load("layernorm")), RESIDUAL):
        # The second look of `guarded` is one that most rows are spared.
        want = 2 if method.looks_once and method is not VarianceMethod.GUARDED else 3
        assert (looks(program), looks(variance(program, method))) == (3, want)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("program", [lower(load("layernorm")), RESIDUAL], ids=["layernorm", "residual"])
def test_a_row_that_is_spared_its_second_look_has_the_same_results(program: RowProgram, n: int) -> None:
    inputs = inputs_of(program, n) | {"eps": [symbol("eps")] * n}
    written = run_row(program, inputs, scalars=program.scalars, tidy=polynomial)
    guarded = variance(program, "guarded")
    got = run_row(guarded, inputs, scalars=program.scalars, tidy=polynomial, spared=True)
    assert got["y"] == written["y"]


def test_rows_are_spared_their_second_look_where_less_than_a_quarter_cancels() -> None:
    """A quarter of the elements 4, the others 0: cols mean^2 is just a quarter of the sum of squares."""
    x = np.zeros((4, 16))
    x[:, :4], x[1, 0], x[2, 0], x[3] = 4.0, np.nextafter(4.0, 5), np.nextafter(4.0, 3), np.nan
    x[1, 5], x[2, 5] = -1e-3, 1e-3
    guarded = variance(lower(load("layernorm"), present=frozenset({"x", "y"})), "guarded")
    values = evaluate(guarded, {"x": x}, {"eps": 1e-5}, keep_all=True)
    margin = values["x_margin"]
    assert margin[0] == 0
    assert margin[1] > 0 > margin[2]
    assert np.isnan(margin[3])
    left, second = values["x_left"], ((x - values["x_rough_mean"][:, None]) ** 2).sum(axis=1)
    assert np.array_equal(values["x_shifted_squares"][:2], left[:2])
    assert values["x_shifted_squares"][2] == second[2]
    assert np.array_equal(values["x_shifted_sum"][:2], [0, 0])


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("method", ["corrected_two_pass", "guarded"])
@pytest.mark.parametrize("program", [lower(load("layernorm")), RESIDUAL], ids=["layernorm", "residual"])
def test_residuals_correct_whatever_the_first_sum_is_off_by(program: RowProgram, method: str, n: int) -> None:
    """The exact first sum would hide a wrong correction, which is then 0."""
    inputs = inputs_of(program, n) | {"eps": [symbol("eps")] * n}
    sums: list[list[sp.Expr]] = []

    def off_at_first(monoid: Monoid, rows: list[list[sp.Expr]]) -> list[sp.Expr]:
        sums.append([symbol("anything")] if not sums else chain(monoid, rows))
        return sums[-1]

    written = run_row(program, inputs, scalars=program.scalars, tidy=polynomial)
    got = run_row(variance(program, method), inputs, scalars=program.scalars, tidy=of_a_far_mean, reduce=off_at_first)
    assert symbol("anything") in got["x_rough_sum" if "x_rough_sum" in got else "h_rough_sum"][0].free_symbols
    assert got["y"] == written["y"]


def test_a_mean_within_half_the_deviation_stays_what_the_sum_says() -> None:
    """Rows of the deviation 4, whose residuals say that the sum's mean is off by a quarter."""
    program = variance(lower(load("layernorm"), present=frozenset({"x", "y"})), "corrected_two_pass")
    mean = next(s.expr for s in program.maps if s.name == "mean")
    rough = np.array([0.0, 2.0, -2.0, 2.0 + 2**-40, -2.0 - 2**-40, 9.0])
    known = {"x_rough_mean": rough, "x_shifted_mean": np.array(0.25), "x_shifted_squares": np.array(16 * 4.0**2)}
    found = evaluate_expr(mean, {symbol(n): v for n, v in known.items()} | {COLS: np.array(16.0)})
    assert (found - rough).tolist() == [0, 0, 0, 0.25, 0.25, 0.25]


def test_a_sum_that_is_read_by_itself_is_corrected_too() -> None:
    named = spec_program('a = "x - sum(x)/cols"\nq = "sum(a*a)"\ny = "a / sqrt(q / cols + 1e-5)"')
    x_sum = next(r.names[0] for r in named.row_reduces)
    assert f"map {x_sum} : row = x_rough_sum + {taken('x_shifted_sum')}" in lines(variance(named, "corrected_two_pass"))


def test_online_softmax_saves_a_look() -> None:
    assert [looks(softmax(TEMPERATURE, method)) for method in SOFTMAX] == [3, 2]


def test_the_pivot_of_an_expression_reads_three_elements_of_each_tensor() -> None:
    shifted = variance(RESIDUAL, "shifted")
    assert [(load.name, load.tensor, load.column) for load in shifted.loads if load.of] == [
        (f"{tensor}_{column}", tensor, column) for column in Column for tensor in "rwx"
    ]
    assert "map h_middle : row = r_middle*w_middle + x_middle" in lines(shifted)
    assert "map h_pivot : row = Max(Min(h_first, h_middle), Min(h_last, Max(h_first, h_middle)))" in lines(shifted)


def test_the_pivot_reads_the_values_of_the_groups_that_its_columns_are_in() -> None:
    text = 'name = "p"\n[tensors]\nx = "input"\nw = { role = "parameter", group = 2 }\ny = "output"\n[formulas]\n'
    spec = parse(text + 'h = "x * w"\nm = "mean(h)"\ny = "(h - m) / sqrt(mean((h - m)**2) + 1e-5)"\n')
    program = variance(lower(spec), "shifted")
    assert [f"w_{column} : row = w[{column} // 2]" in str(program) for column in Column] == [True] * 3
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((5, 12)), rng.standard_normal(6)
    found = evaluate(program, {"x": x, "w": w}, keep_all=True)
    middle = np.median((x * np.repeat(w, 2))[:, [0, 6, 11]], axis=1)
    np.testing.assert_allclose(found["h_pivot"].reshape(-1), middle, rtol=1e-12)
    plain = evaluate(lower(spec), {"x": x, "w": w})
    np.testing.assert_allclose(found["y"], plain["y"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("cols", [1, 2, 3, 8])
def test_no_single_element_is_the_pivot_where_it_lies_far_from_the_others(cols: int) -> None:
    program = variance(lower(load("layernorm"), present=frozenset({"x", "y"})), "shifted")
    x = np.where(np.eye(cols) > 0, 1000.0, np.arange(cols) / cols)  # row i: all but element i are below 1
    pivot = evaluate(program, {"x": x}, {"eps": 1e-5}, keep_all=True)["x_pivot"]
    assert np.all(pivot < 1) if cols > 2 else np.all(np.isin(pivot, x))


def test_patterns_are_found_in_the_algebra_whatever_the_names() -> None:
    named = spec_program('a = "x - sum(x)/cols"\nq = "sum(a*a)"\ny = "a / sqrt(q / cols + 1e-5)"')
    assert applicable(named) == {"variance": VARIANCE, "softmax": ("two_pass",)}
    exponentials = spec_program('e = "exp(x - max(x))"\ny = "e / sum(e)"')
    assert applicable(exponentials) == {"variance": ("two_pass",), "softmax": SOFTMAX}


@pytest.mark.parametrize(
    "formulas",
    [
        'y = "x * rsqrt(mean(x*x) + 1e-6)"',  # no mean is taken off
        'y = "x / sum((x - max(x))**2)"',
        'y = "x / sum((x - 2*mean(x))**2)"',
        'y = "x / sum((x - mean(x*x))**2)"',
        'y = "x / sum(abs(x - mean(x)))"',
        'y = "exp(x) / sum(exp(x))"',
        'y = "x / sum(exp(2*x - max(x)))"',
        'y = "x / sum(exp(x - absmax(x)))"',
    ],
)
def test_what_is_no_variance_and_no_softmax_stays_as_written(formulas: str) -> None:
    program = spec_program(formulas)
    assert applicable(program) == {"variance": ("two_pass",), "softmax": ("two_pass",)}
    assert variance(program, "welford") == softmax(program, "online") == program


def test_passes_show_every_step_by_name() -> None:
    program = lower(load("layernorm"))
    steps = passed(program, Schedule(variance="welford"))
    rewritten = [
        "totals of elements",
        "load taken elements",
        "variance=welford",
        "softmax=two_pass",
        "hoist row divisions",
    ]
    assert [name for name, _ in steps] == ["lower", *rewritten]
    assert steps[0][1] == steps[1][1] == steps[2][1] == program
    assert steps[3][1] == steps[4][1] == variance(program, "welford")


def test_an_element_that_an_index_names_is_loaded_where_the_row_is_reduced_anyway() -> None:
    tensors = 'label = { role = "row_input", dtypes = ["i32"] }\ny = "row_output"'
    kept = parse(f'name = "t"\n[tensors]\nx = "input"\n{tensors}\n[formulas]\ny = "take(x, label)"')
    assert load_taken_elements(lower(kept)) == lower(kept)
    for sums in ("take(x * x, label)", "sum(where(col == col, x, 0))", "sum(where(col == 3, x, 0))", "sum(x)"):
        other = parse(kept.text.replace("take(x, label)", f"label + max(x) + {sums}"))
        assert load_taken_elements(lower(other)) == lower(other)
    loaded = parse(kept.text.replace("take(x, label)", "take(x, label) + max(x)"))
    program = load_taken_elements(lower(loaded))
    (taken,) = (ld for ld in program.loads if ld.of)
    assert (taken.tensor, taken.index, taken.kind) == ("x", "label", Kind.ROW)
    assert [r.monoid.name for r in program.reduces] == ["max"]
    x = np.random.default_rng().standard_normal((7, 5))
    inputs = {"x": x, "label": np.array([0, 4, 2, -1, 5, -100, 3])}
    expected = np.array([x[0, 0], x[1, 4], x[2, 2], 0, 0, 0, x[6, 3]]) + x.max(axis=1)
    for found in (program, lower(loaded)):
        np.testing.assert_allclose(evaluate(found, inputs)["y"], expected, rtol=1e-15)


def test_methods_are_the_knob_values_and_others_are_refused() -> None:
    assert KNOBS["variance"].values == VARIANCE
    assert KNOBS["softmax"].values == SOFTMAX
    with pytest.raises(UsageError, match="did you mean 'welford'"):
        variance(lower(load("layernorm")), "welfort")
    with pytest.raises(UsageError, match="unknown softmax method"):
        softmax(lower(load("softmax")), "twopass")


def test_only_row_values_are_hoisted_out_of_the_column_loop() -> None:
    """x / (1 + x) divides by an element: there is no row value to compute once."""
    x, total = symbol("x"), symbol("total")
    program = RowProgram(
        name="shares",
        statements=(
            Load("x", Kind.ELEM),
            Reduce(("total",), Kind.ROW, SUM, (x,)),
            Map("own", Kind.ELEM, x / (1 + x)),
            Map("share", Kind.ELEM, x / total),
            Store("y", "own", Kind.ELEM),
            Store("z", "share", Kind.ELEM),
        ),
    )
    hoisted = hoist_row_divisions(program)
    assert [m.name for m in hoisted.maps] == ["own", "total_inverse", "share"]
    assert [m.kind for m in hoisted.maps] == [Kind.ELEM, Kind.ROW, Kind.ELEM]


def test_exact_quotients_of_exponentials_are_divided_by_the_remainder() -> None:
    """What stands behind the division multiplies the quotient; an expression that divides has no name to divide by."""
    s, t = 's = "sum(exp(x))"\n', 't = "mean(x)"\n'
    divided = {
        "exp(x) / s": "exp(x), s",
        "exp(x) * x / s": "exp(x)*x, s",
        "exp(x) / s / t": "exp(x), s",
        "1 - exp(x) / s": "-exp(x), s",
        **dict.fromkeys(["x / s", "x / s * exp(x)", "exp(x) / s**2", "exp(x) / (s + 1)"]),
    }
    for written, quotient in divided.items():
        program = spec_program(f'{s}{t if "/ t" in written else ""}y = "{written}"')
        hoisted = hoist_row_divisions(program, corrected=True)
        assert re.findall(r"remainder[(](.+), s_inverse[)]", str(hoisted)) == [quotient] * bool(quotient), written
        x = np.random.default_rng().standard_normal((3, 5))
        found, expected = (evaluate(p, {"x": x})["y"] for p in (hoisted, program))
        np.testing.assert_allclose(found, expected, rtol=1e-14)
    program = spec_program(f'{s}y = "exp(x) / s"')
    for arithmetic in ArithmeticMode:
        hoisted = dict(passed(program, Schedule(arithmetic=arithmetic)))["hoist row divisions"]
        assert ("remainder" in str(hoisted)) == (arithmetic is ArithmeticMode.EXACT)


def test_what_rows_have_is_divided_by_the_remainder() -> None:
    """What stands before the division is divided, in its order; what divides no row's value stays."""
    m, s = 'm = "mean(x)"\n', 's = "sum(x*x)"\n'
    divided = {
        f'{m}y = "x - m"': ["x_sum, cols, 1/cols"],
        f'{s}y = "x * rsqrt(s / cols + 1e-6)"': ["s, cols, 1/cols"],
        f'{s}t = "s * s / cols"\ny = "x * t"': ["s**2, cols, 1/cols"],
        f'{m}{s}t = "s / cols / m * s"\ny = "x * t"': ["x_sum, cols, 1/cols", "s, cols, 1/cols"],
        f'{s}y = "x / cols * s"': [],
        f'{s}t = "s * cols"\ny = "x * t"': [],
        f'{s}t = "s / 448"\ny = "x * t"': ["s, 448, 1/448"],
        f'{s}t = "s / 6 / cols"\ny = "x * t"': ["s, 6, 1/6"],  # one division of a product
        f'{s}t = "s / 8"\ny = "x * t"': [],
        f'{s}y = "x / 6 * s"': [],
        f'{s}y = "x / s"': ["1, s, reciprocal_approximate(s"],
        f'{s}y = "x / (s + 1)"': ["1, s + 1, reciprocal_approximate(s + 1"],
        f'{s}y = "x / s**2"': [],
        f'{s}t = "2 / s"\ny = "x * t"': [],
    }
    for formulas, quotients in divided.items():
        program = hoist_row_divisions(spec_program(formulas), corrected=False)
        rewritten = divide_by_remainders(program)
        assert re.findall(r"remainder[(](.+?)[)]", str(rewritten)) == quotients, formulas
        assert (rewritten != program) == bool(quotients)
        x = np.random.default_rng().standard_normal((3, 5))
        found, expected = (evaluate(p, {"x": x})["y"] for p in (rewritten, program))
        np.testing.assert_allclose(found, expected, rtol=1e-13)
    program = spec_program(f'{m}{s}y = "(x - m) / s"')
    for way in Division:
        found = str(passed(program, Schedule(division=way))[-1][1])
        assert found.count("remainder") == 2 * (way is Division.REMAINDER)
    found = str(passed(program, Schedule(division=Division.REMAINDER), means=False)[-1][1])
    assert re.findall(r"remainder[(](.+?),", found) == ["1"]  # a power of two divides by an exact product


@pytest.mark.parametrize("method", SOFTMAX)
def test_approximate_arithmetic_leaves_no_exponential_in_a_kernel(method: str) -> None:
    problem = problem_for(load("softmax"), shape="64x512", dtype="bf16")
    for edges in ({"vector": 8}, {"vector": 1}):
        schedule = Schedule(threads_per_row=32, softmax=method, arithmetic="approximate", **edges)
        text = emit(problem, schedule).text
        assert "exp_approximate(" in text
        assert not re.search(r"\bexpf\(", text), method


def test_a_backward_program_keeps_its_column_reductions() -> None:
    x, dy, mean, spread = (symbol(n) for n in ("x", "dy", "mean", "spread"))
    program = RowProgram(
        name="backward",
        statements=(
            Load("dy", Kind.ELEM),
            Load("x", Kind.ELEM),
            Reduce(("x_sum",), Kind.ROW, SUM, (x,)),
            Map("mean", Kind.ROW, symbol("x_sum") / COLS),
            Reduce(("spread",), Kind.ROW, SUM, ((x - mean) ** 2,)),
            Reduce(("dweight",), Kind.COL, SUM, (dy * (x - mean) / spread,)),
            Store("dweight", "dweight", Kind.COL),
        ),
    )
    got = lines(variance(program, "welford"))
    assert got[2:] == [
        "reduce x_count, mean, spread : row = welford(x)",
        "reduce dweight : col = sum_rows((x - mean)*dy/spread)",
        "store dweight",
    ]
    assert spread in variance(program, "shifted").col_reduces[0].args[0].free_symbols
