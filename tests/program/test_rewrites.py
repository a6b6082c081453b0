import re

import pytest
import sympy as sp

from normgen.errors import UsageError
from normgen.pipeline import emit
from normgen.program.ir import COLS, Load, Map, Reduce, RowProgram, Store, looks, show_statement
from normgen.program.lower import lower
from normgen.program.monoid import ONLINE_SOFTMAX, SUM, WELFORD, symbol
from normgen.program.rewrites.hoist import hoist_row_divisions
from normgen.program.rewrites.passes import passed
from normgen.program.rewrites.reductions import SOFTMAX, VARIANCE, applicable, softmax, variance
from normgen.program.source import problem_for
from normgen.schedule.knobs import KNOBS
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse
from normgen.spec.spec import Kind
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


def polynomial(expr: sp.Expr) -> sp.Expr:
    return sp.expand(without_clamp(expr))


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


def test_the_rewritten_programs_read_like_textbooks() -> None:
    program = lower(load("layernorm"), present=frozenset({"x", "y"}))
    tail = ["map var : row = var_sum/cols", "map rstd : row = rsqrt(eps + var)", "map y : elem = (x - mean)*rstd"]
    assert lines(variance(program, "sum_of_squares")) == [
        "load x : elem",
        "reduce x_sum : row = sum(x)",
        "map mean : row = x_sum/cols",
        "reduce x_squares : row = sum(x**2)",
        "map var_sum : row = Max(0, x_squares - cols*mean**2)",
        *tail,
        "store y",
    ]
    assert lines(variance(program, "shifted"))[1:7] == [
        "load x_first : row = x[0]",
        "reduce x_shifted_sum : row = sum(x - x_first)",
        "reduce x_shifted_squares : row = sum((x - x_first)**2)",
        "map x_shifted_mean : row = x_shifted_sum/cols",
        "map mean : row = x_first + x_shifted_mean",
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


@pytest.mark.parametrize("method", VARIANCE[1:])
def test_one_pass_methods_save_a_look(method: str) -> None:
    for program in (lower(load("layernorm")), RESIDUAL):
        assert (looks(program), looks(variance(program, method))) == (3, 2)


def test_online_softmax_saves_a_look() -> None:
    assert [looks(softmax(TEMPERATURE, method)) for method in SOFTMAX] == [3, 2]


def test_the_pivot_of_an_expression_reads_the_first_element_of_each_tensor() -> None:
    shifted = variance(RESIDUAL, "shifted")
    assert [(load.name, load.tensor) for load in shifted.loads if load.first_of] == [
        ("r_first", "r"),
        ("w_first", "w"),
        ("x_first", "x"),
    ]
    assert "map h_pivot : row = r_first*w_first + x_first" in lines(shifted)


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
    assert [name for name, _ in steps] == ["lower", "variance=welford", "softmax=two_pass", "hoist row divisions"]
    assert steps[0][1] == program
    assert steps[1][1] == steps[2][1] == variance(program, "welford")


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
