"""torch.roll along the columns of a traced function is the language's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import normgen.torch as ng  # noqa: E402
from normgen.errors import UsageError  # noqa: E402

Tensor = Any


def neighbours(x: Tensor) -> Tensor:
    return torch.roll(x, 1, -1) * 2 + x.roll(-2, -1)


def norm_then_rope(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    n = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
    d = x.shape[-1]
    sign = torch.where(torch.arange(d, device=x.device) < d // 2, -1.0, 1.0)
    return n * cos + sign * torch.roll(n, d // 2, -1) * sin


def by_a_third_and_one(x: Tensor) -> Tensor:
    return x + torch.roll(x, 2 * (x.shape[-1] // 3) + 1, -1)


def back_by_a_half(x: Tensor) -> Tensor:
    return x * torch.roll(x, -(x.shape[-1] // 2), dims=-1)


def twice(x: Tensor) -> Tensor:
    return torch.roll(x, (1, 3), (-1, -1)) - x


def of_one_row(x: Tensor) -> Tensor:
    return torch.roll(x, 1)


def with_a_value_of_rows(x: Tensor) -> Tensor:
    return x - torch.roll(x.mean(-1, keepdim=True), 1, -1)


ROLLED: dict[Callable[..., Tensor], tuple[str, ...]] = {
    neighbours: ("roll(x, 1)", "roll(x, -2)"),
    norm_then_rope: ("roll(n, cols / 2)",),
    by_a_third_and_one: ("roll(x, 2 * cols / 3 + 1)",),
    back_by_a_half: ("roll(x, -(cols / 2))",),
    twice: ("roll(roll(x, 1), 3)",),
    of_one_row: ("roll(x, 1)",),
    with_a_value_of_rows: ("x - mean(x)",),
}


@pytest.mark.parametrize("function", ROLLED, ids=lambda one: one.__name__)
def test_a_roll_is_said_in_the_language_and_computes_what_it_did(function: Any, made: list[Any]) -> None:
    shapes = [(4, 3, 12), (12,), (4, 3, 12), (4, 3, 12)][: function.__code__.co_argcount]
    shapes = [(12,)] if function is of_one_row else shapes
    given = [torch.randn(shape).requires_grad_() for shape in shapes]
    traced = ng.fused(function)
    text = traced.spec(*given)
    assert all(roll in text for roll in ROLLED[function]), text
    got, want = traced(*given), function(*given)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    by = torch.randn_like(want)
    for one, other in zip(torch.autograd.grad(got, given, by), torch.autograd.grad(want, given, by), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert made


def test_a_half_of_columns_that_have_none_is_refused(made: list[Any]) -> None:
    with pytest.raises(UsageError, match="a multiple of 2"):
        ng.fused(back_by_a_half)(torch.randn(3, 7))
    assert made == []


def test_a_roll_of_rows_stays_with_torch(made: list[Any]) -> None:
    """In front of the kernel, where it is one of an argument; of what the kernel computes it is refused."""
    given = torch.randn(6, 12)
    traced = ng.fused(lambda x: torch.softmax(torch.roll(x, 1, 0) + x, -1))
    torch.testing.assert_close(traced(given), torch.softmax(given.roll(1, 0) + given, -1))
    assert "roll" not in traced.spec()
    with pytest.raises(UsageError, match="'roll': it goes over rows"):
        ng.fused(lambda x: torch.roll(x.exp(), 1, 0) + x)(given)
    assert len(made) == 1


def test_a_roll_by_what_is_in_a_tensor_is_refused() -> None:
    with pytest.raises(UsageError, match=r"what is in a tensor"):
        ng.fused(lambda x, k: torch.roll(x, int(k), -1)).spec(torch.randn(3, 8), torch.tensor(2))
