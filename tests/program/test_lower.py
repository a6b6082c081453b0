from fractions import Fraction

import pytest
import sympy as sp
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from normgen.errors import SpecError, UsageError
from normgen.program.ir import RowProgram, looks, show_statement, stage_of
from normgen.program.lower import lower
from normgen.program.ordered import Ordered
from normgen.spec.formula import Binary, Call, Expression, Name, Number, Power, parse_formula
from normgen.spec.reader import list_specs, load, parse
from normgen.spec.spec import Formula, Role, Spec, Tensor
from tests.program.symbolic_rows import run_row


def lines(program: RowProgram) -> list[str]:
    return [" ".join(show_statement(s).split()) for s in program.statements]


def program_of(formulas: str, tensors: str = 'x = "input"\ny = "output"', scalars: str = "") -> RowProgram:
    text = f'name = "made_up"\n[tensors]\n{tensors}\n[formulas]\n{formulas}\n'
    return lower(parse(text + (f"[scalars]\n{scalars}\n" if scalars else "")))


def test_layernorm_is_the_formula_as_written() -> None:
    program = lower(load("layernorm"))
    assert lines(program) == [
        "load x : elem",
        "load weight : col",
        "load bias : col",
        "reduce x_sum : row = sum(x)",
        "map mean : row = x_sum/cols",
        "reduce var_sum : row = sum((x - mean)**2)",
        "map var : row = var_sum/cols",
        "map rstd : row = rsqrt(eps + var)",
        "map y : elem = bias + (x - mean)*rstd*weight",
        "store y",
        "store mean",
        "store rstd",
    ]
    assert program.scalars == ("eps",)
    assert (stage_of(program)["var_sum"], looks(program)) == (2, 3)


def test_absent_parameters_leave_no_trace_and_absent_statistics_are_not_stored() -> None:
    program = lower(load("layernorm"), present=frozenset({"x", "y", "rstd"}))
    assert lines(program)[-3:] == ["map y : elem = (x - mean)*rstd", "store y", "store rstd"]
    assert [load.name for load in program.loads] == ["x"]


def test_statistics_alone_need_no_output() -> None:
    assert lines(lower(load("row_max_sum"))) == [
        "load x : elem",
        "reduce row_max : row = max(x)",
        "reduce row_sum : row = sum(exp(x - row_max))",
        "store row_max",
        "store row_sum",
    ]
    assert lines(lower(load("row_sum"))) == ["load x : elem", "reduce total : row = sum(x)", "store total"]


def test_every_built_in_spec_lowers_with_and_without_its_optional_tensors() -> None:
    assert set(list_specs()) >= {"layernorm", "rmsnorm", "softmax", "log_softmax", "row_max_sum", "row_sum"}
    for name in list_specs():
        spec = load(name)
        required = frozenset(t.name for t in spec.tensors if not t.optional)
        for present in (None, required):
            program = lower(spec, present=present)
            expected = required if present else {t.name for t in spec.tensors}
            stored = {s.tensor for s in program.stores}
            assert stored == {t.name for t in (*spec.outputs, *spec.statistics) if t.name in expected}


def test_an_l2_norm_from_a_folder_of_its_own(tmp_path) -> None:
    (tmp_path / "l2norm.toml").write_text(
        'name = "l2norm"\n[tensors]\nx = "input"\ny = "output"\n'
        '[scalars]\neps = 1e-12\n[formulas]\ny = "x * rsqrt(sum(x*x) + eps)"\n'
    )
    program = lower(load("l2norm", folders=[tmp_path]))
    assert lines(program) == [
        "load x : elem",
        "reduce x_squares : row = sum(x**2)",
        "map y : elem = x*rsqrt(eps + x_squares)",
        "store y",
    ]


@pytest.mark.parametrize(("role", "kind"), [("input", "elem"), ("parameter", "col")])
def test_a_gated_norm(role: str, kind: str) -> None:
    tensors = f'x = "input"\nw = "parameter"\ng = "{role}"\ny = "output"'
    program = program_of('y = "x * rsqrt(mean(x*x) + eps) * w * sigmoid(g)"', tensors, "eps = 1e-6")
    assert lines(program) == [
        "load x : elem",
        "load w : col",
        f"load g : {kind}",
        "reduce x_squares : row = sum(x**2)",
        "map y : elem = x*rsqrt(eps + x_squares/cols)*w/(1 + exp(-g))",
        "store y",
    ]


def test_a_softmax_with_a_temperature_parameter_shares_its_shift() -> None:
    tensors = 'x = "input"\nt = "parameter"\ny = "output"'
    program = program_of('y = "exp(x*t - max(x*t)) / sum(exp(x*t - max(x*t)))"', tensors)
    assert lines(program)[2:] == [
        "reduce y_max : row = max(t*x)",
        "reduce y_sum : row = sum(exp(t*x - y_max))",
        "map y : elem = exp(t*x - y_max)/y_sum",
        "store y",
    ]


def test_equal_reductions_are_one_and_formulas_may_stand_in_any_order() -> None:
    program = program_of('y = "(x - mean) / spread"\nspread = "sqrt(sum((x - sum(x)/cols)**2))"\nmean = "mean(x)"')
    assert [r.names for r in program.reduces] == [("x_sum",), ("spread_sum",)]


def test_an_inline_reduction_takes_the_name_of_an_equal_formula() -> None:
    tensors = 'x = "input"\nrow_max = "statistic"\ny = "output"'
    program = program_of('y = "x - max(x)"\nrow_max = "max(x)"', tensors)
    assert lines(program)[1:3] == ["reduce row_max : row = max(x)", "map y : elem = x - row_max"]


def test_a_row_output_is_broadcast_and_a_constant_statistic_is_stored() -> None:
    tensors = 'x = "input"\nbig = "statistic"\nlength = "statistic"\ny = "output"'
    program = program_of('y = "big"\nbig = "max(x)"\nlength = "cols"', tensors)
    assert lines(program) == [
        "load x : elem",
        "reduce big : row = max(x)",
        "map y : elem = big",
        "map length : row = cols",
        "store y",
        "store big",
        "store length",
    ]


# The author's order of operations survives where rounding or overflow depends on it.

ORDER = [
    ('y = "x - max(x) - log(sum(x))"', "map y_part : elem = x - x_max"),
    ('y = "3 * (x - mean(x))"', "map y_part : elem = x - x_sum/cols"),
    ('y = "(x - mean(x)) / 3"', "map y_part : elem = x - x_sum/cols"),
    ('y = "(x / absmax(x)) * (x / absmax(x))"', "map y_part : elem = x/x_absmax"),
    ('y = "(x / absmax(x))**2"', "map y_part : elem = x/x_absmax"),
    ('y = "exp(x - log(sum(x)))"', "map y_part : elem = x - log(x_sum)"),
    ('y = "x * (sum(x) * x)"', "map y_part : elem = x*x_sum"),
]


@pytest.mark.parametrize(("formula", "kept"), ORDER)
def test_terms_that_sympy_would_merge_are_values_of_their_own(formula: str, kept: str) -> None:
    assert kept in lines(program_of(formula))


def test_a_product_of_a_difference_is_never_expanded() -> None:
    program = program_of('y = "(x - mean(x)) * (x + mean(x)) * 2"')
    y = next(m for m in program.maps if m.name == "y").expr
    assert isinstance(y, Ordered)
    assert sum(factor.is_Add for factor in y.args) == 2


def _exact(tree: Expression, values: dict[str, list[Fraction]]) -> list[Fraction]:
    """The formula's value in every column, in rational arithmetic."""
    n = len(values["x"])
    match tree:
        case Number(value=value):
            return [value] * n
        case Name(name=name):
            return values[name]
        case Binary(operator=operator, left=left, right=right):
            work = {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__, "/": Fraction.__truediv__}
            return [work[operator](*pair) for pair in zip(_exact(left, values), _exact(right, values), strict=True)]
        case Power(base=base, exponent=exponent):
            return [b**exponent for b in _exact(base, values)]
        case Call(function=function, args=args):
            a = [_exact(arg, values) for arg in args]
            columns = {
                "sum": lambda: [sum(a[0], Fraction(0))] * n,
                "mean": lambda: [sum(a[0], Fraction(0)) / n] * n,
                "max": lambda: [max(a[0])] * n,
                "absmax": lambda: [max(map(abs, a[0]))] * n,
                "abs": lambda: [abs(v) for v in a[0]],
                "minimum": lambda: list(map(min, *a)),
                "maximum": lambda: list(map(max, *a)),
            }
            return columns[function]()


_texts = st.recursive(
    st.sampled_from(["x", "r", "w", "s", "2", "0.5", "cols", "sum(x)"]),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
        st.builds("({} / {})".format, inner, st.sampled_from(["2", "(1 + abs(x))", "(1 + absmax(w*x))", "cols"])),
        st.builds("{}({})".format, st.sampled_from(["abs"]), inner),
        st.builds("{}({} + x)".format, st.sampled_from(["sum", "mean", "max", "absmax"]), inner),
        st.builds("{}({}, {})".format, st.sampled_from(["minimum", "maximum"]), inner, inner),
        st.builds("({} + r)**2".format, inner),
        st.builds("(-{})".format, inner),
    ),
    max_leaves=6,
)
_numbers = st.fractions(min_value=-4, max_value=4, max_denominator=8)
_TENSORS = (("x", Role.INPUT), ("r", Role.INPUT), ("w", Role.PARAMETER), ("y", Role.OUTPUT))


@settings(max_examples=60, deadline=None)
@given(text=_texts, rows=st.lists(st.tuples(_numbers, _numbers, _numbers), min_size=1, max_size=3), scalar=_numbers)
def test_lowering_never_changes_the_value(text: str, rows: list, scalar: Fraction) -> None:
    spec = Spec(
        name="random",
        summary="",
        tensors=tuple(Tensor(name=name, role=role) for name, role in _TENSORS),
        scalars=(("s", 0.0),),
        formulas=(Formula(name="y", text=text),),
    )
    try:
        program = lower(spec)
    except SpecError as error:
        if "reduces a row" not in str(error):
            raise
        reject()  # x - x + w folds to w, which has no row to reduce
    x, r, w = (list(column) for column in zip(*rows, strict=True))
    values = {"x": x, "r": r, "w": w, "s": [scalar] * len(rows), "cols": [Fraction(len(rows))] * len(rows)}
    exact = {name: [sp.Rational(v.numerator, v.denominator) for v in row] for name, row in values.items()}
    got = run_row(program, exact, scalars=("s",))
    stored = program.stores[0].value
    assert [Fraction(int(v.p), int(v.q)) for v in got[stored]] == _exact(parse_formula(text), values)


# refusals


def test_unknown_and_missing_tensors_are_named() -> None:
    spec = load("layernorm")
    with pytest.raises(UsageError, match="did you mean 'weight'"):
        lower(spec, present=frozenset({"x", "y", "wieght"}))
    with pytest.raises(UsageError, match="tensor 'x' of spec 'layernorm' is not optional"):
        lower(spec, present=frozenset({"y"}))


def test_a_division_by_what_is_0_when_absent_is_refused() -> None:
    tensors = 'x = "input"\nw = { role = "parameter", optional = true, absent = "0" }\ny = "output"'
    spec = parse(f'name = "made_up"\n[tensors]\n{tensors}\n[formulas]\ny = "x / w"\n')
    assert lines(lower(spec))[2] == "map y : elem = x/w"
    with pytest.raises(SpecError, match=r"<spec>:7: division by 0 in the formula of 'y'"):
        lower(spec, present=frozenset({"x", "y"}))


@pytest.mark.parametrize(
    "text",
    [
        "log(0)",
        "log(0) - log(0)",
        "maximum(log(0) - log(0), x)",
        "absmax(minimum(log(0), x))",
        "sqrt(0 - 1)",
        "exp(200)",
        "exp(-200)",
        "exp(exp(80))",
        "erf(log(-1))",
    ],
)
def test_a_constant_that_no_float32_holds_is_refused_with_its_line(text: str) -> None:
    spec = parse(f'name = "a"\ntensors.x = "input"\ntensors.y = "output"\n[formulas]\ny = "x * {text}"')
    with pytest.raises(SpecError, match=r"<spec>:5: a constant must fit float32, but .* stands in the formula of 'y'"):
        lower(spec)


def test_what_changes_no_value_is_still_left_out() -> None:
    program = program_of('y = "(x * 1 + 0) / 1 - 0"')
    assert lines(program) == ["load x : elem", "map y : elem = x", "store y"]
