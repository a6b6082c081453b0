"""The records that ship are right on rows their dtype can hold: their kernels' text, run by the CPU executor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen import verify
from normgen.cpu import find_compiler
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.record import Record
from normgen.records.winners import read, shipped_folder
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import DEFAULT_KNOBS
from normgen.spec.reader import list_specs, load
from tests.codegen.executors import CpuExecutor, Executor, GpuExecutor

FAMILIES = ("near_level", "sparse_steps", "large_mean", "constant")
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


def is_right(record: Record, executor: Executor) -> str:
    problem = on_few_rows(record, 8)
    inputs, outputs = verify.make_inputs(problem, families=FAMILIES), verify.make_outputs(problem)
    faults = executor.build([emit(problem, record.schedule)])[0].run(inputs, outputs)
    found = verify.check(problem, inputs, outputs, chain=verify.longest_chain(problem, record.schedule))
    return faults or ("" if found.ok else found.summary())


RECORDS = shipped()


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("record", [r for r in RECORDS if r.problem.cols <= LARGEST_COLS], ids=name_of)
def test_shipped_layernorm_kernels_are_right_on_rows_their_dtype_can_hold(record: Record) -> None:
    assert is_right(record, CpuExecutor()) == ""


@pytest.mark.gpu
@pytest.mark.parametrize("record", RECORDS, ids=name_of)
def test_shipped_layernorm_kernels_are_right_on_those_rows_on_the_gpu(record: Record) -> None:
    assert is_right(record, GpuExecutor()) == ""


def test_sum_of_squares_is_in_no_shipped_record_and_no_search() -> None:
    assert all(r.schedule.variance != "sum_of_squares" for r in RECORDS)
    searched = [DEFAULT_KNOBS["variance"], *(load(op).knobs.get("variance", ()) for op in list_specs())]
    assert all("sum_of_squares" not in values for values in searched)
    assert Schedule().variance == "two_pass"
