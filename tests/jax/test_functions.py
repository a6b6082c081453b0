"""The functions against float64 references within the error model's bounds, under jit, vmap and grad."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

import jax.numpy as jnp  # noqa: E402

import normgen.jax as nj  # noqa: E402
from normgen.errors import UsageError  # noqa: E402
from normgen.verify.philox import uniform as philox  # noqa: E402
from tests.operators.cases import FUNCTIONS, sampled  # noqa: E402

ROUNDOFF = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}


CASES = [(*row, dtype) for row in FUNCTIONS for dtype in ("f32", "bf16")]
CASES += [(*row, "f16") for row in FUNCTIONS if row[0] in ("layer_norm", "llama_rms_norm")]
IDS = [f"{function}-{len(wrt)}-{dtype}" for function, _, _, wrt, dtype in CASES]


def arguments(function: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """By the names of the function's parameters; what the kernel alone reads is left out."""
    called = {name: nj.TABLE[function].called.get(name, name) for name in arrays}
    known = inspect.signature(getattr(nj, function)).parameters
    given = {called[name]: array for name, array in arrays.items() if called[name] in known}
    return {
        name: int(array.reshape(())) if array.dtype == np.int64 else jnp.asarray(array) for name, array in given.items()
    }


def called(function: str, name: str) -> str:
    return nj.TABLE[function].called.get(name, name)


def results(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def in_float64(run: Callable[..., Any], *trees: Any) -> Any:
    """`run` with every float as float64, which JAX has only where it is told to."""
    with jax.enable_x64(True):
        wide = jax.tree.map(
            lambda a: jnp.asarray(np.asarray(a), np.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a, trees
        )
        return jax.tree.map(np.asarray, run(*wide))


@pytest.mark.parametrize(("function", "op", "present", "wrt", "dtype"), CASES, ids=IDS)
@pytest.mark.usefixtures("device")
def test_a_function_is_within_the_bound_of_its_spec_and_its_gradients_are_those_of_float64(
    function: str, op: str, present: list[str], wrt: list[str], dtype: str
) -> None:
    made = getattr(nj, function)
    scalars = dict(made.operator.spec.scalars)
    forward = sampled(op, (2, 5, 256), dtype, present=present)
    given = arguments(function, dict(forward.arrays))
    found = results(made(**given, **scalars))
    for name, result in zip(made.operator.returns, found, strict=True):
        assert result.dtype == forward.problem.tensor(name).dtype.numpy
        assert forward.share_of(name, np.asarray(result, np.float64)) < 1, name

    leaves = {called(function, name): given[called(function, name)] for name in wrt}
    others = {name: value for name, value in given.items() if name not in leaves}
    draw = np.random.default_rng(5)
    cotangents = tuple(jnp.asarray(draw.standard_normal(y.shape), y.dtype) for y in found)

    def pulled(run: Callable[..., Any], leaves: Any, cotangents: Any) -> Any:
        return jax.vjp(lambda some: results(run(**others, **some, **scalars)), leaves)[1](cotangents)[0]

    gradients = jax.jit(lambda leaves, ys: pulled(made, leaves, ys))(leaves, cotangents)
    exact = in_float64(lambda leaves, ys: pulled(made.operator.decomposition, leaves, ys), leaves, cotangents)
    for name, got in gradients.items():
        want = exact[name]
        assert got.dtype == leaves[name].dtype
        assert got.shape == leaves[name].shape
        # As in tests/torch: what is saved is rounded once more, and sums over rows cancel.
        roundings = 16 if got.dtype == np.float32 else 4
        summed = 2 * 5 * 256 / got.size
        scale = np.abs(want) + np.abs(want).max() + (summed**0.5 if summed > 1 else 0)
        error = np.abs(np.asarray(got, np.float64) - want)
        assert (error <= roundings * ROUNDOFF[got.dtype.name] * scale).all(), name


def reference(x: Any, weight: Any) -> Any:
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def norm(x: Any, weight: Any) -> Any:
    return nj.rms_norm(x, weight, 1e-6)


def loss(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, weight: (run(x, weight) ** 2).sum()


def norm_inputs(*sizes: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(1)
    return jnp.asarray(draw.standard_normal((*sizes, 64)), np.float32), jnp.asarray(
        draw.standard_normal(64), np.float32
    )


def check_close(got: Any, want: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max()), got, want)


TRANSFORMED = {
    "vmap": lambda f: jax.vmap(f, (0, None)),
    "vmap of vmap": lambda f: jax.vmap(jax.vmap(f, (0, None)), (1, None), 1),
    "vmap over the last leading axis": lambda f: jax.vmap(f, (1, None), 1),
    "vmap of grad": lambda f: jax.vmap(jax.grad(loss(f)), (0, None)),
    "vmap of grad by the weight": lambda f: jax.vmap(jax.grad(loss(f), (0, 1)), (0, None)),
    "grad of vmap": lambda f: jax.grad(loss(jax.vmap(f, (0, None))), (0, 1)),
    "grad of jit of vmap": lambda f: jax.grad(loss(jax.jit(jax.vmap(f, (0, None)))), (0, 1)),
    "checkpoint": lambda f: jax.grad(loss(jax.checkpoint(f)), (0, 1)),
    "a scan": lambda f: jax.grad(
        lambda x, w: (jax.lax.scan(lambda c, v: (f(c, v), None), x, jnp.stack([w, w]))[0] ** 2).sum(), (0, 1)
    ),
    "value and grad": lambda f: jax.value_and_grad(loss(f), 1),
}


@pytest.mark.parametrize("how", TRANSFORMED)
@pytest.mark.usefixtures("device")
def test_an_operator_transforms_as_its_formula_does(how: str) -> None:
    x, weight = norm_inputs(2, 3, 5)
    check_close(TRANSFORMED[how](norm)(x, weight), TRANSFORMED[how](reference)(x, weight))


@pytest.mark.usefixtures("device")
def test_under_vmap_each_example_may_have_its_own_parameters() -> None:
    x, _ = norm_inputs(3, 5)
    weights = jnp.asarray(np.random.default_rng(2).standard_normal((3, 64)), np.float32)
    check_close(jax.vmap(norm)(x, weights), jax.vmap(reference)(x, weights))
    check_close(jax.vmap(norm, (None, 0))(x[0], weights), jax.vmap(reference, (None, 0))(x[0], weights))


@pytest.mark.usefixtures("device")
def test_under_vmap_batches_keep_their_own_rows() -> None:
    draw = np.random.default_rng(3)
    x, scale, shift = (jnp.asarray(draw.standard_normal(s), np.float32) for s in ((4, 2, 3, 32), (4, 2, 32), (2, 32)))
    got = jax.vmap(nj.ada_layer_norm, (0, 0, None))(x, scale, shift)
    each = [nj.ada_layer_norm(x[i], scale[i], shift) for i in range(4)]
    check_close(got, jnp.stack(each))


@pytest.mark.usefixtures("device")
def test_heads_take_turns_as_rows_under_vmap_too() -> None:
    draw, norm = np.random.default_rng(8), nj.operator("head_layernorm", returns=("y",))
    x, weights, bias = (jnp.asarray(draw.standard_normal(s), np.float32) for s in ((4, 5, 3, 32), (4, 3, 32), (3, 32)))

    def plain(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias

    for axes, weight in (((0, None, None), weights[0]), ((0, 0, None), weights)):
        check_close(jax.vmap(norm, axes)(x, weight, bias), jax.vmap(plain, axes)(x, weight, bias))
    loss = lambda call: jax.grad(lambda *given: (call(*given) ** 2).sum(), (0, 1, 2))  # noqa: E731
    for got, want in zip(loss(norm)(x, weights[0], bias), loss(plain)(x, weights[0], bias), strict=True):
        check_close(got, want)


@pytest.mark.usefixtures("device")
def test_under_vmap_rows_that_are_numbered_are_numbered_in_each_example() -> None:
    x = jnp.asarray(np.random.default_rng(4).standard_normal((3, 5, 7)), np.float32)
    check_close(jax.vmap(nj.causal_softmax)(x), jnp.stack([nj.causal_softmax(one) for one in x]))
    y, h = jax.vmap(lambda one: nj.dropout_add_rms_norm(one, one, 7, p=0.5))(x)
    check_close((y[2], h[2]), nj.dropout_add_rms_norm(x[2], x[2], 7, p=0.5))


@pytest.mark.parametrize(
    "seed",
    [
        0x123456789ABCDEF0,
        -3,
        np.uint32(7),
        np.int64(-3),
        lambda: jax.random.key(5),
        lambda: jax.random.PRNGKey(5),
        lambda: jnp.int32(-3),
    ],
    ids=["int", "negative", "uint32", "int64", "key", "old key", "int32"],
)
@pytest.mark.usefixtures("device")
def test_a_seed_is_a_number_or_a_key_and_keeps_what_philox_says(seed: Any) -> None:
    seed = seed() if callable(seed) else seed
    x = jnp.ones((6, 20), np.float32)
    _, h = nj.dropout_add_rms_norm(x, jnp.zeros_like(x), seed, p=0.25)
    if hasattr(seed, "dtype") and getattr(seed, "shape", None) == (2,):
        low, high = map(int, seed)
    elif hasattr(seed, "dtype") and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        low, high = map(int, jax.random.key_data(seed))
    else:
        low, high = int(seed) & 0xFFFFFFFF, int(seed) >> 32 & 0xFFFFFFFF
    kept = philox(low | high << 32, np.arange(6), 20, 0) >= 0.25
    np.testing.assert_array_equal(np.asarray(h) != 0, kept)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.usefixtures("device")
def test_cross_entropy_is_that_of_float64(reduction: str) -> None:
    draw = np.random.default_rng(6)
    x = jnp.asarray(draw.standard_normal((40, 300)), np.float32)
    label = jnp.asarray(draw.integers(0, 300, 40), np.int32).at[::7].set(-5)

    def plain(x: Any) -> Any:
        logs = jax.nn.log_softmax(x)
        losses = -0.9 * jnp.take_along_axis(logs, jnp.maximum(label, 0)[:, None], 1)[:, 0] - 0.1 * logs.mean(-1)
        losses = jnp.where(label == -5, 0, losses + 0.25 * jax.nn.logsumexp(x, -1) ** 2)
        return losses if reduction == "none" else losses.sum() / ((label != -5).sum() if reduction == "mean" else 1)

    def ours(x: Any) -> Any:
        return nj.cross_entropy(x, label, ignore_index=-5, label_smoothing=0.1, z_loss=0.25, reduction=reduction)

    np.testing.assert_allclose(ours(x), in_float64(plain, x), rtol=2e-5, atol=1e-5)
    got = jax.grad(lambda x: (ours(x) ** 2).sum())(x)
    np.testing.assert_allclose(got, in_float64(jax.grad(lambda x: (plain(x) ** 2).sum()), x), rtol=1e-3, atol=1e-4)


NO_INDICES = (2**24 + 1, 2**31 - 1, 2**63, "x", None, 1.5, float("nan"), True)
NO_SHARES = (-0.1, 1.5, float("nan"), "x", None, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("ignore_index", value) for value in NO_INDICES), *(("label_smoothing", value) for value in NO_SHARES)],
)
def test_what_is_said_of_labels_is_refused_by_name_where_it_is_no_such_number(name: str, value: object) -> None:
    x, label = jnp.zeros((2, 9)), jnp.array([0, 8])
    with pytest.raises(UsageError, match=f"{name} is a (whole )?number") as raised:
        nj.cross_entropy(x, label, **{name: value})
    assert raised.value.received == repr(value)
    with pytest.raises(UsageError, match=f"'{name}' is a number of Python"):
        jax.jit(lambda value: nj.cross_entropy(x, label, **{name: value}))(1)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("is_jitted", [False, True])
@pytest.mark.usefixtures("device")
def test_a_label_that_is_no_column_makes_its_row_nan(dtype: type, is_jitted: bool) -> None:
    with jax.enable_x64(True):
        far = 2**40 if dtype is np.int64 else 2**31 - 1
        label = jnp.asarray(np.array([3, -1, 37, -100, -7, far, 36], dtype))
        x = jnp.asarray(np.random.default_rng(8).standard_normal((7, 37)), np.float32)

        def losses(x: Any) -> Any:
            return nj.cross_entropy(x, label, label_smoothing=0.1, z_loss=1e-3, reduction="none")

        found, pull = jax.vjp(jax.jit(losses) if is_jitted else losses, x)
        (gradient,) = pull(jnp.ones_like(found))
    is_nan = np.array([0, 1, 1, 0, 1, 1, 0], bool)
    np.testing.assert_array_equal(np.isnan(found), is_nan)
    np.testing.assert_array_equal(np.isnan(gradient), np.broadcast_to(is_nan[:, None], x.shape))
    assert not np.asarray(gradient)[3].any()


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize(("label_smoothing", "z_loss"), [(0.0, 0.0), (0.1, 0.0), (0.0, 1e-3)])
@pytest.mark.usefixtures("device")
def test_where_no_label_counts_the_gradient_is_0(reduction: str, label_smoothing: float, z_loss: float) -> None:
    x, label = jnp.ones((3, 9)), jnp.full(3, -100)

    def loss(x: Any) -> Any:
        found = nj.cross_entropy(x, label, reduction=reduction, label_smoothing=label_smoothing, z_loss=z_loss)
        return found.sum()

    for run in (loss, jax.jit(loss)):
        assert np.isnan(run(x)) == (reduction == "mean")
        assert not np.asarray(jax.grad(run)(x)).any()


TEXT = """
name = "clipped_norm"
[tensors]
x = "input"
weight = { role = "parameter", optional = true, absent = "1" }
rstd = { role = "statistic", optional = true }
y = "output"
[scalars]
limit = 2
[formulas]
rstd = "rsqrt(mean(x**2) + 1e-6)"
y = "clamp(x * rstd, -limit, limit) * weight"
[backward]
saved = ["rstd"]
"""


@pytest.mark.usefixtures("device")
def test_any_text_is_an_operator_in_one_call() -> None:
    made = nj.operator(TEXT)
    x, weight = norm_inputs(7)

    def plain(x: Any, weight: Any) -> Any:
        return jnp.clip(x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6), -1.5, 1.5) * weight

    ours = lambda x, weight: made(x, weight, limit=1.5)  # noqa: E731
    check_close(ours(x, weight), plain(x, weight))
    check_close(jax.grad(loss(ours), (0, 1))(x, weight), jax.grad(loss(plain), (0, 1))(x, weight))
    assert str(inspect.signature(made.function)) == "(x, weight=None, limit=2.0, *, dtype=None, axis=-1)"


@pytest.mark.parametrize("op", ["quantize_to_fp8_token", "quantize_to_int8_token", "quantize_to_fp8_group"])
@pytest.mark.usefixtures("device")
def test_a_quantiser_returns_its_scales(op: str) -> None:
    forward = sampled(op, (3, 2, 256), "bf16", present=[])
    made = nj.operator(op)
    found = results(made(**{name: jnp.asarray(array) for name, array in forward.arrays.items()}))
    assert {array.dtype for array in found} & {np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(np.int8)}
    for name, result in zip(made.returns, found, strict=True):
        assert result.dtype == forward.problem.tensor(name).dtype.numpy
        assert forward.share_of(name, np.asarray(result).astype(np.float64)) < 1, name


@pytest.mark.usefixtures("device")
def test_outputs_have_the_dtype_that_jax_promotes_the_inputs_to() -> None:
    x, _ = norm_inputs(4)
    y, h = nj.add_rms_norm(x.astype(jnp.bfloat16), x)
    assert y.dtype == h.dtype == np.float32
    assert nj.rms_norm(x.astype(jnp.bfloat16), jnp.ones(64)).dtype == jnp.bfloat16
    assert nj.rms_norm(x, dtype=jnp.float16).dtype == np.float16


@pytest.mark.usefixtures("device")
def test_float64_has_the_formulas_in_float64() -> None:
    x, weight = norm_inputs(4)
    got = in_float64(norm, x, weight)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, in_float64(reference, x, weight), rtol=1e-14)


@pytest.mark.parametrize("sizes", [(), (0,), (2, 0, 3), (1,)])
@pytest.mark.usefixtures("device")
def test_any_leading_sizes_are_taken(sizes: tuple[int, ...]) -> None:
    x, weight = norm_inputs(*sizes)
    assert norm(x, weight).shape == x.shape
    gradients = jax.grad(loss(norm), (0, 1))(x, weight)
    assert [g.shape for g in gradients] == [x.shape, weight.shape]
    if not x.size:
        assert not gradients[1].any()


def test_a_mesh_sums_the_gradients_of_what_is_the_same_along_it() -> None:
    devices = jax.devices()
    mesh = jax.sharding.Mesh(np.array(devices[:1]), ("d",))
    spec = jax.sharding.PartitionSpec
    x, weight = norm_inputs(4)
    sharded = jax.shard_map(norm, mesh=mesh, in_specs=(spec("d"), spec()), out_specs=spec("d"))
    check_close(jax.grad(loss(sharded), (0, 1))(x, weight), jax.grad(loss(reference), (0, 1))(x, weight))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [0, 1, -1, -3])
def test_what_bears_a_name_of_jax_nn_takes_its_arguments_in_its_order(name: str, axis: int) -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 12)), np.float32)
    ours, theirs = getattr(nj, name), getattr(jax.nn, name)
    assert list(inspect.signature(ours).parameters)[1:3] == list(inspect.signature(theirs).parameters)[1:3]
    for found, want in ((ours(x, axis), theirs(x, axis)), (jax.jit(lambda x: ours(x, axis=axis))(x), theirs(x, axis))):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    weights = jnp.arange(x.size, dtype=np.float32).reshape(x.shape)
    one, other = (jax.grad(lambda x, of=of: (of(x, axis) * weights).sum())(x) for of in (ours, theirs))
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1, -2, -1])
def test_an_operator_along_any_axis_is_its_formula_along_it(axis: int) -> None:
    """Values of rows have the sizes without it; so have their gradients."""
    made, draw = nj.operator("layernorm", returns=("y", "mean")), np.random.default_rng(0)
    x = jnp.asarray(draw.normal(size=(4, 3, 5)), np.float32)
    weight, bias = (jnp.asarray(draw.normal(size=x.shape[axis]), np.float32) for _ in range(2))

    def loss(run: Any, x: Any, weight: Any, bias: Any) -> Any:
        y, mean = run(x, weight, bias)
        return (y * jnp.cos(x)).sum(), (y, mean)

    def plain(x: Any, weight: Any, bias: Any) -> Any:
        moved = jnp.moveaxis(x, axis, -1)
        mean = moved.mean(-1)
        y = (moved - mean[..., None]) * jax.lax.rsqrt(moved.var(-1, keepdims=True) + 1e-5) * weight + bias
        return jnp.moveaxis(y, -1, axis), mean

    ours = lambda *given: made(*given, axis=axis)  # noqa: E731
    whole = lambda *given: made.decomposition(*given, axis=axis)  # noqa: E731
    found = [
        jax.value_and_grad(functools.partial(loss, run), (0, 1, 2), has_aux=True)(x, weight, bias)
        for run in (ours, whole, plain)
    ]
    for one in found[:2]:
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), one, found[2])


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: nj.rms_norm(jnp.ones((3, 8)), jnp.ones(7)), r"'weight' of 'rms_norm' has the shape \(8,\) here"),
        (lambda: nj.swiglu(jnp.ones((3, 8)), jnp.ones((2, 8))), r"'up' of 'swiglu' has the shape \(3, 8\) here"),
        (lambda: nj.softmax(jnp.float32(1.0)), r"takes \[.., cols\]"),
        (lambda: nj.softmax(jnp.ones((2, 3)), (0, 1)), "axis is one of the 2 axes"),
        (lambda: nj.rms_norm(jnp.ones((2, 3)), axis=2), "axis is one of the 2 axes"),
        (
            lambda: nj.rms_norm(jnp.ones((2, 3)), jnp.ones(3), axis=0),
            r"'weight' of 'rms_norm' has the shape \(2,\) here",
        ),
        (lambda: nj.operator("linear")(jnp.ones((4, 3)), jnp.ones((3, 2)), axis=0), "a product has its axes by name"),
        (lambda: nj.log_softmax(jnp.ones((2, 3)), -1, jnp.ones((2, 3)) > 0), "a softmax takes whole rows"),
        (lambda: nj.softmax([1.0, 2.0]), "'input' of 'softmax' is an array"),
        (lambda: nj.softmax(jnp.arange(6)), "'input' of 'softmax' is stored as one of: f32"),
        (lambda: nj.cross_entropy(jnp.ones((3, 5)), jnp.arange(2)), "'target' of 'cross_entropy' has the shape"),
        (lambda: nj.softmax(jnp.ones((2, 3), np.int32)), "stored as one of: f32, f16, bf16"),
        (lambda: nj.softmax(jnp.ones((2, 3), np.complex64)), "real and imaginary parts are two tensors"),
        (
            lambda: nj.ada_layer_norm(jnp.ones((4, 8)), jnp.ones((3, 8)), jnp.ones((3, 8))),
            "'scale' of 'ada_layer_norm' is",
        ),
        (lambda: nj.dyt(jnp.ones((4, 8)), jnp.ones(2)), "'alpha' of 'dyt' is one number"),
        (lambda: nj.dropout_add_rms_norm(jnp.ones((4, 8)), jnp.ones((4, 8)), 0.5), "'seed' is a seed"),
        (lambda: jax.jit(nj.rms_norm)(jnp.ones((4, 8)), None, 1e-6), "'eps' is a number of Python"),
        (lambda: nj.cross_entropy(jnp.ones((3, 8)), jnp.array([1, 2, 3]), reduction="men"), "did you mean 'mean'"),
        (lambda: nj.operator("rmsnorm", returns=("z",)), "writes no such tensor"),
        (lambda: nj.operator("rmsnrm"), "did you mean 'rmsnorm'"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        call()


GROUPED = """
name = "by_groups"
[tensors]
x = "input"
weight = { role = "parameter", group = 6 }
scale = { role = "ROLE", group = 4 }
y = "output"
[formulas]
h = "x * scale"
y = "h * rsqrt(mean(h * h) + 1e-5) * weight"
"""
GROUPED_SIZES = (2, 5, 3, 12), (2,), (2, 3)


def test_a_gradient_that_is_not_there_is_refused() -> None:
    """A number for each batch has none; XLA finds that of the formulas."""
    text = GROUPED.replace('"ROLE", group = 4', '"batch_input"')
    norm, x, weight, scale = nj.operator(text), *map(jnp.ones, (*GROUPED_SIZES[:2], (2,)))
    with pytest.raises(UsageError, match=r"'by_groups' has no gradient by scale: .*\n.*\n  hint: .*stop_gradient"):
        jax.grad(lambda s: norm(x, weight, s).sum())(scale)
    by_jax = jax.grad(lambda s: norm.decomposition(x, weight, s).sum())(scale)
    assert by_jax.shape == scale.shape


def test_a_second_derivative_is_refused_and_the_decomposition_has_it() -> None:
    x, weight = norm_inputs(3)
    with pytest.raises(UsageError, match="a gradient that a kernel computes has none itself"):
        jax.grad(lambda x: jax.grad(loss(norm))(x, weight).sum())(x)
    second = lambda run: jax.grad(lambda x: (jax.grad(loss(run))(x, weight) * x**2).sum())(x)  # noqa: E731
    check_close(second(lambda x, w: nj.rms_norm.operator.decomposition(x, w, 1e-6)), second(reference))


@pytest.mark.parametrize(("role", "size"), [("parameter", ()), ("batch_parameter", (2,)), ("head_parameter", (3,))])
@pytest.mark.usefixtures("device")
def test_a_parameter_of_groups_is_repeated_along_the_columns(role: str, size: tuple[int, ...]) -> None:
    norm, draw = nj.operator(GROUPED.replace("ROLE", role)), np.random.default_rng(9)
    given = [(2, 5, 3, 12), (2,), (*size, 3), (4, *size, 3)]
    x, weight, scale, scales = (jnp.asarray(draw.standard_normal(s), np.float32) for s in given)

    def plain(x: jax.Array, weight: jax.Array, scale: jax.Array) -> jax.Array:
        each = jnp.repeat(scale, 4, -1)
        h = x * (each.reshape(2, 1, 1, 12) if role == "batch_parameter" else each)
        return h * jax.lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-5) * jnp.repeat(weight, 6)

    check_close(norm(x, weight, scale), plain(x, weight, scale))
    loss = lambda call: jax.grad(lambda *given: (call(*given) ** 2).sum(), (0, 1, 2))  # noqa: E731
    for got, want in zip(loss(norm)(x, weight, scale), loss(plain)(x, weight, scale), strict=True):
        check_close(got, want)
    every = jnp.stack([x, 2 * x, x + 1, -x])
    check_close(
        jax.vmap(norm, (0, None, 0))(every, weight, scales), jax.vmap(plain, (0, None, 0))(every, weight, scales)
    )
    for rule, wrong in {
        "takes cols that are whole groups of 4": (x[..., :6], weight, scale),
        r"'weight' of 'by_groups' is \[2\] here": (x, jnp.ones(12), scale),
        "is .*3\\] here, a value for each 4 columns": (x, weight, jnp.ones((*size, 12))),
    }.items():
        with pytest.raises(UsageError, match=rule):
            norm(*wrong)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_cross_entropy_takes_its_classes_along_any_axis(axis: int) -> None:
    draw = np.random.default_rng(3)
    shape = (4, 5, 6)
    logits = jnp.asarray(draw.normal(size=shape), np.float32)
    labels = jnp.asarray(draw.integers(0, 4, np.delete(shape, axis)))

    def by_rows(x: Any) -> Any:
        return nj.cross_entropy(jnp.moveaxis(x, axis, -1), labels, label_smoothing=0.1)

    def along(x: Any) -> Any:
        return nj.cross_entropy(x, labels, label_smoothing=0.1, axis=axis)

    np.testing.assert_allclose(jax.jit(along)(logits), by_rows(logits), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(along)(logits), jax.grad(by_rows)(logits), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("axis", [True, 1.0, "1", None, (1,), 4, -5])
def test_an_axis_that_is_none_is_refused(axis: Any) -> None:
    with pytest.raises(UsageError, match="axis is one of the 4 axes") as refused:
        nj.softmax(jnp.zeros((2, 3, 4, 5)), axis)
    assert refused.value.received == f"axis={axis!r}"


def test_an_axis_is_any_whole_number() -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 4)), jnp.float32)
    np.testing.assert_array_equal(nj.softmax(x, np.int64(1)), nj.softmax(x, 1))
