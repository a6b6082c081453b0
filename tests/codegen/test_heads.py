"""Parameters with a row for each head, whose rows take turns, and their gradients: as `test_batches` has batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen import verify
from normgen.choice.first import default_schedule
from normgen.cpu import build
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.errors import SpecError, UsageError, VerificationError
from normgen.knobs import ColumnWay
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.problem.words import options
from normgen.program.ir import Reduce, Statement
from normgen.program.source import problem_for, written_program
from normgen.records.questions import problem_of as problem_of_key
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse
from normgen.spec.spec import Spec
from tests.codegen.executors import CpuExecutor, GpuExecutor
from tests.codegen.layouts import BACKWARD_SETS, SETS, problem_of
from tests.codegen.matrix import report, wrong, wrong_backward
from tests.codegen.test_batches import SUMMED, cases

H200 = target("h200")
NORM = load("head_layernorm")
MIXED = parse("""
    name = "mixed"
    [tensors]
    x = "input"
    gate = { role = "head_parameter", dtypes = ["f32", "bf16"] }
    shift = { role = "head_parameter", optional = true, absent = "0" }
    weight = "parameter"
    row_scale = "row_input"
    channel = "head_input"
    rms = "statistic"
    y = "output"
    [formulas]
    h = "x * (1 + gate) + shift"
    rms = "sqrt(mean((h - mean(h))**2) + 1e-5)"
    y = "h / rms * weight * row_scale * channel"
    [backward]
    saved = ["rms"]
    """)
SCALED = parse("""
    name = "scaled"
    [tensors]
    x = "input"
    gate = "head_parameter"
    weight = "parameter"
    alpha = "scalar_parameter"
    y = "output"
    [formulas]
    y = "tanh(alpha * x) * weight + gate * x"
    """)
ALL = {direction: cases(direction, NORM, MIXED) for direction in ("forward", "backward")}


def test_kernels_are_right_on_the_cpu() -> None:
    found = list(wrong(ALL["forward"], CpuExecutor(), seed=0))
    assert not found, report(found, ALL["forward"])


def test_gradients_are_right_on_the_cpu() -> None:
    found = list(wrong_backward(ALL["backward"], CpuExecutor(), seed=0))
    assert not found, report(found, ALL["backward"])


@pytest.mark.gpu
def test_kernels_are_right_on_the_gpu() -> None:
    executor, every = GpuExecutor(), [*ALL["forward"], *ALL["backward"]]
    found = [*wrong(ALL["forward"], executor, seed=0), *wrong_backward(ALL["backward"], executor, seed=0)]
    assert not found, report(found, every)


def test_the_texts_compile_for_a_gpu() -> None:
    for problem, schedule in [*ALL["forward"][1:14:6], ALL["backward"][6]]:
        compile_module(emit(problem, schedule), H200.arch)


def test_every_way_to_sum_has_a_case() -> None:
    assert {str(schedule.columns) for _, schedule in ALL["backward"]} == set(SUMMED)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("spec", [NORM, MIXED], ids=lambda spec: spec.name)
def test_the_general_kernels_are_right(spec: Spec, direction: str) -> None:
    asked = {"dtype": "bf16", "align": 2 if spec is NORM else 4, "direction": direction}
    problem = problem_for(spec, shape="5x3x77", any_cols=True, **asked)
    general = [(problem, schedule) for schedule in fallback_schedules(problem)]
    found = list((wrong_backward if direction == "backward" else wrong)(general, CpuExecutor(), seed=0))
    assert not found, report(found, general)


CHECKED = {
    "forward": (NORM, {}),
    "a sum for each head": (NORM, {"direction": "backward"}),
    "and one over all rows": (MIXED, {"direction": "backward"}),
    "totals beside them": (SCALED, {"direction": "backward"}),
    "added to what is there": (MIXED, {"direction": "backward", "accumulate": True}),
    "atomics in order": (NORM, {"direction": "backward", "deterministic": True}),
}


@pytest.mark.parametrize("of", CHECKED)
def test_the_check_has_heads_of_every_number(of: str) -> None:
    spec, asked = CHECKED[of]
    problem = problem_for(spec, shape="12x4x64", **asked)
    own = {"columns": ColumnWay.ATOMIC, "threads_per_row": 32, "vector": 2, "persistent": 1}
    schedule = Schedule(**own) if problem.deterministic else default_schedule(problem, H200)
    assert refusal(problem, schedule, H200) is None
    found = check_on_cpu(problem, emit(problem, schedule), most_elements=1 << 16)
    assert found.ok, found.summary
    assert "  ok with a batch for each row" in found.summary
    if problem.sums_batches:
        assert "  ok at 0 rows" in found.summary


MISTAKES = {
    "the first head for all": ("forward", "batches_inverse) * batches", "0) * 1"),
    "as batches lie": ("forward", "valid_row - quotient(valid_row, batches_inverse) * batches",
                         "valid_row / max(rows / max(batches, 1), 1) % batches"),
    "the other tensor's pitch": ("forward", "bias + batch * bias_pitch",
                                 "bias + batch * weight_pitch"),
    "rows of the head behind": ("backward", "first_row = batch +", "first_row = batch + 1 +"),
    "rows that lie side by side": ("backward", "const int row = first_row + block_row * batches",
                                   "const int row = first_row + block_row"),
    "another head's partial rows": ("backward", "(batch * batch_rows)", "((batch + 1) % max(batches, 1) * batch_rows)"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_check_sees_the_rows_of_another_head(mistake: str) -> None:
    direction, right, other = MISTAKES[mistake]
    problem = problem_for(NORM, shape="12x4x64", direction=direction)
    module = emit(problem, default_schedule(problem, H200))
    assert right in module.text
    assert not check_on_cpu(problem, replace(module, text=module.text.replace(right, other)), most_elements=1 << 16).ok


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_awkward_layouts_have_a_legal_default(direction: str) -> None:
    for layout in (BACKWARD_SETS if direction == "backward" else SETS)["small"]:
        problem = problem_of(NORM, layout, "mixed16", direction)
        assert refusal(problem, default_schedule(problem, H200), H200) is None


def reference(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """[tokens, heads, cols] in float64; as transformers' CohereLayerNorm and ChameleonLayerNorm."""
    mean = x.mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + 1e-5) * weight + bias


def derivative(dy: np.ndarray, x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """dx, dweight and dbias of `reference`."""
    mean = x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + 1e-5)
    xhat, wdy = (x - mean) * rstd, dy * weight
    along = (wdy * xhat).mean(axis=-1, keepdims=True)
    return rstd * (wdy - wdy.mean(axis=-1, keepdims=True) - xhat * along), (dy * xhat).sum(axis=0), dy.sum(axis=0)


@pytest.mark.parametrize("heads", [1, 4, 6, 24])
def test_row_r_takes_row_r_modulo_heads(heads: int) -> None:
    """The same kernels for any number of heads, against numpy alone."""
    rng, rows = np.random.default_rng(3), 24
    x, dy = rng.standard_normal((2, rows, 64)).astype(np.float32)
    weight, bias = rng.standard_normal((2, heads, 64)).astype(np.float32)
    y, dx = np.empty((2, rows, 64), np.float32)
    dweight, dbias = np.empty((2, heads, 64), np.float32)
    sizes = {"rows": rows, "cols": 64, "rows_per_batch": rows // heads, "scalars": {"eps": 1e-5}}
    problem = problem_for(NORM, shape="6x4x64", without=["mean", "rstd"])
    forward = build(emit(problem, default_schedule(problem, H200)))
    assert forward.run({"x": x, "weight": weight, "bias": bias, "y": y}, **sizes).faults == ()
    wide = [a.astype(np.float64) for a in (x.reshape(-1, heads, 64), weight, bias, dy.reshape(-1, heads, 64))]
    want = reference(*wide[:3])
    np.testing.assert_allclose(y, want.reshape(rows, 64), rtol=1e-5, atol=1e-5)
    said = verify.interpret(NORM, {"x": x, "weight": weight, "bias": bias})["y"]
    np.testing.assert_allclose(said, want.reshape(rows, 64), rtol=1e-12, atol=1e-12)
    problem = problem_for(NORM, shape="6x4x64", without=["mean", "rstd"], direction="backward")
    backward = build(emit(problem, default_schedule(problem, H200)))
    given = {"dy": dy, "x": x, "weight": weight, "dx": dx, "dweight": dweight, "dbias": dbias}
    assert backward.run(given, **sizes).faults == ()
    for got, exact in zip((dx, dweight, dbias), derivative(wide[3], *wide[:2]), strict=True):
        np.testing.assert_allclose(got, exact.reshape(got.shape), rtol=1e-4, atol=1e-5)


def test_a_derived_gradient_is_proven_over_heads() -> None:
    problem = problem_for(MIXED, shape="2x4x96", direction="backward")
    program = written_program(problem)
    slopes = verify.prove(problem, program)
    assert {s.tensor for s in slopes} == {"x", "gate", "shift", "weight", "row_scale"}
    assert all(s.ok for s in slopes)
    half = replace(program, statements=tuple(map(_halved, program.statements)))
    with pytest.raises(VerificationError, match="the derived dgate of spec 'mixed' is not the derivative"):
        verify.prove(problem, half)


def _halved(statement: Statement) -> Statement:
    """dgate as half of what it is."""
    if isinstance(statement, Reduce) and statement.names == ("dgate",):
        return replace(statement, args=(statement.args[0] / 2,))
    return statement


# ---- the question ----------------------------------------------------------------------------------------------


def test_heads_are_the_last_size_but_one_or_said() -> None:
    assert [problem_for(NORM, shape=s).batches for s in ("8x4x32", "2x5x8x32", "32x32")] == [4, 8, 1]
    assert problem_for(NORM, shape="32x32", batches=4) == problem_for(NORM, shape=(8, 4, 32))


def test_a_question_is_asked_again_with_its_heads() -> None:
    problem: Problem = problem_for(NORM, shape="8x4x32", dtype="bf16")
    assert options(problem)[-2:] == ["--batches", "4"]
    assert problem_for(NORM, **problem.arguments()) == problem
    key = problem.question
    assert key.as_dict()["batches"] == 4
    assert problem_of_key(key, NORM) == problem


def test_heads_that_do_not_divide_the_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="the heads have equally many rows") as refused:
        problem_for(NORM, shape="32x32", batches=5)
    assert refused.value.received == "32 rows in 5 heads"


def test_rows_are_shared_out_in_one_way() -> None:
    text = 'name = "s"\n[tensors]\nx = "input"\na = "batch_parameter"\nb = "head_parameter"\ny = "output"\n'
    with pytest.raises(SpecError, match="of batches or of heads, not both") as refused:
        parse(text + '[formulas]\ny = "x * a + b"\n')
    assert refused.value.received == "head_parameter 'b', batch_parameter 'a'"
