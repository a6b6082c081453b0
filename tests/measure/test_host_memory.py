"""What does not fit the memory is refused before the work, on the numbers of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from normgen.errors import UsageError
from normgen.measure import cpu_check, host_memory
from normgen.program.source import problem_for
from normgen.spec.reader import load

LAYERNORM = load("layernorm")


@pytest.fixture
def one_gigabyte(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 10**9)
    return


def test_all_tensors_and_float64_rows_count() -> None:
    small, wide = (problem_for(LAYERNORM, shape=shape, dtype="bf16") for shape in ("1x1000", "3x1000"))
    each = host_memory.needed_bytes(wide) - host_memory.needed_bytes(small)
    assert each == 2 * 1000 * (2 + 2 + host_memory.DRAWN_BYTES)


@pytest.mark.usefixtures("one_gigabyte")
def test_many_rows_fit_because_few_of_them_are_checked() -> None:
    assert cpu_check.why_unchecked(problem_for(LAYERNORM, shape="2139095040x768")) is None


@pytest.mark.usefixtures("one_gigabyte")
def test_of_a_product_the_axis_that_is_summed_is_named_too() -> None:
    problem = problem_for(load("linear"), shape=(8, 8), inner=2**30)
    says = r"8 x 8, inner 1073741824, takes .*\n  hint: take fewer cols, or a smaller inner"
    with pytest.raises(UsageError, match=says):
        host_memory.require_memory(problem)
