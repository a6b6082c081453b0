"""Handles given tensors that torch negates when they are read: what lies in memory are other numbers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import normgen  # noqa: E402
from normgen.errors import UsageError  # noqa: E402
from normgen.measure.cpu_check import has_compiler  # noqa: E402

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler builds the executor")


def test_the_imaginary_part_of_a_conjugate_is_refused_until_its_signs_are_in_memory() -> None:
    kernel = normgen.kernel("rmsnorm", shape=(8, 1), without=["rstd", "weight"], device="cpu")
    x = torch.complex(torch.randn(8, 1), 1 + torch.rand(8, 1)).conj().imag
    assert x.is_neg()
    with pytest.raises(
        UsageError, match=r"the negatives of its numbers\n  received: a negative view \[8, 1\].*\n  hint: x.res"
    ):
        kernel(x)
    assert (torch.from_numpy(kernel(x.resolve_neg().numpy())) < 0).all()
