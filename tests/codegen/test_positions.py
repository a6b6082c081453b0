"""The column of a row's extremum, and the element in a column: argmax, argmin, take."""

from __future__ import annotations

import random
import re
from itertools import groupby

import numpy as np
import pytest

from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.errors import SpecError, UsageError
from normgen.pipeline import emit
from normgen.problem.problem import MOST_NUMBERED
from normgen.program.source import problem_for
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse
from normgen.verify import interpret, make_inputs, make_outputs
from tests.codegen.covering import Case, ways
from tests.codegen.executors import CpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong, wrong_backward
from tests.samples import is_full

FOUND = parse("""
    name = "found"
    [tensors]
    x = "input"
    w = "parameter"
    label = { role = "row_input", dtypes = ["i64", "i32"] }
    best = { role = "row_output", dtypes = ["i64"] }
    worst = { role = "row_output", dtypes = ["i32"] }
    chosen = "row_output"
    at = "statistic"
    y = "output"
    [formulas]
    best = "argmax(x)"
    worst = "argmin(x * w)"
    at = "argmax(where(col % 3 == 1, x, -inf))"
    chosen = "take(x * w, label)"
    y = "where(col == best, 1, exp(x - max(x))) + take(x, best) / sum(abs(x)) - (col == at)"
    """)
TOP = parse("""
    name = "top_and_loss"
    [tensors]
    x = "input"
    w = "parameter"
    label = { role = "row_input", dtypes = ["i64"] }
    best = { role = "row_output", dtypes = ["i32"] }
    loss = "row_output"
    y = "output"
    [formulas]
    best = "argmax(x)"
    top = "max(x)"
    loss = "where(label == -1, 0, top + log(sum(exp(x - top))) - take(x, label))"
    y = "x * w - take(x, best)"
    """)
SHAPES = (("7x96", "f32"), ("11x97", "bf16"), ("5x520", "bf16"))


def cases(direction: str) -> list[Case]:
    spec = FOUND if direction == "forward" else TOP
    problems = [problem_for(spec, shape=shape, dtype=dtype, direction=direction) for shape, dtype in SHAPES]
    found = [case for problem in problems for case in ways(problem, DEVICE, random.Random(problem.cols))]
    if direction == "forward":
        general = problem_for(spec, shape="5x123", any_cols=True)
        found += [(general, schedule) for schedule in fallback_schedules(general)]
    if is_full():
        return found
    by_strategy = sorted(found, key=lambda case: case[1].strategy)
    groups = [list(group) for _, group in groupby(by_strategy, key=lambda case: case[1].strategy)]
    return [case for group in groups for case in group[::2]]  # whatever the draw, each strategy is among the half


def test_columns_are_found_by_every_strategy() -> None:
    drawn = cases("forward")
    strategies = {schedule.strategy for _, schedule in drawn}
    assert strategies == {"thread_per_row", "warp_per_row", "block_per_row", "cluster_per_row"}
    found = list(wrong(drawn, CpuExecutor(), seed=0))
    assert not found, report(found, drawn)


def test_gradients_pass_to_the_elements_that_were_taken() -> None:
    drawn = cases("backward")
    assert [t.name for t in drawn[0][0].tensors] == ["dx", "dw", "dy", "dloss", "x", "w", "label"]
    found = list(wrong_backward(drawn, CpuExecutor(), seed=0))
    assert not found, report(found, drawn)


ROWS = {  # argmax, argmin
    (1.0, 3.0, 3.0, -2.0, -2.0): (1, 3),
    (np.nan, 9.0, np.nan, 1.0, 2.0): (0, 0),
    (5.0, np.inf, np.nan, -np.inf, np.nan): (2, 2),
    (-np.inf, -np.inf, -np.inf, -np.inf, -np.inf): (0, 0),
    (0.0, -0.0, 0.0, -0.0, 0.0): (0, 0),
    (np.inf, np.inf, -1.0, np.inf, -np.inf): (0, 4),
}


def test_the_first_of_equal_ones_is_found_and_nan_goes_first() -> None:
    spec = parse("""
        name = "ends"
        [tensors]
        x = "input"
        low = { role = "row_output", dtypes = ["i32"] }
        high = { role = "row_output", dtypes = ["i64"] }
        [formulas]
        low = "argmin(x)"
        high = "argmax(x)"
        """)
    problem = problem_for(spec, shape=(len(ROWS), 5))
    drawn = ways(problem, DEVICE, random.Random(0))
    inputs = make_inputs(problem)
    inputs.arrays["x"][...] = list(ROWS)
    for kernel in CpuExecutor().build([emit(*case) for case in drawn]):
        outputs = make_outputs(problem)
        assert not kernel.run(inputs, outputs)
        found = zip(outputs.arrays["high"].tolist(), outputs.arrays["low"].tolist(), strict=True)
        assert list(found) == list(ROWS.values())


@pytest.mark.parametrize("dtype", ["i64", "f32"])
@pytest.mark.parametrize("beside", ["", "top = { role = 'row_output' }"])  # reduced: y is a load
def test_an_index_outside_of_the_row_takes_0_and_nothing_else_leaks(beside: str, dtype: str) -> None:
    spec = parse(f"""
        name = "taken"
        [tensors]
        x = "input"
        label = {{ role = "row_input", dtypes = ["{dtype}"] }}
        y = "row_output"
        {beside}
        [formulas]
        y = "take(x, label)"
        {beside and "top = 'max(x)'"}
        """)
    x = np.array([[1.0, np.nan, 3.0], [np.inf, 5.0, -np.inf], [7.0, 8.0, np.nan], [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    label = np.array([[2], [1], [-1], [3], [1.5 if dtype == "f32" else -100]])
    want = [3.0, 5.0, 0.0, 0.0, 0.0]
    np.testing.assert_array_equal(interpret(spec, {"x": x, "label": label})["y"], want)
    problem = problem_for(spec, shape=x.shape)
    inputs, outputs = make_inputs(problem), make_outputs(problem)
    inputs.arrays["x"][...], inputs.arrays["label"][...] = x, label[:, 0]
    (kernel,) = CpuExecutor().build([emit(*ways(problem, DEVICE, random.Random(0))[0])])
    assert not kernel.run(inputs, outputs)
    np.testing.assert_array_equal(outputs.arrays["y"], want)


@pytest.mark.parametrize(("cols", "vector", "edges"), [(24, 4, "exact"), (24, 1, "exact"), (23, 4, "peel")])
def test_a_vector_is_compared_with_a_label_that_it_holds_and_no_other(cols: int, vector: int, edges: str) -> None:
    """Of a softmax less one at the label each row is positive everywhere else; a masked row is 0."""
    problem = problem_for(load("cross_entropy_grad"), shape=(cols + 1, cols), without=["lse"])
    cut = Schedule(threads_per_row=8, rows_per_block=4, vector=vector, edges=edges, hold="registers", unroll=0)
    module = emit(problem, cut)
    assert ("} else {" in module.text) == (vector > 1)
    assert len(re.findall("== label_place", module.text)) == (
        1 if edges == "exact" else 2
    )  # a peeled row's edge has one of its own
    inputs, outputs = make_inputs(problem), make_outputs(problem)
    inputs.arrays["x"][...] = np.random.default_rng(cols).normal(size=(cols + 1, cols))
    inputs.arrays["label"][...] = [*range(cols), -100]
    inputs.arrays["grad_scale"][...] = 1.0
    (kernel,) = CpuExecutor().build([module])
    assert not kernel.run(inputs, outputs)
    found = outputs.arrays["dlogits"]
    np.testing.assert_array_equal(found < 0, np.eye(cols + 1, cols, dtype=bool))
    np.testing.assert_array_equal(found[cols], 0.0)


REFUSED = {
    "take(x, x)": "take\\(x, index\\) has one index for each row",
    "take(x, col)": "take\\(x, index\\) has one index for each row",
    "argmax(x, 16)": "argmax takes 1 argument",
    "argmin(w)": "argmin reduces a row, so it reads a row input",
    "topk(x)": "not supported: a row in order; argmax",
    "gather(x, 1)": "write take\\(x, index\\)",
}


@pytest.mark.parametrize(("formula", "rule"), REFUSED.items())
def test_what_is_no_position_is_refused(formula: str, rule: str) -> None:
    with pytest.raises(SpecError, match=rule):
        parse(
            f'name = "a"\n[tensors]\nx = "input"\nw = "parameter"\ny = "output"\n[formulas]\ny = "x * w * {formula}"\n'
        )


def test_columns_whose_numbers_float32_does_not_hold_are_refused() -> None:
    assert problem_for(FOUND, shape=(1, MOST_NUMBERED)).cols == MOST_NUMBERED
    with pytest.raises(UsageError, match="numbers columns in float32"):
        problem_for(FOUND, shape=(1, MOST_NUMBERED + 1))


def test_a_spec_whose_only_outputs_are_whole_numbers_has_no_backward_pass() -> None:
    spec = parse(
        'name = "a"\n[tensors]\nx = "input"\nbest = { role = "row_output", dtypes = ["i64"] }\n'
        '[formulas]\nbest = "argmax(x)"\n'
    )
    with pytest.raises(SpecError, match="a backward pass needs an output"):
        problem_for(spec, shape="4x8", direction="backward")


def test_the_texts_compile_for_a_gpu() -> None:
    for case in cases("forward")[::3]:
        compile_module(emit(*case), target("h200").arch)
