"""`prepare`: one computation of reference and bounds serves any number of kernels, with the verdicts of `check`."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.errors import UsageError
from normgen.verify import check, make_inputs, pick_slabs, prepare
from tests.verify import made
from tests.verify.test_check import solved


@pytest.mark.parametrize("backward", [False, True])
def test_a_prepared_check_says_what_check_says(backward: bool) -> None:
    problem = made.backward(made.LAYERNORM, 60, 40) if backward else made.forward(made.LAYERNORM, 60, 40)
    inputs, outputs = solved(problem)
    expected = prepare(problem, inputs)
    assert expected.check(outputs) == check(problem, inputs, outputs)
    name = "dx" if backward else "y"
    outputs.arrays[name][inputs.families.index("normal"), 3] += 1.0
    found = expected.check(outputs)
    assert not found.ok
    assert found == check(problem, inputs, outputs)


def test_only_the_prepared_rows_are_looked_at_and_an_overrun_is_still_seen() -> None:
    problem = made.forward(made.LAYERNORM, 400, 24, pitch=32)
    inputs, outputs = solved(problem)
    rows = pick_slabs(inputs.families, 60)
    expected = prepare(problem, inputs, rows=rows)
    outside = next(i for i in range(400) if i not in rows)
    outputs.arrays["y"][outside] += 1.0
    assert expected.check(outputs).ok
    outputs.buffers["y"].storage[outputs.buffers["y"].offset + 24 * 4] = 0
    assert expected.check(outputs).overrun == ("y",)
    normal = next(row for row in rows if inputs.families[row] == "normal")
    outputs.arrays["y"][normal] += 1.0
    assert expected.check(outputs).tensor("y").bad == 24


def test_accumulated_gradients_need_their_start() -> None:
    problem = made.backward(made.LAYERNORM, 20, 40, accumulate=True)
    inputs, outputs = solved(problem)
    assert prepare(problem, inputs, start=outputs.start).check(outputs).ok
    with pytest.raises(UsageError, match="accumulated"):
        prepare(problem, inputs)


@pytest.mark.parametrize("count", [1, 50, 400, 10_000])
def test_slabs_hold_every_family_the_first_and_the_last_row(count: int) -> None:
    families = made_families(8192)
    rows = pick_slabs(families, count)
    assert {families[i] for i in rows} == set(families)
    assert rows[0] == 0
    assert rows[-1] == 8191
    assert len(rows) <= max(count, 2 * len(set(families)))
    assert np.all(np.diff(rows) > 0)
    assert np.count_nonzero(np.diff(rows) > 1) <= 4


def made_families(rows: int) -> tuple[str, ...]:
    return make_inputs(made.forward(made.LAYERNORM, rows, 4)).families
