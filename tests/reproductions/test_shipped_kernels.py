"""H3: the records that ship are right on rows their dtype can hold: their kernels' text, run by the CPU executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from normgen import verify
from normgen.choice.first import default_schedule
from normgen.cpu import find_compiler
from normgen.device import TARGETS
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.record import Record
from normgen.records.winners import read, shipped_folder
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import DEFAULT_KNOBS
from normgen.spec.reader import list_specs, load
from tests.codegen.executors import Built, CpuExecutor, GpuExecutor

FAMILIES = ("near_level", "sparse_steps", "large_mean", "constant")
ROWS = 9
LARGEST_COLS = 16384  # one row of 65536 takes a minute on the executor


NORM = ("layernorm", "forward")


def shipped() -> list[Record]:
    folder = shipped_folder()
    assert folder is not None
    return [r for r in read(folder / "h200.jsonl").records if (r.problem.op, r.problem.direction) == NORM]


def name_of(record: Record) -> str:
    return f"{record.problem.rows}x{record.problem.cols}-{dict(record.problem.dtypes)['x']}"


def on_few_rows(record: Record, rows: int) -> Problem:
    key, spec = record.problem, load(record.problem.op)
    dtypes = dict(key.dtypes)
    without = [t.name for t in spec.tensors if t.name not in dtypes]
    given = {name: stored for name, stored in dtypes.items() if name in ("weight", "bias")}
    problem = problem_for(spec, shape=(rows, key.cols), dtype=dtypes["x"], dtypes=given, without=without)
    return replace(problem, pitch=key.pitch, align=key.align)


def is_right(record: Record, built: Built) -> str:
    """On rows N(50, 0.05) and 1000 with a few at the next number, as families have them, and on one of N(8192, 8)."""
    problem = on_few_rows(record, ROWS)
    inputs, outputs = verify.make_inputs(problem, families=FAMILIES), verify.make_outputs(problem)
    inputs.arrays["x"][-1] = 8192 + 8 * np.random.default_rng(3).standard_normal(problem.cols)
    faults = built.run(inputs, outputs)
    found = verify.check(problem, inputs, outputs, chain=verify.longest_chain(problem, record.schedule))
    return faults or ("" if found.ok else found.summary())


RECORDS = shipped()


ON_CPU = [r for r in RECORDS if r.problem.cols <= LARGEST_COLS]


@cache
def built_on_cpu() -> Sequence[Built]:
    """All of them by few calls of the compiler."""
    return CpuExecutor().build([emit(on_few_rows(record, ROWS), record.schedule) for record in ON_CPU])


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("record", ON_CPU, ids=name_of)
def test_h3_shipped_layernorm_kernels_are_right_on_rows_their_dtype_can_hold(record: Record) -> None:
    assert is_right(record, built_on_cpu()[ON_CPU.index(record)]) == ""


@pytest.mark.gpu
@pytest.mark.parametrize("record", RECORDS, ids=name_of)
def test_h3_shipped_layernorm_kernels_are_right_on_those_rows_on_the_gpu(record: Record) -> None:
    problem = on_few_rows(record, ROWS)
    assert is_right(record, GpuExecutor().build([emit(problem, record.schedule)])[0]) == ""


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_h3_rows_of_two_neighbouring_numbers_of_float16_are_right_by_every_searched_variance() -> None:
    problem = problem_for(load("layernorm"), shape=(ROWS, 768), dtype="f16")
    inputs = verify.make_inputs(problem, families=("normal",))
    inputs.arrays["x"][...] = np.random.default_rng(4).choice([1000.0, 1000.5], size=(ROWS, 768))
    schedules = [replace(default_schedule(problem, TARGETS["h200"]), variance=v) for v in DEFAULT_KNOBS["variance"]]
    modules = [emit(problem, schedule) for schedule in schedules]
    for schedule, built in zip(schedules, CpuExecutor().build(modules), strict=True):
        outputs = verify.make_outputs(problem)
        assert built.run(inputs, outputs) == ""
        found = verify.check(problem, inputs, outputs, chain=verify.longest_chain(problem, schedule))
        assert found.ok, f"{schedule}: {found.summary()}"


def test_h3_sum_of_squares_is_in_no_shipped_record_and_no_search() -> None:
    assert all(r.schedule.variance != "sum_of_squares" for r in RECORDS)
    searched = [DEFAULT_KNOBS["variance"], *(load(op).knobs.get("variance", ()) for op in list_specs())]
    assert all("sum_of_squares" not in values for values in searched)
    assert Schedule().variance == "two_pass"
