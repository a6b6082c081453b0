import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.errors import ProgramError
from normgen.program.ir import Guard, Load, Reduce, RowProgram, Store, check, show_statement
from normgen.program.monoid import SUM, symbol
from normgen.program.printing import show_expr
from normgen.spec.spec import Kind

x, mean, rstd, w = (symbol(n) for n in ("x", "mean", "rstd", "w"))
FORMS = [
    ((x - mean) * rstd * w, "(x - mean)*rstd*w"),
    ((x - mean) / w, "(x - mean)/w"),
    ((x - mean) / sp.sqrt(w + 1), "(x - mean)*rsqrt(w + 1)"),
    (x / sp.sqrt(w), "x*rsqrt(w)"),
    (1 / sp.sqrt(w), "rsqrt(w)"),
    (x * sp.exp(-mean) / (1 + sp.exp(-w)), "x*exp(-mean)/(1 + exp(-w))"),
    (sp.Float("0.044715") * x, "0.044715*x"),
    (x * w - mean, "w*x - mean"),
]


@pytest.mark.parametrize(("expr", "text"), FORMS, ids=[text for _, text in FORMS])
def test_expressions_read_as_a_person_writes_them(expr: sp.Expr, text: str) -> None:
    assert show_expr(expr) == text


_trees = st.recursive(
    st.sampled_from([x, mean, w, sp.Integer(2), sp.Rational(1, 2)]),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a - b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, b: a / (1 + b**2), inner, inner),
        st.builds(lambda a, b: a / sp.sqrt(1 + b**2), inner, inner),
        st.builds(lambda a: sp.Max(a, 0), inner),
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(expr=_trees)
def test_what_is_shown_means_the_same(expr: sp.Expr) -> None:
    names = {"x": x, "mean": mean, "w": w, "rsqrt": lambda e: 1 / sp.sqrt(e)}
    point = {x: 0.7, mean: -1.3, w: 2.1}
    shown = sp.sympify(show_expr(expr), locals=names)
    want = float(expr.subs(point))
    assert float(shown.subs(point)) == pytest.approx(want, rel=1e-9, abs=1e-9)


def test_a_guard_is_made_of_row_values_and_spares_rows() -> None:
    x, m = symbol("x"), symbol("m")
    loads = (Load("x", Kind.ELEM), Load("m", Kind.ROW))

    def guarded(kind: Kind, guard: Guard) -> RowProgram:
        return RowProgram(name="g", statements=(*loads, Reduce(("s",), kind, SUM, (x,), guard)))

    right = check(guarded(Kind.ROW, Guard(m, (2 * m,))))
    assert show_statement(right.statements[-1]) == "  reduce s : row = sum(x) unless 0 <= m, then 2*m"
    for program in (
        guarded(Kind.ROW, Guard(x, (m,))),
        guarded(Kind.ROW, Guard(m, (x,))),
        guarded(Kind.COL, Guard(m, (m,))),
    ):
        with pytest.raises(ProgramError, match="a guard is made of row values, and spares rows"):
            check(program)
    with pytest.raises(ProgramError, match="a guard has a value for each that is reduced"):
        check(guarded(Kind.ROW, Guard(m, (m, m))))
    with pytest.raises(ProgramError, match="a value must be defined before it is used"):
        check(guarded(Kind.ROW, Guard(symbol("later"), (m,))))


def test_one_element_of_a_row_is_a_row_value() -> None:
    first = Load("x_first", Kind.ROW, of="x")
    assert show_statement(first) == "  load   x_first : row = x[first]"
    assert (first.tensor, Load("x", Kind.ELEM).tensor) == ("x", "x")
    check(RowProgram(name="first", statements=(first, Store("s", "x_first", Kind.ROW))))
    with pytest.raises(ProgramError, match="one element of a row is a row value"):
        check(RowProgram(name="first", statements=(Load("x_first", Kind.ELEM, of="x"),)))
