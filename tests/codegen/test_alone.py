"""Kernels of one schedule, as a reader gets them: what their Config settles is written out, nothing else changes."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from normgen.choice.first import default_schedule
from normgen.codegen.config.constants import Known, outside, value
from normgen.codegen.spelling import words
from normgen.cpu import find_compiler
from normgen.device import target
from normgen.errors import CompileError
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit, emit_alone
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse
from tests.codegen.digests import kept_cases, problem_asked
from tests.codegen.same_code import code_of
from tests.samples import sized

KNOWN = {"kRows": 1, "kSize": 64, "kVector": 4, "kSteps": 3}
SAME = 0.9  # of the kernels at least so many are the same machine code
CHOICE = """
name = "choice"
[tensors]
x = "input"
w = "parameter"
y = "output"
[formulas]
s = "sum(x)"
y = "(x - where(s > 0, s, 3 * s) / cols) * w + where(x > 0, x, -x) / cols"
"""
TEMPLATE = re.compile(r"\bConfig\b|\btemplate <class|\btypename\b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kEven || vector < kVectors", "true"),
        ("kRows == 1 || row < rows", "true"),
        ("kRows != 1 && row < rows", "false"),
        ("kRows == 1 && row < rows", "row < rows"),
        ("kSize < 32 ? __any_sync(0xffffffffu, !(a >= 0.0f)) : !(a >= 0.0f)", "!(a >= 0.0f)"),
        ("blockIdx.x * kRows + 0", "blockIdx.x"),
        ("((rows - 1) / kRows - blockIdx.x) * kRows + slot", "rows - 1 - blockIdx.x + slot"),
        ("(cols == 3 ? a : b) - slot", "(cols == 3 ? a : b) - slot"),
        ("(a & b) + slot", "(a & b) + slot"),
        ("slot - (a - b)", "slot - (a - b)"),
        ("sums[kSize < 32 ? static_cast<int>(threadIdx.x / 32) : slot][0][i]", "sums[slot][0][i]"),
        ("f(row, kSize > 32 ? a : b) - 0", "f(row, a)"),
        ("x + static_cast<long long>(valid_row) * pitch", "x + static_cast<long long>(row) * pitch"),
        ("a ? b ? 1 : 2 : c", "a ? b ? 1 : 2 : c"),
        ("kEven || k < kInner ? read(x) : 0.0f", "read(x)"),
        ("k < 4 && kRows == 1 ? x : y", "k < 4 ? x : y"),
        ("kSteps - 1", "kSteps - 1"),  # a number keeps its name
        ("1.0f / kVector", "1.0f / kVector"),
        ("(x_i - row_mean) * row_rstd * weight_i", "(x_i - row_mean) * row_rstd * weight_i"),
        ("0 - x", "0 - x"),
        ("0 + 0 - x", "0 - x"),
        ("0 * kSize + 0 * kSize + i", "i"),
        ("0 * x + 0 * y", "0"),
        ("cols < cols ? a : b", "b"),
        ("own = [&](int i) { return at + i * kSize + i % kRows; }", "own = [&](int i) { return at + i * kSize; }"),
        ("return 0 * x", "return 0"),
        ("x % kRows", "0"),
        ("Team::row(f(a, b), rows)", "f(a, b)"),
        ("read<kVector, Load>(x_row)", "read<kVector, NoAllocate>(x_row)"),
        ("þx!_row + own", "þx!_row + own"),
    ],
)
def test_what_is_known_is_written_out(text: str, said: str) -> None:
    names = {"valid_row": "row", "Load": "NoAllocate", "kEven": "true"}
    assert Known(KNOWN, names, {"Team::row": "{0}"}).text(text) == said


def test_what_stands_for_a_call_has_its_arguments_whole() -> None:
    known = Known(KNOWN, {}, {"Division::of": "({0} / {1})", "Team::row": "{0}"})
    asked = {
        "Division::of(a > b ? a : b, n)": "((a > b ? a : b) / n)",
        "Division::of(a * b, n)": "(a * b / n)",
    }
    assert {text: known.text(text) for text in asked} == asked


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_mean_of_a_choice(direction: str) -> None:
    spec = parse(CHOICE, file="choice.toml")
    problem = problem_for(spec, shape="37x123", direction=direction)
    checked = check_on_cpu(problem, emit_alone(problem, default_schedule(problem, target("h200"))))
    assert checked.ok, checked.summary


def test_numbers_of_constants() -> None:
    asked: dict[str, int | None] = {
        "(kSize + 31) / 32 * 32": 64, "kVector < 4 ? kVector : 5": 5, "kSize % 3 == 1 && !(kRows > 1)": 1,
        "10 - 3 - 2": 5, "kSteps * (kVector - 1)": 9, "rows / 2": None, "kSize / 0": None, "(1 - 2) / 2": None,
        "kRows == 1 ? kSize : rows": 64,
    }  # fmt: skip
    assert {text: value(text, KNOWN) for text in asked} == asked
    assert outside("a - (b - c) - d[i - 1]", (" - ",)) == [("", "a"), (" - ", "(b - c)"), (" - ", "d[i - 1]")]


def drawn(count: int, seed: int) -> list[tuple[Problem, Schedule]]:
    cases = [
        (problem_asked(question), Schedule(**knobs))
        for question, knobs in random.Random(seed).sample(kept_cases(), count)
    ]
    return [(problem, schedule) for problem, schedule in cases if problem.rows * problem.cols <= 1 << 18]


def test_no_template_is_left() -> None:
    """Whatever the strategy: its text asks no Config, and declares nothing that nobody reads."""
    for problem, schedule in drawn(sized(60, 600), 3):
        module = emit_alone(problem, schedule)
        own = module.text[module.text.index("__global__") :]
        assert not TEMPLATE.search(own), f"{problem} {schedule}\n{own}"
        assert "if (true)" not in own
        assert "if (false)" not in own
        assert all(kernel.config == "" for kernel in module.kernels)
        counted = [word for word, _ in words(own.split("{", 1)[1])]
        assert counted.count("parity") != 2, own
        assert module.launches == emit(problem, schedule).launches


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_they_are_right() -> None:
    """On the CPU executor, against the reference, as any kernel is."""
    for problem, schedule in drawn(sized(12, 120), 4):
        checked = check_on_cpu(problem, emit_alone(problem, schedule))
        assert checked.ok, f"{problem} {schedule}\n{checked.summary}"


def test_they_are_mostly_the_machine_code_of_the_template() -> None:
    cases = drawn(sized(30, 300), 5)
    same = 0
    for problem, schedule in cases:
        try:
            want = code_of(emit(problem, schedule))
        except CompileError:  # of instructions that this NVRTC does not know
            continue
        same += code_of(emit_alone(problem, schedule)) == want
    assert same >= SAME * len(cases), f"{same} of {len(cases)}"


def lines_to_last(op: str, **asked: Any) -> int:
    problem = problem_for(load(op), **asked)
    text = emit_alone(problem, default_schedule(problem, target("h200"))).text
    return text[text.index("struct Pass1") : text.index("// Last pass")].count("\n")


def test_a_kernel_is_read_on_two_screens() -> None:
    assert lines_to_last("layernorm", shape="8192x768", dtype="bf16", direction="backward") <= 110
    assert lines_to_last("rmsnorm", shape="8192x768", dtype="bf16") <= 80


def test_a_quotient_in_a_sum_has_no_brackets() -> None:
    problem = problem_for(load("rmsnorm"), shape="64x768")
    assert (
        "rsqrtf(eps + pass1.x_squares / kCols)" in emit_alone(problem, default_schedule(problem, target("h200"))).text
    )
