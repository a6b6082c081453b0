"""One kernel, and one record, for callers with and without a statistic that costs nothing but its store."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import normgen
from normgen.codegen.module import Module
from normgen.cpu import find_compiler
from normgen.device import target
from normgen.errors import UsageError
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.program.source import kernel_problem, problem_for
from normgen.records.questions import problem_of
from normgen.records.winners import lookup, read, shipped_folder
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse

H200 = target("h200")
IN_BLOCK = Schedule(threads_per_row=64, vector=4, hold="registers", unroll=0)
LEFT_OUT = replace(IN_BLOCK, statistics="left_out")
# The largest deviation needs a reduction of its own, the sum does not: y is divided by it.
OWN_REDUCTION = """
name = "divided"
[tensors]
x = "input"
y = "output"
total = { role = "statistic", optional = true }
largest = { role = "statistic", optional = true }
[formulas]
total = "sum(x)"
largest = "max(x)"
y = "x / total"
"""

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


def arguments(module: Module) -> set[str]:
    return {param.key for kernel in module.kernels for param in kernel.params}


@pytest.mark.parametrize(("op", "statistics"), [("rmsnorm", ("rstd",)), ("layernorm", ("mean", "rstd"))])
def test_kernels_of_a_problem_with_and_without_statistics_are_the_same_text(op: str, statistics: tuple[str]) -> None:
    texts = {
        emit(problem_for(load(op), shape="8x512", dtype="bf16", without=without), IN_BLOCK).digest
        for without in ((), statistics[:1], statistics)
    }
    assert len(texts) == 1


def test_a_statistic_that_needs_a_reduction_of_its_own_stays_out() -> None:
    spec = parse(OWN_REDUCTION)
    problem = problem_for(spec, shape="8x512", without=("total", "largest"))
    assert kernel_problem(problem).absent == ("largest",)
    assert "largest" not in arguments(emit(problem, IN_BLOCK))


def test_a_base_off_the_alignment_of_the_statistics_is_no_less_legal() -> None:
    problem = problem_for(load("rmsnorm"), shape="8x512", dtype="bf16", align=2, without=("rstd",))
    assert kernel_problem(problem).align == 2


def test_left_out_is_a_kernel_that_cannot_store_it_and_needs_something_to_leave_out() -> None:
    bare = problem_for(load("rmsnorm"), shape="8x512", dtype="bf16", without=("rstd",))
    full = problem_for(load("rmsnorm"), shape="8x512", dtype="bf16")
    assert refusal(bare, LEFT_OUT, H200) is None
    assert "no statistic to leave out" in str(refusal(full, LEFT_OUT, H200))
    assert "rstd" in arguments(emit(bare, IN_BLOCK))
    assert "rstd" not in arguments(emit(bare, LEFT_OUT))


@needs_compiler
def test_the_check_of_a_kernel_covers_the_statistics_nobody_asked_for() -> None:
    bare = problem_for(load("rmsnorm"), shape="8x512", dtype="bf16", without=("rstd",))
    module = emit(bare, IN_BLOCK)
    assert check_on_cpu(bare, module).ok
    assert check_on_cpu(bare, emit(bare, LEFT_OUT)).ok
    wrong = module.text.replace("rstd[row] = row_rstd", "rstd[row] = -row_rstd")
    assert wrong != module.text
    assert not check_on_cpu(bare, replace(module, text=wrong)).ok
    unasked = module.text.replace("if (rstd != nullptr) rstd[row]", "rstd[row]")
    assert unasked != module.text
    assert not check_on_cpu(bare, replace(module, text=unasked)).ok


def test_every_shipped_record_serves_callers_with_and_without_the_statistics() -> None:
    """A caller of rmsnorm who wants `rstd` found a tuned kernel at none of 27 shapes."""
    shapes = 0
    for record in read(shipped_folder() / "h200.jsonl").records:
        tuned = problem_of(record.problem, load(record.problem.op))
        if record.problem.direction != "forward" or record.schedule.statistics == "left_out":
            continue
        for asked in (kernel_problem(tuned), tuned):
            found = lookup(asked, H200, folders=[shipped_folder()])
            assert found.exact
            assert found.record is not None
            if asked.question != found.record.problem:
                shapes += record.problem.op == "rmsnorm"
                assert "without rstd" in found.reason or "without mean and rstd" in found.reason
    assert shapes >= 27


def test_a_record_that_left_a_statistic_out_does_not_serve_a_caller_who_wants_it(tmp_path) -> None:
    from normgen.records.winners import adopt

    bare = problem_for(load("rmsnorm"), shape="1x4096", dtype="bf16", without=("rstd",))
    found = lookup(bare, H200, folders=[shipped_folder()]).record
    assert found is not None
    adopt(replace(found, schedule=replace(found.schedule, statistics="left_out")), tmp_path, H200)
    assert lookup(bare, H200, folders=[tmp_path]).exact
    assert not lookup(kernel_problem(bare), H200, folders=[tmp_path]).exact


@needs_compiler
def test_a_handle_without_the_statistic_runs_the_kernel_that_takes_it() -> None:
    kernel = normgen.kernel("rmsnorm", shape=(4, 512), present=["weight"], device="cpu")
    x = np.random.default_rng(3).standard_normal((4, 512), dtype=np.float32)
    y = kernel(x, np.ones(512, dtype=np.float32))
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + kernel.problem.spec.scalars[0][1])
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    with pytest.raises(UsageError, match="unknown name"):
        kernel(x, np.ones(512, dtype=np.float32), rstd=np.empty(4, dtype=np.float32))
