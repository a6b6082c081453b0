"""Trials of runs: what is kept of a record, what a file's head says for all, what is merged and shared."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from normgen.device import TARGETS
from normgen.errors import UsageError
from normgen.records.place import Place, Setting
from normgen.records.record import Outcome, Record
from normgen.schedule.schedule import Schedule
from normgen.trials import kept
from normgen.trials.file import read, write
from normgen.trials.kept import Folder, Trials, append, joined, of_records, pulled, push
from normgen.trials.trial import Trial
from tests.report.made import candidates, key, predicted

H100, H200 = (TARGETS[name].as_dict() for name in ("h100", "h200"))
SCHEDULES = [Schedule(threads_per_row=32 << n) for n in range(4)]
VERSIONS = {"normgen": "0.1.0", "nvrtc": "13.0"}


def trials(run: str = "a", count: int = 4, *, cols: int = 768, **facts: object) -> list[Trial]:
    question = {**key().as_dict(), "cols": cols, "pitch": cols}
    known = {"question": question, "place": Place(), "device": H200, "versions": VERSIONS, "run": run, **facts}
    return [
        Trial(schedule=Schedule(threads_per_row=32 << n), us=10.0 + n, chosen="search", **known) for n in range(count)
    ]


def test_what_all_trials_share_stands_in_the_head_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    write(path, joined(trials()))
    head, *rest = map(json.loads, path.read_text().splitlines())
    assert (head["question"]["op"], head["run"], head["versions"]) == ("layernorm", "a", VERSIONS)
    assert head["device"]["name"] == H200["name"]
    assert rest == [
        {"schedule": str(Schedule(threads_per_row=32 << n)), "chosen": "search", "us": 10.0 + n} for n in range(4)
    ]
    assert list(read(Trials, path, is_strict=True).trials) == trials()


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"device": H100}, "device"),
        ({"versions": {**VERSIONS, "nvrtc": "13.1"}}, "versions"),
        ({"cols": 1024}, "question"),
        ({"place": Place(setting=Setting.HOT)}, "place"),
        ({"run": "b"}, "run"),
    ],
)
def test_what_differs_stands_in_each_line_and_is_not_mixed_up(
    tmp_path: Path, facts: dict[str, object], name: str
) -> None:
    path = tmp_path / "two.jsonl.xz"
    both = [*trials(), *trials(**facts)]
    write(path, joined(both))
    found = read(Trials, path, is_strict=True)
    assert list(found.trials) == both
    assert found.trials[0] != found.trials[4]
    assert name not in {k for k, v in found.head().items() if v}
    assert all(name in found.plain(trial) for trial in found.trials)
    others = set(kept.SHARED) - {name}
    assert others & set(found.plain(found.trials[0])) == set()


def test_the_same_trial_is_there_once_and_another_time_of_it_is_another_trial() -> None:
    again = [*trials(), *trials(), *(replace(t, us=11.5) for t in trials(count=1)), *trials("b", count=1)]
    assert len(joined(again).trials) == 4 + 1 + 1
    nearly = [replace(t, us=t.us + 1e-9) for t in trials() if t.us]
    assert len(joined([*trials(), *nearly]).trials) == 4  # a file keeps five digits


def test_records_become_trials_and_what_was_taken_over_predicted_or_never_tried_does_not() -> None:
    record = replace(candidates(key())[0], search={"chosen": "random"})
    told = {"reused": replace(record, search={"chosen": "random", "reused": True}), "predicted": predicted(key(), 3.0)}
    late: Record = replace(
        record, outcome=Outcome.TIMEOUT, times_us=None, reason="not reached within the time of the run"
    )
    slow: Record = replace(late, reason="no answer within 5 s")
    found = list(of_records([record, *told.values(), late, slow], "run"))
    assert [(t.chosen, t.outcome, t.run) for t in found] == [
        ("random", Outcome.OK, "run"),
        ("random", Outcome.TIMEOUT, "run"),
    ]
    assert (found[0].question, found[0].place) == (key().as_dict(), record.place)
    assert (found[0].device, found[0].versions) == (record.device, record.versions)


def test_a_growing_file_has_one_head_and_loses_no_line_of_many_writers(tmp_path: Path) -> None:
    path = tmp_path / "state" / "trials.jsonl"
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(append, path, trials(f"run {n}")) for n in range(24)]:
            done.result()
    append(path, [])
    found = read(Trials, path, is_strict=True)
    assert len(found.trials) == 24 * 4
    assert {t.run for t in found.trials} == {f"run {n}" for n in range(24)}
    assert list(found.trials[:4]) == trials(found.trials[0].run)
    with path.open("a") as file:
        file.write('{"schedule":"defau')  # killed while it wrote
    append(path, trials("last"))
    found = read(Trials, path)
    assert list(found.trials[-4:]) == trials("last")
    assert len(found.trials) == 25 * 4


@pytest.mark.parametrize(
    "damage",
    [
        {"question": {"op": "layernorm"}},
        {"question": {**key().as_dict(), "rows": "many"}},
        {"question": {**key().as_dict(), "color": 3}},
        {"question": None},
        {"device": {**H200, "sms": -1}},
        {"device": {"name": "some"}},
        {"versions": {"normgen": 3}},
        {"ratio": 0.0},
        {"run": 3},
        {"schedule": "vector=3"},
    ],
)
def test_a_damaged_line_costs_itself_and_a_damaged_head_the_file(tmp_path: Path, damage: dict[str, object]) -> None:
    path = tmp_path / "grown.jsonl"
    append(path, trials(count=2))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], json.dumps(json.loads(lines[1]) | damage), lines[2]]) + "\n")
    assert list(read(Trials, path).trials) == trials(count=2)[1:]
    with pytest.raises(UsageError, match=r"what `normgen tune` or `normgen trials merge` wrote"):
        read(Trials, path, is_strict=True)
    if set(damage) <= {"question", "device", "versions", "run"} and damage != {"question": None}:
        path.write_text("\n".join([json.dumps(json.loads(lines[0]) | damage), *lines[1:]]) + "\n")
        with pytest.raises(UsageError, match=next(iter(damage))):
            read(Trials, path)


def test_a_store_keeps_each_content_once_and_gives_back_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Folder(tmp_path / "shared")
    assert list(pulled(store)) == []
    assert [push(store, found) for found in (trials(), trials("b"), trials()[::-1], [])] == [True, True, False, False]
    names = [name for name, _ in store.get()]
    assert len(names) == 2
    before = [(store.path / name).stat().st_mtime_ns for name in names]
    assert not push(store, [*trials("b"), *trials("b")])
    assert [(store.path / name).stat().st_mtime_ns for name in names] == before
    (store.path / "bad.jsonl.xz").write_bytes(b"\xfd7zXZ\x00 not one")
    (store.path / "worse.jsonl.xz").write_text("[1, 2]\n")
    found = list(pulled(store))
    assert sorted(t.run for t in found) == ["a"] * 4 + ["b"] * 4
    said = capsys.readouterr().err
    assert "left out: bad.jsonl.xz" in said
    assert "left out: worse.jsonl.xz" in said
    assert list(joined([*found, *trials()]).trials) == found
