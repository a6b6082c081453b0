"""Results of candidates: who may use which, what is a miss and why, damage, and environments side by side."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from normgen.device import TARGETS
from normgen.files.private import make_private
from normgen.records.lines import append
from normgen.records.memory import KnownAnswers
from normgen.records.record import Outcome, Record
from normgen.records.results import Environment, KeptResults, canonical, environment_of, results_path
from normgen.schedule.schedule import Schedule
from tests.measure.simulated import problem
from tests.records.test_record import record

H200 = TARGETS["h200"]
POLICY = {"screen_samples": 12}
SCHEDULE = Schedule(threads_per_row=64)


def measured(**changes: Any) -> Record:
    plain = {
        "versions": {"nvrtc": "13.0.88", "protocol": "1"},
        "device": H200.as_dict(),
        "search": {"policy": POLICY, "reference": "r", "reference_us": 20.0},
        "schedule": SCHEDULE,
    }
    return dataclasses.replace(record(), **(plain | changes))


HERE = environment_of(measured())


def results(folder: Path, here: Environment = HERE, **more: Any) -> KeptResults:
    return KeptResults(results_path(problem().question, H200, folder), here, **more)


def test_what_one_process_measured_another_finds(tmp_path: Path) -> None:
    early = results(tmp_path)
    results(tmp_path).append(measured())
    assert early.get(SCHEDULE) is None
    early.refresh()
    assert early.get(SCHEDULE) == measured() == results(tmp_path).get(SCHEDULE)
    assert results(tmp_path).path.parent.name == "h200"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"protocol": "2"}, "protocol 1, here 2"),
        ({"nvrtc": "13.1.1"}, "nvrtc 13.0.88, here 13.1.1"),
        ({"place": "hot"}, "place fresh, here hot"),
        ({"spec": "cd" * 32}, f"spec {HERE.spec[:12]}, here cdcdcdcdcdcd"),
        ({"policy": canonical({"screen_samples": 24})}, "policy"),
        ({"gpu": "NVIDIA H100", "nvrtc": "12"}, "gpu NVIDIA H200, here NVIDIA H100; nvrtc 13.0.88, here 12"),
    ],
)
def test_another_environment_is_a_miss_with_its_reason_and_keeps_its_lines(
    tmp_path: Path, changed: dict[str, str], reason: str
) -> None:
    results(tmp_path).append(measured())
    other = results(tmp_path, dataclasses.replace(HERE, **changed))
    assert other.get(SCHEDULE) is None
    (said,) = other.counts().keys() - {"usable"}
    assert said.startswith(reason)
    assert other.counts() == {"usable": 0, said: 1}
    theirs = measured(versions={"nvrtc": "99"}, seed=7)
    other.append(theirs)
    assert results(tmp_path).get(SCHEDULE) == measured()
    assert results(tmp_path).get(Schedule(threads_per_row=512)) is None


def test_what_may_pass_by_itself_is_no_answer_but_a_verdict_is(tmp_path: Path) -> None:
    for number, outcome in enumerate(Outcome):
        schedule = Schedule(threads_per_row=2**number)
        facts = {} if outcome.is_usable else {"measured": False, "times_us": None}
        results(tmp_path).append(measured(outcome=outcome, schedule=schedule, **facts))
    kept = {r.outcome for r in results(tmp_path).records}
    assert kept == {Outcome.OK, Outcome.ILLEGAL, Outcome.COMPILE_ERROR, Outcome.WRONG_RESULT}


def test_the_last_word_on_a_schedule_counts(tmp_path: Path) -> None:
    results(tmp_path).append(measured())
    results(tmp_path).append(measured(outcome=Outcome.WRONG_RESULT, times_us=None, reason="full check"))
    found = results(tmp_path).get(SCHEDULE)
    assert found is not None
    assert found.outcome is Outcome.WRONG_RESULT


def test_a_line_of_what_may_pass_by_itself_answers_for_nothing_whoever_wrote_it(tmp_path: Path) -> None:
    store = results(tmp_path)
    store.append(measured())
    passing = measured(outcome=Outcome.TIMEOUT, times_us=None, schedule=Schedule(threads_per_row=128))
    before = store.path.read_bytes()
    store.append(passing)
    assert store.path.read_bytes() == before
    append(store.path, passing.line())
    store.refresh()
    assert [r.outcome for r in store.records] == [Outcome.OK]


def test_half_a_line_is_read_once_the_rest_is_there(tmp_path: Path) -> None:
    store, line = results(tmp_path), measured().line().encode()
    store.path.parent.mkdir(parents=True, exist_ok=True)
    store.path.write_bytes(line[:200])
    store.refresh()
    assert store.get(SCHEDULE) is None
    with store.path.open("ab") as file:
        file.write(line[200:])
    store.refresh()
    assert store.get(SCHEDULE) == measured()


def test_a_file_that_was_cut_is_read_from_its_start(tmp_path: Path) -> None:
    store = results(tmp_path)
    other = Schedule(threads_per_row=128)
    store.append(measured())
    store.append(measured(schedule=other))
    store.refresh()
    store.path.write_bytes(measured(schedule=other, seed=5).line().encode())
    store.refresh()
    assert store.get(SCHEDULE) is None
    assert store.get(other) == measured(schedule=other, seed=5)


def test_damaged_lines_are_set_aside_with_a_message_and_the_rest_is_used(tmp_path: Path) -> None:
    first = results(tmp_path)
    first.append(measured())
    with first.path.open("ab") as file:
        file.write(b"\xff\x00 no record\n" + measured().line().encode()[:100])
    said: list[str] = []
    first.append(measured(schedule=Schedule(threads_per_row=128)))
    again = results(tmp_path, report=said.append)
    assert len(again.records) == 2
    aside = first.path.with_name(first.path.name + ".damaged")
    assert len(said) == 1
    assert "2 damaged lines" in said[0]
    assert str(aside) in said[0]
    assert aside.read_bytes().startswith(b"\xff\x00 no record\n")
    assert len(results(tmp_path, report=said.append).records) == 2
    assert len(said) == 1  # said once: the file is whole again
    first.refresh()  # a reader from before the repair goes on
    assert len(first.records) == 2


def test_a_folder_that_cannot_be_written_is_reported_once(tmp_path: Path) -> None:
    make_private(tmp_path / "results")
    (tmp_path / "results" / "h200").write_text("in the way")
    said: list[str] = []
    kept = results(tmp_path, report=said.append)
    kept.append(measured())
    kept.append(measured())
    assert len(said) == 1
    assert "goes on without" in said[0]


@pytest.mark.parametrize("loosened", ["file", "folder"])
def test_results_that_another_user_may_have_written_answer_for_nothing(loosened: str, tmp_path: Path) -> None:
    store = results(tmp_path)
    store.append(measured())
    (store.path if loosened == "file" else store.path.parent).chmod(0o777)
    said: list[str] = []
    later = results(tmp_path, report=said.append)
    later.refresh()
    assert later.get(SCHEDULE) is None
    assert len(said) == 1
    assert "other users may write" in said[0]


def test_memory_prefers_the_runs_own_record_and_forgets_what_nobody_tried(tmp_path: Path) -> None:
    store = results(tmp_path)
    store.append(measured())
    store.refresh()
    own = measured(seed=3)
    unreached = measured(
        schedule=Schedule(threads_per_row=512), outcome=Outcome.TIMEOUT, reason="not reached within the time of the run"
    )
    memory = KnownAnswers(own=[own, unreached], results=store)
    assert memory.recall(SCHEDULE) is own
    assert memory.is_own(own)
    assert memory.recall(unreached.schedule) is None
    assert memory.baseline_us("r") == 20.0
    assert memory.baseline_us("another") is None
    assert KnownAnswers(results=store).recall(SCHEDULE) == measured()
    assert KnownAnswers(results=store, reuse=False).recall(SCHEDULE) is None
