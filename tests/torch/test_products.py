"""Operators of products of matrices: results, gradients of every side, and what is refused."""

from __future__ import annotations

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
BY_TORCH: dict[str, Callable[..., Any]] = {
    "linear": lambda x, w, bias: x @ w + bias,
    "linear_add": lambda x, w, residual: residual + x @ w,
    "linear_bias_gelu": lambda x, w, bias: torch.nn.functional.gelu(x @ w + bias),
    "linear_swiglu": lambda x, w_gate, w_up: torch.nn.functional.silu(x @ w_gate) * (x @ w_up),
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


def test_an_operator_of_batches_of_matrices_is_refused_and_a_handle_named() -> None:
    for op in ("bmm", "softmax_v"):
        with pytest.raises(UsageError, match=f"no matrix of each batch yet, as '[wv]' of '{op}' is") as caught:
            ng.operator(op)
        assert f'normgen.kernel("{op}", ...)' in (caught.value.hint or "")


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


def test_every_product_that_ships_is_an_operator_with_the_gradients_of_torch() -> None:
    """Of float64 to its last digits, and of float32; each gradient alone is the one that it is among all."""
    assert {name for name in list_specs() if load(name).has_inner} == {*BY_TORCH, *IN_BATCHES}
    for name, wanted in BY_TORCH.items():
        function, sizes = ng.operator(name), {"m": (3, 5), "k": (INNER,), "n": (COLS,)}
        names = [t.name for t in load(name).tensors if not t.role.is_written]
        for dtype, close in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
            torch.manual_seed(1)
            shapes = {key: sum((sizes[axis] for axis in SHAPES[key]), ()) for key in names}
            given = {key: torch.randn(shapes[key], dtype=dtype, requires_grad=True) for key in names}
            found, want = function(**given), wanted(**given)
            torch.testing.assert_close(found, want, rtol=close, atol=close)
            upstream = torch.randn_like(want)
            gradients = torch.autograd.grad(found, [*given.values()], upstream)
            for got, right in zip(gradients, torch.autograd.grad(want, [*given.values()], upstream), strict=True):
                torch.testing.assert_close(got, right, rtol=10 * close, atol=10 * close)
            for key, right in zip(names, gradients, strict=True):
                alone = function(**{n: t if n == key else t.detach() for n, t in given.items()})
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
    assert step.kept.form.gradients == ("x",)
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
    with pytest.raises(UsageError, match=r"takes x \[.., inner\], w \[inner, cols\], whose sizes agree"):
        ng.operator(linear.spec_of("linear"))(torch.zeros(x), torch.zeros(w))


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler builds the executor")
@pytest.mark.parametrize("name", OF_ONE_KERNEL)
def test_the_gradients_of_a_backward_pass_are_kernels_of_their_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but for the executor."""
    made: list[Any] = []

    def on_cpu(spec: Any, **asked: Any) -> Any:
        kernel = normgen.kernel(spec, **asked | {"device": "cpu", "deterministic": False})
        made.append(kernel.problem)
        return lambda *arrays, **named: _as_tensors(kernel(*(a.detach().numpy() for a in arrays), **named))

    monkeypatch.setattr(normgen.operators.launch, "kernel", on_cpu)
    monkeypatch.setattr(normgen.torch.calls, "takes_a_kernel", lambda *_: True)
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


def _as_tensors(found: Any) -> Any:
    return tuple(map(torch.from_numpy, found)) if isinstance(found, tuple) else torch.from_numpy(found)
