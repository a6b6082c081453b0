"""Tuning without a GPU, on the real parts: compile, prune, rank, check on the CPU executor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from normgen.choice.first import default_schedule
from normgen.codegen.module import Module
from normgen.device import TARGETS
from normgen.errors import NothingValidError, UsageError
from normgen.measure import cpu_check
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.memory import KnownAnswers
from normgen.records.place import Place, Setting
from normgen.records.questions import tune_command
from normgen.records.record import Outcome
from normgen.records.winners import read
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.trials.versions import environment
from normgen.tuning import predicted
from normgen.tuning.candidate import Proposed
from normgen.tuning.progress import Silent
from normgen.tuning.run import TuningRun, open_run
from normgen.tuning.tuner import tune
from normgen.verify import FAMILY_ROWS

H200 = TARGETS["h200"]
PROBLEM = problem_for(load("layernorm"), shape="8x1024x768")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TuningRun]:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path))
    with open_run(
        PROBLEM, H200, place=Place(), seed=0, trials=6, budget_s=60.0, progress=Silent(),
        command="test", versions=environment(measured=False),
    ) as opened:  # fmt: skip
        yield opened


def test_the_winner_is_predicted_compiled_and_checked_on_the_cpu(run: TuningRun) -> None:
    records, interrupted = predicted.predict_without_gpu(run)
    winner = records[0]
    assert not interrupted
    assert winner.outcome is Outcome.PREDICTED
    assert not winner.measured
    assert winner.times_us is None
    assert winner.roof_us is None
    assert winner.us is not None
    assert winner.us > PROBLEM.compulsory_bytes / H200.dram_gb_per_s / 1e3  # no faster than its bytes allow
    assert set(winner.error) == {"y", "mean", "rstd"}
    assert all(0 <= share <= 1 for share in winner.error.values())
    assert winner.resources[0]["registers"] > 0
    assert records[0].verified is not None
    assert records[0].verified.site.executor == "cpu"
    assert records[0].verified.calls > 5
    assert all(other.verified is None for other in records[1:])  # only the first was run
    assert any(
        re.fullmatch(rf"verified on the CPU executor at {FAMILY_ROWS} rows and in \d+ other calls", n)
        for n in run.notes
    )
    kept = read(run.candidates_path)
    assert not kept.damaged
    assert len(kept.records) + run.counts["same_code"] == 6


def test_a_first_choice_that_is_wrong_is_said_with_the_reason(run: TuningRun, monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[str] = []

    def emit_wrong_first(problem: Problem, schedule: Schedule) -> Module:
        module = emit(problem, schedule)
        text = re.sub(r"if \((mean|rstd) != nullptr\) ", "", module.text)
        emitted.append(schedule.variance)
        return replace(module, text=text) if schedule.variance == "guarded" else module

    monkeypatch.setattr(predicted, "emit", emit_wrong_first)
    records, _ = predicted.predict_without_gpu(run)
    assert set(emitted) > {"guarded"}
    assert records[0].schedule.variance != "guarded"
    said = [note for note in run.notes if note.startswith("left out: ")]
    assert said
    assert "WRONG with null mean: layernorm forward" in said[0]
    assert "out_of_bounds" in said[0]
    assert "\n" not in said[0]


def test_without_a_compiler_only_methods_that_look_twice_are_considered(
    run: TuningRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_check, "has_compiler", lambda: False)
    records, _ = predicted.predict_without_gpu(run)
    assert {r.schedule.variance for r in records} <= {"two_pass", "corrected_two_pass"}
    assert any("not verified" in note and "C++ compiler" in note for note in run.notes)


def test_what_cannot_be_launched_does_not_win(run: TuningRun) -> None:
    run.device = replace(H200, registers_per_sm=512)  # not even one warp fits
    with pytest.raises(NothingValidError, match="no schedule compiled and fits"):
        predicted.predict_without_gpu(run)
    reasons = [r.reason for r in read(run.candidates_path).records if r.outcome is Outcome.ILLEGAL]
    assert reasons
    assert all("registers exceed 512" in reason for reason in reasons)


def looks_twice(problem: Problem) -> Schedule:
    """The default, with the variance as it is written, and two rows a block."""
    return replace(default_schedule(problem, H200), variance="two_pass", rows_per_block=2, reduce_with="shuffle")


def unbiased(problem: Problem) -> str:
    """The kernel's text with the variance divided by cols - 1."""
    module = emit(problem, looks_twice(problem))
    return module.text.replace("pass2.var_sum, kCols", "pass2.var_sum, kCols - 1")


def test_the_cpu_check_finds_an_unbiased_variance_and_an_overrun() -> None:
    problem = problem_for(load("layernorm"), shape="16x256")
    module = emit(problem, looks_twice(problem))
    assert cpu_check.check_on_cpu(problem, module).ok
    wrong = replace(module, text=unbiased(problem))
    assert wrong.text != module.text
    check = cpu_check.check_on_cpu(problem, wrong)
    assert not check.ok
    assert check.error["y"] > 1
    overrun = replace(
        module,
        text=module.text.replace("const bool active = kRowsPerBlock == 1 || row < rows;", "const bool active = true;"),
    )
    assert overrun.text != module.text
    odd = replace(problem, rows=15)
    assert cpu_check.check_on_cpu(odd, module).ok
    check = cpu_check.check_on_cpu(odd, overrun)
    assert not check.ok
    assert "out_of_bounds" in check.summary


def test_a_problem_of_one_row_is_checked_on_every_family_of_rows() -> None:
    problem = problem_for(load("layernorm"), shape="1x768")
    module = emit(problem, replace(default_schedule(problem, H200), variance="sum_of_squares"))
    check = cpu_check.check_on_cpu(problem, module)
    assert not check.ok
    assert "large_mean" in check.summary


def test_very_long_rows_are_checked_on_fewer_families_and_the_others_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_for(load("layernorm"), shape="1x768")
    monkeypatch.setattr(cpu_check, "LONG_ELEMENTS", 3 * 768)
    check = cpu_check.check_on_cpu(problem, emit(problem, looks_twice(problem)))
    assert check.ok
    assert check.verified is not None
    assert check.verified.families == ("large_mean", "normal", "some_mean")
    said = next(text for text in check.not_shown if text.endswith("were not tried"))
    assert {"constant", "inf", "tail"} <= set(re.findall(r"\w+", said))
    assert not {"large_mean", "normal", "some_mean"} & set(re.findall(r"\w+", said))
    assert check.rows == 3
    monkeypatch.setattr(cpu_check, "LONG_ELEMENTS", 768)
    quick = emit(problem, replace(default_schedule(problem, H200), variance="sum_of_squares"))
    assert "large_mean" in cpu_check.check_on_cpu(problem, quick).summary
    assert not cpu_check.check_on_cpu(problem, quick).ok


@pytest.mark.parametrize(
    ("shape", "rows"),
    [("8192x768", [46]), ("3x4096", [3, 46]), ("4x65536", [4, 46]), ("4x131072", [4, 24]), ("1x16777216", [1])],
)
def test_only_very_long_rows_are_fewer(shape: str, rows: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_for(load("softmax"), shape=shape, dtype="bf16")
    asked: list[int] = []
    monkeypatch.setattr(cpu_check, "_require_memory", lambda calls: asked.extend(c.problem.rows for c in calls))
    assert cpu_check.why_unchecked(problem) is None
    assert sorted(set(asked)) == rows
    assert sum(n * problem.cols for n in asked) <= max(2 * cpu_check.LONG_ELEMENTS, problem.cols)


def test_a_check_makes_its_plain_calls_alone_once_its_time_is_over() -> None:
    problem = problem_for(load("layernorm"), shape="16x64")
    module = emit(problem, looks_twice(problem))
    check = cpu_check.check_on_cpu(problem, module, is_over=lambda: True)
    assert check.ok
    assert check.verified is not None
    assert check.verified.calls == 2
    assert "a call at 1 row was not made" in check.not_shown
    odd = replace(module, text=module.text.replace("pass2.var_sum, kCols", "pass2.var_sum, kCols - 1"))
    assert not cpu_check.check_on_cpu(problem, odd, is_over=lambda: True).ok


def test_a_check_that_outlasts_the_budget_says_so_before_and_after(run: TuningRun) -> None:
    run.clock.budget_s = 0.0
    predicted.predict_without_gpu(run)
    before, after = [note for note in run.notes if predicted._WHY_CHECKED in note]
    assert before.startswith("the check may outlast the budget, as it may take ")
    assert re.fullmatch(r"the check ended \d+ s after the budget: .*", after)
    assert any("in 0 other calls" in note for note in run.notes)


def test_the_command_says_only_what_differs_from_the_defaults() -> None:
    assert tune_command("layernorm", PROBLEM) == ("normgen tune --shape 8192x768")
    backward = problem_for(
        *(load("layernorm"),),
        **{"shape": "8x768", "direction": "backward", "gradients": ["x", "weight"], "without": ["bias"]},
        **{"accumulate": True, "deterministic": True},
    )
    assert tune_command("layernorm", backward) == (
        "normgen tune --shape 8x768 --direction backward --without bias --accumulate --deterministic"
    )
    frozen = problem_for(load("layernorm"), shape="8x768", direction="backward", gradients=["x"])
    assert tune_command("layernorm", frozen) == ("normgen tune --shape 8x768 --direction backward --gradients x")
    other = problem_for(load("rmsnorm"), shape="4x64", dtype="bf16", without=("weight",), pitch=80, align=4)
    assert tune_command("rmsnorm", other, place=Place(setting=Setting.HOT), seed=3, target="h200") == (
        "normgen tune --shape 4x64 --op rmsnorm --dtype bf16 --without weight --pitch 80 --align 4 "
        "--setting hot --seed 3 --device cpu --target h200"
    )


def test_an_interrupt_while_compiling_keeps_what_is_compiled(run: TuningRun, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = predicted.compile_all

    def half(run: TuningRun, builder: Any, candidates: list[Proposed], done: Any) -> None:
        whole(run, builder, candidates[:3], done)
        raise KeyboardInterrupt

    monkeypatch.setattr(predicted, "compile_all", half)
    records, interrupted = predicted.predict_without_gpu(run)
    assert interrupted
    assert 1 <= len(records) <= 3
    assert {r.schedule.variance for r in records} <= {"two_pass", "corrected_two_pass"}
    assert any("interrupted" in note for note in run.notes)


@pytest.mark.parametrize("name", ["directon", "any_cols", "saved"])
def test_tune_refuses_an_argument_that_it_does_not_have(name: str) -> None:
    with pytest.raises(UsageError, match="tune has no such argument") as refused:
        tune(shape="8x64", device="cpu", **{name: "backward"})
    assert refused.value.received == name


@pytest.mark.parametrize(
    ("terms", "rule"),
    [
        ({"seed": -1}, "a seed is a whole number"),
        ({"seed": 2**32}, "a seed is a whole number"),
        ({"budget_s": float("inf")}, "the budget is a positive number of seconds"),
        ({"budget_s": float("nan")}, "the budget is a positive number of seconds"),
        ({"budget_s": 0.0}, "the budget is a positive number of seconds"),
        ({"trials": 0}, "at least one trial"),
    ],
)
def test_tune_refuses_a_number_out_of_range_before_it_begins(terms: dict[str, Any], rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        tune(shape="8x96", device="cpu", **terms)


def test_a_resumed_run_keeps_where_its_winner_was_verified(run: TuningRun) -> None:
    first, _ = predicted.predict_without_gpu(run)
    run.recorded = read(run.candidates_path).records
    run.memory = KnownAnswers(own=run.recorded)
    again, _ = predicted.predict_without_gpu(run)
    assert any("verified on the CPU executor before the run was resumed" in note for note in run.notes)
    assert again[0].schedule == first[0].schedule
    assert again[0].verified == first[0].verified
    assert again[0].verified is not None
