"""Where formulas compare is found from them, and drawn exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen.dtypes import F32, dtype
from normgen.program.source import problem_for
from normgen.spec.reader import load, parse
from normgen.spec.spec import Spec
from normgen.verify import beyond_stored, check, make_inputs, make_outputs, scalar_values
from normgen.verify.bounded import Bounded, nothing_of
from normgen.verify.families import may_tie
from normgen.verify.rows import draws
from normgen.verify.varied.limits import draw_edges, limits, tied_scalars, tied_value
from normgen.verify.varied.values import spread_families
from tests.verify import made

SCALARS = {"limit": 4.0, "p": 0.25}


def own(formula: str, first: str = "x") -> Spec:
    formulas = {"g": first, "edge": "limit + 1", "y": formula}
    return replace(made.spec("own_limits", formulas), scalars=tuple(SCALARS.items()))


@pytest.mark.parametrize(
    ("formula", "found"),
    [
        ("clamp(x, -inf, limit)", {4.0}),
        ("clamp(x, -limit, 2 * limit)", {-4.0, 8.0}),
        ("where(x > 0, x, 0)", {0.0}),
        ("where(limit <= x, x, 0)", {4.0}),
        ("maximum(1 - x, limit)", {-3.0}),
        ("minimum(x / 2 + 1, limit)", {6.0}),
        ("where(2 / x < limit, x, 0)", {0.5}),
        ("maximum(g, limit)", {4.0}),
        ("where(x > edge, x, 0)", {5.0}),
        ("abs(x - limit)", {4.0}),
        ("round(x)", {0.5, 1.5, -0.5, -1.5, 2.5, -16.5}),
        ("x * limit", set()),
        ("maximum(exp(x), limit)", set()),
        ("x / max(x)", set()),
    ],
)
def test_a_limit_is_what_an_input_is_compared_with(formula: str, found: set[float]) -> None:
    assert set(limits(own(formula), "x", SCALARS)) == found
    assert limits(own(formula), "limit", SCALARS) == ()


def test_a_limit_of_another_formula_is_that_of_the_input_that_it_names() -> None:
    assert limits(own("where(g > 0, g, 0)", first="3 - x"), "x", SCALARS) == (3.0,)


@pytest.mark.parametrize("name", ["f32", "bf16", "f16"])
def test_half_of_a_row_is_the_limit_and_others_are_next_to_it(name: str) -> None:
    of = dtype(name)
    drawn = of.stored(draw_edges((7.0, 0.0), np.random.default_rng(0), 40, 96, of)).astype(np.float64)
    assert 0.2 < (drawn == 7.0).mean() < 0.3
    assert 0.2 < (drawn == 0.0).mean() < 0.3
    below, above = (7 * (1 + sign * 2 * of.unit_roundoff) for sign in (-1, 1))
    for near in (float(of.stored(np.array(below))), float(of.stored(np.array(above))), of.smallest_normal):
        assert near not in (0.0, 7.0)
        assert (drawn == near).any()
    assert (np.abs(drawn) > 70).any()


def test_rows_at_a_limit_follow_the_limit_of_the_call() -> None:
    problem = problem_for(load("swiglu_clamped"), shape=(8, 64), direction="backward")
    gate = make_inputs(problem, families=("gate edges",), scalars={"limit": 448.0}).arrays["gate"]
    assert 0.4 < (gate == 448.0).mean() < 0.6
    up = make_inputs(problem, families=("up edges",)).arrays["up"]
    assert {7.0, -7.0} <= set(up.reshape(-1).tolist())


def test_a_share_is_one_of_the_random_numbers_that_it_is_compared_with() -> None:
    spec = load("dropout_add_rmsnorm")
    assert set(tied_scalars(spec)) == {"p"}
    inputs = make_inputs(problem_for(spec, shape=(8, 64)))
    value = tied_value(spec, "p", draws(inputs, 0))
    assert value in draws(inputs, 0)
    assert abs(value - 0.1) < 0.05
    kept = parse(spec.text.replace("random(seed) >= p", "random(seed) < 1 - p"))
    assert 1 - tied_value(kept, "p", draws(inputs, 0)) in draws(inputs, 0)


def test_small_and_large_scalars_are_tried_with_rows_that_tell_them() -> None:
    values = scalar_values(problem_for(load("cross_entropy"), shape=(8, 64)))["label_smoothing"]
    assert min(abs(v) for v in values) < 0.001
    assert max(values) > 50
    families = ("normal", "tiny", "huge", "gate edges", "up zeros", "label ignore_index", "label 2^40")
    assert spread_families(families) == ("normal", "tiny", "gate edges", "label ignore_index")
    assert spread_families(("large_mean",)) == ("large_mean",)


def test_a_weight_takes_a_norm_beyond_what_f16_holds() -> None:
    problem = problem_for(load("rmsnorm"), shape=(40, 96), dtype="f16")
    ((name, size),) = beyond_stored(problem).items()
    assert name == "weight"
    inputs = make_inputs(problem, families=("mixed_sign",), sizes={name: size})
    weight = np.abs(inputs.arrays["weight"].astype(np.float64))
    assert 0.3 < (weight > 0.97 * size).mean() < 1
    assert beyond_stored(problem_for(load("rmsnorm"), shape=(40, 96), dtype="bf16")) == {}


def test_a_tie_of_what_a_zero_weight_leaves_is_stored_as_the_even_number() -> None:
    problem = problem_for(load("layernorm_to_int8"), shape=(9, 64))
    assert may_tie(problem)
    assert not may_tie(problem_for(load("rmsnorm_to_fp8"), shape=(9, 64)))
    inputs = make_inputs(problem, families=("normal",), is_tied=True)
    outputs = make_outputs(problem)
    exact = inputs.arrays["bias"].astype(np.float64) / float(inputs.arrays["scale"][0])
    assert (np.abs(exact) % 1 == 0.5).all()
    outputs.arrays["q"][...] = np.rint(exact)
    assert check(problem, inputs, outputs).ok
    outputs.arrays["q"][...] = np.copysign(np.floor(np.abs(exact) + 0.5), exact)  # away from 0
    assert not check(problem, inputs, outputs).ok


def test_nothing_times_what_has_no_bound_is_not_known() -> None:
    zero = Bounded(np.zeros(3))
    factor = Bounded(np.array([1.0, np.inf, 2.0]), np.array([0.1, 0.0, np.inf]))
    known = nothing_of(zero, factor)
    assert known is not None
    assert known.tolist() == [True, False, False]
    assert nothing_of(factor, Bounded(np.ones(3))) is None
    assert F32.holds(0.0)
