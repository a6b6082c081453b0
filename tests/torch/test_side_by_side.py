"""Rows along another dimension than the last: their kernels read them where they lie, and write beside."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from normgen.program.classes import ProgramClass, class_of  # noqa: E402
from normgen.spec.reader import load  # noqa: E402
from normgen.torch import calls  # noqa: E402
from normgen.torch.operators import Operator  # noqa: E402

Tensor = Any


def classes(made: list[Any]) -> list[ProgramClass]:
    return [class_of(handle.problem) for handle in made]


@pytest.mark.parametrize(("shape", "dim"), [((3, 20, 4, 6), 1), ((50, 33), 0), ((2, 3, 8, 5), 2), ((2, 7, 1, 3), 1)])
def test_a_softmax_along_another_dimension_reads_and_writes_in_place_of_a_copy(
    made: list[Any], shape: tuple[int, ...], dim: int
) -> None:
    softmax = Operator(load("softmax")).function
    x = torch.randn(shape, requires_grad=True)
    y = softmax(x.movedim(dim, -1)).movedim(-1, dim)
    assert y.is_contiguous()
    dy = torch.randn(shape)
    (dx,) = torch.autograd.grad(y, x, dy)
    assert classes(made) == [ProgramClass.LANES] * 2
    theirs = torch.softmax(x, dim)
    assert torch.allclose(y, theirs, atol=1e-6)
    assert torch.allclose(dx, torch.autograd.grad(theirs, x, dy)[0], atol=1e-6)


def test_a_norm_over_channels_has_the_gradients_of_its_parameters(made: list[Any]) -> None:
    norm = Operator(load("layernorm")).function
    x, weight, bias = (torch.randn(s, requires_grad=True) for s in ((2, 12, 3, 5), (12,), (12,)))
    y = norm(x.permute(0, 2, 3, 1), weight, bias).permute(0, 3, 1, 2)
    theirs = torch.nn.functional.layer_norm(x.permute(0, 2, 3, 1), (12,), weight, bias).permute(0, 3, 1, 2)
    assert y.is_contiguous()
    assert torch.allclose(y, theirs, atol=1e-5)
    dy = torch.randn(x.shape)
    ours = torch.autograd.grad(y, (x, weight, bias), dy)
    assert classes(made) == [ProgramClass.LANES] * 2
    for mine, yours in zip(ours, torch.autograd.grad(theirs, (x, weight, bias), dy), strict=True):
        assert torch.allclose(mine, yours, atol=1e-4)


def test_a_gradient_that_lies_otherwise_than_the_rows_is_copied(made: list[Any]) -> None:
    norm = Operator(load("rmsnorm")).function
    x, weight = torch.randn(9, 40).T.requires_grad_(), torch.randn(9, requires_grad=True)
    whole = torch.randn(9, 40).T
    for dy in (whole[:1].expand(40, 9), whole[:, :1].expand(40, 9), whole, whole.contiguous()):
        ours = torch.autograd.grad(norm(x, weight), (x, weight), dy)
        theirs = torch.autograd.grad(torch.nn.functional.rms_norm(x, (9,), weight, 1e-6), (x, weight), dy)
        for mine, yours in zip(ours, theirs, strict=True):
            assert torch.allclose(mine, yours, atol=1e-4)
    assert classes(made) == [ProgramClass.LANES] * 2


def test_one_shape_in_two_layouts_has_two_kernels_and_each_call_takes_its_own(made: list[Any]) -> None:
    softmax = Operator(load("softmax")).function
    apart, beside = torch.randn(4, 6, 5).movedim(1, -1), torch.randn(4, 5, 6)
    for x in (apart, beside, apart, beside):
        assert torch.allclose(softmax(x), torch.softmax(x, -1), atol=1e-6)
        assert softmax(x).stride() == x.stride()
    assert classes(made) == [ProgramClass.LANES, ProgramClass.ROWS]


def test_a_second_input_that_lies_otherwise_is_copied_to_where_the_first_one_lies(made: list[Any]) -> None:
    add = Operator(load("add_layernorm"), returns=["y", "h"]).function
    x, residual, weight, bias = (
        torch.randn(4, 6, 5).movedim(1, -1),
        torch.randn(4, 5, 6),
        torch.randn(6),
        torch.randn(6),
    )
    y, h = add(x, residual, weight=weight, bias=bias)
    assert torch.equal(h, x + residual)
    assert torch.allclose(y, torch.nn.functional.layer_norm(x + residual, (6,), weight, bias), atol=1e-5)
    assert classes(made) == [ProgramClass.LANES]


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (torch.empty(4, 6, 5).movedim(1, -1), (1, 5)),
        (torch.empty(6, 5).t(), (0, 5)),
        (torch.empty(9, 8, 6, 5)[::2, :, :, :].movedim(1, -1), (1, 30)),
        (torch.empty(4, 6, 5, 7).permute(0, 3, 2, 1), None),  # behind the columns [5, 7] turned
        (torch.empty(4, 6, 5), None),
        (torch.empty(4, 6, 10)[..., ::2], None),
        (torch.empty(4, 1).expand(4, 6), None),
        (torch.empty(4, 9, 5)[:, :6].movedim(1, -1), (1, 5)),
        (torch.empty(1, 6, 5).expand(4, 6, 5).movedim(1, -1), None),
    ],
    ids=lambda given: str(list(given.stride())) if isinstance(given, torch.Tensor) else str(given),
)
def test_rows_are_side_by_side_where_the_sizes_behind_their_axis_lie_as_they_are_named(
    tensor: Tensor, found: tuple[int, int] | None
) -> None:
    assert calls.apart_of(tensor) == found


def test_rows_in_batches_are_copied_as_before(made: list[Any]) -> None:
    adaln = Operator(load("adaln")).function
    x, scale, shift = torch.randn(4, 6, 5).movedim(1, -1), torch.randn(4, 6), torch.randn(4, 6)
    theirs = torch.nn.functional.layer_norm(x, (6,), eps=1e-6) * (1 + scale[:, None]) + shift[:, None]
    found = adaln(x, scale, shift)
    assert torch.allclose(found if not isinstance(found, tuple) else found[0], theirs, atol=1e-4)
    assert classes(made) == [ProgramClass.ROWS]


def test_rows_whose_sums_no_block_holds_are_copied(made: list[Any]) -> None:
    layer_norm = Operator(load("layernorm"), returns=("y",)).function
    shape = (1, 60000, 2)
    x, weight, bias = (torch.randn(size, requires_grad=True) for size in (shape, 60000, 60000))
    y = layer_norm(x.movedim(1, -1), weight, bias, 1e-5).movedim(-1, 1)
    dy = torch.randn(shape)
    found = torch.autograd.grad(y, (x, weight, bias), dy)
    assert classes(made) == [ProgramClass.LANES, ProgramClass.ROWS]
    theirs = torch.nn.functional.layer_norm(x.movedim(1, -1), (60000,), weight, bias, 1e-5).movedim(-1, 1)
    for ours, expected in zip(found, torch.autograd.grad(theirs, (x, weight, bias), dy), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
