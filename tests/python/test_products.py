"""Handles of products of matrices, called on numpy arrays: rows are free, cols and inner are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normgen
from normgen.errors import UsageError
from normgen.measure.cpu_check import has_compiler
from normgen.spec.reader import load
from tests.verify.contraction import linear

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler builds the executor")
COLS, INNER = 24, 36
rng = np.random.default_rng(1)


def arrays(name: str, rows: tuple[int, ...]) -> dict[str, Any]:
    shapes = {"x": (*rows, INNER), "w": (INNER, COLS), "up": (COLS, INNER), "weight": (INNER,), "bias": (COLS,)}
    shapes["residual"] = (*rows, COLS)
    read = (t.name for t in linear.spec_of(name).tensors if not t.role.is_written)
    return {key: rng.standard_normal(shapes[key]).astype(np.float32) for key in read}


def handle(name: str, **asked: Any) -> Any:
    return normgen.kernel(linear.spec_of(name), shape=(20, COLS), inner=INNER, device="cpu", **asked)


@pytest.mark.parametrize("name", linear.FORMULAS)
def test_a_handle_takes_any_rows_and_gives_them_their_columns(name: str) -> None:
    kernel = handle(name)
    for rows in ((20,), (3, 7), (1,), (0,)):
        given = arrays(name, rows)
        flat = {key: v.reshape(-1, v.shape[-1]) if key in ("x", "residual") else v for key, v in given.items()}
        want = linear.results(name, flat)
        found = kernel(**given)
        written = [name for name, memory in kernel.problem.results.items() if name == memory]
        for key, got in zip(written, found if isinstance(found, tuple) else (found,), strict=True):
            assert got.shape == ((*rows, COLS) if want[key].ndim == 2 else rows)
            np.testing.assert_allclose(got.reshape(want[key].shape), want[key], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("gradient", ["x", "w"])
def test_the_gradients_of_both_sides_are_handles_of_their_own(gradient: str) -> None:
    kernel = handle("linear", direction="backward", gradients=(gradient,))
    given = arrays("linear", (5,)) | {"dy": rng.standard_normal((5, COLS)).astype(np.float32)}
    found = kernel(**{t.name: given[t.name] for t in kernel.problem.tensors if not t.is_written})
    want = given["dy"] @ given["w"].T if gradient == "x" else given["x"].T @ given["dy"]
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_sides_at_any_address_and_pitch_are_taken_as_they_lie() -> None:
    kernel = handle("linear")
    x, w = arrays("linear", (20,)).values()
    wide, odd = np.full((20, INNER + 5), np.nan, np.float32), np.full((INNER, COLS + 3), np.nan, np.float32)
    wide[:, 1 : INNER + 1], odd[:, 3:] = x, w
    for a, b in ((wide[:, 1 : INNER + 1], w), (x, odd[:, 3:]), (wide[:, 1 : INNER + 1], odd[:, 3:])):
        np.testing.assert_allclose(kernel(a, b), x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("x", "w", "said"),
    [
        ((20, INNER - 1), (INNER, COLS), r"'x': expected \[.., inner\] with inner = 36"),
        ((20, INNER), (INNER - 1, COLS), r"'w': expected \[inner, cols\] = \(36, 24\)"),
        ((20, INNER), (INNER, COLS - 1), r"'w': expected \[inner, cols\] = \(36, 24\)"),
        ((20, INNER), (COLS, INNER), r"'w': expected \[inner, cols\] = \(36, 24\)"),
    ],
)
def test_arrays_of_another_size_are_refused_before_a_launch(x: tuple[int, ...], w: tuple[int, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        handle("linear")(np.zeros(x, np.float32), np.zeros(w, np.float32))


def test_a_result_that_shares_memory_with_a_matrix_is_refused() -> None:
    memory = np.zeros(INNER * COLS + 20 * COLS, np.float32)
    w, y = memory[: INNER * COLS].reshape(INNER, COLS), memory[INNER * COLS - 1 :][: 20 * COLS].reshape(20, COLS)
    with pytest.raises(UsageError, match="an output must not share memory"):
        handle("linear")(np.zeros((20, INNER), np.float32), w, out=y)


@pytest.mark.parametrize(
    "op", ["linear", "linear_bias_gelu", "linear_swiglu", "rmsnorm_linear", "linear_add", "linear_add_rms"]
)
def test_a_matrix_may_be_given_in_the_order_of_torch(op: str) -> None:
    matrices = [t.name for t in load(op).tensors if t.name.startswith("w") and t.name != "weight"]
    asked = {"shape": (20, COLS), "inner": INNER, "device": "cpu"}
    kernel = normgen.kernel(op, **asked, layout=dict.fromkeys(matrices, "cols_inner"))
    plain = normgen.kernel(op, **asked)
    given = {
        t.name: rng.standard_normal([{"rows": 20, "inner": INNER, "cols": COLS}[a] for a in t.axes]).astype(np.float32)
        for t in plain.problem.tensors
        if not t.is_written
    }
    turned = given | {name: np.ascontiguousarray(given[name].T) for name in matrices}
    found, want = kernel(**turned), plain(**given)
    for got, right in zip(*((v if isinstance(v, tuple) else (v,)) for v in (found, want)), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_a_turned_matrix_is_turned() -> None:
    asked = {"shape": (20, COLS), "inner": INNER, "device": "cpu", "direction": "backward", "gradients": ["w"]}
    kernel = normgen.kernel("linear", **asked, layout={"w": "cols_inner"})
    x, dy = (rng.standard_normal((20, width)).astype(np.float32) for width in (INNER, COLS))
    np.testing.assert_allclose(kernel(x=x, dy=dy), dy.T @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", [{}, {"scale": "column_major"}], ids=["rows", "columns"])
def test_groups_of_a_result_come_with_their_scales_for_any_rows(layout: dict[str, str]) -> None:
    kernel = normgen.kernel("linear_swiglu_to_fp8_group", shape=(9, 256), inner=INNER, device="cpu", layout=layout)
    gate, up = (rng.standard_normal((INNER, 256)).astype(np.float32) for _ in range(2))
    for rows in (9, 3, 70):
        x = rng.standard_normal((rows, INNER)).astype(np.float32)
        q, scale = kernel(x, gate, up)
        assert scale.flags.c_contiguous is not bool(layout)
        wide = x.astype(np.float64)
        y = wide @ gate / (1 + np.exp(-(wide @ gate))) * (wide @ up)
        largest = np.abs(y.reshape(rows, 2, 128)).max(2)
        np.testing.assert_allclose(scale * 448, largest, rtol=1e-5)
        assert (np.abs(q.astype(np.float64) * np.repeat(scale, 128, 1) - y) <= np.repeat(largest, 128, 1) / 28).all()
