"""Kernels that start while those in front of them end: what they touch before they wait, and what they compute."""

from __future__ import annotations

import random
import re

import pytest

from normgen.codegen.module import Module
from normgen.cpu import find_compiler
from normgen.cuda.compiler import compile_module, nvrtc_version
from normgen.device import target
from normgen.errors import NormgenError
from normgen.knobs import DependentLaunch
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.questions import problem_of
from normgen.records.winners import read, shipped_folder
from normgen.schedule.legality import refusal
from normgen.schedule.policy import CHAINED_BYTES
from normgen.schedule.schedule import Schedule, schedule_from
from normgen.schedule.space import space
from normgen.spec.reader import load
from tests.codegen.covering import Case
from tests.codegen.digests import kept_cases, problem_asked
from tests.codegen.executors import CpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong, wrong_backward
from tests.cuda.compiled import ptx
from tests.samples import sized

H200 = target("h200")
IN_REGISTERS: dict[str, object] = {"hold": "registers", "unroll": 0}
FORWARD: dict[str, dict[str, object]] = {
    "warps": {"threads_per_row": 32, "rows_per_block": 4, "vector": 4, "params": "early", **IN_REGISTERS},
    "block": {"threads_per_row": 128, "vector": 4, "params": "early", **IN_REGISTERS},
    "block late": {"threads_per_row": 64, "vector": 4, **IN_REGISTERS},
    "shared": {"threads_per_row": 64, "vector": 4, "hold": "shared", "params": "early", "unroll": 1},
    "reload": {"threads_per_row": 64, "vector": 2, "hold": "reload"},
    "cluster": {"threads_per_row": 64, "vector": 2, "cluster": 4, "params": "early", **IN_REGISTERS},
    "clusters that walk": {"threads_per_row": 64, "vector": 2, "cluster": 2, "persistent": 1, "params": "kept",
                           **IN_REGISTERS},
    "row loop": {"threads_per_row": 64, "vector": 4, "persistent": 2, "params": "kept", **IN_REGISTERS},
    "in flight": {"threads_per_row": 64, "vector": 4, "persistent": 2, "stages": 2, "params": "kept", **IN_REGISTERS},
    "tree": {"threads_per_row": 64, "vector": 4, "reduce_with": "shared_tree", "params": "early", **IN_REGISTERS},
}  # fmt: skip
PEELED: dict[str, object] = {"threads_per_row": 64, "vector": 4, "edges": "peel", "params": "early", **IN_REGISTERS}
BACKWARD: dict[str, dict[str, object]] = {
    "two kernels": {"persistent": 2, "stages": 2, "params": "kept", "columns": "partials_two_kernels", **IN_REGISTERS},
    "clusters": {"persistent": 1, "cluster": 2, "params": "kept", "columns": "partials_two_kernels", **IN_REGISTERS},
    "last tile": {"persistent": 2, "params": "kept", "columns": "partials_last_tile", **IN_REGISTERS},
    "register atomics": {"persistent": 1, "params": "kept", "columns": "register_atomic", **IN_REGISTERS},
    "shared atomics": {"columns": "shared_atomic", "hold": "reload"},
    "atomics": {"columns": "atomic", "hold": "reload"},
}

CHAINED = tuple(place for place in DependentLaunch if place.is_chained)


def legal(problem: Problem, knobs: dict[str, object]) -> list[Case]:
    """The schedule with every place of the trigger that it allows."""
    schedules = [schedule_from({**knobs, "dependent_launch": place}) for place in CHAINED]
    found = [(problem, s) for s in schedules if refusal(problem, s, DEVICE) is None]
    assert found, [refusal(problem, s, DEVICE) for s in schedules]
    return found


def forward_cases(op: str, *, stable: bool) -> list[Case]:
    problem = problem_for(load(op), shape=(9, 512), dtype="f32", stable_parameters=stable)
    odd = problem_for(load(op), shape=(7, 509), dtype="f32", stable_parameters=stable, align=4)
    cases = [case for knobs in FORWARD.values() for case in legal(problem, knobs)]
    return [*cases, *legal(odd, PEELED), *legal(odd, {**PEELED, "persistent": 2, "params": "kept"})]


def backward_cases(op: str, *, stable: bool) -> list[Case]:
    problem = problem_for(load(op), shape=(9, 256), dtype="f32", direction="backward", stable_parameters=stable)
    added = problem_for(load(op), shape=(9, 256), dtype="f32", direction="backward", accumulate=True)
    own = {"threads_per_row": 64, "vector": 2}
    cases = [case for knobs in BACKWARD.values() for case in legal(problem, {**own, **knobs})]
    return cases + legal(added, {**own, **BACKWARD["two kernels"]})


needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


@needs_compiler
@pytest.mark.parametrize("stable", [False, True], ids=["", "stable"])
@pytest.mark.parametrize("op", ["layernorm", "rmsnorm"])
def test_forward_kernels_wait_before_they_touch_memory_and_are_right(op: str, stable: bool) -> None:
    cases = forward_cases(op, stable=stable)
    assert {schedule.dependent_launch for _, schedule in cases} == set(CHAINED)
    found = list(wrong(cases, CpuExecutor(), seed=1))
    assert not found, report(found, cases)


@needs_compiler
@pytest.mark.parametrize("stable", [False, True], ids=["", "stable"])
def test_backward_kernels_wait_before_they_touch_memory_and_are_right(stable: bool) -> None:
    cases = backward_cases("layernorm", stable=stable)
    assert {schedule.columns for _, schedule in cases} == {str(knobs["columns"]) for knobs in BACKWARD.values()}
    found = list(wrong_backward(cases, CpuExecutor(), seed=1))
    assert not found, report(found, cases)


def _nvrtc_loads() -> bool:
    try:
        return nvrtc_version() > (0, 0)
    except NormgenError:
        return False


needs_nvrtc = pytest.mark.skipif(not _nvrtc_loads(), reason="NVRTC does not load on this machine")


def steps(module: Module) -> str:
    """wait, trigger, loads (`nc`: through the non-coherent cache) and stores of the PTX, in the order of its text."""
    short = {"griddepcontrol.wait": "wait", "griddepcontrol.launch_dependents": "trigger"}
    found = re.findall(r"(griddepcontrol\.\w+|ld\.global\.nc|ld\.global|st\.global)", ptx(module, 90))
    words = [short.get(word, word) for word in found]
    return " ".join(word for word, before in zip(words, ["", *words], strict=False) if word != before)


ORDERS = [
    ({"dependent_launch": "start"}, False, "trigger wait ld.global st.global"),
    ({"dependent_launch": "loads"}, False, "wait ld.global trigger st.global"),
    ({"dependent_launch": "end"}, False, "wait ld.global st.global trigger"),
    ({"dependent_launch": "start"}, True, "trigger ld.global wait ld.global st.global"),
    ({"dependent_launch": "loads"}, True, "ld.global wait ld.global trigger st.global"),
    ({"dependent_launch": "end"}, True, "ld.global wait ld.global st.global trigger"),
    ({"dependent_launch": "start", "params": "late"}, True, "trigger wait ld.global st.global ld.global st.global"),
    ({"dependent_launch": "off"}, True, "ld.global.nc st.global"),
]


@needs_nvrtc
@pytest.mark.parametrize(("knobs", "stable", "order"), ORDERS)
def test_the_compiler_leaves_reads_and_writes_on_their_side_of_the_wait(
    knobs: dict[str, object], stable: bool, order: str
) -> None:
    """What another kernel may still write is not read through the non-coherent cache either."""
    problem = problem_for(load("rmsnorm"), shape="16x1024", dtype="bf16", without=["rstd"], stable_parameters=stable)
    schedule = Schedule(**{"threads_per_row": 128, "vector": 8, "params": "early", **IN_REGISTERS, **knobs})
    assert steps(emit(problem, schedule)) == order


@needs_nvrtc
def test_every_kind_compiles_for_sm_90_without_a_warning() -> None:
    cases = [*forward_cases("layernorm", stable=True), *backward_cases("rmsnorm", stable=True)]
    for problem, schedule in cases[::3]:
        module = emit(problem, schedule)
        assert module.min_arch == 90
        assert all(kernel.launch.dependent for kernel in module.kernels)
        assert "warning" not in compile_module(module, 90).log.lower(), str(schedule)


def test_the_promise_changes_nothing_where_kernels_are_launched_one_after_another() -> None:
    for dependent in ("off", "on"):
        texts = set()
        for stable in (False, True):
            problem = problem_for(load("rmsnorm"), shape="64x512", direction="backward", stable_parameters=stable)
            knobs = {"threads_per_row": 64, "vector": 4, **BACKWARD["two kernels"], "dependent_launch": dependent}
            texts.add(emit(problem, Schedule(**knobs)).source)
        assert len(texts) == 1


def test_a_first_kernel_starts_early_only_where_that_is_asked_for() -> None:
    problem = problem_for(load("rmsnorm"), shape="64x512", direction="backward")
    dependent = {}
    for value in ("off", "on", "start", "end"):
        knobs = {"threads_per_row": 64, "vector": 4, **BACKWARD["two kernels"], "dependent_launch": value}
        dependent[value] = [kernel.launch.dependent for kernel in emit(problem, Schedule(**knobs)).kernels]
    assert dependent == {"off": [False, False], "on": [False, True], "start": [True, True], "end": [True, True]}


@pytest.mark.parametrize(("shape", "is_searched"), [("16x4096", True), ("4096x4096", True), ("16384x32768", False)])
def test_launches_that_move_less_than_the_limit_are_searched_with_an_early_start(shape: str, is_searched: bool) -> None:
    problem = problem_for(load("rmsnorm"), shape=shape, dtype="bf16")
    assert (problem.compulsory_bytes < CHAINED_BYTES) is is_searched
    found = space(problem, H200).legal
    chained = [schedule for schedule in found if schedule.chained]
    assert {s.dependent_launch for s in chained} <= ({"start", "loads"} if is_searched else set())
    assert bool(chained) is is_searched
    assert len(found) <= 3 * (len(found) - len(chained))


def test_an_older_gpu_has_no_dependent_launch() -> None:
    problem = problem_for(load("rmsnorm"), shape="16x4096")
    assert "sm_90" in str(refusal(problem, Schedule(dependent_launch="end"), target("a100")))


def test_no_load_stands_ahead_of_the_wait() -> None:
    """Of shipped kernels, and of schedules of all knobs: to a compiler a load with a cache hint reads no memory,
    and nothing in the language keeps it behind the wait for the kernel in front."""
    records = [r for r in read(shipped_folder() / "h200.jsonl").records if r.schedule.chained]
    shipped = [(problem_of(r.problem, load(r.problem.op)), r.schedule) for r in records]
    drawn = [case for case in kept_cases() if case[1].get("dependent_launch") in CHAINED and "load" in case[1]]
    random.Random(6).shuffle(drawn)
    cases = [(problem_asked(question), Schedule(**knobs)) for question, knobs in drawn[: sized(40, len(drawn))]]
    waits = 0
    for problem, schedule in (*shipped, *cases):
        if problem.stable_tensors:  # parameters that the caller promises may be read at once
            continue
        for entry in ptx(emit(problem, schedule), 90).split(".entry ")[1:]:
            ahead, wait, _ = entry.partition("griddepcontrol.wait")
            waits += bool(wait)
            assert not (wait and "ld.global" in ahead), f"{problem} {schedule}"
    assert waits >= len(shipped)
