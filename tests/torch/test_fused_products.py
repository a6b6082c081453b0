"""`fused` of torch functions with products of matrices: what is traced, both directions, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402

import normgen.torch as ng  # noqa: E402
import normgen.torch.tracing.fusing  # noqa: E402
from normgen.errors import UsageError  # noqa: E402
from normgen.measure.cpu_check import has_compiler  # noqa: E402
from tests.torch.test_products import by_kernels_of_the_cpu  # noqa: E402

M, K, N = 5, 7, 9
WIDE, RANKS = 90, (2, 3)
Sizes = tuple[tuple[int, ...], ...]


def normed(x: Any, weight: Any, w: Any) -> Any:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6) @ w


def normed_by_layer(x: Any, weight: Any, w: Any) -> Any:
    return F.layer_norm(x, (K,), weight) @ w


TAKEN: dict[str, tuple[Callable[..., Any], Sizes, str]] = {
    "matmul": (lambda x, w: x @ w, ((M, K), (K, N)), "x @ w"),
    "mm of a larger matrix": (torch.mm, ((M, K), (K, WIDE)), "x0 @ x1"),
    "linear": (F.linear, ((M, K), (N, K), (N,)), "x0 @ x1 + x2"),
    "linear of several sizes": (lambda x, w, b: F.linear(x, w, b), ((2, 3, M, K), (N, K), (N,)), "x @ w + b"),
    "linear of a square": (lambda x, w, b: F.linear(x, w, b), ((K, K), (K, K), (K,)), "x @ w + b"),
    "addmm": (lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2), ((N,), (M, K), (K, N)), "x @ w * 2 + b * 0.5"),
    "addmm of rows": (lambda r, x, w: torch.addmm(r, x, w), ((M, N), (M, K), (K, N)), "x @ w + r"),
    "bmm": (torch.bmm, ((3, M, K), (3, K, N)), "x0 @ x1"),
    "bmm of several sizes": (lambda x, w: x @ w, ((2, 3, M, K), (2, 3, K, N)), "x @ w"),
    "baddbmm": (lambda r, x, w: torch.baddbmm(r, x, w, beta=2), ((3, M, N), (3, M, K), (3, K, N)), "r * 2 + x @ w"),
    "einsum": (lambda x, w: torch.einsum("bmk,kn->bmn", x, w), ((2, M, K), (K, N)), "x @ w"),
    "a norm in front": (normed, ((M, K), (K,), (K, N)), "* weight @ w"),
    "a layer norm of one size": (normed_by_layer, ((M, K), (K,), (K, WIDE)), "* weight @ w"),
    "gelu": (lambda x, w, b: F.gelu(x @ w + b), ((M, K), (K, N), (N,)), "x @ w + b"),
    "silu and a residual": (lambda x, w, r: r + F.silu(x @ w), ((2, M, K), (K, N), (2, M, N)), "r + "),
    "a gate": (lambda x, a, b: F.silu(x @ a) * (x @ b), ((M, K), (K, N), (K, N)), "x @ a * sigmoid(x @ a) * (x @ b)"),
    "softmax times v": (lambda s, v: torch.softmax(0.5 * s, -1) @ v, ((2, 3, M, K), (2, 3, K, N)), "@ v"),
    "two results": (lambda x, w: ((x @ w).relu(), x @ w), ((M, K), (K, N)), "x @ w"),
}


def drawn(sizes: Sizes, **options: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(size, **options) for size in sizes]


@pytest.mark.parametrize("name", TAKEN)
def test_a_product_is_traced_with_what_stands_around_it_and_has_all_gradients(name: str) -> None:
    function, sizes, formula = TAKEN[name]
    made = ng.fused(function)
    given = drawn(sizes)
    assert formula in made.spec(*given).partition("[formulas]")[2]
    compared = made.comparison(*given)
    assert compared.holds
    assert not compared.no_gradients
    assert len(compared.gradients) == len(sizes)


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler builds the executor")
@pytest.mark.parametrize("name", ["linear of several sizes", "baddbmm", "a norm in front", "softmax times v"])
def test_a_call_and_its_gradients_are_those_of_the_function(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but for the executor; of other sizes than it was traced with, by the same trace."""
    function, sizes, _ = TAKEN[name]
    made = by_kernels_of_the_cpu(monkeypatch)
    monkeypatch.setattr(normgen.torch.tracing.fusing, "takes_a_kernel", lambda *_: True)
    fused = ng.fused(function)
    for more in (0, 6):
        given = drawn(tuple(tuple(n + more * (n == M) for n in size) for size in sizes), requires_grad=True)
        found, want = fused(*given), function(*given)
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
        upstream = torch.randn_like(want)
        got, right = (torch.autograd.grad(y, given, upstream) for y in (found, want))
        for one, other in zip(got, right, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
    assert len({plan.traced.spec.text for plan in fused._plans.values()}) == 1
    assert made, "kernels ran"


def test_of_16_bits_a_product_is_rounded_where_it_is_stored_and_by_operations_behind_it() -> None:
    given = [t.bfloat16() for t in drawn(((M, K), (N, K)))]

    def function(x: Any, w: Any) -> Any:
        return F.linear(x, w) * 1.5

    assert 'y = "x @ w * 1.5"' in ng.fused(function).spec(*given)
    assert 'y = "cast(x @ w, x) * 1.5"' in ng.fused(function, rounding="operations").spec(*given)


def test_modules_of_a_linear_layer_are_traced_with_their_parameters() -> None:
    module = torch.nn.Sequential(torch.nn.LayerNorm(K), torch.nn.Linear(K, WIDE), torch.nn.GELU())
    made = ng.fused(module)
    text = made.spec(torch.randn(M, K))
    assert 'v1_weight = { role = "parameter", axes = ["cols", "inner"] }' in text
    assert made.comparison().holds
    assert not made.comparison().no_gradients


OUTSIDE = "another product stays outside"
REFUSED: dict[str, tuple[Callable[..., Any], Sizes, str, str]] = {
    "softmax of a product": (
        lambda x, w: (x @ w).softmax(-1),
        ((M, K), (K, N)),
        "'softmax': it goes along the columns that a product gave",
        "reduce its rows in a function of its own",
    ),
    "a mean of a product": (
        lambda x, w: (x @ w).mean(-1),
        ((M, K), (K, N)),
        "'mean': it goes along the columns that a product gave",
        "reduce its rows in a function of its own",
    ),
    "a product of a product": (
        lambda x, a, b: (x @ a) @ b,
        ((M, K), (K, K), (K, K)),
        "'matmul': it takes what another product gave",
        "as a function of its own",
    ),
    "a product of a product of other sizes": (
        lambda x, a, b: (x @ a) @ b,
        ((M, K), (K, N), (N, 11)),
        "a tensor of a function that is traced has the rows' sizes",
        OUTSIDE,
    ),
    "rows with rows": (lambda x: x @ x.t(), ((M, K),), "'matmul' is not row-wise", OUTSIDE),
    "a total": (lambda x, w: (x @ w).sum(), ((M, K), (K, N)), "no scalar_output yet", "spec of its own"),
    "a side": (lambda x, w: (2 * x, (2 * x) @ w), ((M, K), (K, N)), "returns what has its columns", "of its own"),
    "matrices of the last sizes": (
        lambda x, w: x @ w,
        ((2, 3, M, K), (1, 3, K, N)),
        "the matrices of batches are as many as the first sizes of the rows say",
        "expand it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_product_that_cannot_be_taken_is_refused_with_a_way_out(name: str) -> None:
    function, sizes, says, way = REFUSED[name]
    with pytest.raises(UsageError) as error:
        ng.fused(function, *drawn(sizes))
    assert says in error.value.rule
    assert way in str(error.value.hint)


def test_where_sizes_do_not_tell_a_reading_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    ng.fused(lambda r, x, w: torch.addmm(r, x, w), *drawn(((K, K), (K, K), (K, K))))
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
