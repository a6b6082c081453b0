"""What the language says beyond sums and products, in kernels of both directions: branches, indices, roundings."""

from __future__ import annotations

import pytest

from normgen.codegen.module import Module
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.schedule.default import default_schedule
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
WITH_GRADIENT = SPECS[:5]  # a minimum that enters the result has no single gradient


def cases(direction: str) -> list[Case]:
    shapes = (("9x96", "f32"), ("11x97", "bf16"))
    specs = SPECS if direction == "forward" else WITH_GRADIENT
    problems = [problem_for(s, shape=shape, dtype=d, direction=direction) for s in specs for shape, d in shapes]
    return [(problem, default_schedule(problem, target("h200"))) for problem in problems]


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
