"""Modules in the places of torch.nn's."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import normgen.torch as ng  # noqa: E402
from normgen.errors import UsageError  # noqa: E402

MODULES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("RMSNorm", (64,), {}),
    ("RMSNorm", (64,), {"eps": 1e-3, "elementwise_affine": False}),
    ("RMSNorm", ((4, 16),), {"eps": 1e-6}),
    ("LayerNorm", (64,), {}),
    ("LayerNorm", ([4, 16],), {"bias": False}),
    ("LayerNorm", (64,), {"elementwise_affine": False, "eps": 1e-2}),
    ("Softmax", (-1,), {}),
    ("Softmax", (0,), {}),
]


@pytest.mark.parametrize(("name", "args", "options"), MODULES)
def test_a_module_is_torchs_with_another_forward(
    name: str, args: tuple[Any, ...], options: dict[str, Any], device: str
) -> None:
    theirs = getattr(torch.nn, name)(*args, **options).to(device)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours = getattr(ng, name)(*args, **options).to(device)
    stored = io.BytesIO()
    torch.save(theirs.state_dict(), stored)
    stored.seek(0)
    ours.load_state_dict(torch.load(stored))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert repr(ours) == repr(theirs)
    assert isinstance(ours, type(theirs))
    x = torch.randn(5, *(theirs.normalized_shape if name != "Softmax" else (64,)), device=device, requires_grad=True)
    for made in (ours, copy.deepcopy(ours)):
        y, want = made(x), theirs(x)
        torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)
        by = torch.randn_like(y)
        got = torch.autograd.grad(y, (x, *made.parameters()), by)
        for one, other in zip(got, torch.autograd.grad(want, (x, *theirs.parameters()), by), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_module_without_eps_has_that_of_the_dtype_it_computes_in() -> None:
    x = torch.full((2, 8), 1e-4)
    theirs, ours = torch.nn.RMSNorm(8), ng.RMSNorm(8)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        want = theirs.to(dtype)(x.to(dtype))
        tolerance = 2**-7 if dtype == torch.bfloat16 else 1e-6
        torch.testing.assert_close(ours.to(dtype)(x.to(dtype)), want, rtol=tolerance, atol=0)


@pytest.mark.parametrize(
    ("module", "x", "rule"),
    [
        (ng.LayerNorm(8), torch.randn(2, 7), r"the last sizes are the normalized_shape \(8,\)"),
        (ng.Softmax(), torch.randn(2, 7), "dim is one of the 2 dimensions"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(module: Any, x: torch.Tensor, rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        module(x)
