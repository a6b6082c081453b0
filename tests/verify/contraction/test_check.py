"""A right product passes on all families of both sides, and a wrong one shows, at equal and at different sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from normgen.problem.problem import make_problem
from normgen.spec.reader import parse
from normgen.verify import check, default_families, interpret, make_inputs, make_outputs, prepare
from normgen.verify.contraction.sides import RIGHT
from tests.verify.contraction import gradients, linear

Arrays = dict[str, Any]
SIZES = ((44, 44, 44), (44, 24, 130), (1, 7, 1), (3, 1, 9), (50, 12, 700))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", linear.FORMULAS)
def test_a_right_product_is_within_its_bound(name: str, sizes: tuple[int, int, int]) -> None:
    for dtype in ("f32", "bf16", "f16"):
        problem = linear.problem_of(name, sizes, dtype=dtype)
        inputs, outputs = linear.run(name, problem)
        verdict = check(problem, inputs, outputs)
        assert verdict.ok, verdict.summary()
        assert verdict.tensor("y").elements == sizes[0] * sizes[1]
        assert verdict.max_ratio <= 1


def _lose_a_tile(t: Arrays) -> None:
    t["w"][8:16] = 0


def _wrong_axis(t: Arrays) -> None:
    t["w"] = t["w"].T


def _neighbours(t: Arrays) -> None:
    t["x"] = np.roll(t["x"], 1, axis=0)


def _shifted(t: Arrays) -> None:
    t["w"] = np.roll(t["w"], 1, axis=1)


def _twice(t: Arrays) -> None:
    t["x"][:, -1] *= 2


def _fewer_digits(t: Arrays) -> None:
    t["x"] = np.ldexp(np.rint(np.ldexp(np.frexp(t["x"])[0], 11)), np.frexp(t["x"])[1] - 11)


def _clean(t: Arrays) -> None:
    t["w"] = np.nan_to_num(t["w"])


@pytest.mark.parametrize(
    "wrong", [_lose_a_tile, _wrong_axis, _neighbours, _shifted, _twice, _fewer_digits, _clean], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("name", ["linear", "normed", "added", "swiglu"])
def test_a_wrong_product_is_called_wrong(name: str, wrong: Callable[[Arrays], None]) -> None:
    """At equal sizes, where an axis that is taken for another one faults nowhere."""
    problem = linear.problem_of(name, (44, 44, 44))
    inputs, outputs = linear.run(name, problem)
    spoilt = {key: array.astype(np.float32) for key, array in inputs.arrays.items()}
    with np.errstate(all="ignore"):
        wrong(spoilt)
        outputs.arrays["y"][...] = linear.results(name, spoilt)["y"]
    assert not check(problem, inputs, outputs).ok


def test_a_value_of_inner_that_is_taken_for_one_of_columns_shows() -> None:
    problem = linear.problem_of("normed", (44, 44, 44))
    inputs, outputs = linear.run("normed", problem)
    plain = {**inputs.arrays, "weight": np.ones(44, np.float32)}
    with np.errstate(all="ignore"):
        outputs.arrays["y"][...] = linear.results("normed", plain)["y"] * inputs.arrays["weight"]
    assert not check(problem, inputs, outputs).ok


def test_one_unit_in_the_last_place_shows_where_the_product_is_exact() -> None:
    problem = linear.problem_of("linear", (44, 24, 64))
    inputs, outputs = linear.run("linear", problem, families=("whole",))
    assert check(problem, inputs, outputs).ok
    y = outputs.arrays["y"]
    y[3, 4] = np.nextafter(y[3, 4], np.float32(np.inf))  # of the family powers
    verdict = check(problem, inputs, outputs)
    assert verdict.tensor("y").bad == 1


def test_every_pair_of_families_is_in_one_call() -> None:
    cycles = 3
    problem = linear.problem_of("swiglu", (48, cycles * len(RIGHT), 96))
    inputs = make_inputs(problem)
    assert set(inputs.families) == set(default_families(problem)) >= {"whole", "normal", "nan"}
    w, up = inputs.arrays["w"], inputs.arrays["up"].T
    finite = np.asarray(np.isfinite(w).all(axis=0))
    assert (~finite).sum() == cycles
    assert finite[~np.isfinite(up).all(axis=0)].all()  # no column has both matrices at an extreme
    assert ((w == w[0]).all(axis=0)).sum() == 2 * cycles  # of equal terms, and zeros


def test_what_lies_between_and_around_the_lines_of_a_side_is_nan() -> None:
    problem = linear.problem_of("linear", (5, 24, 12), dtype="bf16", pitch=40)
    inputs = make_inputs(problem, pitches={"x": 16})
    for name, wide in (("x", 16), ("w", 40)):
        buffer = inputs.buffers[name]
        width, size = buffer.array.shape[1], buffer.array.itemsize
        assert buffer.array.strides[0] == wide * size
        around = buffer.storage[buffer.offset :][: buffer.array.shape[0] * wide * size].view(np.uint16)
        assert (around.reshape(-1, wide)[:, width:] == 0xFFFF).all()
        assert (buffer.storage[: buffer.offset] == 0xFF).all()


@pytest.mark.parametrize("sizes", [(44, 44, 44), (45, 24, 50), (3, 24, 44)], ids=str)
@pytest.mark.parametrize("gradient", ["x", "w", "up"])
def test_gradients_are_checked_line_by_line_of_rows_or_of_inner(
    gradient: str, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "torch_linear" if gradient == "up" else "linear"
    problem = linear.problem_of(name, sizes, direction="backward", gradients=(gradient,))
    monkeypatch.setattr("normgen.verify.sources.proven_program", lambda _: gradients.of(gradient))
    inputs, outputs = make_inputs(problem), make_outputs(problem)
    assert len(inputs.families) == (sizes[0] if gradient == "x" else sizes[2])
    assert len(inputs.families) < 40 or set(inputs.families) >= {"whole", "nan", "huge"}
    t = {key: array.astype(np.float32) for key, array in inputs.arrays.items()}
    with np.errstate(all="ignore"):
        found = t["dy"] @ t["w"].T if gradient == "x" else t["x"].T @ t["dy"]
    result = outputs.arrays[f"d{gradient}"]
    result[...] = found.T if gradient == "up" else found
    verdict = check(problem, inputs, outputs)
    assert verdict.ok, verdict.summary()
    assert verdict.tensors[0].elements == found.size
    for wrong in (np.roll(found, 1, axis=1), np.roll(found, 1, axis=0), found.T):
        if wrong.shape == found.shape:
            result[...] = wrong.T if gradient == "up" else wrong
            assert not check(problem, inputs, outputs).ok


@pytest.mark.parametrize("sizes", [(44, 44, 44), (45, 24, 50), (3, 24, 21)], ids=str)
@pytest.mark.parametrize("gradient", ["x", "w"])
def test_gradients_of_numbered_rows_columns_and_terms_are_proven_and_checked(
    gradient: str, sizes: tuple[int, int, int]
) -> None:
    asked: dict[str, Any] = {"direction": "backward", "gradients": (gradient,)}
    problem = make_problem(parse(linear.NUMBERED), shape=sizes[:2], inner=sizes[2], **asked)
    inputs, outputs = make_inputs(problem), make_outputs(problem)
    t, (rows, cols, inner) = inputs.arrays, sizes
    left, right = linear.numbered(np.zeros((rows, inner)), np.zeros((inner, cols)))
    with np.errstate(all="ignore"):
        dz = t["dy"] * np.arange(1, cols + 1, dtype=np.float32)
        if gradient == "x":
            found = dz @ np.where(right, t["w"], 0).T * left
        else:
            found = np.where(left, t["x"], 0).T @ dz * (right > 0)
    outputs.arrays[f"d{gradient}"][...] = found
    verdict = check(problem, inputs, outputs)
    assert verdict.ok, verdict.summary()
    outputs.arrays[f"d{gradient}"][...] = np.roll(found, 1, axis=0)
    assert not check(problem, inputs, outputs).ok


def test_chosen_lines_are_compared_by_themselves_and_what_was_added_to_counts() -> None:
    problem = linear.problem_of("linear", (60, 24, 40), direction="backward", gradients=("x",), accumulate=True)
    inputs, outputs = make_inputs(problem), make_outputs(problem)
    with np.errstate(all="ignore"):
        outputs.arrays["dx"][...] += inputs.arrays["dy"] @ inputs.arrays["w"].T
    formulas, rows = [("dx", "dy @ w")], np.array([0, 3, 4, 59])
    expected = prepare(problem, inputs, start=outputs.start, rows=rows, formulas=formulas)
    verdict = expected.check(outputs)
    assert verdict.ok, verdict.summary()
    assert verdict.tensor("dx").elements == 4 * 40
    assert check(problem, inputs, outputs, rows=44, formulas=formulas).ok


@pytest.mark.parametrize("sizes", [(50, 24, 20), (20, 24, 50), (300, 4, 320)], ids=str)
def test_a_sum_over_rows_beside_the_gradient_of_a_matrix_is_that_of_all_rows_once(sizes: tuple[int, int, int]) -> None:
    """The lines of dw are of inner, and there may be fewer or more of these than rows, or than a block has."""
    rows, cols, inner = sizes
    problem = make_problem(
        linear.spec_of("torch_linear"), shape=(rows, cols), inner=inner, direction="backward", gradients=("up", "bias")
    )
    inputs, outputs = make_inputs(problem), make_outputs(problem)
    x, dy = inputs.arrays["x"], inputs.arrays["dy"]
    with np.errstate(all="ignore"):
        outputs.arrays["dup"][...] = dy.T @ x
        outputs.arrays["dbias"][...] = dy.astype(np.float64).sum(axis=0)
    verdict = check(problem, inputs, outputs)
    assert verdict.ok, verdict.summary()
    assert verdict.tensor("dbias").elements == cols
    repeated = prepare(problem, inputs, repeated_to=rows + 1).parts[-1]
    with np.errstate(all="ignore"):
        want = dy.astype(np.float64).sum(axis=0) + dy[0]
    np.testing.assert_allclose(repeated.want[0], want, rtol=1e-6)
    outputs.arrays["dbias"][...] *= 2
    assert not check(problem, inputs, outputs).tensor("dbias").ok


@pytest.mark.parametrize("sizes", [(24, 24, 24), (20, 24, 50), (50, 24, 20)], ids=str)
def test_the_gradient_of_a_matrix_reads_the_numbers_of_rows_and_not_of_lines(sizes: tuple[int, int, int]) -> None:
    rows, cols, inner = sizes
    spec = parse(
        """
name = "lower"
[tensors]
x = { role = "input", axes = ["rows", "inner"] }
w = { role = "parameter", axes = ["inner", "cols"] }
y = "output"
[formulas]
y = "where(col <= row, x @ w, 0)"
"""
    )
    problem = make_problem(spec, shape=(rows, cols), inner=inner, direction="backward", gradients=("w",))
    inputs, outputs = make_inputs(problem), make_outputs(problem)
    below = np.arange(cols) <= np.arange(rows)[:, np.newaxis]
    for kept, is_right in ((below, True), (~below, False)):
        with np.errstate(all="ignore"):
            outputs.arrays["dw"][...] = inputs.arrays["x"].T @ (inputs.arrays["dy"] * kept)
        assert check(problem, inputs, outputs, rows=min(inner, 30)).ok is is_right


@pytest.mark.parametrize("sizes", [(3, 5, 7), (4, 4, 4), (1, 3, 1)], ids=str)
def test_a_spec_of_products_is_interpreted_from_arrays_as_they_lie(sizes: tuple[int, int, int]) -> None:
    rows, cols, inner = sizes
    rng = np.random.default_rng(1)
    shapes = {"x": (rows, inner), "w": (inner, cols), "up": (cols, inner), "weight": (inner,), "bias": (cols,)}
    arrays = {name: rng.standard_normal(shape) for name, shape in (*shapes.items(), ("residual", (rows, cols)))}
    for name in linear.FORMULAS:
        spec = linear.spec_of(name)
        given = {t.name: arrays[t.name] for t in spec.tensors if not t.role.is_written}
        found, want = interpret(spec, given), linear.results(name, given)
        assert {key: value.shape for key, value in found.items()} == {key: value.shape for key, value in want.items()}
        for key, value in found.items():
            np.testing.assert_allclose(value, want[key], rtol=2e-4, atol=1e-4)
