"""What `python -m tests.fuzz` found once, shrunk: each is right, or refused with a reason, today."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from normgen.choice.first import default_schedule
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.dtypes import DTYPES
from normgen.measure.calls import calls
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.program.ir import Map
from normgen.program.lower import lower
from normgen.program.rewrites.reductions import variance
from normgen.program.source import problem_for, written_program
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse
from normgen.verify.bounded import Bounded, whole
from normgen.verify.error_model import Float32Error
from normgen.verify.program_walk import ProgramWalk
from tests.fuzz.specs import H200, Asked
from tests.fuzz.stages import Answer, Float32, answered, emitted

READ = {
    "z": '{ role = "input", optional = true, absent = "0" }',
    "w": '"parameter"',
    "b": '"parameter"',
    "label": '{ role = "row_input", dtypes = ["i64"] }',
    "seed": '"seed"',
    "r": '"row_input"',
    "s": '"scalar_input"',
    "p": '"scalar_parameter"',
}


@dataclass(frozen=True)
class Found:
    """Formulas, and tensors besides x and y; `y` is how the output is declared."""

    formulas: dict[str, str]
    read: tuple[str, ...] = ()
    y: str = '"output"'
    scalars: str = ""
    direction: str = "backward"
    state: str = "right"
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> Asked:
        tensors = ['x = "input"', *(f"{name} = {READ[name]}" for name in self.read), f"y = {self.y}"]
        formulas = [f'{name} = "{text}"' for name, text in self.formulas.items()]
        scalars = ["[scalars]", self.scalars] if self.scalars else []
        lines = ['name = "fuzz"', "[tensors]", *tensors, *scalars, "[formulas]", *formulas]
        return Asked("\n".join(lines) + "\n", 64, "f32", self.direction, 1, self.more)


E8M0 = '{ role = "output", dtypes = ["f8e8m0"] }'
FOUND = {
    "an absolute value of what sympy takes for complex has a slope": Found({"y": "abs(z / exp(x**-0.5))"}, ("z",)),
    "what is no 0 keeps its name within a condition of a gradient": Found(
        {"y": "x / 1e-5 + where(where(z > 0, b, inf) - where(z > 0, b, inf) >= w * (1e-5 / z), r, b / w)"},
        ("z", "w", "b", "r"),
    ),
    "the slope of a maximum compares its two sides as they are": Found(
        {"g": "absmax(where(x == r + x, r + b, r / 1e-30), 8)", "y": "maximum(b - b, x / g)"}, ("b", "r")
    ),
    "a gradient may be made of random numbers alone": Found(
        {"y": "(random(seed) - (x - p) + (x - p)) * (random(seed) - (x - p) + (x - p))"}, ("seed", "p")
    ),
    "a sign keeps the factors that are never negative": Found({"y": "sign(exp(x) * z)"}, ("z",), direction="forward"),
    "a maximum of 0 and -0 is either": Found(
        {"y": "floor(w) / -maximum(x > x, ceil(x)) + x / minimum(ceil(x), x > x)"}, ("w",), direction="forward"
    ),
    "a product of equal products has no division in its gradient": Found(
        {"v": "floor(x) * z", "y": "(v * v) * (v * v)"}, ("z",)
    ),
    "a cosine that waves faster than any step sees has the chain rule's word": Found(
        {"v": "((w + x)**3)**-5", "y": "maximum(sign(x), cos(v)) / (v + b * (v + v))"}, ("w", "b")
    ),
    "a cotangent that is one of the row has a name of the row": Found(
        {"m": "mean(x - 1 / s)", "y": "clamp(mean(x * (r - m)), x, z * w)"}, ("z", "w", "r", "s")
    ),
    "a scale without a sign is NaN where its value may be negative": Found(
        {"y": "log(x) / w"}, ("w",), E8M0, direction="forward"
    ),
    "a cast has its rounded value in the proof of a gradient, and the derivative 1": Found(
        {"y": "clamp(x != label, cast(7, f8e8m0) * z, 3e4)"}, ("z", "label")
    ),
    "a comparison with what is NaN stays false in the gradient": Found(
        {"v": "round(x)", "y": "where(0.5 <= (v / x) / (v / x), x, z)"}, ("z",)
    ),
    "a comparison with what float32 may find infinite takes the branch of float64 in the proof": Found(
        {"y": "where(random(seed) <= x / (round(x) / x), x, z)"}, ("z", "seed")
    ),
    "a quotient by an infinity has a bound": Found(
        {"y": "x / z + cast(x**2, i32) / (-where(x != cols, -inf, 1) - round(z))"}, ("z",)
    ),
    "a value that algebra makes 0 is not written out where it divides": Found(
        {"v": "0 / x", "y": "mean(where(z != 2, minimum(1 / v, 7), x)) * x"}, ("z",), direction="forward"
    ),
    "where the chain rule has no number a derivative is not proven, and nobody blamed": Found(
        {"v": "where(col < 4, w, inf)", "y": "tanh(minimum(mean(x), v) + v / w)"}, ("w",), state="refused"
    ),
    "row / x is not solved for x, as row 0 has 0": Found(
        {"v0": "row / x", "v1": "x**5 / cast(x, bf16)", "y": "(1 + v1 / w) * (v1 * 0.5 + v0)"}, ("w",)
    ),
    "a mask of -inf has a square": Found({"y": "erf(where(x > 0 and x != 1, -inf, x * z))"}, ("z",)),
    "an infinity times what may be 0 is no finite number": Found(
        {"y": "x * cast(divide(log(eps / z), z), u8)"}, ("z",), scalars="eps = 0", direction="forward"
    ),
    "a cast far beyond its range has the slope of what is cast": Found({"y": "x * cast(1e30, i8)"}),
    "what compares 1 / (x - x) says nothing about a gradient": Found(
        {"m": "mean(x)", "v": "2 / -(m - m)", "y": "x + where(v < inf, m, z)"}, ("z",), state="refused"
    ),
    "a branch that is not taken has no gradient, also through a value with a name": Found(
        {"g": "mean(x, 8)", "v": "g**0.3", "y": "x + where(g > 0.1, 2 * (v + log(z)), z)"}, ("z",)
    ),
    "a branch that is not taken passes no gradient through a reduction": Found(
        {"y": "where(x == 1, mean(rsqrt(x) + 1), x)"}
    ),
    "a column that is not taken has no gradient": Found(
        {"v": "z**0.5 / (1.5 - w)", "y": "take(v, argmax(x))"}, ("z", "w")
    ),
    "a mask of inf beside a factor is no factor where it is not taken": Found(
        {"m": "sum(x - w)", "y": "take(m * where(x > 0, 2, inf), -1) - x"}, ("w",)
    ),
    "a branch that is not taken may divide by an argmax": Found(
        {"y": "where(random(seed) >= 0, x, w / argmax(z - z) + w / argmax(z - z))"}, ("z", "w", "seed")
    ),
    "a group's extremum that is not taken may have no elements": Found(
        {"g": "min(sqrt(x), 8)", "y": "where(x != 1e30, z * x, g)"}, ("z",)
    ),
    "the number of a row is no divisor": Found({"v": "x * row", "y": "v + rsqrt(abs(x) + 1) * x**0.5"}),
    "an argmin is no divisor": Found({"v": "x * (x * argmin(z - z)) / x", "y": "v + x"}, ("z",)),
    "a sum that may be 0 is no divisor": Found({"y": "x + sum(take(x, -1) / w)"}, ("w",)),
    "the logarithm of w / w is no name of 0": Found({"v": "log(w / w)", "y": "x + x * where(b > 0, v, 1)"}, ("w", "b")),
    "col has no other name": Found({"y": "x - maximum((col - col)**(-1/3), 0)"}, state="refused"),
    "the least of what is no real number has a name": Found(
        {"m": "min(log(-1 - x * x))", "y": "x * m"}, direction="forward"
    ),
    "an exponential that divides may be 0": Found(
        {"y": "exp(x) / exp(x * b - x) / z"}, ("z", "b"), direction="forward"
    ),
    "a cast to whole numbers that float32 does not hold is rounded once more": Found(
        {"y": "cast(x, i32)"}, direction="forward"
    ),
    "what divides by 0 exactly is infinite, and beside -inf no number": Found(
        {"g": "mean((x - b) / round(random(seed)), 8)", "y": "rsqrt(b) - (g != g)"}, ("b", "seed"), direction="forward"
    ),
    "the size of what is no real number is written out": Found(
        {"y": "x / absmax(exp(x * sqrt((inf)**3)))"}, direction="forward"
    ),
    "where ceil may find 3 or 4 no gradient is called wrong": Found(
        {"y": "x * ceil(eps * ((1e30 / 1e30) / divide(eps, 3)))"}, scalars="eps = 1e-5", state="refused"
    ),
    "the sign of -0 is not known": Found({"y": "x / floor(-z)"}, ("z",), direction="forward", more={"without": ["z"]}),
    "a scalar that is not above 0 keeps no divisor from 0": Found(
        {"v": "z * x / (cols + eps)", "y": "where(col < 64, x, take(v, argmax(x)))"}, ("z",), scalars="eps = -64"
    ),
    "the root of a quotient is that of two negative numbers, too": Found({"v": "sum(x)", "y": "(x / v)**0.5"}),
    "the inverse root of a quotient is that of two negative numbers, too": Found(
        {"v": "sum(x)", "y": "rsqrt(x / v) * x"}
    ),
    "a cast infinity is the largest number in the proof, too": Found(
        {"m": "argmin(x - cast(inf, u8) / cols)", "y": "x * m"}
    ),
    "a constant that float32 makes 0 is no divisor": Found(
        {"m": "max(x - inf)", "y": "x / sigmoid(0.5 - 1e30) + m"}, direction="forward", state="refused"
    ),
    "a cast infinity may move with what is subtracted from it": Found(
        {"v": "row % 3 == col % 3", "y": "cast(b / v - (x + v), f8e4m3)"}, ("b",), state="refused"
    ),
    "the difference of a value and its own name is not written as 0": Found(
        {"y": "x * (round(floor(row)) - round(floor(row)))**(-1/3)"}, state="refused"
    ),
    "what waves faster than any step sees is not called wrong": Found(
        {"v": "-eps * 7", "y": "x * (sin(v / z - w) + v * v)"}, ("z", "w"), scalars="eps = 3e4"
    ),
    "of two equal brackets one is normalised": Found({"v": "sum(x)", "y": "((x * x) * (x)**2) / v"}),
    "the square of the sign of NaN is 0": Found(
        {"v": "(w - 3)**(-1/3)", "y": "x + mean(sign(v * x) * sign(v * x))"}, ("w",), direction="forward"
    ),
    "the square of the sign of NaN is 0 in a gradient, too": Found(
        {"v": "(x - 3)**(-1/3)", "y": "x * (sign(v) * sign(v))"}
    ),
    "a power of the sign of NaN is 0": Found({"v": "(x - 3)**(-1/3)", "y": "x * sign(v)**4"}, direction="forward"),
    "a scale of what is negative is NaN where nobody takes it": Found(
        {"v": "cast(x, f8e8m0)", "p": "(v + 3) * (x - v)", "y": "take(where(x > 2, cos(v), p), floor(mean(abs(x))))"}
    ),
    "a clamp bends": Found({"y": "row / (random(seed) * clamp(0.1 * z, w, x))"}, ("z", "w", "seed")),
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    answer = answered(emitted, FOUND[name].asked)
    assert answer.state == FOUND[name].state, f"{answer.why}\n{answer.trace}"


def test_the_gradient_keeps_what_the_forward_pass_computes_from_nan() -> None:
    """sympy makes 0 of part - z/z, where `part` is a name of z/z."""
    found = Found({"y": "x * where((z / z) - (z / z) == 0, z, 2)"}, ("z",))
    program = written_program(found.asked.problem())
    given = {"x": [[1.0, 1.0]], "dy": [[1.0, 1.0]], "z": [[0.0, 3.0]]}
    known: dict[str, Any] = {name: np.array(values, np.float32) for name, values in given.items()}
    with np.errstate(all="ignore"):
        dx = ProgramWalk(Float32(cols=2), program, known).value("dx")
    np.testing.assert_array_equal(dx, [[2.0, 3.0]])


def test_a_sum_of_what_may_be_nan_is_no_variance() -> None:
    """Σ(x * (x/x) - mean(x))² is the variance of x to algebra; where x is 0 it is NaN."""
    text = Found({"m": "mean(x)", "y": "x * sum((x * (x / x) - m)**2)"}).asked.text
    program = lower(parse(text))
    assert variance(program, "welford") == program


@pytest.mark.parametrize(("value", "error", "least", "moved"), [(1.0, 0.1, -np.inf, 1.0), (0.01, 0.1, 0.0, 0.24)])
def test_a_rounding_up_moves_by_a_power_of_two_within_twice_the_error(
    value: float, error: float, least: float, moved: float
) -> None:
    """1 ± 0.1 is stored as 1 or 2, and what is never negative is no NaN."""
    a = Bounded(np.array([[value]]), np.array([[error]]), least=least)
    found = Float32Error(cols=1).cast(a, DTYPES["f8e8m0"])
    assert found.error is not None
    assert float(found.error[0, 0]) == pytest.approx(moved, abs=0.02)


def test_a_cast_to_whole_numbers_is_one_of_them_whatever_is_cast() -> None:
    a = Bounded(np.array([[3.0]]), np.array([[np.inf]]))
    with np.errstate(all="ignore"):
        found = Float32Error(cols=1).cast(a, DTYPES["u8"])
    assert found.error is not None
    assert float(found.error[0, 0]) == 255.0


def test_a_kernel_of_any_cols_is_called_with_whole_groups() -> None:
    problem = Found({"y": "x / absmax(x, 8)"}, direction="forward", more={"any_cols": True}).asked.problem()
    widths = {call.problem.cols for call in calls(problem, emit(problem, default_schedule(problem, H200)), sm_count=4)}
    assert len(widths) > 1
    assert not any(cols % 8 for cols in widths)


@pytest.mark.parametrize(
    ("g", "m"),
    [
        ("absmax(x, 8)", "sum(z + g * 2)"),  # without z, a sum over a row of what groups share
        ("max(z * 0 + sum(x), 8)", "sum(x)"),  # without z, a value of groups that a whole row shares
    ],
)
def test_what_is_left_without_an_absent_input_has_a_smaller_kind_and_is_right(g: str, m: str) -> None:
    text = (
        'name = "t"\n[tensors]\nx = "input"\nz = { role = "input", optional = true, absent = "0" }\n'
        'g = "group_statistic"\nm = "row_output"\ny = "output"\n'
        f'[formulas]\ng = "{g}"\nm = "{m}"\ny = "x * 2"\n'
    )
    problem = problem_for(parse(text), shape=(24, 64), dtype="f32", without=["z"])
    checked = check_on_cpu(problem, emit(problem, default_schedule(problem, H200)))
    assert checked.ok, checked.summary


def test_a_total_may_be_left_of_groups_alone() -> None:
    """Without w, whose columns the total adds, a group's value counts for each of its columns."""
    text = (
        'name = "t"\n[tensors]\nx = "input"\nw = { role = "parameter", optional = true, absent = "1" }\n'
        't = "scalar_output"\ny = "output"\n[formulas]\ng = "sum(x, 8)"\ny = "x * 2"\nt = "total(w * g)"\n'
    )
    problem = problem_for(parse(text), shape=(24, 64), dtype="f32", without=["w"])
    checked = check_on_cpu(problem, emit(problem, default_schedule(problem, H200)))
    assert checked.ok, checked.summary


def test_a_divisor_that_is_far_off_may_be_larger() -> None:
    """1 / (1 + e) where e may be 0.7 instead of 0, but no less than 0."""
    below = Bounded(np.array([[1.0]]), np.array([[0.7]]), least=1.0)
    error = Float32Error(cols=1).divide(Bounded(np.array([[1.0]])), below).error
    assert error is not None
    assert float(error[0, 0]) >= 1 - 1 / 1.7


def test_a_quotient_by_a_subnormal_number_may_be_a_product_with_infinity() -> None:
    number = Bounded(np.array([[1e-39]]))
    error = Float32Error(cols=1).divide(number, number).error
    assert error is not None
    assert np.isinf(error).all()


def test_what_is_divided_by_a_row_value_is_not_written_as_a_product_with_it() -> None:
    """x / m * m is no x where m, an argmin, is 0; but db = -sum(dy x / b**2) is a number."""
    text = (
        'name = "t"\n[tensors]\nx = "input"\nz = "input"\nb = "parameter"\nm = "row_output"\ns = "statistic"\n'
        'y = "output"\n[formulas]\nm = "argmin(x - z**(-1/3))"\ns = "max((x / m * take(z, row))**-2)"\ny = "x / b"\n'
        '[backward]\nsaved = ["s"]\n'
    )
    answer = answered(emitted, Asked(text, 2, "f32", "backward", 1))
    assert answer.state == "right", answer.why


def test_signs_of_a_long_chain_of_sums_are_asked_for_once() -> None:
    """Whether a sum is positive asks whether its terms are never negative, and that whether they are positive."""
    chain = {f"a{i}": f"a{i - 1} + w_eps" for i in range(1, 60)}
    found = Found({"a0": "sum(x * x)", **chain, "y": "x * rsqrt(a59)"}, scalars="w_eps = 1e-5")
    assert answered(written_answer, found.asked, limit_s=10.0).state == "right"


def written_answer(asked: Asked) -> Answer:
    written_program(asked.problem())
    return Answer("right")


@pytest.mark.parametrize(
    ("row", "is_either"), [((0.0, -0.0), True), ((-0.0, -0.0), False), ((0.0, 0.0), False), ((-0.0, 1.0), False)]
)
def test_a_quotient_by_the_maximum_of_a_row_of_0_and_minus_0_is_either_infinity(
    row: tuple[float, float], is_either: bool
) -> None:
    model = Float32Error(cols=2)
    with np.errstate(divide="ignore"):
        found = model.divide(whole(np.ones((1, 1))), model.reduce("max", Bounded(np.array([row]))))
    assert found.error is not None
    assert bool(np.isinf(found.error[0, 0])) is is_either


def test_a_row_value_that_may_be_no_number_stays_out_of_a_gradient_that_divides_by_an_input() -> None:
    """-dy * a / x**2, and not -dy * a * m**2 / (x * m)**2."""
    found = Found({"m": "sum(1e30 + sqrt(x))", "y": "argmax(x * m) / x"}).asked.problem()
    (dx,) = (s.expr for s in written_program(found).statements if isinstance(s, Map) and s.name == "dx")
    assert {symbol.name for symbol in dx.free_symbols} == {"dy", "x", "y_argmax"}


@pytest.mark.parametrize("operation", ["multiply", "divide"])
def test_what_has_no_bound_has_none_after_an_exact_factor_either(operation: str) -> None:
    """-inf * 0**-2 / sign(m) to the power 1.5 is infinite to a kernel, and was NaN beside a bound of NaN."""
    model, loose = Float32Error(cols=1), Bounded(np.array([[1.0]]), np.array([[np.inf]]))
    for exact in (0.0, -1.0):
        if operation == "multiply" or exact:
            with np.errstate(invalid="ignore"):
                found = getattr(model, operation)(loose, Bounded(np.array([[exact]]), np.array([[0.0]])))
            assert found.error is not None
            assert np.isinf(found.error).all()


def test_an_absent_parameter_of_groups_is_not_asked_for_where_a_backward_pass_needs_the_forward_one() -> None:
    text = (
        'name = "t"\n[tensors]\nx = "input"\nw = { role = "parameter", group = 2, optional = true, absent = "1" }\n'
        'v = "output"\ny = "output"\n[formulas]\nv = "x * w"\ny = "v * v"\n[backward]\nsaved = ["v"]\n'
    )
    problem = problem_for(parse(text), shape=(24, 8), direction="backward", without=["w"])
    assert check_on_cpu(problem, emit(problem, default_schedule(problem, H200))).ok


def test_a_total_may_overflow_where_none_of_its_terms_does() -> None:
    """The terms are added in any order: inf, -inf and, of both, NaN."""
    terms = Bounded(np.array([[3e38], [3e38], [-3e38], [-3e38]]))
    part = Float32Error(cols=1).total_part(terms, 4, of_elements=True, is_random=True)
    error = part.bounded(4).error
    assert error is not None
    assert np.isinf(error).all()


def test_a_function_of_its_inverse_is_kept_where_it_reads_a_cast() -> None:
    """exp(log(a)) is a to algebra; where a is negative it is NaN."""
    program = lower(parse(Found({"y": "exp(log(cast(x, bf16)))"}).asked.text))
    assert "log" in str(program)
    assert "exp" in str(program)


def test_a_gradient_over_an_input_may_be_one_of_an_optional_input_at_any_cols() -> None:
    """The general kernel asks a pointer whether a gradient is wanted; one in place has none of its own."""
    text = (
        'name = "t"\n[tensors]\nx = "input"\nz = { role = "input", optional = true, absent = "0" }\ny = "output"\n'
        '[formulas]\ny = "x * x + z"\n'
    )
    problem = problem_for(parse(text), shape=(24, 256), dtype="f32", direction="backward", in_place={"dz": "x"})
    general = replace(problem, any_cols=True)
    assert compile_module(emit(general, default_schedule(general, H200)), 90).data


def test_parameters_of_rows_that_shift_one_by_one_are_not_read_ahead_of_the_first() -> None:
    """In front of the loop over rows no shift is known: the text named one all the same."""
    problem = problem_for(load("gemma_rmsnorm"), shape="3x7", direction="backward", dtypes={"weight": "bf16"})
    cut = {"threads_per_row": 4, "rows_per_block": 64, "vector": 2, "edges": "peel", "hold": "shared", "unroll": 0}
    schedule = Schedule(**cut, columns="atomic")
    assert refusal(problem, schedule, target("h200")) is None
    assert compile_module(emit(problem, schedule), 90)


def test_a_row_of_which_nothing_is_read_is_not_copied() -> None:
    """A sum's gradient reads none of what was summed: an asynchronous copy of nothing was no C++."""
    problem = problem_for(load("full_sum"), shape="70x120", direction="backward")
    schedule = Schedule(threads_per_row=32, vector=4, hold="shared", copy="bulk")
    assert refusal(problem, schedule, target("h200")) == "nothing is read of each element: copy = direct"


def test_two_quotients_in_which_all_cancels_have_no_common_name() -> None:
    """Both are 1 to sympy: the gradient of r, a value of rows, read the name of a quotient of elements."""
    text = (
        'name = "t"\n[tensors]\nx = "input"\nz = "input"\nr = "row_input"\nt = "scalar_output"\ny = "output"\n'
        '[formulas]\nm = "mean(x)"\ny = "x - (z / z)**0.5"\nt = "total(clamp(m / m, 0.1, log(r)))"\n'
    )
    problem = problem_for(parse(text), shape="4x8", direction="backward")
    assert "dr : row = dt*where((1 > log_r)" in str(written_program(problem))


def test_two_values_of_groups_in_one_look_have_locals_of_their_own() -> None:
    """Both reductions wrote their argument to a local of one name, which was no C++."""
    text = (
        'name = "t"\n[tensors]\nx = "input"\nb = "parameter"\ng = "group_statistic"\ny = "output"\n'
        '[formulas]\ng = "absmax(x / b + 1, 8)"\nh = "absmax(b / x, 8)"\ny = "x * g + h"\n'
    )
    problem = problem_for(parse(text), shape="24x40")
    schedule = Schedule(threads_per_row=4, rows_per_block=32, vector=4, hold="registers", unroll=0)
    module = emit(problem, schedule)
    assert compile_module(module, 90)
    assert check_on_cpu(problem, module).ok


def test_a_sum_of_values_of_groups_that_a_gradient_names_is_a_value_of_groups() -> None:
    """Named as one of elements, it made the gradient that reads it in each group one of elements too."""
    text = (
        'name = "t"\n[tensors]\nx = "input"\nz = "input"\nw = "parameter"\ns = "scalar_input"\ny = "output"\n'
        'b = { role = "batch_parameter", group = 16 }\n'
        '[formulas]\ng = "sum(x - w - b, 8)"\ny = "z * x - (minimum(g, s) - g)"\n'
    )
    spec = parse(text)
    problem = problem_for(spec, shape="4x16", direction="backward", batches=1)
    assert "sign_s_minus_g_plus_1 : groups" in str(written_program(problem))
    assert check_on_cpu(problem, emit(problem, default_schedule(problem, H200))).ok


def test_an_extremum_of_a_logarithm_that_is_never_real_is_emitted() -> None:
    """Of log(minimum(0, b)), b > 0 or not, sympy knows that it is no real number, and refused to compare it."""
    text = (
        'name = "t"\n[tensors]\nx = "input"\nz = { role = "input", optional = true, absent = "0" }\n'
        'b = "parameter"\ng = "group_statistic"\ny = "output"\n'
        '[formulas]\ng = "min(-x * log(minimum(z, b)), 8)"\ny = "x + b"\n'
    )
    problem = problem_for(parse(text), shape="4x16", without=("z",))
    module = emit(problem, default_schedule(problem, H200))
    assert compile_module(module, 90)
    rows = "min(x * log(minimum(z, b)))"
    whole = text.replace("group_statistic", "statistic").replace("min(-x * log(minimum(z, b)), 8)", rows)
    problem = problem_for(parse(whole), shape="4x16", without=("z",))
    assert compile_module(emit(problem, default_schedule(problem, H200)), 90)


def test_an_element_that_only_a_looks_groups_read_is_there_to_be_left_for_later_looks() -> None:
    """The look's own loop, whose elements are constants, left `x` for the next look and had not read it."""
    text = (
        'name = "t"\n[tensors]\nx = "input"\nb = "batch_parameter"\ng = "group_statistic"\ny = "output"\n'
        'z = { role = "input", optional = true, absent = "0" }\n'
        '[formulas]\ng = "min(where(x > 0, x, col), 8)"\nh = "mean(b + g, 8)"\n'
        'y = "where(g <= h, 2, row) / mean((z * g - mean(z * g))**2)"\n'
    )
    problem = problem_for(parse(text), shape="24x8", dtype="f16", without=("z",), batches=4, pitch=16)
    schedule = Schedule(threads_per_row=1, rows_per_block=128, vector=8, hold="registers", keep="values", unroll=0)
    module = emit(problem, schedule)
    assert compile_module(module, 90)
    assert check_on_cpu(problem, module).ok


def test_an_input_that_only_the_gradient_of_a_null_parameter_needs_is_passed() -> None:
    """A kernel of any columns may be given no weight, and none is stored of it; its rows are there all the same."""
    text = (
        'name = "t"\n[tensors]\nx = "input"\nw = { role = "parameter", optional = true, absent = "1" }\ny = "output"\n'
        '[formulas]\ny = "x * w**3"\n'
    )
    problem = problem_for(parse(text), shape="24x2", direction="backward", any_cols=True)
    found = check_on_cpu(problem, emit(problem, default_schedule(problem, H200)))
    assert found.ok, found.summary
    assert "with null w" in found.summary


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("gradients", [None, ["k"]])
def test_a_gradient_of_an_optional_value_of_rows_is_added_to_what_is_there(
    gradients: list[str] | None, accumulate: bool
) -> None:
    """Of a kernel of any columns: what was there, or 0 where nobody wants it, stood in front of the sum unbracketed."""
    text = (
        'name = "t"\n[tensors]\nx = "input"\nk = { role = "row_input", optional = true, absent = "1" }\n'
        'y = "output"\n[formulas]\ny = "x * k"\n'
    )
    asked: dict[str, Any] = {"direction": "backward", "gradients": gradients, "accumulate": accumulate}
    problem = problem_for(parse(text), shape="24x64", any_cols=True, **asked)
    found = check_on_cpu(problem, emit(problem, default_schedule(problem, H200)))
    assert found.ok, found.summary
