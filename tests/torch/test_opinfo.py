"""torch's own samples of the operations that it has too: results and gradients are those of its float64 operator."""

from __future__ import annotations

import math
import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
# torch's helpers of tests import it and these use none of it.
sys.modules.setdefault("expecttest", SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]

with warnings.catch_warnings():  # of what it imports, as numba's
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

import normgen.torch as ng  # noqa: E402
import normgen.torch.tracing.fusing  # noqa: E402
from normgen.errors import UsageError  # noqa: E402

Tensor = torch.Tensor
TAKEN = "taken"


def norm(function: Any) -> Any:
    """Rows of several dimensions are one long row to us."""

    def of(x: Tensor, shape: tuple[int, ...], *parameters: Tensor | None, eps: float | None = None) -> Tensor:
        flat = [None if p is None else p.flatten() for p in parameters]
        named = {} if eps is None else {"eps": eps}
        return function(x.flatten(x.dim() - len(shape)), *flat, **named).reshape(x.shape)

    return of


def of_last_dim(function: Any) -> Any:
    def of(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
        if x.dim() == 0 or dim % x.dim() != x.dim() - 1 or x.shape[-1] == 0:
            raise NotImplementedError("another dimension than the last, or rows of no columns")
        return function(x, dtype=dtype)

    return of


def cross_entropy(x: Tensor, target: Tensor, **named: Any) -> Tensor:
    if named.get("weight") is not None or target.is_floating_point() or x.dim() != 2:
        raise NotImplementedError("a weight for each class, probabilities as targets, or classes that are not last")
    return ng.cross_entropy(x, target, **named)


OURS = {
    "nn.functional.rms_norm": norm(ng.rms_norm),
    "nn.functional.layer_norm": norm(ng.layer_norm),
    "softmax": of_last_dim(ng.softmax),
    "log_softmax": of_last_dim(ng.log_softmax),
    "nn.functional.cross_entropy": cross_entropy,
}
OPS = [op for op in op_db if op.name in OURS]


def leaves(args: Any) -> Iterator[Tensor]:
    for value in args:
        if isinstance(value, Tensor) and value.requires_grad:
            yield value


def doubled(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


def gradients(result: Tensor, of: list[Tensor], cotangent: Tensor) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(result, of, cotangent.to(result.dtype), allow_unused=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.formatted_name)
def test_samples_of_torch_have_its_results_and_gradients(op: Any, dtype: Any, device: str) -> None:
    counts = compared(op, OURS[op.name], device, dtype)
    assert counts[TAKEN] >= 2, "torch has samples that we offer"


def compared(op: Any, ours: Any, device: str, dtype: Any) -> Counter[str]:
    """How many samples ours took, each with torch's results and gradients, and why it refused the others."""
    counts: Counter[str] = Counter()
    for sample in op.sample_inputs(device, dtype, requires_grad=True):
        args = [sample.input, *sample.args]
        try:
            found = ours(*args, **sample.kwargs)
        except (NotImplementedError, UsageError) as error:
            counts[str(error).partition("\n")[0]] += 1
            continue
        counts[TAKEN] += 1
        exact = [doubled(value) for value in args]
        wanted = op.op(*exact, **{name: doubled(value) for name, value in sample.kwargs.items()})
        torch.testing.assert_close(found, wanted.to(found.dtype), equal_nan=True)
        if math.prod(found.shape) == 0 or not list(leaves(args)):
            continue
        cotangent = torch.randn_like(found)
        # What is saved in bf16, as y of softmax, is off by 2^-9 of itself, and so are the products that are summed.
        close = {"atol": 2.0**-8 * float(cotangent.abs().max()), "rtol": 0.016} if dtype == torch.bfloat16 else {}
        got = gradients(found, list(leaves(args)), cotangent)
        for own, want in zip(got, gradients(wanted, list(leaves(exact)), cotangent), strict=True):
            assert (own is None) == (want is None)
            if own is not None and want is not None:
                torch.testing.assert_close(own, want.to(own.dtype), equal_nan=True, **close)
    return counts


_SPEC = """
name = "{name}"
summary = "As torch's."
[tensors]
x = {{ role = "input", axes = ["rows", "inner"], dtypes = ["f32", "f16", "bf16"] }}
w = {{ role = "parameter", axes = {axes}, follows = "x" }}
{more}
y = {{ role = "output", follows = "x" }}
[formulas]
y = "{formula}"
"""


def by_operator(op: Any) -> Any:
    """The operator of a spec that says the same."""

    def linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        more = 'bias = { role = "parameter", optional = true, absent = "0", follows = "x" }'
        text = _SPEC.format(name="as_linear", axes='["cols", "inner"]', more=more, formula="x @ w + bias")
        return ng.operator(text)(x, w, bias)

    def addmm(added: Tensor, x: Tensor, w: Tensor, *, alpha: float, beta: float) -> Tensor:
        if added.ndim != 2 or added.shape != (len(x), w.shape[-1]):
            raise NotImplementedError("what is added is not of the result's sizes")
        scalars = "[scalars]\nalpha = 1\nbeta = 1\n[formulas]\n"
        text = _SPEC.replace("[formulas]\n", scalars).format(
            name="as_addmm",
            axes='["inner", "cols"]',
            more='added = { role = "input", follows = "x" }',
            formula="beta * added + alpha * (x @ w)",
        )
        return ng.operator(text)(x=x, w=w, added=added, alpha=alpha, beta=beta)

    mm = _SPEC.format(name="as_mm", axes='["inner", "cols"]', more="", formula="x @ w")
    return {"nn.functional.linear": linear, "mm": ng.operator(mm), "bmm": ng.operator("bmm"), "addmm": addmm}[op.name]


REFUSALS = (  # a sum of no terms; a vector alone, which has no rows; what an operator's spec here does not add
    "whose sizes agree, cols and inner at least 1",
    "'linear' is not row-wise, or not in the language",
    "'linear' does not take these tensors when their rows, and columns, may be any number",
    "what is added is not of the result's sizes",
)
DOORS = {"operator": by_operator, "fused": lambda op: ng.fused(op.op)}
PRODUCTS = [op for op in op_db if op.name in ("nn.functional.linear", "mm", "bmm", "addmm")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("op", PRODUCTS, ids=lambda op: op.formatted_name)
@pytest.mark.parametrize("door", DOORS)
def test_samples_of_products_have_torchs_results_and_gradients_or_are_refused(
    door: str, op: Any, dtype: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By operators and by `fused`: what is refused, of empty sums and of single vectors above all, says so."""
    monkeypatch.setattr(normgen.torch.tracing.fusing, "takes_a_kernel", lambda *_: True)  # the CPU has its formulas
    counts = compared(op, DOORS[door](op), device, dtype)
    print(f"{door} {op.formatted_name}: offered {counts.total()}, taken {counts[TAKEN]}; {dict(counts)}")
    assert counts[TAKEN] >= counts.total() / 3
    assert all(any(known in reason for known in REFUSALS) for reason in counts if reason != TAKEN)
