"""Operators under vmap and the other transforms of torch.func."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import normgen.torch as ng  # noqa: E402
from normgen.errors import UsageError  # noqa: E402

Call = Callable[..., Any]
NEAR = {"rtol": 1e-4, "atol": 1e-4}


def same(got: Any, want: Any) -> None:
    pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
    for one, other in pairs:
        torch.testing.assert_close(one.double(), other.double(), **NEAR)


def each(call: Call, dims: tuple[int | None, ...], *tensors: torch.Tensor) -> Any:
    """A call for each example, in float64."""
    count = next(t.shape[d] for t, d in zip(tensors, dims, strict=True) if d is not None)
    wide = [t.double() for t in tensors]
    found = [call(*[t if d is None else t.select(d, i) for t, d in zip(wide, dims, strict=True)]) for i in range(count)]
    if isinstance(found[0], tuple):
        return tuple(torch.stack(one) for one in zip(*found, strict=True))
    return torch.stack(found)


@pytest.mark.parametrize("dims", [(0, None), (1, None), (2, None), (-2, None), (0, 0), (1, 1), (None, 0)])
def test_vmap_is_a_call_for_each_example(dims: tuple[int | None, ...], device: str) -> None:
    x = torch.randn(4, 3, 5, 64, device=device)
    count = 4 if dims[0] is None else x.shape[dims[0]]
    weight = torch.randn(64, device=device)
    if dims[1] is not None:
        weight = torch.randn(count, 64, device=device).movedim(0, dims[1])
    want = each(lambda x, w: torch.nn.functional.rms_norm(x, (64,), w, 1e-6), dims, x, weight)
    same(torch.vmap(lambda x, w: ng.rms_norm(x, w, 1e-6), dims)(x, weight), want)


def test_vmap_over_a_vmap_and_over_one_row(device: str) -> None:
    x, weight = torch.randn(4, 3, 64, device=device), torch.randn(64, device=device)
    twice = torch.vmap(torch.vmap(lambda row: ng.rms_norm(row, weight, 1e-6)))
    same(twice(x), torch.nn.functional.rms_norm(x, (64,), weight, 1e-6))


def test_rows_of_all_examples_are_one_call_of_the_operator() -> None:
    seen: list[tuple[str, Any]] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "normgen":
                seen.append((func.__name__, args[0].shape))
            return func(*args, **(kwargs or {}))

    x, weight = torch.randn(4, 3, 5, 64), torch.randn(64)
    with Watch():
        torch.vmap(lambda x: ng.rms_norm(x, weight), 1)(x)
        torch.vmap(lambda x, w: ng.rms_norm(x, w))(x, weight.expand(4, 64))
    assert [shape.numel() for _, shape in seen] == [x.numel(), *[x.numel() // 4] * 4]


@pytest.mark.parametrize("function", ["causal_softmax", "dropout_add_rms_norm"])
def test_what_numbers_rows_numbers_those_of_each_example(function: str, device: str) -> None:
    x = torch.randn(3, 8, 16, device=device)
    seed = torch.tensor(7, device=device)

    def call(x: torch.Tensor) -> Any:
        return ng.causal_softmax(x) if function == "causal_softmax" else ng.dropout_add_rms_norm(x, x, seed, p=0.5)[0]

    same(torch.vmap(call)(x), torch.stack([call(one) for one in x]))


def test_batches_of_all_examples_keep_their_rows(device: str) -> None:
    x = torch.randn(3, 2, 5, 64, device=device)
    scale, shift = torch.randn(2, 3, 2, 64, device=device).unbind()
    for call in (ng.ada_layer_norm, lambda x, a, b: ng.ada_layer_norm(x.reshape(10, 64), a, b)):
        want = torch.stack([call(*one) for one in zip(x, scale, shift, strict=True)])
        same(torch.vmap(call)(x, scale, shift), want)
        same(torch.vmap(call, (0, None, 0))(x, scale[0], shift), each(call, (0, None, 0), x, scale[0], shift))


def by_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)


def test_gradients_of_torch_func_with_and_without_vmap_are_torchs(device: str) -> None:
    x, weight, bias = torch.randn(4, 3, 64, device=device), *torch.randn(2, 64, device=device).unbind()

    def loss(call: Call) -> Call:
        return lambda *args: call(*args).pow(3).sum()

    for transform in (
        lambda call: torch.func.grad(loss(call), (0, 1, 2)),
        lambda call: torch.vmap(torch.func.grad(loss(call), (0, 1, 2)), (0, None, None)),  # of each example
        lambda call: torch.func.grad(loss(torch.vmap(call, (1, None, None))), (0, 2)),
        lambda call: torch.func.vjp(lambda x: call(x, weight, bias), x)[1](torch.ones_like(x)),
    ):
        got, want = transform(ng.layer_norm), transform(by_torch)
        same(*((got, want) if isinstance(got, tuple) else (got(x, weight, bias), want(x, weight, bias))))
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    got = torch.autograd.grad(loss(torch.vmap(ng.layer_norm, (1, None, None)))(*leaves), leaves)
    want = torch.autograd.grad(loss(torch.vmap(by_torch, (1, None, None)))(*leaves), leaves)
    same(got, want)


def test_a_second_derivative_is_refused_under_torch_func_too(device: str) -> None:
    x = torch.randn(3, 8, device=device)
    first = torch.func.grad(lambda x: ng.softmax(x).square().sum())
    with pytest.raises(UsageError, match="first derivative and no second one"):
        torch.func.grad(lambda x: first(x).square().sum())(x)


BY_HEADS = """
name = "heads_of_examples"
[tensors]
x = "input"
weight = "head_parameter"
y = "output"
[formulas]
y = "x * weight"
"""


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (1, 1), (None, 0)])
def test_the_heads_of_an_example_are_its_own(dims: tuple[int | None, ...], device: str) -> None:
    """Rows are of head r % heads: with heads of all examples behind each other they would be another one's."""
    made = ng.operator(BY_HEADS)
    x, weight = torch.randn(4, 4, 2, 3, 8, device=device), torch.randn(4, 4, 3, 8, device=device)
    x, weight = x[0] if dims[0] is None else x[:, 0], weight[0, 0] if dims[1] is None else weight[0]
    x = x.movedim(0, dims[0]) if dims[0] is not None else x
    weight = weight.movedim(0, dims[1]) if dims[1] is not None else weight
    same(torch.vmap(made, dims)(x, weight), torch.vmap(lambda x, w: x * w, dims)(x, weight))


FORWARD = {
    "softmax": (lambda x: ng.softmax(x, 0), lambda x: torch.softmax(x, 0)),
    "rms_norm": (
        lambda x: ng.rms_norm(x, None, 1e-6),
        lambda x: torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6),
    ),
    "cross_entropy": (
        lambda x: ng.cross_entropy(x, torch.tensor([1, 4, 0], device=x.device)),
        lambda x: torch.nn.functional.cross_entropy(x, torch.tensor([1, 4, 0], device=x.device)),
    ),
    "fused": (ng.fused(lambda x: torch.softmax(x * 2, -1) * x), lambda x: torch.softmax(x * 2, -1) * x),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_derivatives_are_torchs(name: str, device: str) -> None:
    """A kernel carries no tangent, and says nothing of it."""
    ours, theirs = FORWARD[name]
    x, along = torch.randn(3, 8, device=device), torch.randn(3, 8, device=device)
    for transform in (
        lambda call: torch.func.jvp(call, (x,), (along,)),
        lambda call: torch.func.jacfwd(call)(x),
        lambda call: torch.func.hessian(lambda x: call(x).pow(2).sum())(x),
        lambda call: torch.func.jvp(torch.func.grad(lambda x: call(x).pow(2).sum()), (x,), (along,)),
    ):
        same(transform(ours), transform(theirs))
    for leaf in (x, x.clone().requires_grad_()):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(leaf, along)
            got, want = (torch.autograd.forward_ad.unpack_dual(call(dual)).tangent for call in (ours, theirs))
        same(got, want)


@pytest.mark.parametrize("opaque", [None, True, False])
def test_a_compiled_transform_has_torchs_derivatives(opaque: bool | None) -> None:
    """Also where the compiler was to see our kernel, which has none of these."""
    x = torch.randn(3, 8)

    def ours(x: torch.Tensor) -> torch.Tensor:
        return ng.softmax(x, opaque=opaque)

    for transform in (
        lambda call: torch.func.jvp(call, (x,), (x,)),
        lambda call: torch.func.jacfwd(call)(x),
        lambda call: torch.vmap(torch.func.grad(lambda x: call(x).pow(2).sum()))(x),
    ):
        want = transform(lambda x: torch.softmax(x, -1))
        same(torch.compile(transform, backend="aot_eager")(ours), want)


def test_a_trace_holds_for_all_sizes(device: str) -> None:
    from normgen.torch import rms_norm

    x, weight = (torch.randn(shape, device=device) for shape in ((4, 48), (48,)))
    traced = torch.jit.trace(lambda x, weight: rms_norm(x, weight, eps=1e-5), (x, weight))
    for rows in (4, 9, 1):
        x = torch.randn(rows, 48, device=device)
        torch.testing.assert_close(traced(x, weight), rms_norm(x, weight, eps=1e-5))


def test_a_trace_of_a_loss_is_one_with_a_gradient_and_without(device: str) -> None:
    """torch checks a trace by another one, of tensors without a gradient."""
    x, target = torch.randn(4, 48, device=device, requires_grad=True), torch.randint(0, 48, (4,), device=device)
    traced = torch.jit.trace(ng.cross_entropy, (x, target))
    torch.testing.assert_close(traced(x, target), ng.cross_entropy(x, target))
