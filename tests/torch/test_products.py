"""Operators of products of matrices: results, gradients of every side, and what is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import normgen  # noqa: E402
import normgen.operators.launch  # noqa: E402
import normgen.torch as ng  # noqa: E402
import normgen.torch.calls  # noqa: E402
from normgen.errors import UsageError  # noqa: E402
from normgen.measure.cpu_check import has_compiler  # noqa: E402
from normgen.spec.reader import list_specs, load  # noqa: E402
from tests.family.test_batches_of_products import OPS as IN_BATCHES  # noqa: E402
from tests.verify.contraction import linear  # noqa: E402

COLS, INNER = 24, 36
OF_ONE_KERNEL = [name for name in linear.FORMULAS if name != "normed"]  # each gradient, or none
SHAPES = {"w": "kn", "w_gate": "kn", "w_up": "kn", "weight": "k", "bias": "n", "residual": "mn", "x": "mk"}


def near(x: torch.Tensor) -> torch.Tensor:
    """Rounded to TF32, straight through which gradients go."""
    bits = x.detach().float().view(torch.int32)
    rounded = ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32).to(x.dtype)
    return x + (rounded - x.detach())


ELSEWHERE = ("linear_cross_entropy", "linear_cross_entropy_grad", "linear_swiglu_to_fp8_group")  # of other results
BY_TORCH: dict[str, Callable[..., Any]] = {
    "linear": lambda x, w, bias: x @ w + bias,
    "linear_add": lambda x, w, residual: residual + x @ w,
    "linear_add_rms": lambda x, w, residual: torch.nn.functional.rms_norm(residual + x @ w, (COLS,), None, 1e-6),
    "linear_bias_gelu": lambda x, w, bias: torch.nn.functional.gelu(x @ w + bias),
    "linear_swiglu": lambda x, w_gate, w_up: torch.nn.functional.silu(x @ w_gate) * (x @ w_up),
    "linear_tf32": lambda x, w, bias: near(x) @ near(w) + bias,
    "rmsnorm_linear": lambda x, weight, w: torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6) @ w,
}


def tensors(
    name: str, rows: tuple[int, ...], device: str = "cpu", dtype: Any = None, cols: int = COLS, inner: int = INNER
) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    shapes = {"x": (*rows, inner), "w": (inner, cols), "up": (cols, inner), "weight": (inner,), "bias": (cols,)}
    shapes["residual"] = (*rows, cols)
    read = (t.name for t in linear.spec_of(name).tensors if not t.role.is_written)
    return {key: torch.randn(shapes[key], device=device, dtype=dtype, requires_grad=True) for key in read}


def by_numpy(name: str, given: dict[str, torch.Tensor]) -> dict[str, Any]:
    flat = {key: t.detach().cpu().float().numpy() for key, t in given.items()}
    flat |= {key: t.reshape(-1, t.shape[-1]) for key, t in flat.items() if key in ("x", "residual")}
    return linear.results(name, flat)


def by_torch(
    name: str, x: Any, w: Any = None, up: Any = None, bias: Any = 0.0, residual: Any = 0.0, weight: Any = None
) -> Any:
    x = x if weight is None else torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)
    first = x @ w if w is not None else x @ up.T
    if name == "swiglu":
        return torch.nn.functional.silu(first) * (x @ up.T)
    return torch.nn.functional.silu(first + bias) if name == "saved" else first + bias + residual


def softmax_v(s: Any, v: Any, mask: Any = 0.0) -> Any:
    return torch.softmax(0.5 * s + mask, -1) @ v


def causal_softmax_v(s: Any, v: Any) -> Any:
    later = torch.ones(s.shape[-2:]).triu(1).bool()
    return torch.softmax((0.5 * s).masked_fill(later, -torch.inf), -1) @ v


IN_BATCHES_BY_TORCH: dict[str, Callable[..., Any]] = {
    "bmm": lambda x, w: x @ w,
    "softmax_v": softmax_v,
    "masked_softmax_v": softmax_v,
    "causal_softmax_v": causal_softmax_v,
}


def in_batches(name: str, batches: tuple[int, ...], rows: int = 7, dtype: Any = None) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    last = {"x": (rows, 7), "s": (rows, 7), "mask": (rows, 7), "w": (7, 4), "v": (7, 4)}
    read = (t.name for t in load(name).tensors if not t.role.is_written)
    return {key: torch.randn(*batches, *last[key], dtype=dtype, requires_grad=True) for key in read}


def of_batches(name: str, **options: Any) -> Callable[..., Any]:
    function = ng.operator(name, **options)
    scalars = {"scale": 0.5} if load(name).scalars else {}
    return lambda **given: function(**given, **scalars)


def test_every_product_of_batches_is_compared() -> None:
    assert {*IN_BATCHES} == IN_BATCHES_BY_TORCH.keys()


@pytest.mark.parametrize("batches", [(2,), (2, 3), (1,), (0,)], ids=str)
@pytest.mark.parametrize("name", IN_BATCHES)
def test_an_operator_of_batches_and_its_gradients_are_those_of_torch(name: str, batches: tuple[int, ...]) -> None:
    for dtype, close in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        given = in_batches(name, batches, dtype=dtype)
        found, want = of_batches(name)(**given), IN_BATCHES_BY_TORCH[name](**given)
        torch.testing.assert_close(found, want, rtol=close, atol=close)
        upstream = torch.randn_like(want)
        gradients = torch.autograd.grad(found, [*given.values()], upstream)
        wanted = torch.autograd.grad(want, [*given.values()], upstream)
        for got, right in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(got, right, rtol=10 * close, atol=10 * close)
        for (key, value), right in zip(given.items(), gradients, strict=True):
            alone = of_batches(name)(**{n: t if n == key else t.detach() for n, t in given.items()})
            torch.testing.assert_close(torch.autograd.grad(alone, value, upstream)[0], right)


@pytest.mark.parametrize("name", IN_BATCHES)
def test_gradients_of_batches_pass_gradcheck_in_float64(name: str) -> None:
    given = in_batches(name, (2,), dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda *args: of_batches(name)(**dict(zip(given, args, strict=True))), [*given.values()]
    )


@pytest.mark.parametrize("opaque", [True, False])
@pytest.mark.parametrize("name", ["bmm", "causal_softmax_v"])
def test_a_compiled_call_of_batches_is_the_eager_one_for_any_number_of_them(name: str, opaque: bool) -> None:
    function, scalars = ng.operator(name), {"scale": 0.5} if load(name).scalars else {}
    compiled = torch.compile(function.function, backend="aot_eager", fullgraph=True, dynamic=True)
    for batches in (2, 3):
        given = in_batches(name, (batches,))
        found, want = compiled(**given, **scalars, opaque=opaque), function(**given, **scalars)
        torch.testing.assert_close(found, want)
        gradients = torch.autograd.grad(found.square().sum(), [*given.values()])
        for got, right in zip(gradients, torch.autograd.grad(want.square().sum(), [*given.values()]), strict=True):
            torch.testing.assert_close(got, right)


def test_batches_are_mapped_in_one_call_and_fakes_have_the_shapes_of_their_gradients() -> None:
    function, given = ng.operator("bmm"), in_batches("bmm", (2, 3))
    torch.testing.assert_close(torch.vmap(function.function)(*given.values()), given["x"] @ given["w"])
    shared = torch.vmap(function.function, in_dims=(0, None))(given["x"], given["w"][0])
    torch.testing.assert_close(shared, given["x"] @ given["w"][0])
    causal = torch.vmap(ng.operator("causal_softmax_v").function)(torch.ones(4, 1, 5, 7), torch.ones(4, 1, 7, 3))
    assert causal.shape == (4, 1, 5, 3)
    with torch._subclasses.FakeTensorMode():
        x, w = torch.empty(6, 5, 7, requires_grad=True), torch.empty(6, 7, 4, requires_grad=True)
        y = function(x, w)
        dx, dw = torch.autograd.grad(y, (x, w), torch.empty_like(y))
    assert (y.shape, dx.shape, dw.shape) == ((6, 5, 4), x.shape, w.shape)


@pytest.mark.parametrize(
    ("x", "w"), [((2, 5, 7), (3, 7, 4)), ((4, 5, 7), (2, 7, 4)), ((2, 3, 5, 7), (3, 2, 2, 7, 4)), ((5, 7), (2, 7, 4))]
)
def test_batches_that_are_not_the_first_sizes_of_rows_are_refused(x: tuple[int, ...], w: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"w \[batches, inner, cols\], .*, batches the first sizes of rows"):
        ng.operator("bmm")(torch.zeros(x), torch.zeros(w))


@pytest.mark.parametrize("rows", [(5,), (3, 7), (1,), (0,)], ids=str)
@pytest.mark.parametrize("name", linear.FORMULAS)
def test_an_operator_of_a_product_takes_any_leading_sizes(name: str, rows: tuple[int, ...], device: str) -> None:
    function, given = ng.operator(linear.spec_of(name)), tensors(name, rows, device)
    with torch.no_grad():
        found = function(**given)
    for key, got in zip(function.returns, found if isinstance(found, tuple) else (found,), strict=True):
        want = by_numpy(name, given)[key]
        assert tuple(got.shape) == ((*rows, COLS) if want.ndim == 2 else rows)
        np.testing.assert_allclose(got.cpu().reshape(want.shape), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", linear.FORMULAS)
def test_every_side_of_a_product_has_its_gradient(name: str, device: str) -> None:
    function, given = ng.operator(linear.spec_of(name)), tensors(name, (3, 7), device)
    found = function(**given)
    y = found[function.returns.index("y")] if isinstance(found, tuple) else found
    upstream = torch.randn_like(y)
    gradients = torch.autograd.grad(y, list(given.values()), upstream)
    plain = {key: t.detach().requires_grad_() for key, t in given.items()}
    wanted = torch.autograd.grad(by_torch(name, **plain), list(plain.values()), upstream)
    for got, want in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", linear.FORMULAS)
def test_gradients_of_products_pass_gradcheck_in_float64(name: str) -> None:
    function, given = ng.operator(linear.spec_of(name)), tensors(name, (2,), dtype=torch.float64, cols=3, inner=4)

    def outputs(*args: Any) -> Any:
        found = function(**dict(zip(given, args, strict=True)))
        return found[function.returns.index("y")] if name == "normed" else found  # rstd is saved, and a constant

    assert torch.autograd.gradcheck(outputs, [*given.values()])


def one(found: Any) -> Any:
    """What is compared of a result: of several, rows and a factor of each, their product."""
    return found[0] * found[1][..., None] if isinstance(found, tuple) else found


def test_every_product_that_ships_is_an_operator_with_the_gradients_of_torch() -> None:
    """Of float64 to its last digits, and of float32; each gradient alone is the one that it is among all."""
    assert {name for name in list_specs() if load(name).has_inner} - {*ELSEWHERE} == {*BY_TORCH, *IN_BATCHES}
    for name, wanted in BY_TORCH.items():
        function, sizes = ng.operator(name), {"m": (3, 5), "k": (INNER,), "n": (COLS,)}
        names = [t.name for t in load(name).tensors if not t.role.is_written]
        for dtype, close in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
            torch.manual_seed(1)
            shapes = {key: sum((sizes[axis] for axis in SHAPES[key]), ()) for key in names}
            given = {key: torch.randn(shapes[key], dtype=dtype, requires_grad=True) for key in names}
            found, want = one(function(**given)), wanted(**given)
            torch.testing.assert_close(found, want, rtol=close, atol=close)
            upstream = torch.randn_like(want)
            gradients = torch.autograd.grad(found, [*given.values()], upstream)
            for got, right in zip(gradients, torch.autograd.grad(want, [*given.values()], upstream), strict=True):
                torch.testing.assert_close(got, right, rtol=10 * close, atol=10 * close)
            for key, right in zip(names, gradients, strict=True):
                alone = one(function(**{n: t if n == key else t.detach() for n, t in given.items()}))
                torch.testing.assert_close(torch.autograd.grad(alone, given[key], upstream)[0], right)


def test_terms_rows_and_columns_have_their_numbers() -> None:
    function = ng.operator(linear.NUMBERED)
    x, w = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((67, INNER), (INNER, COLS)))
    left, right = (torch.from_numpy(factor) for factor in linear.numbered(x, w))
    found, want = function(x, w), (x * left) @ (w * right)
    torch.testing.assert_close(found, want)
    upstream = torch.randn_like(want)
    for got, wanted in zip(*(torch.autograd.grad(y, (x, w), upstream) for y in (found, want)), strict=True):
        torch.testing.assert_close(got, wanted)


def test_only_the_gradient_that_is_asked_for_is_found_and_vmap_and_fakes_have_its_shapes() -> None:
    function, given = ng.operator(linear.spec_of("linear")), tensors("linear", (5,))
    given["w"] = given["w"].detach()
    y = function(**given)
    step, *_ = y.grad_fn.call
    assert step.kept.uses.form.gradients == ("x",)
    assert step.kept.saved == ("w",)
    batched = torch.vmap(function.function, in_dims=(0, None))(torch.randn(4, 5, INNER), given["w"])
    assert batched.shape == (4, 5, COLS)
    with torch._subclasses.FakeTensorMode():
        fake = function(torch.empty(6, 2, INNER), torch.empty(INNER, COLS))
    assert fake.shape == (6, 2, COLS)


def test_a_compiled_call_is_the_eager_one() -> None:
    function, given = ng.operator(linear.spec_of("torch_linear")), tensors("torch_linear", (5,))
    compiled = torch.compile(function.function, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(**given), function(**given))
    torch.autograd.grad(compiled(**given).sum(), [*given.values()])


@pytest.mark.parametrize(
    ("x", "w"),
    [((5, INNER), (INNER + 1, COLS)), ((5, INNER), (COLS, INNER)), ((5, 0), (0, COLS)), ((5, INNER), (INNER,))],
)
def test_sizes_that_do_not_agree_are_refused(x: tuple[int, ...], w: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"takes x \[.., inner\], w \[inner, cols\], whose sizes agree") as caught:
        ng.operator(linear.spec_of("linear"))(torch.zeros(x), torch.zeros(w))
    assert f"x {x}, w {w}" in str(caught.value)


def test_an_operator_shows_the_arguments_of_its_call() -> None:
    """A required matrix stands before an optional weight, whatever their order in the spec."""
    named = [*inspect.signature(ng.operator("rmsnorm_linear")).parameters]
    assert named == ["x", "w", "weight", "eps", "dtype", "opaque"]


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler builds the executor")
@pytest.mark.parametrize("name", OF_ONE_KERNEL)
def test_the_gradients_of_a_backward_pass_are_kernels_of_their_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = by_kernels_of_the_cpu(monkeypatch)
    function, given = ng.operator(linear.spec_of(name), deterministic=True), tensors(name, (3, 7))
    found = function(**given)
    y = found[function.returns.index("y")] if isinstance(found, tuple) else found
    upstream = torch.randn_like(y)
    gradients = torch.autograd.grad(y, list(given.values()), upstream)
    backward = [set(problem.gradients or ()) for problem in made[1:]]
    assert all(len(names) <= 1 for names in backward)
    assert len(backward) == (0 if name == "swiglu" else len(given))  # no kernel gives those of two products
    plain = {key: t.detach().requires_grad_() for key, t in given.items()}
    wanted = torch.autograd.grad(by_torch(name, **plain), list(plain.values()), upstream)
    for got, want in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler builds the executor")
def test_a_matrix_in_the_other_order_is_read_as_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of torch's Linear, turned: forward and dx; a gradient lies as its matrix is said to."""
    made = by_kernels_of_the_cpu(monkeypatch)
    function = ng.operator("linear")
    x, of_linear = (torch.randn(shape, requires_grad=True) for shape in ((3, INNER), (COLS, INNER)))
    for w in (of_linear.T, of_linear.T.contiguous(), of_linear[:, ::2].T):
        rows, first = x[:, : len(w)], len(made)
        y = function(rows, w)
        torch.testing.assert_close(y, rows @ w, rtol=1e-4, atol=1e-4)
        upstream = torch.randn_like(y)
        for got, want in zip(*(torch.autograd.grad(z, (x, of_linear), upstream) for z in (y, rows @ w)), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        orders = [{t.name: t.axes for t in problem.tensors if t.kind.is_matrix} for problem in made[first:]]
        axes = ("cols", "inner") if w.stride() == (1, INNER) else ("inner", "cols")
        assert [order["w"] for order in orders if "w" in order] == [axes, axes]
        assert [order["dw"] for order in orders if "dw" in order] == [("inner", "cols")]


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler builds the executor")
@pytest.mark.parametrize("name", IN_BATCHES)
def test_of_batches_each_gradient_is_a_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, given = by_kernels_of_the_cpu(monkeypatch), in_batches(name, (2, 3))
    found, want = of_batches(name, deterministic=True)(**given), IN_BATCHES_BY_TORCH[name](**given)
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
    upstream = torch.randn_like(want)
    gradients = torch.autograd.grad(found, [*given.values()], upstream)
    assert [problem.batches for problem in made] == [6] * (1 + len(given))
    assert [problem.gradients for problem in made[1:]] == [(key,) for key in given]
    for got, right in zip(gradients, torch.autograd.grad(want, [*given.values()], upstream), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


def by_kernels_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """As on a GPU, but for the executor: the problems of the kernels that are made."""
    made: list[Any] = []

    def on_cpu(spec: Any, **asked: Any) -> Any:
        kernel = normgen.kernel(spec, **asked | {"device": "cpu", "deterministic": False})
        made.append(kernel.problem)
        return lambda *arrays, **named: _as_tensors(kernel(*(a.detach().numpy() for a in arrays), **named))

    monkeypatch.setattr(normgen.operators.launch, "kernel", on_cpu)
    monkeypatch.setattr(normgen.torch.calls, "takes_a_kernel", lambda *_: True)
    return made


def _as_tensors(found: Any) -> Any:
    return tuple(map(torch.from_numpy, found)) if isinstance(found, tuple) else torch.from_numpy(found)
