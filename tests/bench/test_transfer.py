"""The nearest-schedule rule against tuning: random shapes, real tunes and contests on a modelled device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from normgen.bench.transfer import ROUND_COLS, Transfer, random_entries, run_transfer, transfer_text
from normgen.choice.first import default_schedule
from normgen.cli import main as cli
from normgen.errors import NothingValidError
from normgen.measure.isolation import process
from normgen.program.source import problem_for
from normgen.records import nearest
from normgen.records.place import Place
from normgen.records.winners import read
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.trials.contest import Venue, hold
from normgen.trials.versions import environment
from normgen.tuning.progress import Silent
from tests.bench.modelled import H200, tuned
from tests.measure.fake_device import plant_in_workers
from tests.measure.planted import all_workers_end

VENUE = Venue(facts=H200, index=0, samples=12, seed=3)
WIDE = Schedule(threads_per_row=1024, vector=2, hold="registers", unroll=0)
KNOWN = [
    tuned(problem_for(load(op), shape=shape, dtype="bf16"), WIDE)
    for op, shape in (("rmsnorm", "1024x4096"), ("rmsnorm", "65536x512"), ("layernorm", "8192x8192"))
]


@pytest.fixture(autouse=True)
def device(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cubins"))
    monkeypatch.setattr(process, "BENCH", "tests.bench.modelled:ModelledBench")
    monkeypatch.setattr("normgen.cuda.driver.device_facts", lambda _: H200)
    real = environment
    for place in ("normgen.tuning.tuner", "normgen.trials.contest"):
        monkeypatch.setattr(f"{place}.environment", lambda *, measured: real(measured=False))  # noqa: ARG005
    with all_workers_end(monkeypatch):
        yield


def test_shapes_are_drawn_within_what_was_tuned_and_are_none_of_it() -> None:
    entries = random_entries(KNOWN, count=40, seed=1)
    assert [e.label for e in random_entries(KNOWN, count=40, seed=1)] == [e.label for e in entries]
    assert [e.label for e in random_entries(KNOWN, count=40, seed=2)] != [e.label for e in entries]
    assert len({e.label for e in entries}) == 40
    low, high = min(r.bytes for r in KNOWN), max(r.bytes for r in KNOWN)
    tuned_shapes = {(r.problem.rows, r.problem.cols) for r in KNOWN}
    for entry in entries:
        problem = entry.problem
        assert 1024 <= problem.rows <= 65536
        assert 512 <= problem.cols <= 8192
        assert low <= problem.compulsory_bytes <= high
        assert (problem.rows, problem.cols) not in tuned_shapes
    round_ones = sum(e.problem.cols % ROUND_COLS == 0 for e in entries)
    assert 20 <= round_ones < 40
    assert {e.op for e in entries} == {"rmsnorm", "layernorm"}


def test_nothing_is_drawn_around_nothing() -> None:
    with pytest.raises(NothingValidError, match="around measured records"):
        random_entries([], count=3, seed=0)


def test_a_contest_shares_a_kernel_among_equal_schedules_and_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = problem_for(load("rmsnorm"), shape="512x1024", dtype="bf16")
    good, slow = default_schedule(problem, H200), replace(WIDE, vector=1)
    reread = Schedule(threads_per_row=64, vector=8, hold="reload", load="streaming")
    schedules = {"rule": good, "tuned": good, "default": slow}
    found = hold(problem, Place(), schedules, VENUE)
    same, other = found.ratio("tuned", "rule"), found.price_ratio("default", "rule")
    assert same is not None
    assert other is not None
    assert (same.low, same.median, same.high) == (1.0, 1.0, 1.0)
    assert other.low > 1.05
    assert found.roof[1] == found.roofs_us["elementwise"] < found.roofs_us["copy"]
    plant_in_workers(monkeypatch, **{"using Load = Streaming;": "wrong"})
    found = hold(problem, Place(), {"good": slow, "bad": reread}, VENUE)
    assert found.failed == {"bad": "wrong result: y[0, 0]: got 1, want 2"}
    assert (found.us("bad"), found.ratio("good", "bad")) == (None, None)
    assert found.us("good") is not None


@pytest.mark.parametrize(
    ("fault", "cause"), [("segv@check", "SIGSEGV"), ("lost@sample", "ILLEGAL_ADDRESS"), ("kill@sample", "SIGKILL")]
)
def test_a_kernel_that_takes_workers_down_ends_no_contest(
    fault: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_for(load("rmsnorm"), shape="512x1024", dtype="bf16")
    reread = Schedule(threads_per_row=64, vector=8, hold="reload", load="streaming")
    plant_in_workers(monkeypatch, **{"using Load = Streaming;": fault})
    notes: list[str] = []
    schedules = {"wide": replace(WIDE, vector=1), "bad": reread, "default": default_schedule(problem, H200)}
    found = hold(problem, Place(), schedules, VENUE, note=notes.append)
    assert found.failed.keys() == {"bad"}
    assert cause in found.failed["bad"]
    assert {name: len(samples) for name, samples in found.series.items()} == {"wide": 12, "default": 12}
    assert found.roof[1] == found.roofs_us["elementwise"] < found.roofs_us["copy"]
    assert len(notes) == 2  # the worker that was lost, and the one in which the kernel was tried alone


def test_tuning_beats_a_bad_neighbour_and_the_fraction_says_by_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records' 1024 threads a row are wide of the mark; the device prefers few threads and registers."""
    monkeypatch.setattr(nearest, "WORTH", 100.0)  # neighbours are taken whatever the ranker says of them
    entries = random_entries(KNOWN[:2], count=2, seed=5)
    told: list[Transfer] = []
    found = run_transfer(
        entries, KNOWN, VENUE, budget_s=20.0, trials=16, progress=Silent(), on_results=told.append, limit_s=600.0
    )
    assert found.finished
    assert [len(t.shapes) for t in told] == [1, 2]
    for shape, entry in zip(found.shapes, entries, strict=True):
        assert shape.label == entry.label
        assert not shape.failed
        assert shape.rule in {"1024x4096", "65536x512", "default schedule"}
        assert shape.fraction is not None
        assert shape.fraction.median <= 1.005
        assert shape.us["tuned"] is not None
        assert shape.us["tuned"] <= (shape.us["default"] or 0) * 1.005
        assert set(shape.schedules) == {"rule", "tuned", "default"}
    assert any(s.fraction and s.fraction.high < 0.97 for s in found.shapes)
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert data["median"] == pytest.approx(found.median, rel=1e-4)
    assert data["worst"] == pytest.approx(min(found.fractions), rel=1e-4)
    last = transfer_text(found).splitlines()[-1]
    assert last.startswith(f"the rule reaches {100 * (found.median or 0):.1f} % of what tuning gives (median of 2)")


def test_a_time_limit_keeps_what_there_is() -> None:
    found = run_transfer(
        random_entries(KNOWN, count=2, seed=0), KNOWN, VENUE, budget_s=5.0, progress=Silent(), limit_s=0.0
    )
    assert (found.finished, found.note, found.median, found.shapes) == (False, "time limit reached", None, ())
    assert "NOT FINISHED: time limit reached" in transfer_text(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--nearest", "0"), "0 is not in the range"),
        (("--nearest", "2", "--samples", "3"), "at least 6 samples"),
        (("--nearest", "2", "decode_h200"), "give a suite, or --from"),
        (("--nearest", "2", "--json", "/nowhere/n.json"), "the folder of a file to write must exist"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_shapes_around_every_shipped_record_are_whole_groups_and_batches() -> None:
    shipped = read(Path(__file__).parents[2] / "generated" / "records" / "h200.jsonl").records
    entries = random_entries(shipped, count=60, seed=3)
    assert any(e.problem.spec.group for e in entries)
    assert all(e.problem.cols % (e.problem.spec.group or 1) == 0 for e in entries)
