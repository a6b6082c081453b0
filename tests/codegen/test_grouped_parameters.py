"""Parameters with one value for each group of columns: of all rows, of a batch, of a head; forward and backward."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, product

import numpy as np
import pytest

from normgen import verify
from normgen.choice.first import default_schedule
from normgen.cpu import build
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.errors import UsageError, VerificationError
from normgen.knobs import Params
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.ir import Map, Statement
from normgen.program.source import problem_for, written_program
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.legality import refusal
from normgen.schedule.plan import Plan
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import parse
from normgen.spec.spec import Spec
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor, GpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong, wrong_backward

H200 = target("h200")
ROLES = ("batch_parameter", "parameter", "head_parameter")
IN_REGISTERS = {"hold": "registers", "unroll": 0}
RING = {**IN_REGISTERS, "persistent": 1, "stages": 3}
EARLY, KEPT = {**IN_REGISTERS, "params": "early"}, {**IN_REGISTERS, "params": "kept"}


def of(role: str, group: int, stored: str = "f32") -> Spec:
    """A scale of this role and a weight for each `group` columns, beside a bias for each column."""
    return parse(f"""
        name = "grouped"
        [tensors]
        x = "input"
        scale = {{ role = "{role}", group = {group}, dtypes = ["{stored}"] }}
        weight = {{ role = "parameter", group = {group}, optional = true, absent = "1" }}
        bias = "parameter"
        rms = "statistic"
        y = "output"
        [scalars]
        eps = 1e-5
        [formulas]
        h = "x * scale"
        rms = "sqrt(mean((h - mean(h))**2) + eps)"
        y = "h / rms * weight + bias"
        [backward]
        saved = ["rms"]
        """)


# Which groups meet which vectors, where rows lie, and when parameters are read.
WAYS = {
    "a vector of one": ("7x3x12", "f32", 6, "f32", {"threads_per_row": 4, "rows_per_block": 8}),
    "vectors within groups": ("3x5x256", "bf16", 128, "f32", {"threads_per_row": 32, "vector": 8, **EARLY}),
    "groups within vectors": ("5x9x120", "bf16", 2, "f16", {"threads_per_row": 16, "rows_per_block": 2, "vector": 8}),
    "vectors across groups": ("4x3x120", "f32", 6, "bf16", {"threads_per_row": 32, "vector": 4, **EARLY}),
    "three groups in a vector": ("4x3x240", "bf16", 3, "f8e4m3", {"threads_per_row": 32, "vector": 8}),
    "bytes across groups": ("2x5x240", "f16", 20, "f8e8m0", {"threads_per_row": 32, "vector": 8, **IN_REGISTERS}),
    "pixels of a channel": ("2x4x784", "bf16", 196, "f32", {"threads_per_row": 64, "vector": 8, **EARLY}),
    "a group for each column": ("3x4x64", "f32", 1, "f32", {"threads_per_row": 16, "rows_per_block": 2, "vector": 4}),
    "one group a row": ("3x4x64", "f32", 64, "i8", {"threads_per_row": 16, "rows_per_block": 2, "vector": 4}),
    "a masked tail": ("3x4x123", "bf16", 41, "f32", {"threads_per_row": 32, "vector": 2, "edges": "masked"}),
    "a peeled head": ("3x4x1001", "f32", 13, "f16", {"threads_per_row": 64, "vector": 4, "edges": "peel", **EARLY}),
    "peeled vectors within groups": ("3x4x1000", "f32", 8, "f32",
                                     {"threads_per_row": 64, "vector": 4, "edges": "peel", **EARLY}),
    "peeled, small groups": ("3x4x250", "bf16", 2, "f16", {"threads_per_row": 32, "vector": 8, "edges": "peel"}),
    "peeled walkers": ("3x14x259", "bf16", 7, "f32",
                       {"threads_per_row": 32, "vector": 8, "edges": "peel", "persistent": 1}),
    "peeled and kept": ("3x14x259", "bf16", 37, "f8e8m0",
                        {"threads_per_row": 32, "vector": 8, "edges": "peel", "persistent": 1, **KEPT}),
    "a cluster a row": ("2x3x1024", "f32", 512, "f32", {"threads_per_row": 64, "cluster": 2, "vector": 4, **EARLY}),
    "packed in a ring": ("4x7x512", "bf16", 64, "bf16",
                         {"threads_per_row": 64, "vector": 8, **RING, "copy": "bulk", "params": "packed"}),
    "rows ahead": ("4x7x480", "f32", 96, "f32", {"threads_per_row": 64, "vector": 4, **RING, "stages": 2}),
    "a slot in shared memory": ("2x5x960", "bf16", 24, "f32",
                                {"threads_per_row": 128, "vector": 4, "hold": "shared", "unroll": 1}),
    "a pivot": ("3x4x96", "f32", 12, "f32", {"threads_per_row": 32, "vector": 1, "variance": "shifted"}),
    "early in a chain": ("2x4x256", "bf16", 64, "f32",
                         {"threads_per_row": 32, "vector": 8, **EARLY, "dependent_launch": "loads"}),
}  # fmt: skip
LAYOUT = {"peeled vectors within groups": {"pitch": 1001, "align": 4}, "peeled, small groups": {"align": 2},
          "a masked tail": {"pitch": 124}, "a peeled head": {"align": 4}, "peeled walkers": {"align": 2},
          "peeled and kept": {"pitch": 261, "align": 2}}  # fmt: skip


def cases(direction: str) -> list[Case]:
    """Each way once, with one role after the other."""
    found: list[Case] = []
    first = ROLES if direction == "forward" else ROLES[1:] + ROLES[:1]
    for (name, (shape, dtype, group, stored, knobs)), role in zip(WAYS.items(), cycle(first), strict=False):
        asked = {**LAYOUT.get(name, {}), "direction": direction}
        problem = problem_for(of(role, group, stored), shape=shape, dtype=dtype, **asked)
        schedule = Schedule(**knobs)
        if direction == "backward":
            schedule = replace(schedule, variance=Schedule().variance, unroll=0)
            schedule = replace(schedule, persistent=max(1, schedule.persistent))
            schedule = schedule if schedule.params is not Params.EARLY else replace(schedule, params=Params.KEPT)
            schedule = replace(schedule, dependent_launch=Schedule().dependent_launch)
        elif schedule.chained:
            problem = replace(problem, stable_parameters=True)
        assert refusal(problem, schedule, DEVICE) is None, (name, refusal(problem, schedule, DEVICE))
        found.append((problem, schedule))
    return found


def test_kernels_are_right_on_the_cpu() -> None:
    every = cases("forward")
    found = list(wrong(every, CpuExecutor(), seed=0))
    assert not found, report(found, every)


def test_gradients_are_right_on_the_cpu() -> None:
    every = cases("backward")
    found = list(wrong_backward(every, CpuExecutor(), seed=0))
    assert not found, report(found, every)


@pytest.mark.gpu
def test_kernels_are_right_on_the_gpu() -> None:
    executor, forward, backward = GpuExecutor(), cases("forward"), cases("backward")
    found = [*wrong(forward, executor, seed=0), *wrong_backward(backward, executor, seed=0)]
    assert not found, report(found, [*forward, *backward])


def test_the_texts_compile_for_a_gpu() -> None:
    forward, backward = cases("forward"), cases("backward")
    for problem, schedule in (*forward[1:12:5], backward[4]):
        compile_module(emit(problem, schedule), H200.arch)


def test_groups_and_vectors_meet_in_every_way() -> None:
    """Vectors within a group, of whole groups, across their ends; aligned and not."""
    met = set()
    for problem, schedule in cases("forward"):
        group, vector = problem.tensor("scale").group, schedule.vector
        how = "within" if group % vector == 0 else "whole" if vector % group == 0 else "across"
        met.add((how, "peel" if schedule.peels else "aligned"))
    assert met == set(product(("within", "whole", "across"), ("aligned", "peel")))


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("role", ROLES)
def test_the_general_kernels_are_right(role: str, direction: str) -> None:
    spec = of(role, 7)
    problem = problem_for(spec, shape="5x3x77", dtype="bf16", any_cols=True, align=2, direction=direction)
    general = [(problem, schedule) for schedule in fallback_schedules(problem)]
    found = list((wrong_backward if direction == "backward" else wrong)(general, CpuExecutor(), seed=0))
    assert not found, report(found, general)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("role", ROLES)
def test_the_check_runs_calls_of_every_kind(role: str, direction: str) -> None:
    """Own pitches, rows beyond 2^31 elements of the scale, other numbers of batches, and no byte behind a group."""
    problem = problem_for(of(role, 20), shape="12x4x120", dtype="bf16", direction=direction)
    found = check_on_cpu(problem, emit(problem, default_schedule(problem, H200)), most_elements=1 << 16)
    assert found.ok, found.summary
    if role != "parameter":
        assert "scale" in found.verified.own_pitches
        assert "  ok with rows of scale beyond 2^31 elements" in found.summary
        assert "  ok with a batch for each row" in found.summary


MISTAKES = {
    "the group behind": ("column / G;", "column / G + 1;"),
    "each vector starts a group": ("G - column % G;", "G;"),
    "the first element's group for all": ("if (!kOneGroup && left == 0)", "if (false)"),
    "a column late": ("left == 0", "left == -1"),
    "a byte behind the last group": ("--left;", "if (--left == 0) read<1>(group + 1);"),
    "the other tensor's pitch": ("batch * scale_pitch", "batch * x_pitch"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_check_sees_another_group(mistake: str) -> None:
    right, other = MISTAKES[mistake]
    problem = problem_for(of("batch_parameter", 20), shape="12x4x120", dtype="bf16")
    module = emit(problem, replace(default_schedule(problem, H200), vector=8))  # two groups in one vector
    assert right in module.text
    assert not check_on_cpu(problem, replace(module, text=module.text.replace(right, other)), most_elements=1 << 16).ok


# ---- numpy alone -----------------------------------------------------------------------------------------------


def reference(x: np.ndarray, scale: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """y and rms in float64, of scales and weights as each element has them."""
    h = x * scale
    rms = np.sqrt(((h - h.mean(axis=1, keepdims=True)) ** 2).mean(axis=1, keepdims=True) + 1e-5)
    return h / rms * weight + bias, rms


@pytest.mark.parametrize("group", [1, 6, 20, 40, 120])
@pytest.mark.parametrize("role", ROLES)
def test_column_c_has_value_c_over_group(role: str, group: int) -> None:
    """The kernel and the reference of the check, against numpy alone; dx and dscale by a central difference."""
    rng, rows, cols, batches = np.random.default_rng(3), 12, 120, 4
    groups = cols // group
    x, dy = rng.standard_normal((2, rows, cols)).astype(np.float32)
    weight = rng.standard_normal(groups).astype(np.float32)
    scale = rng.standard_normal(groups if role == "parameter" else (batches, groups)).astype(np.float32)
    bias = rng.standard_normal(cols).astype(np.float32)
    rows_of = {"parameter": 0, "batch_parameter": np.arange(rows) // 3, "head_parameter": np.arange(rows) % batches}
    column = np.arange(cols) // group
    each = np.atleast_2d(scale)[np.broadcast_to(rows_of[role], rows)][:, column].astype(np.float64)

    def exact(x: np.ndarray, each: np.ndarray = each) -> np.ndarray:
        return reference(x, each, weight[column].astype(np.float64), bias)[0]

    spec = of(role, group)
    sizes = {"rows": rows, "cols": cols, "scalars": {"eps": 1e-5}} | (
        {} if role == "parameter" else {"rows_per_batch": rows // batches}
    )
    given = {"x": x, "scale": scale, "weight": weight, "bias": bias}
    problem = problem_for(spec, shape=(rows, cols), **({} if role == "parameter" else {"batches": batches}))
    y, rms = np.empty((rows, cols), np.float32), np.empty(rows, np.float32)
    assert (
        build(emit(problem, default_schedule(problem, H200))).run({**given, "y": y, "rms": rms}, **sizes).faults == ()
    )
    np.testing.assert_allclose(y, exact(x.astype(np.float64)), rtol=1e-4, atol=1e-5)
    said = verify.interpret(spec, {name: value.astype(np.float64) for name, value in given.items()})["y"]
    np.testing.assert_allclose(said, exact(x.astype(np.float64)), rtol=1e-12, atol=1e-12)
    backward = problem_for(spec, **{**problem.arguments(), "direction": "backward"})
    found = {"dx": x, "dbias": bias, "dscale": scale, "dweight": weight}
    found = {name: np.empty_like(like) for name, like in found.items()}
    given = {t.name: {**given, "dy": dy, "rms": rms}[t.name] for t in backward.tensors if not t.is_written}
    module = emit(backward, default_schedule(backward, H200))
    assert build(module).run({**given, **found}, **sizes).faults == ()
    along = rng.standard_normal((rows, cols))
    near = (exact(x + 1e-4 * along) - exact(x - 1e-4 * along)) / 2e-4
    np.testing.assert_allclose((found["dx"] * along).sum(axis=1), (dy * near).sum(axis=1), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found["dbias"], dy.sum(axis=0), rtol=1e-5, atol=1e-5)
    by_weight = dy * (exact(x) - bias) / weight[column]
    np.testing.assert_allclose(found["dweight"], in_groups(by_weight.sum(axis=0), group), rtol=1e-3, atol=1e-4)
    for index in np.ndindex(scale.shape):  # one group after the other
        step = np.zeros(scale.shape)
        step[index] = 1e-4
        step = np.atleast_2d(step)[np.broadcast_to(rows_of[role], rows)][:, column]
        slope = (dy * (exact(x, each + step) - exact(x, each - step))).sum() / 2e-4
        np.testing.assert_allclose(found["dscale"][index], slope, rtol=2e-3, atol=2e-3)


def in_groups(columns: np.ndarray, group: int) -> np.ndarray:
    """The sums of neighbouring columns."""
    return np.array([columns[first : first + group].sum() for first in range(0, len(columns), group)])


def test_a_null_weight_stands_for_its_number() -> None:
    rng, rows, cols = np.random.default_rng(4), 6, 77
    x, bias = rng.standard_normal((rows, cols)).astype(np.float32), rng.standard_normal(cols).astype(np.float32)
    scale, weight = rng.standard_normal((3, 11)).astype(np.float32), rng.standard_normal(11).astype(np.float32)
    problem = problem_for(of("batch_parameter", 7), shape=(rows, cols), batches=3, any_cols=True)
    each = np.repeat(scale, 2, axis=0)[:, np.arange(cols) // 7].astype(np.float64)
    for schedule in fallback_schedules(problem):
        kernel, y = build(emit(problem, schedule)), np.empty((rows, cols), np.float32)
        for given, wide in ((weight, weight[np.arange(cols) // 7].astype(np.float64)), (None, np.ones(cols))):
            arrays = {"x": x, "scale": scale, "weight": given, "bias": bias, "y": y, "rms": np.empty(rows, np.float32)}
            assert kernel.run(arrays, rows=rows, cols=cols, rows_per_batch=2, scalars={"eps": 1e-5}).faults == ()
            want = reference(x.astype(np.float64), each, wide, bias)[0]
            np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def test_block_scales_of_a_quantised_weight() -> None:
    """Blocks of 8 x 32: a batch of 8 rows, groups of 32 columns."""
    spec = parse("""
        name = "dequantised"
        [tensors]
        q = { role = "input", dtypes = ["i8"] }
        scale = { role = "batch_parameter", group = 32, dtypes = ["f32"] }
        y = { role = "output", dtypes = ["f32"] }
        [formulas]
        y = "q * scale"
        """)
    rng = np.random.default_rng(5)
    q, scale = rng.integers(-127, 128, (24, 96)).astype(np.int8), rng.random((3, 3)).astype(np.float32)
    problem, y = problem_for(spec, shape=(24, 96), dtype="i8", batches=3), np.empty((24, 96), np.float32)
    kernel = build(emit(problem, default_schedule(problem, H200)))
    assert kernel.run({"q": q, "scale": scale, "y": y}, rows=24, cols=96, rows_per_batch=8).faults == ()
    np.testing.assert_array_equal(y, q * np.kron(scale, np.ones((8, 32), np.float32)))


# ---- what follows from the groups ------------------------------------------------------------------------------


def test_values_of_groups_ask_for_no_alignment() -> None:
    """Nor are they asked for ahead: they are few, and no whole units of 16 bytes."""
    problem = problem_for(of("parameter", 20), shape="64x120", dtype="bf16", without=["weight"])
    assert [t.name for t in problem.vector_parameters] == ["bias"]
    assert problem.pitches == {"x": 120, "y": 120}
    plan = Plan(
        problem=problem, program=written_program(problem), schedule=Schedule(**IN_REGISTERS, params="prefetched")
    )
    assert [load.name for load in plan.col_params] == ["scale", "bias"]
    assert [load.name for load in plan.asked_params] == ["bias"]
    alone = parse("""
        name = "alone"
        [tensors]
        x = "input"
        scale = { role = "parameter", group = 20 }
        y = "output"
        [formulas]
        y = "x * scale"
        """)
    schedule = Schedule(threads_per_row=32, vector=4, **IN_REGISTERS, params="prefetched")
    assert "nothing to ask for ahead" in str(refusal(problem_for(alone, shape="64x120"), schedule, H200))


def test_a_derived_gradient_is_proven_over_groups() -> None:
    problem = problem_for(of("batch_parameter", 20), shape="2x4x120", direction="backward")
    program = written_program(problem)
    slopes = verify.prove(problem, program)
    assert {s.tensor for s in slopes} == {"x", "scale", "weight", "bias"}
    assert all(s.ok for s in slopes)
    other = replace(program, statements=tuple(map(_scaled, program.statements)))
    with pytest.raises(VerificationError, match="the derived dx of spec 'grouped' is not the derivative"):
        verify.prove(problem, other)


def _scaled(statement: Statement) -> Statement:
    """dx as half of what it is."""
    return (
        replace(statement, expr=statement.expr / 2)
        if isinstance(statement, Map) and statement.name == "dx"
        else statement
    )


@pytest.mark.parametrize("dtype", ["i8", "f8e8m0"])
def test_codes_of_groups_have_no_gradient(dtype: str) -> None:
    spec = of("batch_parameter", 20, dtype)
    assert list(problem_for(spec, shape="4x2x120", direction="backward").results) == ["dx", "dweight", "dbias"]
    assert spec.tensor("scale").why_no_gradient in ("whole numbers have none", "powers of two have none")


def test_cols_are_whole_groups_of_each_size() -> None:
    spec = parse(of("parameter", 20).text.replace('bias = "parameter"', 'bias = { role = "parameter", group = 6 }'))
    assert (spec.groups, spec.whole_cols) == ((20, 6), 60)
    problem: Problem = problem_for(spec, shape="4x120")
    assert problem.shape_of(problem.tensor("bias")) == (20,)
    for cols, group in ((20, 6), (66, 20)):
        with pytest.raises(UsageError, match=f"needs cols that are whole groups of {group}") as refused:
            problem_for(spec, shape=(4, cols))
        assert refused.value.received == str(cols)
