"""The hand-written references against identities that do not come from their own formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.errors import UsageError
from normgen.program.source import problem_for
from normgen.spec.reader import load, parse
from normgen.verify import (
    check,
    has_reference,
    interpret,
    make_inputs,
    make_outputs,
    reference,
)
from normgen.verify.sources import is_derived
from tests.verify.finite_differences import finite_difference_check
from tests.verify.made import BUILT_IN, ROW_SUM

SHAPES = st.tuples(st.integers(1, 5), st.integers(2, 40), st.integers(0, 2**31))


def normal(rows: int, cols: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, cols))


@given(SHAPES)
@settings(max_examples=30, deadline=None)
def test_layernorm_rows_have_mean_0_and_variance_1(shape: tuple[int, int, int]) -> None:
    x = 3 + 7 * normal(*shape)
    found = reference("layernorm", "forward", {"x": x}, {"eps": 0.0})
    assert np.allclose(found["y"].mean(axis=1), 0, atol=1e-9)
    assert np.allclose(found["y"].std(axis=1), 1, atol=1e-9)
    assert np.allclose(found["y"] / found["rstd"][:, None] + found["mean"][:, None], x)


@given(SHAPES)
@settings(max_examples=30, deadline=None)
def test_rmsnorm_rows_have_mean_square_1_and_ignore_scale(shape: tuple[int, int, int]) -> None:
    x = normal(*shape)
    y = reference("rmsnorm", "forward", {"x": x}, {"eps": 0.0})["y"]
    assert np.allclose((y * y).mean(axis=1), 1)
    assert np.allclose(reference("rmsnorm", "forward", {"x": 1024 * x}, {"eps": 0.0})["y"], y)


@given(SHAPES)
@settings(max_examples=30, deadline=None)
def test_softmax_rows_sum_to_1_and_ignore_a_shift(shape: tuple[int, int, int]) -> None:
    x = 5 * normal(*shape)
    y = reference("softmax", "forward", {"x": x})["y"]
    assert np.allclose(y.sum(axis=1), 1)
    assert np.allclose(y, reference("softmax", "forward", {"x": x - 300.0})["y"])
    assert np.allclose(np.log(y), reference("log_softmax", "forward", {"x": x})["y"])
    top = reference("row_max_sum", "forward", {"x": x})
    assert np.allclose(np.exp(x - top["row_max"][:, None]) / top["row_sum"][:, None], y)


def test_row_sum_is_exact_on_whole_numbers() -> None:
    x = np.arange(12.0).reshape(3, 4)
    assert reference("row_sum", "forward", {"x": x})["total"].tolist() == [6.0, 22.0, 38.0]


def test_weight_and_bias_scale_and_shift_each_column() -> None:
    x, weight, bias = normal(4, 9, 0), normal(1, 9, 1)[0], normal(1, 9, 2)[0]
    plain = reference("layernorm", "forward", {"x": x}, {"eps": 1e-5})["y"]
    full = reference("layernorm", "forward", {"x": x, "weight": weight, "bias": bias}, {"eps": 1e-5})["y"]
    assert np.allclose(full, plain * weight + bias)


@pytest.mark.parametrize("op", ["layernorm", "rmsnorm"])
def test_norm_gradients_match_finite_differences(op: str) -> None:
    x, dy, weight, bias = normal(3, 11, 0), normal(3, 11, 1), normal(1, 11, 2)[0], normal(1, 11, 3)[0]
    given = {"x": x, "weight": weight} | ({"bias": bias} if op == "layernorm" else {})
    saved = {k: v for k, v in reference(op, "forward", given, {"eps": 1e-2}).items() if k != "y"}
    grads = reference(op, "backward", {"dy": dy, **given, **saved})
    worst = finite_difference_check(
        lambda moved: reference(op, "forward", moved, {"eps": 1e-2})["y"],
        given,
        dy,
        {name: grads["d" + name] for name in given},
    )
    assert max(worst.values()) < 1e-8
    assert set(worst) == set(given)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax_gradients_match_finite_differences(op: str) -> None:
    x, dy = normal(3, 11, 0), normal(3, 11, 1)
    y = reference(op, "forward", {"x": x})["y"]
    worst = finite_difference_check(
        lambda moved: reference(op, "forward", moved)["y"],
        {"x": x},
        dy,
        {"x": reference(op, "backward", {"dy": dy, "y": y})["dx"]},
    )
    assert worst["x"] < 1e-9


@given(SHAPES)
@settings(max_examples=30, deadline=None)
def test_layernorm_dx_sums_to_0_over_each_row(shape: tuple[int, int, int]) -> None:
    x, dy = normal(*shape), normal(shape[0], shape[1], shape[2] + 1)
    saved = reference("layernorm", "forward", {"x": x}, {"eps": 1e-5})
    dx = reference("layernorm", "backward", {"dy": dy, "x": x, "mean": saved["mean"], "rstd": saved["rstd"]})["dx"]
    assert np.allclose(dx.sum(axis=1), 0, atol=1e-9 * saved["rstd"].max())


def test_the_finite_difference_check_sees_one_wrong_element() -> None:
    x, dy = normal(3, 11, 0), normal(3, 11, 1)
    y = reference("softmax", "forward", {"x": x})["y"]
    dx = reference("softmax", "backward", {"dy": dy, "y": y})["dx"]
    dx[1, 7] += 1e-3
    worst = finite_difference_check(lambda moved: reference("softmax", "forward", moved)["y"], {"x": x}, dy, {"x": dx})
    assert worst["x"] > 1e-4


def test_non_finite_rows_follow_ieee() -> None:
    rows = np.array([[0.0, np.inf, 1.0], [0.0, -np.inf, 0.0], [np.nan, 1.0, 2.0], [-np.inf, -np.inf, -np.inf]])
    y = reference("softmax", "forward", {"x": rows})["y"]
    assert np.isnan(y[[0, 2, 3]]).all()
    assert y[1].tolist() == [0.5, 0.0, 0.5]
    assert np.isnan(reference("layernorm", "forward", {"x": rows}, {"eps": 1e-5})["y"]).all()
    assert reference("log_softmax", "forward", {"x": rows})["y"][1, 1] == -np.inf


def test_an_operation_without_a_reference_is_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match="did you mean 'layernorm forward'"):
        reference("layernrm", "forward", {})
    assert all(has_reference(op, "forward") for op in BUILT_IN)
    assert not has_reference(ROW_SUM, "backward")


OWN = {
    "rmsnorm": (
        'x = "input"\nweight = "parameter"\ny = "output"\n[formulas]\n'
        'y = "x * rsqrt(mean(x**2) + 1e-2) * (1 + weight)"\n'
    ),
    "softmax": 'logits = "input"\nshares = "output"\n[formulas]\nshares = "exp(logits) / (1 + sum(exp(logits)))"\n',
    "log_softmax": 'x = "input"\ny = "output"\n[formulas]\ny = "x - log(1 + sum(exp(x)))"\n',
}


@pytest.mark.parametrize("name", OWN)
def test_another_spec_with_the_name_of_a_built_in_one_is_judged_by_its_own_formulas(name: str) -> None:
    own = parse(f'name = "{name}"\n[tensors]\n{OWN[name]}')
    problem = problem_for(own, shape="8x96")
    inputs, outputs = make_inputs(problem, families=("normal",)), make_outputs(problem)
    for tensor, want in interpret(own, inputs.arrays, {}).items():
        if tensor in outputs.arrays:
            outputs.arrays[tensor][...] = want
    assert check(problem, inputs, outputs).ok
    outputs.arrays[own.outputs[0].name][0, 0] += 1.0
    assert not check(problem, inputs, outputs).ok
    assert not has_reference(own, "forward")
    backward = problem_for(own, shape="8x96", direction="backward")
    make_inputs(backward, families=("normal",))  # of what the forward saves
    assert is_derived(backward)
    assert has_reference(load(name), "forward")
    assert not is_derived(problem_for(load(name), shape="8x96", direction="backward"))
