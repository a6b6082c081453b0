"""What the language says beyond sums and products, in kernels of both directions: branches, indices, roundings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.choice.first import default_schedule
from normgen.codegen.module import Module
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.errors import SpecError, UsageError
from normgen.pipeline import emit
from normgen.program.lower import lower
from normgen.program.source import problem_for
from normgen.schedule.fallback import fallback_schedules
from normgen.spec.reader import parse
from normgen.spec.spec import Spec
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor, GpuExecutor
from tests.codegen.matrix import report, wrong, wrong_backward


def spec(name: str, tensors: str, formulas: str, rest: str = "") -> Spec:
    return parse(f'name = "{name}"\n[tensors]\nx = "input"\n{tensors}\ny = "output"\n[formulas]\n{formulas}\n{rest}')


SPECS = (
    spec("leaky", 'w = "parameter"', 'h = "where(x > 0, x, 0.1 * x)"\ny = "h * rsqrt(mean(h * h) + 1e-5) * w"'),
    spec(
        "masked_softmax",
        'm = "input"',
        'z = "where(m != 0 and x > -3, clamp(sin(x) * x, -2, 2), -inf)"\ne = "exp(z - max(z))"\ny = "e / sum(e)"',
    ),
    spec(
        "causal_softmax",
        "",
        'z = "where(col <= row % cols, x * 0.125, -inf)"\ne = "exp(z - max(z))"\ny = "e / sum(e)"',
    ),
    spec(
        "partial_norm",
        'w = "parameter"',
        'r = "rsqrt(sum(where(col < 40, x * x, 0)) / 40 + 1e-6)"\ny = "where(col < 40, x * r * w, x) + 0.001 * row"',
    ),
    spec("whole", "", 'y = "floor(x) + round(x * 0.5) * sign(x) - cos(x) + (0 < x <= 2 or not x < 5) - ceil(x)"'),
    spec("root", "", 'y = "x * (0.01 + abs(x))**(-1/3) + min(x)"', '[accuracy]\nrows = ["normal"]'),
)
ROWS = (
    parse("""
        name = "normalise"
        [tensors]
        x = "input"
        mean = "row_input"
        rstd = { role = "row_input", dtypes = ["bf16"] }
        weight = "parameter"
        bias = { role = "parameter", optional = true, absent = "0" }
        y = "output"
        [formulas]
        y = "(x - mean) * rstd * weight + bias"
        """),
    parse("""
        name = "cross_entropy"
        [tensors]
        x = "input"
        label = { role = "row_input", dtypes = ["i64", "i32"] }
        loss = "row_output"
        lse = { role = "row_output", dtypes = ["bf16"] }
        [formulas]
        top = "max(x)"
        lse = "top + log(sum(exp(x - top)))"
        loss = "where(label == -1, 0, lse - sum(where(col == label, x, 0)))"
        """),
    parse("""
        name = "llama_norm"
        [tensors]
        x = "input"
        residual = "input"
        weight = "parameter"
        h = "output"
        y = "output"
        [formulas]
        h = "cast(x + residual, x)"
        y = "cast(h * rsqrt(mean(h * h) + 1e-6), x) * weight"
        """),
)
STATIC = parse("""
    name = "norm_to_8_bits_static"
    [tensors]
    x = "input"
    weight = "parameter"
    scale = "scalar_input"
    q = { role = "output", dtypes = ["f8e4m3"] }
    [formulas]
    q = "x * rsqrt(mean(x * x) + 1e-6) * weight * (1 / scale)"
    """)
GROUPS = (
    parse("""
        name = "norm_to_8_bits"
        [tensors]
        x = "input"
        weight = "parameter"
        y = { role = "output", optional = true }
        q = { role = "output", dtypes = ["f8e4m3"] }
        scale = "group_statistic"
        [formulas]
        y = "x * rsqrt(mean(x * x) + 1e-6) * weight"
        scale = "maximum(absmax(cast(y, x), 64), 1e-4) / 448"
        q = "clamp(divide(cast(y, x), scale), -448, 448)"
        """),
    parse("""
        name = "group_quantise"
        [tensors]
        x = "input"
        q = { role = "output", dtypes = ["i8"] }
        scale = { role = "group_statistic", dtypes = ["bf16"] }
        low = "group_statistic"
        [formulas]
        low = "min(x, 32)"
        scale = "(max(x, 32) - low) / 255 + 1e-6"
        q = "(x - low) / scale - 128"
        """),
    parse("""
        name = "group_norm"
        [tensors]
        x = "input"
        y = "output"
        [formulas]
        m = "mean(x, 16)"
        v = "sum((x - m)**2) / cols"
        y = "(x - m) * rsqrt(v + 1e-5) * sum(x * x, 16)"
        """),
)
PARTLY_CONSTANT = parse("""
    name = "partly_constant"
    [tensors]
    x = "input"
    y = "output"
    [formulas]
    g = "constant(absmax(x, 16)) * mean(x * x)"
    y = "x * g + constant(x)"
    """)
WITH_GRADIENT = (*SPECS[:5], *ROWS)  # a minimum that enters the result has no single gradient


def cases(direction: str) -> list[Case]:
    shapes = (("9x96", "f32"), ("11x97", "bf16"))
    specs = (*SPECS, *ROWS) if direction == "forward" else WITH_GRADIENT
    problems = [problem_for(s, shape=shape, dtype=d, direction=direction) for s in specs for shape, d in shapes]
    problems += [problem_for(PARTLY_CONSTANT, shape="9x96", direction=direction)]
    if direction == "forward":
        grouped = (("9x192", "bf16"), ("5x1024", "f32"))
        problems += [problem_for(s, shape=shape, dtype=d) for s in (*GROUPS, STATIC) for shape, d in grouped]
    return [(problem, default_schedule(problem, target("h200"))) for problem in problems]


def test_casts_round_where_the_author_says_and_a_gradient_passes_through() -> None:
    (norm,) = (case for case in cases("forward") if case[0].spec.name == "llama_norm" and case[0].dtype.name == "bf16")
    problem, schedule = norm
    text = emit(problem, replace(schedule, keep="row")).text
    assert "h_i = rounded<bfloat16>(x_i + residual_i);" in text
    (gradient,) = (c for c in cases("backward") if c[0].spec.name == "llama_norm" and c[0].dtype.name == "bf16")
    assert list(gradient[0].results.items()) == [("dx", "dx"), ("dresidual", "dx"), ("dweight", "dweight")]


def test_labels_have_no_gradient_and_row_outputs_have_one() -> None:
    problem = problem_for(ROWS[1], shape="4x8", direction="backward")
    assert [(t.name, str(t.kind)) for t in problem.tensors] == [
        ("dx", "elem"),
        ("dloss", "row"),
        ("dlse", "row"),
        ("x", "elem"),
        ("label", "row"),
    ]
    assert problem.gradients is None


def test_the_general_kernel_of_groups_is_right_at_any_whole_groups() -> None:
    shapes = [(spec, shape) for spec in GROUPS for shape in ("5x192", "3x1088")]
    problems = [problem_for(spec, shape=shape, dtype="bf16", any_cols=True) for spec, shape in shapes]
    general = [(problem, fallback_schedules(problem)[0]) for problem in problems]
    found = list(wrong(general, CpuExecutor(), seed=0))
    assert not found, report(found, general)


GROUP_REFUSALS = {
    "absmax(x, 96)": "a power of two from 2 to 128",
    "absmax(x, 16) + absmax(x, 32)": "all groups of a spec have one size",
}


@pytest.mark.parametrize(("formula", "rule"), GROUP_REFUSALS.items())
def test_groups_that_no_kernel_has_are_refused(formula: str, rule: str) -> None:
    with pytest.raises(SpecError, match=rule):
        lower(spec("refused", "", f'y = "x / ({formula})"'))


def test_values_of_groups_lie_close_together_whatever_the_pitch_of_the_rows() -> None:
    problem = problem_for(GROUPS[0], shape="4x192", dtype="bf16", pitch=256)
    assert problem.pitches == {"y": 256, "q": 256, "scale": 3, "x": 256}


def test_cols_that_are_no_whole_groups_are_refused() -> None:
    with pytest.raises(UsageError, match="whole groups of 64"):
        problem_for(GROUPS[0], shape="4x96")


def modules() -> list[Module]:
    return [emit(problem, schedule) for direction in ("forward", "backward") for problem, schedule in cases(direction)]


def test_kernels_are_right_on_the_cpu() -> None:
    found = [*wrong(cases("forward"), CpuExecutor(), seed=0)]
    assert not found, report(found, cases("forward"))


def test_gradients_are_right_on_the_cpu() -> None:
    found = list(wrong_backward(cases("backward"), CpuExecutor(), seed=0))
    assert not found, report(found, cases("backward"))


@pytest.mark.gpu
def test_kernels_are_right_on_the_gpu() -> None:
    executor = GpuExecutor()
    forward, backward = cases("forward"), cases("backward")
    found = [*wrong(forward, executor, seed=0), *wrong_backward(backward, executor, seed=0)]
    assert not found, report(found, [*forward, *backward])


def test_conditions_and_branches_are_written_as_in_c() -> None:
    text = emit(*cases("forward")[2]).text
    assert "const float z_i = m_i != 0.0f && x_i > -3.0f ? minimum(maximum(" in text
    causal = emit(*cases("forward")[4]).text
    assert "const int col = vector * kVector + i;" in causal
    assert "const float z_i = col <= row % kCols ? " in causal.replace("valid_row", "row")


def test_the_texts_compile_for_a_gpu() -> None:
    for module in modules()[::3]:
        compile_module(module, target("h200").arch)
