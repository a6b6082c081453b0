"""What does not fit the memory is refused before the work, on the numbers of this machine."""

from __future__ import annotations

import resource
import subprocess
import sys
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


@pytest.mark.parametrize("shape", ["3x2147483647", "8x99999999"])
@pytest.mark.usefixtures("one_gigabyte")
def test_a_shape_that_does_not_fit_is_refused_before_anything_is_drawn(shape: str) -> None:
    problem = problem_for(LAYERNORM, shape=shape)
    with pytest.raises(
        UsageError, match=r"fits the memory of the host\n  received: 38 x \d+ takes .* 1\.0 GB are free"
    ):
        cpu_check.check_on_cpu(problem, None)  # type: ignore[arg-type]
    why = cpu_check.why_unchecked(problem)
    assert why is not None
    assert "fits the memory" in why


@pytest.mark.usefixtures("one_gigabyte")
def test_many_rows_fit_because_few_of_them_are_checked() -> None:
    assert cpu_check.why_unchecked(problem_for(LAYERNORM, shape="2147483647x768")) is None


def test_a_limit_of_the_address_space_counts() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        pytest.skip("the tests themselves run under such a limit")
    command = f"ulimit -v 2900000 && exec {sys.executable} -m normgen verify --shape 8x96 --device cpu"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: a check fits the address space of the process\n  received: 4.8 GB, and ")
