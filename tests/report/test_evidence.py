"""Files become searches, sweeps and winners; nothing is counted twice and nothing damaged is hidden."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from normgen.errors import NothingValidError, UsageError
from normgen.records.record import Outcome
from normgen.report.evidence import gather
from normgen.trials.file import write
from normgen.trials.kept import joined, of_records
from tests.report import made


def test_candidates_of_one_file_are_told_apart_by_problem_and_seed(tmp_path: Path) -> None:
    first, second = made.candidates(made.key()), made.candidates(made.key(rows=64))
    other_seed = made.candidates(made.key(), seed=1)
    mixed = [r for three in zip(first, second, other_seed, strict=True) for r in three]
    evidence = gather([made.write(tmp_path / "all.jsonl", mixed)])
    assert [(s.problem.rows, s.seed, len(s.trials)) for s in evidence.series] == [
        (8192, 0, 12),
        (64, 0, 12),
        (8192, 1, 12),
    ]
    assert [t.schedule for t in evidence.series[1].trials] == [r.schedule for r in second]


def test_best_so_far_never_rises_and_skips_failures(tmp_path: Path) -> None:
    slow, *rest = made.candidates(made.key())
    failed = replace(slow, outcome=Outcome.TIMEOUT, times_us=None, measured=False)
    (series,) = gather([made.write(tmp_path / "a.jsonl", [failed, rest[-1], slow, *rest])]).series
    assert series.best_so_far()[:3] == (None, 10.0, 10.0)
    assert set(series.best_so_far()[1:]) == {10.0}
    assert series.best_us == 10.0
    assert len(series.timed) == 1 + 1 + 9


def test_a_winner_in_two_files_counts_once_and_gives_its_search_the_default(tmp_path: Path) -> None:
    paths = made.files(tmp_path)
    evidence = gather([*paths, made.write(tmp_path / "again.jsonl", [made.winner(made.key())])])
    assert [(r.problem.op, r.us) for r in evidence.finals] == [
        ("layernorm", 10.0),
        ("rmsnorm", 11.0),
        ("softmax", 12.0),
    ]
    assert [(s.problem.op, s.default_us, s.measured) for s in evidence.series] == [
        ("layernorm", 20.0, True), ("rmsnorm", 20.0, True), ("softmax", None, False),
    ]  # fmt: skip


def test_a_winner_of_another_seed_says_nothing_of_the_default_of_a_search(tmp_path: Path) -> None:
    path = made.write(tmp_path / "a.jsonl", [*made.candidates(made.key()), made.winner(made.key(), seed=5)])
    assert [s.default_us for s in gather([path]).series] == [None]


def test_damaged_lines_are_set_aside_and_named(tmp_path: Path) -> None:
    path = made.write(tmp_path / "a.jsonl", made.candidates(made.key()))
    path.write_text(path.read_text() + '{"schema": 1, "op"\n')
    evidence = gather([path])
    assert len(evidence.series[0].trials) == 12
    assert evidence.sources[0].found == 12
    assert len(evidence.sources[0].damaged) == 1
    assert "a.jsonl:13: set aside: not JSON" in evidence.sources[0].damaged[0]


def test_a_file_without_any_record_is_an_error_and_so_is_having_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("not a record\n")
    with pytest.raises(UsageError, match=r"notes\.txt:1: set aside: not JSON"):
        gather([tmp_path / "notes.txt"])
    monkeypatch.setattr("normgen.report.evidence.record_folders", lambda: (tmp_path / "records",))
    monkeypatch.setattr("normgen.report.evidence.shipped", lambda name: tmp_path / name)
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path / "state"))
    with pytest.raises(NothingValidError, match="run normgen tune first"):
        gather([])


def test_without_files_the_runs_and_winners_of_this_user_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("normgen.report.evidence.record_folders", lambda: (tmp_path / "records",))
    monkeypatch.setattr("normgen.report.evidence.shipped", lambda name: tmp_path / name)
    made.write(tmp_path / "runs" / "a" / "candidates.jsonl", made.candidates(made.key()))
    made.write(tmp_path / "runs" / "a" / "winner.jsonl", [made.winner(made.key())])
    write(tmp_path / "runs" / "a" / "trials.jsonl", joined(of_records(made.candidates(made.key()), "a")))
    made.write(tmp_path / "records" / "h200.jsonl", [made.winner(made.key())])
    evidence = gather([])
    assert (len(evidence.series), len(evidence.finals), len(evidence.sources)) == (1, 1, 3)


def test_a_sweep_is_a_series_with_the_default_of_its_header(tmp_path: Path) -> None:
    (series,) = gather([made.sweep(tmp_path / "sweep.jsonl.xz")]).series
    assert series.kind == "sweep"
    assert series.problem == made.key()
    assert (len(series.trials), len(series.timed)) == (12, 11)
    assert series.default_us == made.us_of(made.SCHEDULES[0])
    assert series.best_us == 10.0
    assert series.trials[1].reason == f"same code as {made.SCHEDULES[0]}"


def test_a_growing_sweep_is_read_too(tmp_path: Path) -> None:
    import lzma

    part = tmp_path / "sweep.jsonl.xz.part"
    part.write_bytes(lzma.decompress(made.sweep(tmp_path / "sweep.jsonl.xz").read_bytes()))
    assert [len(s.trials) for s in gather([part]).series] == [12]
