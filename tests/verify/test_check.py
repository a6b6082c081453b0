"""`check`: exact results pass, planted faults are found and named, non-finite values follow their rules."""

from __future__ import annotations

import time

import numpy as np
import pytest

from normgen.dtypes import F16, FLOATS, DType
from normgen.knobs import VarianceMethod
from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.schedule.schedule import Schedule
from normgen.verify import (
    Inputs,
    Outputs,
    check,
    interpret,
    longest_chain,
    make_inputs,
    make_outputs,
    pick_rows,
    reference,
)
from normgen.verify.bounded import outside, within_cells
from normgen.verify.verdict import _judged
from tests.verify import made


def solved(problem: Problem, *, seed: int = 0, families: tuple[str, ...] | None = None) -> tuple[Inputs, Outputs]:
    """Inputs, and outputs that hold the float64 reference rounded to the stored dtype."""
    inputs, outputs = make_inputs(problem, seed=seed, families=families), make_outputs(problem)
    values = reference(problem.spec.name, problem.direction, inputs.arrays, inputs.scalars)
    with np.errstate(all="ignore"):
        for name, array in outputs.arrays.items():
            start = outputs.start[name].astype(np.float64) if name in outputs.start else 0.0
            array[...] = (values[name] + start).astype(array.dtype)
    return inputs, outputs


@pytest.mark.parametrize("stored_as", [d.name for d in FLOATS])
@pytest.mark.parametrize("op", made.BUILT_IN, ids=lambda op: op.name)
@pytest.mark.parametrize(("rows", "cols"), [(0, 5), (1, 1), (3, 7), (23, 123), (40, 1128)])
def test_the_rounded_reference_passes(op: made.Spec, rows: int, cols: int, stored_as: str) -> None:
    problem = made.forward(op, rows, cols, stored_as, pitch=cols + 3, align=4)
    found = check(problem, *solved(problem))
    assert found.ok, found.summary()
    assert found.rows_checked == rows
    if rows > 20 and op is not made.ROW_SUM:  # sums of 16-bit numbers are often exact
        assert 0.001 < found.max_ratio <= 1 or stored_as != "f32"


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("op", [op for op in made.BUILT_IN if op.name in made.BACKWARD_TENSORS], ids=lambda op: op.name)
def test_the_rounded_backward_reference_passes_and_a_missing_start_does_not(op: made.Spec, accumulate: bool) -> None:
    problem = made.backward(op, 20, 40, accumulate=accumulate)
    inputs, outputs = solved(problem)
    assert check(problem, inputs, outputs).ok
    if accumulate:
        outputs.arrays["dx"][...] -= outputs.start["dx"]
        assert not check(problem, inputs, outputs).ok


@pytest.mark.parametrize("tensor", ["y", "mean", "rstd"])
def test_one_wrong_element_is_found_and_named(tensor: str) -> None:
    problem = made.forward(made.LAYERNORM, 30, 50)
    inputs, outputs = solved(problem)
    row = inputs.families.index("normal")
    at = (row, 17) if tensor == "y" else (row,)
    outputs.arrays[tensor][at] += 0.01
    found = check(problem, inputs, outputs)
    first = found.tensor(tensor).first_bad
    assert not found.ok
    assert [t.name for t in found.tensors if not t.ok] == [tensor]
    assert first is not None
    assert (first.row, first.col, first.family) == (row, at[1] if tensor == "y" else 0, "normal")
    assert first.got - first.want == pytest.approx(0.01, rel=1e-3)
    assert f"row {row}" in found.summary()
    assert found.tensor(tensor).bad == 1


def test_one_wrong_column_of_a_gradient_is_found() -> None:
    problem = made.backward(made.LAYERNORM, 30, 50)
    inputs, outputs = solved(problem)
    outputs.arrays["dweight"][31] *= 1.01
    first = check(problem, inputs, outputs, rows=5).tensor("dweight").first_bad
    assert first is not None
    assert (first.col, first.family) == (31, "columns")


def test_an_element_that_was_never_written_is_found() -> None:
    problem = made.forward(made.SOFTMAX, 12, 9)
    inputs, outputs = solved(problem)
    row = inputs.families.index("tail")
    outputs.arrays["y"][row, 8] = np.nan
    assert not check(problem, inputs, outputs).ok


@pytest.mark.parametrize(("family", "wrong"), [("nan", 0.0), ("inf", 0.5), ("normal", np.inf), ("zeros", np.nan)])
def test_non_finite_results_must_be_where_the_reference_has_them(family: str, wrong: float) -> None:
    problem = made.forward(made.LAYERNORM, 22, 9)
    inputs, outputs = solved(problem)
    outputs.arrays["y"][inputs.families.index(family), 3] = wrong
    found = check(problem, inputs, outputs).tensor("y")
    assert found.bad == 1
    assert found.first_bad is not None
    assert found.first_bad.family == family


def test_the_maximum_of_an_inf_row_must_be_inf_but_its_mean_may_be_nan() -> None:
    problem = made.forward(made.ROW_MAX_SUM, 22, 9)
    inputs, outputs = solved(problem)
    row = int(np.flatnonzero(np.isposinf(outputs.arrays["row_max"]))[0])
    outputs.arrays["row_max"][row] = np.nan
    assert not check(problem, inputs, outputs).ok
    problem = made.forward(made.LAYERNORM, 22, 9)
    inputs, outputs = solved(problem)
    outputs.arrays["mean"][inputs.families.index("inf")] = np.nan  # what Welford gives
    assert check(problem, inputs, outputs).ok


def judged(got: float, want: float, bound: float, dtype: DType) -> bool:
    stored = np.array([[got]]).astype(dtype.numpy)
    held, exact = stored.astype(np.float64), np.array([[want]])
    with np.errstate(invalid="ignore"):
        off = outside(stored, within_cells(exact, dtype), dtype)
        ratio, _ = _judged(held, exact, np.array([[bound]]), off, np.abs(held - exact), dtype)
    return bool(ratio.item() <= 1)


@pytest.mark.parametrize(("got", "is_right"), [(np.inf, True), (65504.0, True), (65472.0, False), (-np.inf, False)])
def test_at_the_edge_of_overflow_inf_and_the_largest_value_are_both_right(got: float, is_right: bool) -> None:
    assert judged(got, 65519.99, 0.02, F16) is is_right


def test_beyond_the_edge_of_overflow_the_largest_value_is_wrong() -> None:
    op = made.spec("scaled", {"y": "x * w"}, parameters={"w": None}, eps=None)
    problem = made.forward(op, 1, 3, "f16")
    inputs, outputs = make_inputs(problem, families=("normal",)), make_outputs(problem)
    inputs.arrays["x"][...] = np.array([[300.0, 300.0, 2.0]])
    inputs.arrays["w"][...] = np.array([300.0, -300.0, 3.0])
    outputs.arrays["y"][...] = np.array([[np.inf, -np.inf, 6.0]])
    assert check(problem, inputs, outputs).ok
    for wrong in ([-np.inf, -np.inf, 6.0], [65504.0, -np.inf, 6.0], [np.nan, -np.inf, 6.0], [np.inf, -np.inf, np.inf]):
        outputs.arrays["y"][...] = np.array([wrong])
        assert check(problem, inputs, outputs).tensor("y").bad == 1


@pytest.mark.parametrize(("got", "is_right"), [(np.inf, True), (-np.inf, True), (np.nan, False), (-6e4, True)])
def test_a_bound_that_reaches_beyond_the_dtype_takes_infinities_of_either_sign(got: float, is_right: bool) -> None:
    """0.8 ± 1e5 is stored in float16: where(a <= b, -1e5, 0.8), whose condition is open."""
    assert judged(got, 0.8, 1e5, F16) is is_right


def test_families_outside_the_contract_are_reported_but_not_fatal() -> None:
    narrow = made.spec(
        "layernorm",
        {f.name: f.text for f in made.LAYERNORM.formulas},
        parameters={"weight": "1", "bias": "0"},
        statistics=("mean", "rstd"),
        accuracy_rows=("normal", "zeros"),
    )
    problem = made.forward(narrow, 22, 16)
    inputs, outputs = solved(problem)
    outputs.arrays["y"][inputs.families.index("large_mean"), 2] += 100
    found = check(problem, inputs, outputs)
    assert found.ok
    assert found.tensor("y").outside == ("large_mean",)
    assert "outside the contract: large_mean" in found.summary()
    outputs.arrays["y"][inputs.families.index("zeros"), 2] += 1
    assert not check(problem, inputs, outputs).ok


def test_bytes_written_between_the_rows_fail_the_check() -> None:
    problem = made.forward(made.SOFTMAX, 4, 5, pitch=6)
    inputs, outputs = solved(problem)
    buffer = outputs.buffers["y"]
    buffer.storage[buffer.offset + 5 * 4] ^= 1
    found = check(problem, inputs, outputs)
    assert not found.ok
    assert found.overrun == ("y",)
    assert all(t.ok for t in found.tensors)


def test_a_tensor_that_was_not_asked_for_is_not_checked() -> None:
    problem = made.forward(made.LAYERNORM, 12, 5)
    inputs, outputs = solved(problem)
    found = check(problem, inputs, {"y": outputs.arrays["y"], "mean": None})
    assert [t.name for t in found.tensors] == ["y"]
    assert found.ok


def test_absent_parameters_take_their_formula() -> None:
    problem = made.forward(made.LAYERNORM, 12, 50, without=("weight", "bias"))
    inputs, outputs = solved(problem)
    assert set(inputs.arrays) == {"x"}
    assert check(problem, inputs, outputs).ok


def test_a_spec_without_a_reference_is_checked_against_its_formulas() -> None:
    l2 = made.spec("l2norm", {"y": "x * rsqrt(sum(x*x) + eps)"})
    problem = made.forward(l2, 33, 70, "bf16")
    inputs, outputs = make_inputs(problem), make_outputs(problem)
    with np.errstate(all="ignore"):
        outputs.arrays["y"][...] = interpret(l2, inputs.arrays, inputs.scalars)["y"].astype(outputs.arrays["y"].dtype)
    assert check(problem, inputs, outputs).ok
    outputs.arrays["y"][inputs.families.index("normal"), 0] *= 2
    assert not check(problem, inputs, outputs).ok


def test_a_backward_without_a_reference_is_checked_by_its_derived_program_or_given_formulas() -> None:
    l2 = made.spec("l2norm", {"r": "rsqrt(sum(x*x) + eps)", "y": "x * r"}, statistics=("r",))
    base = made.backward(made.RMSNORM, 11, 20)
    tensors = tuple(t for t in base.tensors if t.name in ("dx", "dy", "x"))
    problem = Problem(spec=l2, direction=Direction.BACKWARD, rows=11, cols=20, tensors=tensors, pitch=20)
    inputs, outputs = make_inputs(problem, families=("normal", "large_mean")), make_outputs(problem)
    x, dy = (inputs.arrays[n].astype(np.float64) for n in ("x", "dy"))
    r = 1 / np.sqrt((x * x).sum(axis=1, keepdims=True) + inputs.scalars["eps"])
    outputs.arrays["dx"][...] = r * dy - x * r**3 * (dy * x).sum(axis=1, keepdims=True)
    texts = [("r", "rsqrt(sum(x*x) + eps)"), ("dx", "r * dy - x * r**3 * sum(dy * x)")]
    for formulas in (None, texts):
        assert check(problem, inputs, outputs, formulas=formulas).ok
    outputs.arrays["dx"][1, 1] *= 1.01
    for formulas in (None, texts):
        assert check(problem, inputs, outputs, formulas=formulas).tensor("dx").bad == 1


def test_the_longest_chain_of_a_schedule_counts_its_terms_a_thread() -> None:
    problem = made.forward(made.ROW_SUM, 1, 4096)
    assert longest_chain(problem, Schedule(threads_per_row=1)) == 4096
    assert longest_chain(problem, Schedule(threads_per_row=32, vector=4)) == 32 + 2
    assert longest_chain(problem, Schedule(threads_per_row=256, cluster=2, vector=8)) == 2 + 4
    assert longest_chain(problem, Schedule(threads_per_row=256, vector=4, variance=VarianceMethod.WELFORD)) == 16 + 8


def test_picked_rows_hold_the_ends_and_every_family() -> None:
    families = tuple(make_inputs(made.forward(made.ROW_SUM, 1000, 2)).families)
    picked = pick_rows(families, 60, seed=1)
    assert len(picked) == len(set(picked.tolist())) == 60
    assert picked[0] == 0
    assert picked[-1] == 999
    assert {families[i] for i in picked} == set(families)
    assert pick_rows(families, None).tolist() == list(range(1000))
    assert pick_rows((), 5).size == 0


def test_4096_x_4096_takes_seconds_not_minutes_and_a_subset_far_less() -> None:
    """About 1.1 s on one 2024 server core; the limit leaves room for a loaded machine."""
    problem = made.forward(made.LAYERNORM, 4096, 4096)
    inputs, outputs = solved(problem, families=("normal", "large_mean"))
    began = time.process_time()
    assert check(problem, inputs, outputs).ok
    whole = time.process_time() - began
    began = time.process_time()
    assert check(problem, inputs, outputs, rows=128).rows_checked == 128
    assert time.process_time() - began < whole / 4
    assert whole < 10
