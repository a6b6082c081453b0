"""Float32 schedules, emulated operation by operation, against the bounds of the error model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.dtypes import DTYPES, F32
from normgen.dtypes import FLOATS as STORED
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.verify import ALL, Verdict, check, default_families, interpret, make_inputs, make_outputs
from normgen.verify.bounded import REARRANGED, Bounded, U
from normgen.verify.error_model import LAMBDA, Float32Error, stored
from normgen.verify.interpret import Evaluation, formula_table
from tests.samples import is_full
from tests.verify import made, schedules
from tests.verify.schedules import SUMS

COLS = (1, 7, 123, 768, 4097, 65536)
# What rows are stored in changes no sum: a normal run has most lengths in one format, the longest for one operation.
FORMATS = {1: ("f32",), 7: ("f16",), 4097: ("bf16",), 65536: ("f32",)}
OPS = (made.LAYERNORM, made.RMSNORM, made.SOFTMAX, made.LOG_SOFTMAX)
SIZES = [
    pytest.param(op, cols, name, id=f"{op.name}-{cols}-{name}")
    for op in OPS
    for cols in COLS
    for name in [d.name for d in STORED]
    if is_full() or (name in FORMATS.get(cols, (name,)) and (cols < max(COLS) or op is made.LAYERNORM))
]
Run = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


def verdict(
    problem: Problem, run: Run, *, seed: int = 0, chain: int | None = None, families: tuple[str, ...] | None = None
) -> Verdict:
    inputs, outputs = make_inputs(problem, seed=seed, families=families), make_outputs(problem)
    with np.errstate(all="ignore"):
        results = run({name: array.astype(np.float32) for name, array in inputs.arrays.items()})
        for name, array in outputs.arrays.items():
            result = results[name]
            if name in outputs.start:
                result = result + outputs.start[name].astype(np.float32)
            assert result.dtype == np.float32
            array[...] = result.astype(array.dtype)
    return check(problem, inputs, outputs, chain=chain)


def rows_for(cols: int) -> int:
    return len(ALL) if cols > 10000 else 2 * len(ALL)


def held(problem: Problem, name: str) -> tuple[str, ...]:
    """The families that a right schedule of this name is inside the bound on.

    Not `large_steps` with one chain of thousands of Welford steps: the mean stands still once its steps are less than
    half a spacing.
    """
    lost = ("large_steps",) if name == "welford serial" and problem.cols > 1000 else ()
    return tuple(f for f in default_families(problem) if f not in lost)


def correct(problem: Problem) -> dict[str, Run]:
    """Every correct schedule of the problem's operation."""
    eps = 1e-5
    if problem.direction is Direction.BACKWARD:
        function = getattr(schedules, f"{problem.spec.name}_backward")
        return {f"{name} sums": lambda i, add=add: function(i, add) for name, add in SUMS.items()}
    if problem.spec is made.LAYERNORM:
        pairs = [(v, s) for v in ("two_pass", "corrected_two_pass", "shifted", "guarded") for s in SUMS] + [
            ("welford", "serial")
        ]
        pairs.append(("welford_lanes", "serial"))
        return {f"{v} {s}": lambda i, v=v, s=s: schedules.layernorm(i, eps, v, SUMS[s]) for v, s in pairs}
    if problem.spec is made.RMSNORM:
        return {name: lambda i, add=add: schedules.rmsnorm(i, eps, add) for name, add in SUMS.items()}
    function = getattr(schedules, problem.spec.name)
    runs: dict[str, Run] = {name: lambda i, add=add: function(i, add) for name, add in SUMS.items()}
    if problem.spec is made.SOFTMAX:
        runs["online"] = lambda i: schedules.online_softmax(i, SUMS["serial"])
    return runs


@pytest.mark.parametrize(("op", "cols", "stored_as"), SIZES)
@pytest.mark.parametrize("direction", list(Direction))
def test_every_correct_schedule_is_inside_the_bound_on_every_family(
    op: made.Spec, cols: int, stored_as: str, direction: Direction
) -> None:
    make = made.forward if direction is Direction.FORWARD else made.backward
    problem = make(op, rows_for(cols), cols, stored_as)
    for name, run in correct(problem).items():
        found = verdict(problem, run, families=held(problem, name))
        assert found.ok, f"{name}: {found.summary()}"
        if op is made.LOG_SOFTMAX and stored_as == "f32" and cols > 1:
            continue  # what is masked may become -inf
        assert all(t.unbounded == 0 for t in found.tensors), found.summary()


@given(seed=st.integers(0, 2**31), cols=st.integers(1, 700), op=st.sampled_from(made.BUILT_IN[:4]), which=st.data())
@settings(max_examples=40, deadline=None)
def test_correct_schedules_stay_inside_for_any_seed_and_cols(
    seed: int, cols: int, op: made.Spec, which: st.DataObject
) -> None:
    problem = made.forward(op, 22, cols, which.draw(st.sampled_from([d.name for d in STORED])))
    runs = correct(problem)
    name = which.draw(st.sampled_from(list(runs)))
    found = verdict(problem, runs[name], seed=seed, families=held(problem, name))
    assert found.ok, f"{name}: {found.summary()}"


@pytest.mark.parametrize("add", list(SUMS))
@pytest.mark.parametrize("cols", [7, 123, 768, 4097])
def test_sum_of_squares_is_outside_on_large_mean_rows_in_f32(cols: int, add: str) -> None:
    problem = made.forward(made.LAYERNORM, 4 * len(ALL), cols)
    found = verdict(problem, lambda i: schedules.layernorm(i, 1e-5, "sum_of_squares", SUMS[add]))
    assert not found.ok
    for tensor in ("y", "rstd"):
        assert found.tensor(tensor).ratios["large_mean"] > 3
        assert found.tensor(tensor).ratios["normal"] < 1
    first = found.tensor("y").first_bad
    assert first is not None
    assert first.family in ("large_mean", "constant", "fine_noise", "step_noise")


def test_a_known_chain_length_tells_sum_of_squares_apart_at_65536_cols() -> None:
    problem = made.forward(made.LAYERNORM, 22, 65536)
    chain = 65536 // 32
    for variance in ("two_pass", "shifted", "welford_lanes"):
        run = lambda i, v=variance: schedules.layernorm(i, 1e-5, v, SUMS["lanes"])  # noqa: E731
        assert verdict(problem, run, chain=chain, families=held(problem, variance)).ok
    squares = lambda i: schedules.layernorm(i, 1e-5, "sum_of_squares", SUMS["lanes"])  # noqa: E731
    wrong = verdict(problem, squares, chain=chain, families=("large_mean",))
    assert wrong.tensor("y").ratios["large_mean"] > 100


def mistaken(inputs: dict[str, np.ndarray], mistake: str) -> dict[str, np.ndarray]:
    x, add, eps = inputs["x"].copy(), SUMS["lanes"], np.float32(1e-5)
    n = np.float32(x.shape[1])
    if mistake == "16-bit accumulation":
        half = [x[:, ::2].astype(np.float16).astype(np.float32), x[:, 1::2]]
        mean = (add(half[0]) + add(half[1])) / n
    else:
        mean = add(x[:, :-1] if mistake == "last column dropped" else x) / n
    centred = x - mean
    var = add(centred * centred) / (n - 1 if mistake == "n - 1" else n)
    rstd = schedules.rsqrt(var if mistake == "no eps" else var + eps)
    weight = np.roll(inputs["weight"], 1) if mistake == "weight off by one" else inputs["weight"]
    y = centred * rstd * weight + inputs["bias"]
    return {"y": y, "mean": mean[:, 0], "rstd": rstd[:, 0]}


@pytest.mark.parametrize("stored_as", [d.name for d in STORED])
def test_common_mistakes_of_kernels_are_outside_the_bound(stored_as: str) -> None:
    problem = made.forward(made.LAYERNORM, 44, 768, stored_as)
    assert verdict(problem, lambda i: mistaken(i, "none")).ok
    for mistake in ("last column dropped", "n - 1", "no eps", "weight off by one"):
        assert not verdict(problem, lambda i, m=mistake: mistaken(i, m)).ok, mistake
    if stored_as == "f32":
        assert not verdict(problem, lambda i: mistaken(i, "16-bit accumulation")).ok


def test_shifted_is_outside_only_where_two_of_the_three_elements_it_looks_at_are_outliers() -> None:
    problem = made.forward(made.LAYERNORM, 8, 4097)

    def with_outliers(variance: str, *at: int) -> bool:
        def run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return schedules.layernorm(inputs, 1e-5, variance, SUMS["serial"])

        inputs, outputs = make_inputs(problem, families=("normal",)), make_outputs(problem)
        inputs.arrays["x"][:, at] = 1e3
        for name, result in run(inputs.arrays).items():
            outputs.arrays[name][...] = result
        return check(problem, inputs, outputs).ok

    assert all(with_outliers("shifted", at) for at in (0, 4097 // 2, 4096, 17))
    assert not with_outliers("shifted", 0, 4097 // 2)
    assert with_outliers("corrected_two_pass", 0, 4097 // 2)


def test_one_long_chain_of_welford_steps_is_outside_where_the_mean_stands_still() -> None:
    problem = made.forward(made.LAYERNORM, 8, 4097, "bf16")
    for variance, is_ok in (("welford", False), ("welford_lanes", True), ("two_pass", True)):
        run = lambda i, v=variance: schedules.layernorm(i, 1e-5, v, SUMS["serial"])  # noqa: E731
        assert verdict(problem, run, families=("large_steps",)).ok is is_ok


def test_a_difference_that_rounds_to_the_largest_float32_has_a_bound() -> None:
    lowest = Bounded(np.array([[-F32.largest]]))
    found = ARITHMETIC.subtract(lowest, Bounded(np.array([[3.0]])))
    assert found.error is not None
    assert np.float32(-F32.largest) - np.float32(3.0) == -np.float32(F32.largest)
    assert np.isfinite(found.error).all()
    beyond = ARITHMETIC.subtract(lowest, Bounded(np.array([[2.0**103]])))
    assert beyond.error is not None
    with np.errstate(over="ignore"):
        assert np.isinf(np.float32(-F32.largest) - np.float32(2.0**103))
    assert np.isinf(beyond.error).all()


@pytest.mark.parametrize("stored_as", [d.name for d in STORED])
def test_column_sums_of_65536_rows_are_inside_the_bound(stored_as: str) -> None:
    problem = made.backward(made.LAYERNORM, 65536, 8, stored_as)
    found = verdict(problem, lambda i: schedules.layernorm_backward(i, SUMS["tree"]))
    assert found.ok, found.summary()


def test_one_lost_row_of_65536_is_outside_the_bound_of_an_f32_column_sum() -> None:
    def losing(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = schedules.layernorm_backward(inputs, SUMS["tree"])
        return {**results, "dbias": results["dbias"] - inputs["dy"][12345]}

    found = verdict(made.backward(made.LAYERNORM, 65536, 8), losing).tensor("dbias")
    assert found.bad >= 4
    assert found.max_abs_error > 0.5


@pytest.mark.parametrize(("cols", "limit"), [(7, 3e-6), (123, 1e-5), (768, 2.3e-5), (4097, 6e-5), (65536, 2e-4)])
def test_the_bound_on_normal_rows_is_small(cols: int, limit: float) -> None:
    """At 768 cols 2.3e-5 of |y| + 1: an element with |y| = 1 may be off by 4.3e-5."""
    x = np.random.default_rng(0).standard_normal((4, cols)).astype(np.float32)
    known = {"x": x, "weight": 1.0, "bias": 0.0, "eps": 1e-5, "cols": float(cols)}
    walk = Evaluation(
        Float32Error(cols=cols),
        formula_table(made.LAYERNORM.formulas),
        {name: Bounded(np.asarray(value, dtype=np.float64)) for name, value in known.items()},
    )
    y = walk.value("y")
    bound = stored(y, F32)
    assert np.all(bound > 0)
    assert np.max(bound / (np.abs(y.value) + 1)) < limit


def test_values_are_those_of_the_interpreter() -> None:
    x = np.random.default_rng(0).standard_normal((4, 50))
    for op in made.BUILT_IN:
        known = {"x": x, "weight": 1.0, "bias": 0.0, "eps": 1e-5, "cols": 50.0}
        walk = Evaluation(
            Float32Error(cols=50),
            formula_table(op.formulas),
            {name: Bounded(np.asarray(value, dtype=np.float64)) for name, value in known.items()},
        )
        for name, value in interpret(op, {"x": x}).items():
            np.testing.assert_allclose(walk.value(name).value.reshape(value.shape), value, rtol=1e-13)


FLOATS = st.floats(-1e3, 1e3, width=32, allow_subnormal=False)
POSITIVE = st.floats(0.0078125, 1e3, width=32)
ARITHMETIC = Float32Error(cols=1)


@given(POSITIVE, POSITIVE, st.floats(-1, 1), st.floats(-1, 1))
@settings(max_examples=150, deadline=None)
def test_each_operation_bounds_its_float32_result_from_inexact_operands(a: float, b: float, p: float, q: float) -> None:
    relative = 1e-5
    x, y = (Bounded(np.asarray([[v]]), np.asarray([[v * relative]])) for v in (a, b))
    # What a float32 kernel may really hold: anything within the operands' own errors.
    moved_a, moved_b = np.float32(a * (1 + p * relative * 0.99)), np.float32(b * (1 + q * relative * 0.99))
    one = np.float32(1)
    cases = {
        "add": (ARITHMETIC.add(x, y), moved_a + moved_b),
        "subtract": (ARITHMETIC.subtract(x, y), moved_a - moved_b),
        "multiply": (ARITHMETIC.multiply(x, y), moved_a * moved_b),
        "divide": (ARITHMETIC.divide(x, y), moved_a * (one / moved_b)),
        "square": (ARITHMETIC.power(x, 2), moved_a * moved_a),
        "cube": (ARITHMETIC.power(x, 3), moved_a * moved_a * moved_a),
        "inverse": (ARITHMETIC.power(x, -1), one / moved_a),
        "sqrt": (ARITHMETIC.call("sqrt", x), np.sqrt(moved_a)),
        "rsqrt": (ARITHMETIC.call("rsqrt", x), one / np.sqrt(moved_a)),
        "log": (ARITHMETIC.call("log", x), np.log(moved_a)),
        "log1p": (ARITHMETIC.call("log1p", x), np.log1p(moved_a)),
        "expm1": (ARITHMETIC.call("expm1", ARITHMETIC.negate(x)), np.expm1(-moved_a)),
        "tanh": (ARITHMETIC.call("tanh", x), np.tanh(moved_a)),
        "sigmoid": (ARITHMETIC.call("sigmoid", x), one / (one + np.exp(-moved_a))),
        "exp": (ARITHMETIC.call("exp", ARITHMETIC.negate(x)), np.exp(-moved_a)),
        "maximum": (ARITHMETIC.call("maximum", x, y), np.maximum(moved_a, moved_b)),
    }
    for name, (bounded, got) in cases.items():
        assert bounded.error is not None
        # np.float32(a * ...) is itself rounded, once an operand: that is what REARRANGED allows for.
        assert abs(float(got) - bounded.value.item()) <= REARRANGED * bounded.error.item(), name
        assert bounded.error.item() <= 1e-1 * (abs(bounded.value.item()) + abs(a) + abs(b)), name


@given(st.lists(FLOATS, min_size=40, max_size=300), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_sums_in_any_order_are_inside_the_bound(terms: list[float], order: object) -> None:
    order.shuffle(terms)  # type: ignore[attr-defined]
    t = np.array([terms], dtype=np.float32)
    found = Float32Error(cols=t.shape[1]).reduce("sum", Bounded(t.astype(np.float64)))
    assert found.error is not None
    for add in SUMS.values():
        assert abs(float(add(t)[0, 0]) - found.value.item()) <= found.error.item() + 1e-300


def test_a_chain_over_equal_terms_breaks_the_sqrt_law_and_gets_the_worst_case() -> None:
    t = np.full((1, 65536), np.float32(1.1))
    found = Float32Error(cols=65536).reduce("sum", Bounded(t.astype(np.float64)))
    error = abs(float(schedules.serial(t)[0, 0]) - found.value.item())
    assert error > LAMBDA * np.sqrt(65536) * U * found.value.item()
    assert found.error is not None
    assert error < found.error.item() < 65536 * U * found.value.item()
    random = np.random.default_rng(0).uniform(1, 2, (1, 65536))
    plain = Float32Error(cols=65536).reduce("sum", Bounded(random))
    assert plain.error is not None
    assert plain.error.item() == pytest.approx(LAMBDA * np.sqrt(65535) * U * random.sum())


def test_an_intermediate_that_overflows_float32_has_no_bound() -> None:
    x = Bounded(np.array([[1e20, 1.0]]))
    squared = Float32Error(cols=2).power(x, 2)
    assert squared.error is not None
    assert np.isinf(squared.error[0, 0])
    assert squared.error[0, 1] < 1e-6


def test_underflow_of_a_square_reaches_its_rsqrt() -> None:
    tiny = Float32Error(cols=1).power(Bounded(np.array([[1e-30]])), 2)
    rsqrt = Float32Error(cols=1).call("rsqrt", tiny)
    assert rsqrt.error is not None
    assert np.isinf(rsqrt.error).all()


@pytest.mark.parametrize("name", [d.name for d in STORED])
def test_storing_adds_half_a_spacing_of_the_dtype(name: str) -> None:
    d = DTYPES[name]
    values = np.random.default_rng(0).standard_normal(1000)
    bound = stored(Bounded(values), d)
    error = np.abs(values.astype(d.numpy).astype(np.float64) - values)
    assert np.all(error <= bound)
    assert np.max(error / bound) > 0.9
