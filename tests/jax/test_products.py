"""Operators of products of matrices: results and gradients against jax.numpy in full precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

import jax.numpy as jnp  # noqa: E402

import normgen.jax as nj  # noqa: E402
from normgen.errors import UsageError  # noqa: E402
from normgen.spec.reader import list_specs, load  # noqa: E402
from tests.family.test_batches_of_products import OPS as IN_BATCHES  # noqa: E402
from tests.verify.contraction import linear  # noqa: E402

ROWS, INNER, COLS = (3, 5), 36, 24
SIZES = {"m": ROWS, "k": (INNER,), "n": (COLS,)}
SHAPES = {"x": "mk", "w": "kn", "w_gate": "kn", "w_up": "kn", "weight": "k", "bias": "n", "residual": "mn"}


def dot(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def norm(x: Any, weight: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def near(x: Any) -> Any:
    """Rounded to TF32, straight through which gradients go."""
    known = jax.lax.stop_gradient(x)
    return x + (jax.lax.reduce_precision(known, exponent_bits=8, mantissa_bits=10) - known)


BY_JAX: dict[str, Callable[..., Any]] = {
    "linear": lambda x, w, bias: dot(x, w) + bias,
    "linear_add": lambda x, w, residual: residual + dot(x, w),
    "linear_add_rms": lambda x, w, residual: norm(residual + dot(x, w), 1.0),
    "linear_bias_gelu": lambda x, w, bias: jax.nn.gelu(dot(x, w) + bias, approximate=False),
    "linear_swiglu": lambda x, w_gate, w_up: jax.nn.silu(dot(x, w_gate)) * dot(x, w_up),
    "linear_tf32": lambda x, w, bias: dot(near(x), near(w)) + bias,
    "rmsnorm_linear": lambda x, weight, w: dot(norm(x, weight), w),
}


def arrays(name: str, dtype: Any = np.float32) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    names = [t.name for t in load(name).tensors if not t.role.is_written]
    shapes = {key: sum((SIZES[axis] for axis in SHAPES[key]), ()) for key in names}
    return {key: jnp.asarray(rng.standard_normal(shape), dtype) for key, shape in shapes.items()}


def one(found: Any) -> Any:
    """What is compared of a result: of several, rows and a factor of each, their product."""
    return found[0] * found[1][..., None] if isinstance(found, tuple) else found


def loss(function: Callable[..., Any], upstream: Any) -> Callable[..., Any]:
    return lambda given: (one(function(**given)) * upstream).sum()


def test_every_product_that_ships_is_compared() -> None:
    assert {name for name in list_specs() if load(name).has_inner} == {*BY_JAX, *IN_BATCHES}


@pytest.mark.parametrize("name", BY_JAX)
def test_an_operator_and_its_gradients_are_those_of_jax_in_full_precision(name: str) -> None:
    given, function, wanted = arrays(name), nj.operator(name), BY_JAX[name]
    upstream = jnp.asarray(np.random.default_rng(2).standard_normal((*ROWS, COLS)), jnp.float32)
    found, want = one(function(**given)), wanted(**given)
    assert found.shape == (*ROWS, COLS)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    gradients = jax.jit(jax.grad(loss(function, upstream)))(given)
    for key, right in jax.grad(loss(wanted, upstream))(given).items():
        assert gradients[key].shape == given[key].shape
        np.testing.assert_allclose(gradients[key], right, rtol=1e-4, atol=1e-4)
        alone = jax.grad(lambda value, key=key: loss(function, upstream)({**given, key: value}))(given[key])
        np.testing.assert_allclose(alone, right, rtol=1e-4, atol=1e-4)


def softmax_v(s: Any, v: Any, mask: Any = 0.0) -> Any:
    return dot(jax.nn.softmax(0.5 * s + mask, -1), v)


def causal_softmax_v(s: Any, v: Any) -> Any:
    return dot(jax.nn.softmax(jnp.where(jnp.tri(s.shape[-1], dtype=bool), 0.5 * s, -jnp.inf), -1), v)


IN_BATCHES_BY_JAX: dict[str, Callable[..., Any]] = {
    "bmm": lambda x, w: dot(x, w),
    "softmax_v": softmax_v,
    "masked_softmax_v": softmax_v,
    "causal_softmax_v": causal_softmax_v,
}


@pytest.mark.parametrize("name", IN_BATCHES)
def test_an_operator_of_batches_and_its_gradients_are_those_of_jax(name: str) -> None:
    rng, last = np.random.default_rng(1), {"w": (7, 4), "v": (7, 4)}
    names = [t.name for t in load(name).tensors if not t.role.is_written]
    given = {k: jnp.asarray(rng.standard_normal((2, 3, *last.get(k, (7, 7)))), jnp.float32) for k in names}
    scalars = {"scale": 0.5} if load(name).scalars else {}
    upstream = jnp.asarray(rng.standard_normal((2, 3, 7, 4)), jnp.float32)

    def function(**arrays: Any) -> Any:
        return nj.operator(name)(**arrays, **scalars)

    wanted = IN_BATCHES_BY_JAX[name]
    np.testing.assert_allclose(function(**given), wanted(**given), rtol=1e-5, atol=1e-5)
    gradients = jax.jit(jax.grad(loss(function, upstream)))(given)
    for key, right in jax.grad(loss(wanted, upstream))(given).items():
        assert gradients[key].shape == given[key].shape
        np.testing.assert_allclose(gradients[key], right, rtol=1e-4, atol=1e-4)
    mapped = jax.vmap(lambda arrays: function(**arrays))(given)
    np.testing.assert_allclose(mapped, wanted(**given), rtol=1e-5, atol=1e-5)


def test_batches_that_are_not_the_first_sizes_of_rows_are_refused() -> None:
    with pytest.raises(UsageError, match=r"w \[batches, inner, cols\], .*, batches the first sizes of rows"):
        nj.operator("bmm")(jnp.zeros((2, 5, 7)), jnp.zeros((3, 7, 4)))


def test_of_float64_gradients_are_exact() -> None:
    with jax.enable_x64(True):
        for name, wanted in BY_JAX.items():
            given, function = arrays(name, np.float64), nj.operator(name)
            upstream = jnp.ones((*ROWS, COLS))
            gradients = jax.grad(loss(function, upstream))(given)
            for key, right in jax.grad(loss(wanted, upstream))(given).items():
                np.testing.assert_allclose(gradients[key], right, rtol=1e-10, atol=1e-10)


def test_products_are_told_to_xla_in_the_highest_precision() -> None:
    text = str(jax.make_jaxpr(nj.operator("linear_swiglu"))(*arrays("linear_swiglu").values()))
    assert text.count("dot_general") == text.count("HIGHEST") // 2 == 2


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_of_16_bits_sums_are_of_float32(dtype: Any) -> None:
    given = arrays("linear", dtype)
    found = nj.operator("linear")(**given)
    assert found.dtype == dtype
    want = BY_JAX["linear"](**{key: array.astype(jnp.float32) for key, array in given.items()}).astype(dtype)
    ulps = np.abs(found.astype(np.float32) - want.astype(np.float32))
    assert (ulps <= 2.0**-7 * np.maximum(np.abs(want.astype(np.float32)), 1e-2)).all()


@pytest.mark.parametrize("name", ["torch_linear", "saved", "normed"])
def test_a_matrix_in_the_order_of_torch_and_what_is_saved_have_their_gradients(name: str) -> None:
    spec = linear.spec_of(name)
    sizes = {"x": (4, 6), "w": (6, 3), "up": (3, 6), "weight": (6,), "bias": (3,)}
    rng = np.random.default_rng(1)
    given = {
        t.name: jnp.asarray(rng.standard_normal(sizes[t.name]), jnp.float32)
        for t in spec.tensors
        if not t.role.is_written
    }
    function = nj.operator(spec, returns=["y"])
    plain = {
        "torch_linear": lambda x, up, bias: dot(x, up.T) + bias,
        "saved": lambda x, w, bias: jax.nn.silu(dot(x, w) + bias),
        "normed": lambda x, w, weight: dot(norm(x, weight), w),
    }[name]
    np.testing.assert_allclose(function(**given), plain(**given), rtol=1e-5, atol=1e-5)
    gradients, wanted = (jax.grad(lambda g, f=f: (f(**g) ** 2).sum())(given) for f in (function, plain))
    for key, right in wanted.items():
        np.testing.assert_allclose(gradients[key], right, rtol=1e-4, atol=1e-3)


def test_terms_rows_and_columns_have_their_numbers() -> None:
    rng, function = np.random.default_rng(0), nj.operator(linear.NUMBERED)
    x, w = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((67, INNER), (INNER, COLS)))
    left, right = linear.numbered(x, w)
    np.testing.assert_allclose(function(x, w), dot(x * left, w * right), rtol=1e-4, atol=1e-4)


def test_rows_may_be_mapped_and_so_may_matrices() -> None:
    given = arrays("linear_add")
    many = jnp.stack([given["w"], 2 * given["w"]])
    found = jax.vmap(nj.operator("linear_add"), in_axes=(0, 0, None))(given["x"], given["residual"], given["w"])
    np.testing.assert_allclose(found, BY_JAX["linear_add"](**given), rtol=1e-5, atol=1e-5)
    of_each = jax.vmap(lambda w: nj.operator("linear_add")(given["x"], given["residual"], w))(many)
    np.testing.assert_allclose(of_each[1], BY_JAX["linear_add"](**{**given, "w": many[1]}), rtol=1e-5, atol=1e-5)


def test_no_rows_give_no_results_and_gradients_of_zeros() -> None:
    x, w, residual = jnp.zeros((0, INNER)), jnp.ones((INNER, COLS)), jnp.zeros((0, COLS))
    function = nj.operator("linear_add")
    assert function(x, residual, w).shape == (0, COLS)
    assert not jax.grad(lambda w: function(x, residual, w).sum())(w).any()


def test_sizes_that_do_not_agree_are_refused() -> None:
    with pytest.raises(UsageError, match=r"takes x \[.., inner\], w \[inner, cols\], .*whose sizes agree"):
        nj.operator("linear")(jnp.zeros((5, INNER)), jnp.zeros((COLS, INNER)))
