"""A handle for any number of rows, and the bands of row counts that choose its schedules."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import normgen
from normgen.bench.transfer import row_entries
from normgen.device import target
from normgen.errors import UsageError
from normgen.problem.problem import LARGEST_ROWS, LARGEST_TILED, Problem
from normgen.program.source import problem_for
from normgen.python.any_rows import AnyRows
from normgen.records.winners import lookup, records_of, shipped_folder
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.suites.bands import NEAR, Bands, parse_rows, row_counts
from normgen.suites.rows import tune_rows
from tests.python.devices import NEEDS_COMPILER

COLS = 96
H200 = target("h200")


def problem(rows: int = 1) -> Problem:
    return problem_for(load("rmsnorm"), shape=(rows, 4096), dtype="bf16", without=("rstd",))


@NEEDS_COMPILER
def test_one_handle_is_right_for_every_number_of_rows() -> None:
    norm = normgen.kernel("rmsnorm", shape=(-1, COLS), device="cpu")
    draw = np.random.default_rng(3)
    weight = draw.standard_normal(COLS).astype(np.float32)
    for rows in (1, 0, 2, 7, 40, 150, 3):
        x = draw.standard_normal((rows, COLS)).astype(np.float32)
        given = (x.reshape(rows // 2, 2, COLS), weight) if rows == 40 else (x, weight)
        y, rstd = norm(*given)
        wide = x.astype(np.float64)
        right = 1 / np.sqrt((wide**2).mean(-1) + 1e-6)
        np.testing.assert_allclose(y.reshape(-1, COLS), wide * right[:, None] * weight, atol=1e-5)
        np.testing.assert_allclose(rstd.reshape(-1), right, rtol=1e-6)
    assert isinstance(norm, AnyRows)
    assert norm.kernel_for(1) is norm
    assert len(str(norm).splitlines()) == 2 + len(norm._by_schedule) - 1


@NEEDS_COMPILER
def test_kernels_of_bands_are_made_at_the_first_call_or_by_prepare() -> None:
    by_rows = {1: Schedule(threads_per_row=32), 64: Schedule(threads_per_row=64)}
    norm = normgen.kernel("rmsnorm", shape=COLS, rows="any", device="cpu")
    assert isinstance(norm, AnyRows)
    norm._choose = lambda band: (by_rows[1 if band < 64 else 64], "of the test")
    before = set(norm._by_schedule)
    norm.prepare(2, 200)
    assert set(norm._by_schedule) - before == set(by_rows.values())
    assert norm.kernel_for(2) is norm.kernel_for(30)
    assert norm.kernel_for(150) is not norm.kernel_for(30)
    assert norm.kernel_for(150)._lock is norm._lock


@NEEDS_COMPILER
@pytest.mark.parametrize("shape", ["*x96", 96, (96,), (-1, 96), (-1, 4, 96)])
def test_any_rows_have_many_spellings(shape: object) -> None:
    norm = normgen.kernel("rmsnorm", shape=shape, rows="any", device="cpu")  # type: ignore[arg-type]
    assert isinstance(norm, AnyRows)
    assert (norm.problem.rows, norm.problem.cols) == (1, 96)


@pytest.mark.parametrize(
    ("shape", "rows", "said"),
    [
        ((8, 96), "all", "or 'any'"),
        ((8, 96.0), None, "whole numbers"),
        ((8, -1), None, "cols >= 1"),
        (0, "any", "cols >= 1"),
    ],
)
def test_a_shape_that_is_none_is_refused(shape: object, rows: str | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        normgen.kernel("rmsnorm", shape=shape, rows=rows, device="cpu")  # type: ignore[arg-type]


@NEEDS_COMPILER
def test_wrong_arguments_are_refused_as_by_any_handle() -> None:
    norm = normgen.kernel("rmsnorm", shape=(-1, COLS), device="cpu")
    x, weight = np.ones((3, COLS), np.float32), np.ones(COLS, np.float32)
    with pytest.raises(UsageError, match="no x"):
        norm(weight=weight)
    with pytest.raises(UsageError, match="wrong shape of 'x'"):
        norm(x[:, :5], weight)
    with pytest.raises(UsageError, match="wrong dtype of 'x'"):
        norm(x.astype(np.float16), weight)
    with pytest.raises(UsageError, match="an array must be"):
        norm(3, weight)


def test_a_row_count_gets_what_is_looked_up_for_its_band() -> None:
    records = tuple(records_of(H200, [shipped_folder()]))
    bands = Bands(problem(), H200, records=records)
    assert bands.tuned, "rmsnorm of 4096 bf16 columns is among the shipped records"
    for rows in (*bands.tuned, 1, 3, 12, 300, 5000, 10**5):
        band = bands.band(rows)
        nearest = min(abs(math.log2(t / rows)) for t in bands.tuned)
        assert abs(math.log2(band / rows)) <= (nearest if nearest <= NEAR else 0.51)
        assert band in bands.tuned or (nearest > NEAR and band & (band - 1) == 0)
        found, asked = bands.lookup(rows), lookup(problem(band), H200, records=records)
        assert (found.schedule, found.reason) == (asked.schedule, asked.reason)
    assert all(bands.band(rows) == rows for rows in bands.tuned)
    assert bands.band(0) == bands.band(1)


@pytest.mark.parametrize("op", ["rmsnorm", "linear"])
def test_the_band_of_the_most_rows_is_a_row_count_that_a_problem_may_have(op: str) -> None:
    asked = problem_for(load(op), shape=(1, 8), inner=8 if op == "linear" else None)
    most = LARGEST_TILED if op == "linear" else LARGEST_ROWS
    band = Bands(asked, H200, records=()).band(most)
    assert band == most
    assert problem_for(asked.spec, **asked.with_rows(band).arguments()).rows == most


def test_records_of_other_columns_or_dtypes_make_no_band() -> None:
    records = [r for r in records_of(H200, [shipped_folder()]) if r.problem.cols != 4096]
    assert Bands(problem(), H200, records=records).tuned == ()


def test_few_row_counts_stand_for_a_range() -> None:
    assert row_counts(1, 16384) == (1, 4, 16, 64, 256, 1024, 4096, 16384)
    assert row_counts(3, 3) == (3,)
    assert row_counts(1, 5) == (1, 5)
    assert row_counts(1, 200) == (1, 4, 16, 64, 200)
    for first, last in ((1, 16384), (7, 1000), (1, 3), (100, 101)):
        counts = row_counts(first, last)
        assert max((b / a for a, b in itertools.pairwise(counts)), default=1) < 8
    assert parse_rows("1..16384") == (1, 16384)
    for wrong in ("16384..1", "1..", "1-3", "0..4", "1..99999999999", "x"):
        with pytest.raises(UsageError, match="range of row counts"):
            parse_rows(wrong)


def test_row_counts_to_race_are_untuned_ones_of_one_problem() -> None:
    known = tuple(records_of(H200, [shipped_folder()]))
    bands = Bands(problem(), H200, records=known)
    records = [r for r in bands._known if r.problem.cols == 4096]
    same = [r for r in records if replace(r.problem, rows=1) == replace(records[0].problem, rows=1)]
    entries = row_entries(same, (1, 16384), count=30, seed=1)
    rows = [entry.problem.rows for entry in entries]
    assert len(set(rows)) == 30
    assert not set(rows) & {r.problem.rows for r in same}
    assert {entry.problem.cols for entry in entries} == {4096}
    with pytest.raises(UsageError, match="of one problem"):
        row_entries(known, (1, 16384), count=3, seed=1)
    with pytest.raises(UsageError, match="so many row counts"):
        row_entries(same, (1, 8), count=30, seed=1)


@NEEDS_COMPILER
def test_tuning_a_range_writes_a_record_for_each_count_and_one_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path / "state"))
    found = tune_rows(
        "rmsnorm",
        shape="*x64",
        rows="1..4",
        output=str(tmp_path),
        device="cpu",
        trials=1,
        without=("rstd",),
        budget_s=20.0,
    )
    assert [record.problem.rows for record in found.records] == [1, 4]
    asked = problem_for(load("rmsnorm"), shape=(1, 64), without=("rstd",))
    assert Bands(asked, H200).tuned == (1, 4)
    assert found.header_path is not None
    text = found.header_path.read_text()
    assert all(f"  {rows} x 64 " in text for rows in (1, 4))
    assert str(found).splitlines()[-1] == f"header: {found.header_path}"
    with pytest.raises(UsageError, match="only cols"):
        tune_rows("rmsnorm", shape="8x64", rows="1..4")
