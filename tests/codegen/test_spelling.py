"""The names of a spec in emitted text: none meets an identifier of the text, a word of C++ or another name."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from normgen.choice.first import default_schedule
from normgen.codegen.kernel import MainKernel
from normgen.codegen.module import Source
from normgen.codegen.parts import marked_parts, spelled_parts
from normgen.codegen.spelling import Spelling, mark, marked
from normgen.cuda import nvrtc
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.errors import NormgenError
from normgen.pipeline import emit, programs_of
from normgen.program.source import problem_for
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.plan import plan_of
from normgen.schedule.schedule import Schedule
from normgen.spec.names import refusal
from normgen.spec.reader import parse
from normgen.spec.spec import Spec
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor
from tests.codegen.hostile import COUNT, KNOWN, LAYERNORM, covering, names_of, own_identifiers, specs
from tests.codegen.matrix import report, wrong, wrong_backward
from tests.samples import sized

HOSTILE = specs(names_of(KNOWN))
PLAIN = parse(LAYERNORM.format(*(f"zz{k}zz" for k in range(COUNT))))
TOKEN = re.compile(r"(?:þ\w+?!|\w)+")


def code(text: str) -> str:
    return re.sub(r"//[^\n]*", "", text)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_over_all_knobs_marks_become_identifiers_that_nothing_else_in_the_text_has(direction: str) -> None:
    """From the marked text to the spelled one, tokens map one to one, and those without a mark stay."""
    changed = 0
    for spec in (HOSTILE[0], HOSTILE[4], HOSTILE[-1]):
        for problem, schedule in covering(spec, ["32x96", "40x101"], direction):
            program = programs_of(problem, schedule)[-1][1]
            parts = marked_parts(MainKernel(plan_of(*marked(problem, program), schedule)))
            for kernel, spelled in zip(parts.texts, spelled_parts(parts).texts, strict=True):
                before, after = TOKEN.findall(code(kernel)), TOKEN.findall(code(spelled))
                assert len(before) == len(after)
                became = dict(zip(before, after, strict=True))
                assert [became[token] for token in before] == after
                assert len(set(became.values())) == len(became), str(schedule)
                own = [(token, found) for token, found in became.items() if "þ" not in token]
                # a type whose members are not spelled as the spec names them is one of its own
                assert all(token == found or re.fullmatch(rf"{token}_[0-9a-f]{{4}}", found) for token, found in own)
                assert all(token.startswith("Pass") for token, found in own if token != found)
                changed += sum(found != token.replace("þ", "").replace("!", "") for token, found in became.items())
    assert changed  # hostile names are among them


@pytest.mark.parametrize("spec", HOSTILE, ids=lambda s: s.tensors[0].name)
def test_arguments_keep_the_names_of_the_spec_as_their_keys(spec: Spec) -> None:
    problem = problem_for(spec, shape="32x96")
    module = emit(problem, default_schedule(problem, target("h200")))
    params = module.kernels[0].params
    assert [p.key for p in params if p.source is Source.TENSOR] == [t.name for t in problem.tensors]
    assert [p.key for p in params if p.source is Source.SCALAR] == [name for name, _ in spec.scalars]
    assert not re.search("[þ!]", "".join(p.name + p.key for p in params))


def small_cases(direction: str) -> list[Case]:
    """Each hostile spec aligned and with odd cols, under schedules that use most of what a kernel can."""
    cases = []
    plain = Schedule(threads_per_row=32, rows_per_block=2, vector=4, hold="registers", unroll=0, params="late")
    for spec in HOSTILE:
        for shape, edges in (("24x96", "exact"), ("24x101", "peel")):
            problem = problem_for(spec, shape=shape, direction=direction, align=16 if edges == "exact" else 4)
            schedule = replace(plain, edges=edges)
            if direction == "backward":
                schedule = replace(schedule, persistent=2, columns="partials_two_kernels")
            cases.append((problem, schedule))
    return cases


def test_kernels_of_hostile_names_are_right_on_the_cpu() -> None:
    cases = small_cases("forward")
    found = list(wrong(cases, CpuExecutor(), seed=1))
    assert not found, report(found, cases)


def test_backward_kernels_of_hostile_names_are_right_on_the_cpu() -> None:
    cases = small_cases("backward")
    found = list(wrong_backward(cases, CpuExecutor(), seed=1))
    assert not found, report(found, cases)


def _nvrtc_loads() -> bool:
    try:
        return nvrtc.version() > (0, 0)
    except NormgenError:
        return False


def every_own_name() -> list[str]:
    """All identifiers of kernels over all knobs that a spec may use as a name."""
    found: set[str] = set()
    for direction in ("forward", "backward"):
        found |= own_identifiers(covering(PLAIN, ["32x96", "40x101"], direction))
    return sorted(name for name in found if "zz" not in name and refusal(name) is None)


@pytest.mark.skipif(not _nvrtc_loads(), reason="NVRTC does not load on this machine")
def test_nvrtc_takes_every_identifier_of_the_texts_as_a_name_of_a_spec() -> None:
    names = every_own_name()
    assert len(names) > 150
    random.Random(0).shuffle(names)
    for index, spec in list(enumerate(specs(names)))[:: sized(3, 1)]:
        problem, schedule = a_case(spec, index)
        log = compile_module(emit(problem, schedule), 90).log
        assert "warning" not in log.lower(), (str(problem), str(schedule), log)


def a_case(spec: Spec, index: int) -> Case:
    """Both directions in turn, with aligned cols, odd ones and any number of them."""
    direction, cols = ("forward", "backward")[index % 2], (96, 101, 1024)[index // 2 % 3]
    if cols == 1024:
        problem = problem_for(spec, shape=(32, cols), direction=direction, align=4, pitch=cols + 1, any_cols=True)
        return problem, fallback_schedules(problem)[index // 6 % 2]
    problem = problem_for(spec, shape=(32, cols), direction=direction, align=4)
    return problem, default_schedule(problem, target("h200"))


TEXTS = (
    ("float þx!_row = þx_row!;", ("x", "x_row"), "float x_row = spec_x_row;"),
    ("int i = þi!; // þi! of i", ("i",), "int i = spec_i; // spec_i of i"),
    ("int spec_i = þi! + i;", ("i",), "int spec_i = spec2_i + i;"),
    ("threadIdx.x + þx!;  // y þy!", ("x", "y"), "threadIdx.x + x;  // y y"),
    ("row_þa! + þrow_a!", ("a", "row_a"), "row_a + spec_row_a"),
    ("pass1.þfloat! + þNAN! + þunix!", ("float", "NAN", "unix"), "pass1.spec_float + spec_NAN + spec_unix"),
)


@pytest.mark.parametrize(("text", "names", "want"), TEXTS)
def test_a_name_changes_only_where_what_is_made_of_it_is_taken(text: str, names: tuple[str, ...], want: str) -> None:
    assert all(mark(name) in text for name in names)
    assert Spelling(text).within(text) == want
