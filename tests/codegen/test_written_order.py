"""Products, quotients and sums reach the emitted text in the order, and with the brackets, of their author."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen import verify
from normgen.choice.first import default_schedule
from normgen.codegen.printer import Printer
from normgen.cpu import build, find_compiler
from normgen.device import target
from normgen.pipeline import emit, programs_of
from normgen.problem.problem import Problem
from normgen.program.frozen import Order
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule
from normgen.spec.formula import Binary, Expression, Name, parse_formula
from normgen.spec.reader import parse
from normgen.spec.spec import Spec

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
RSTD = "rsqrtf(eps + pass1.x_squares / kCols)"
# formula, the line that it becomes
NORMS = {
    "flat": ("x * rsqrt(mean(x*x) + eps) * weight * g", f"x_i * {RSTD} * weight_i * g_i"),
    "brackets": ("(x * rsqrt(mean(x*x) + eps)) * (weight * g)", f"x_i * {RSTD} * (weight_i * g_i)"),
    "division": ("x / sqrt(mean(x*x) + eps) * g", f"x_i * {RSTD} * g_i"),
    "gate": (
        "x * rsqrt(mean(x*x) + eps) * weight * (g * sigmoid(g))",
        f"x_i * {RSTD} * weight_i * (g_i / (expf(-g_i) + 1.0f))",
    ),
    "parameter first": ("weight * (x * rsqrt(mean(x*x) + eps)) * g", f"weight_i * (x_i * {RSTD}) * g_i"),
}
PLAIN = {
    "x / g * weight": "x_i / g_i * weight_i",
    "x / g / weight": "x_i / g_i / weight_i",
    "x / (g * weight)": "x_i / (g_i * weight_i)",
    "x / (g / weight)": "x_i / (g_i / weight_i)",
    "weight * g * x": "weight_i * g_i * x_i",
    "weight * (g * x)": "weight_i * (g_i * x_i)",
    "-weight * g * x": "-weight_i * g_i * x_i",
    "weight * 0.1 * x * 0.3": "weight_i * 0.1f * x_i * 0.3f",
    "g * x**2 * weight": "g_i * (x_i * x_i) * weight_i",
    "x * rsqrt(x) * g": "x_i * rsqrtf(x_i) * g_i",
    "weight * g * x - weight": "weight_i * g_i * x_i - weight_i",
}


def spec_of(formula: str, inputs: str = "x g", parameters: str = "weight") -> Spec:
    used = set(re.findall(r"\w+", formula))
    read = [f'{n} = "input"' for n in inputs.split() if n in used]
    read += [f'{n} = "parameter"' for n in parameters.split() if n in used]
    lines = ['name = "made_up"', "[tensors]", *read, 'y = "output"']
    lines += ["[scalars]", "eps = 1e-5"] if "eps" in used else []
    return parse("\n".join([*lines, "[formulas]", f'y = "{formula}"', ""]))


def line_of(formula: str) -> str:
    problem = problem_for(spec_of(formula), shape="8x96")
    text = emit(problem, default_schedule(problem, target("h200"))).text
    found = re.search(r"y_values\[i\] = (.*);", text)
    assert found
    return found[1]


@pytest.mark.parametrize(("formula", "line"), [*NORMS.values(), *PLAIN.items()], ids=[*NORMS, *PLAIN])
def test_a_formula_is_emitted_as_it_is_written(formula: str, line: str) -> None:
    assert line_of(formula) == line


def test_a_sum_keeps_its_order() -> None:
    problem = problem_for(spec_of("x + g - weight + h", "x g h"), shape="8x96")
    text = emit(problem, default_schedule(problem, target("h200"))).text
    lines = re.findall(r"const float (y_part\w*) = (.*);", text)
    assert lines == [("y_part_i", "x_i + g_i"), ("y_part2_i", "y_part_i - weight_i")]
    assert "y_values[i] = h_i + y_part2_i;" in text


def test_the_square_of_a_product_is_taken_of_the_product() -> None:
    text = '[tensors]\nx = "input"\ng = "input"\ny = "output"\n[formulas]\nh = "x * g"\n'
    text += 'm = "mean(h)"\ny = "h * rsqrt(mean((h - m)**2) + 1)"\n'
    problem = problem_for(parse(f'name = "made_up"\n{text}'), shape="8x96")
    emitted = emit(problem, Schedule(variance="sum_of_squares")).text
    assert re.search(r"h_squares\[i % kRunningSums\] \+= h_i \* h_i;", emitted)
    inline = problem_for(
        parse('name = "made_up"\n' + text.replace("(h)", "(x*g)").replace("(h -", "(x*g -")), shape="8x96"
    )
    emitted = emit(inline, Schedule(variance="sum_of_squares")).text
    assert "_squares[i % kRunningSums] += (g_i * x_i) * (g_i * x_i);" in emitted


def solved(problem: Problem, tensors: dict[str, Any] | None = None) -> tuple[verify.Inputs, verify.Outputs]:
    inputs, outputs = verify.make_inputs(problem), verify.make_outputs(problem)
    for name, value in (tensors or {}).items():
        inputs.arrays[name][...] = value
    run = build(emit(problem, default_schedule(problem, target("h200")))).run(
        {**inputs.arrays, **outputs.arrays}, rows=problem.rows, cols=problem.cols, scalars=inputs.scalars
    )
    assert not run.faults
    return inputs, outputs


@needs_compiler
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_with_a_second_factor_is_right_on_every_family_of_rows(name: str, direction: str) -> None:
    problem = problem_for(spec_of(NORMS[name][0]), shape="44x96", direction=direction)
    verdict = verify.check(problem, *solved(problem))
    assert verdict.ok, verdict.summary()


@needs_compiler
def test_a_large_factor_after_a_division_does_not_overflow() -> None:
    """x g is 1e39, over the largest float32; x / sqrt(mean(x²)) g is 1e21."""
    problem = problem_for(spec_of(NORMS["division"][0]), shape="8x64")
    x = (np.random.default_rng(0).standard_normal((8, 64)) * 1e18).astype(np.float32)
    _, outputs = solved(problem, {"x": x, "g": np.float32(1e21)})
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide * wide).mean(axis=1, keepdims=True)) * 1e21
    np.testing.assert_allclose(outputs.arrays["y"], exact, rtol=2e-6)


LEAVES = "abcdef"


@st.composite
def trees(draw: st.DrawFn, operators: str = "**/+-") -> str:
    """A bracketed formula of 3 to 6 distinct tensors."""
    names = draw(st.permutations(LEAVES).map(lambda p: list(p)))
    parts = names[: draw(st.integers(3, 6))]
    while len(parts) > 1:
        at = draw(st.integers(0, len(parts) - 2))
        operator = draw(st.sampled_from(operators))
        parts[at : at + 2] = [f"({parts[at]} {operator} {parts[at + 1]})"]
    return parts[0]


def written(tree: Expression, values: dict[str, Any]) -> Any:
    """The formula's tree in float32, an operation at a time."""
    match tree:
        case Name(name=name):
            return values[name]
        case Binary(operator=operator, left=left, right=right):
            a, b = written(left, values), written(right, values)
            results = {"*": np.multiply, "/": np.divide, "+": np.add, "-": np.subtract}
            return results[operator](a, b)
        case _:
            raise AssertionError(tree)


def printed(spec: Spec, values: dict[str, Any], direction: str = "forward") -> dict[str, Any]:
    """The emitted expressions, read back as text and computed in float32: + - * / are alike in C and Python."""
    problem = problem_for(spec, shape="8x96", direction=direction)
    program = programs_of(problem, Schedule())[-1][1]
    known = dict(values)
    for statement in program.maps:
        text = Printer({name: name for name in known}).text(Order(known).tree(statement.expr))
        known[statement.name] = eval(text, {"__builtins__": {}}, known)
    return {store.tensor: known[store.value] for store in program.stores}


def drawn(seed: int, spread: float) -> dict[str, Any]:
    """Random float32 values of every leaf, and dy, up to `spread` powers of ten from 1."""
    rng = np.random.default_rng(seed)
    shape = (len(LEAVES) + 1, 64)
    size = 10.0 ** rng.uniform(-spread, spread, shape) * rng.choice([-1, 1], shape)
    return dict(zip([*LEAVES, "dy"], size.astype(np.float32), strict=True))


@given(formula=trees(), seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([1.0, 8.0, 20.0]))
@settings(max_examples=300, deadline=None)
def test_the_printed_text_computes_the_written_tree_to_the_last_bit(formula: str, seed: int, spread: float) -> None:
    """Also where an intermediate value overflows or underflows."""
    values = drawn(seed, spread)
    with np.errstate(all="ignore"):
        want = written(parse_formula(formula), values)
        got = printed(spec_of(formula, " ".join(LEAVES)), values)["y"]
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, want)


def reversed_mode(tree: Expression, cotangent: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The gradients of a product's leaves in float32, an operation at a time, from the root down."""
    match tree:
        case Name(name=name):
            return {f"d{name}": cotangent}
        case Binary(operator="*", left=left, right=right):
            a, b = written(left, values), written(right, values)
            return reversed_mode(left, cotangent * b, values) | reversed_mode(right, cotangent * a, values)
        case _:
            raise AssertionError(tree)


@given(formula=trees("*"), seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([1.0, 8.0, 20.0]))
@settings(max_examples=60, deadline=None)
def test_the_gradients_of_a_product_are_those_of_reverse_mode_to_the_last_bit(
    formula: str, seed: int, spread: float
) -> None:
    """They overflow only where a value of the formula, or the gradient of one, does."""
    values = drawn(seed, spread)
    with np.errstate(all="ignore"):
        want = reversed_mode(parse_formula(formula), values["dy"], values)
        got = printed(spec_of(formula, " ".join(LEAVES)), values, "backward")
    assert set(got) == set(want)
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


GRADIENTS = {
    "x * weight * g * h": {"dx": "dy_i * h_i * g_i * weight_i", "dg": "dy_i * h_i * (x_i * weight_i)"},
    "x / g * weight * h": {"dg": "-dy_i * h_i * weight_i * (x_i / g_i) / g_i", "dx": "dy_i * h_i * weight_i / g_i"},
    "x * (g * weight) * tanh(h)": {
        "dg": "dy_i * tanh_h_i * x_i * weight_i",
        "dh": "dy_i * (x_i * (g_i * weight_i)) * (1.0f - tanh_h_i * tanh_h_i)",
    },
    "x * rsqrt(mean(x*x) + eps) * g * h": {
        "dg": "dy_i * h_i * xhat_i",
        "dh": "dy_i * (xhat_i * g_i)",
    },
}


@pytest.mark.parametrize("formula", GRADIENTS)
def test_a_gradient_is_emitted_in_the_order_of_the_chain_rule(formula: str) -> None:
    problem = problem_for(spec_of(formula, "x g h"), shape="8x96", direction="backward")
    text = emit(problem, default_schedule(problem, target("h200"))).text
    for name, line in GRADIENTS[formula].items():
        assert f"{name}_values[i] = {line};" in text
