"""What a check of products varies beside their sides, and that wrong kernels show there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen.cpu import find_compiler
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.schedule.schedule import schedule_from
from normgen.spec.reader import parse
from normgen.spec.spec import Kind
from normgen.verify import families_of, make_inputs, scalar_values, signed_parameters
from normgen.verify.contraction.sides import RIGHT, factors, main_input
from normgen.verify.varied.values import of_tensor
from tests.codegen.kernels import named
from tests.mutation.products import RELOAD, TILES
from tests.verify.contraction import linear

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


def test_scalars_signs_and_inputs_beside_the_sides_are_varied() -> None:
    sizes = (60, 40, 21)
    assert scalar_values(linear.problem_of("normed", sizes)) == {
        "eps": tuple(float(np.float32(value)) for value in (0.1, 8, 512, (1e-6 * 0.1) ** 0.5))
    }
    assert signed_parameters(linear.problem_of("normed", sizes)) == ("weight",)
    assert signed_parameters(linear.problem_of("torch_linear", sizes)) == ("bias",)
    beside = [name for name in families_of(linear.problem_of("added", sizes)) if of_tensor(name)]
    assert beside == [f"residual {kind}" for kind in ("zeros", "thirties", "huge", "zero_or_one")]
    for gradient, other, main in (("x", "w", "dy"), ("w", "x", "x")):
        asked = {"direction": "backward", "gradients": (gradient,), "reads": (other,)}
        backward = linear.problem_of("linear", sizes, **asked)
        assert main_input(backward) == main
        assert not any(map(of_tensor, families_of(backward)))  # both of what it reads are sides


def test_a_parameter_has_signs_zeros_ones_and_extremes_but_no_infinity_along_the_axis_that_is_summed() -> None:
    bias = make_inputs(linear.problem_of("torch_linear", (60, 640, 21))).arrays["bias"]
    weight = make_inputs(linear.problem_of("normed", (60, 40, 640))).arrays["weight"]
    for values in (bias, weight):
        assert {0.0, 1.0} <= set(values.tolist())
        assert (values < 0).sum() > 100
        assert ((np.abs(values) >= 27) & (np.abs(values) <= 33)).sum() == 640 // 16
    assert np.isfinite(weight).all()
    assert np.abs(weight).max() <= 33
    assert {str(v) for v in bias[~np.isfinite(bias)]} == {"inf", "-inf", "nan"}
    assert (np.abs(bias[np.isfinite(bias)]) > 1e15).sum() == 640 // 16


def test_an_input_that_is_declared_before_the_side_is_at_an_extreme_of_its_own() -> None:
    spec = linear.spec_of("added")
    turned = replace(spec, tensors=tuple(sorted(spec.tensors, key=lambda t: t.name != "residual")))
    assert turned.inputs[0].name == "residual"
    problem = replace(linear.problem_of("added", (60, 40, 21)), spec=turned)
    inputs = make_inputs(problem)
    at = [i for i, family in enumerate(inputs.families) if family == "residual huge"]
    assert (np.abs(inputs.arrays["residual"][at]) > 1e15).all()
    assert (np.abs(inputs.arrays["x"][at]) < 10).all()
    huge = [i for i, family in enumerate(inputs.families) if family == "huge"]
    assert (np.abs(inputs.arrays["residual"][huge]) < 10).all()


def test_another_left_side_is_at_an_extreme_in_lines_of_its_own_in_either_order_of_memory() -> None:
    problem = linear.problem_of("linear", (60, 40, 21))
    x = problem.tensor("x")
    for order in ((), ("inner", "rows")):
        both = replace(problem, tensors=(*problem.tensors, replace(x, name="x2", order=order)))
        inputs = make_inputs(both, families=("normal", "x2 zeros"))
        x2 = inputs.arrays["x2"] if not order else inputs.arrays["x2"].T
        is_zero = np.array([family == "x2 zeros" for family in inputs.families])
        assert x2.shape == (60, 21)
        assert ((x2 == 0).all(axis=1) == is_zero).all()
        assert (inputs.arrays["x"] != 0).all()
    assert x.kind is Kind.LEFT


@needs_compiler
def test_a_record_says_which_variations_of_a_product_changed_a_result() -> None:
    kernel = named("rmsnorm_linear", "64x40", "f32", TILES, inner=21)
    verified = check_on_cpu(kernel.problem, kernel.module()).verified
    assert verified is not None
    assert {
        "eps=0.1",
        "eps=8",
        "eps=512",
        "eps=0.000316228",
        *(f"w {name}" for name in RIGHT if name != "normal"),
    } == set(verified.seen or ())
    assert not verified.unseen
    narrow = named("linear_add", "64x5", "f32", TILES, inner=21)
    verified = check_on_cpu(narrow.problem, narrow.module()).verified
    assert verified is not None
    assert {"residual zeros", "residual huge", "w powers"} <= set(verified.seen or ())
    assert set(verified.unseen) == {f"w {name}" for name in ("not_finite", "zeros", "huge", "tiny")}


WRONG = [
    ("rmsnorm_linear", TILES, "/ kInner + eps", "/ kInner + 1e-6f"),
    ("rmsnorm_linear", TILES, "= x_i * weight_i", "= x_i * fabsf(weight_i)"),
    ("rmsnorm_linear", RELOAD, "= x_i * weight_i", "= x_i * fminf(fmaxf(weight_i, -3e38f), 3e38f)"),
    ("linear_bias_gelu", TILES, "= element(bias_vec, e)", "= fabsf(element(bias_vec, e))"),
    ("linear_bias_gelu", TILES, "= element(bias_vec, e)", "= fminf(fmaxf(element(bias_vec, e), -2.0f), 2.0f)"),
    ("linear_add", TILES, "= element(residual_vec, e)", "= fminf(fmaxf(element(residual_vec, e), -1e3f), 1e3f)"),
    ("linear_add", RELOAD, "w_part[i] = w_i", "w_part[i] = w_i == 0.0f ? 1.0f : w_i"),
]


@needs_compiler
@pytest.mark.parametrize(("op", "knobs", "old", "new"), WRONG, ids=[f"{op} {new}" for op, _, _, new in WRONG])
def test_a_kernel_that_ignores_what_a_caller_may_vary_is_wrong(
    op: str, knobs: dict[str, object], old: str, new: str
) -> None:
    kernel = named(op, "64x40", "f32", knobs, inner=21)
    module = kernel.module()
    assert module.text.count(old) == 1
    assert not check_on_cpu(kernel.problem, replace(module, text=module.text.replace(old, new))).ok


def test_what_a_forward_has_saved_is_of_a_turned_matrix_as_it_lies() -> None:
    asked = {"direction": "backward", "gradients": ("x",)}
    for layout in ({}, {"w": "cols_inner"}):
        problem = linear.problem_of("saved", (9, 5, 7), layout=layout, **asked)
        arrays = make_inputs(problem, families=("normal",)).arrays
        w = arrays["w"].T if layout else arrays["w"]
        z = arrays["x"] @ w + arrays["bias"] if "x" in arrays else None
        assert z is not None
        np.testing.assert_allclose(arrays["z"], z, rtol=1e-4, atol=1e-4)


SIDES = 'x = { role = "input", axes = ["rows", "inner"] }\nw = { role = "parameter", axes = ["inner", "cols"] }'
LEAVING = [  # formulas whose factors leave the sum, and what of them may not be 0 or infinite
    ('scale = "row_input"', 'y = "(x / scale) @ w"', {"scale"}),
    ('bias = "parameter"', 'y = "x @ (w / bias)"', {"bias"}),
    ('bias = "parameter"', 'v = "w * bias"\ny = "x @ v + bias"', {"v", "bias"}),
    ("", 's = "absmax(x)"\ny = "(x / s) @ w"', {"s"}),
    ('bias = "parameter"', 'y = "x @ w + bias"', set()),
]


@needs_compiler
@pytest.mark.parametrize(("more", "formulas", "leaving"), LEAVING, ids=[formulas for _, formulas, _ in LEAVING])
def test_a_right_kernel_of_factors_that_leave_the_sum_is_right(more: str, formulas: str, leaving: set[str]) -> None:
    spec = parse(f'name = "own"\n[tensors]\n{SIDES}\n{more}\ny = "output"\n[formulas]\n{formulas}\n')
    problem = problem_for(spec, shape=(46, 33), inner=17)
    assert factors(problem) == leaving
    arrays = make_inputs(problem).arrays
    for name in leaving & arrays.keys():
        assert np.isfinite(arrays[name]).all()
        assert (arrays[name] != 0).all()
    found = check_on_cpu(problem, emit(problem, schedule_from(RELOAD)))
    assert found.ok, found.summary
