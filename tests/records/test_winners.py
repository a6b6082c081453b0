"""Files of records: several writers, damage, one line a problem, and the lookup."""

from __future__ import annotations

import dataclasses
import multiprocessing
import statistics
import threading
from pathlib import Path
from typing import Any

import pytest

from normgen.choice.first import default_schedule
from normgen.device import TARGETS, Device
from normgen.errors import UsageError
from normgen.files.private import write_atomically
from normgen.problem.question import Question
from normgen.records import winners
from normgen.records.lines import append, locked
from normgen.records.place import Context, Place, Setting
from normgen.records.record import Outcome, Record
from normgen.records.winners import adopt, lookup, read, records_of, shipped_folder
from normgen.schedule.schedule import Schedule
from tests.measure.simulated import problem
from tests.races import races
from tests.records.test_record import record

H200 = TARGETS["h200"]


def write_many(path: Path, seed: int) -> None:
    for _ in range(25):
        append(path, record(seed=seed, reason="x" * 9000).line())


def test_lines_of_several_processes_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "candidates.jsonl"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_many, args=(path, seed)) for seed in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    reading = read(path)
    assert not reading.damaged
    assert sorted(r.seed for r in reading.records) == [0] * 25 + [1] * 25 + [2] * 25


def test_a_half_written_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "candidates.jsonl"
    path.write_text(record(seed=1).line() + record(seed=2).line()[:300])
    append(path, record(seed=3).line())
    reading = read(path)
    assert [r.seed for r in reading.records] == [1, 3]
    assert [d.line for d in reading.damaged] == [2]
    assert "set aside: not JSON" in str(reading.damaged[0])


def test_a_missing_file_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl").records == ()


def test_winners_have_one_sorted_line_a_problem_and_place(tmp_path: Path) -> None:
    fast = Schedule(threads_per_row=128)
    wide = dataclasses.replace(record(), problem=problem(cols=1024).question)
    assert adopt(wide, tmp_path, H200)
    assert adopt(record(), tmp_path, H200)
    assert adopt(record(place=Place(setting=Setting.HOT)), tmp_path, H200)
    assert not adopt(record(us=15.0, schedule=fast), tmp_path, H200)
    assert adopt(record(us=12.0, schedule=fast), tmp_path, H200)
    found = read(tmp_path / "h200.jsonl").records
    assert [(r.problem.cols, str(r.place), r.us) for r in found] == [
        (768, "fresh", 12.0),
        (768, "hot", 14.0),
        (1024, "fresh", 14.0),
    ]
    assert adopt(record(us=15.0), tmp_path, H200, force=True)
    before = (tmp_path / "h200.jsonl").read_bytes()
    adopt(record(us=15.0), tmp_path, H200)
    assert (tmp_path / "h200.jsonl").read_bytes() == before


def test_damaged_winners_move_aside_and_the_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "h200.jsonl"
    path.write_text("{broken\n" + record().line())
    adopt(record(place=Place(setting=Setting.HOT)), tmp_path, H200)
    assert len(read(path).records) == 2
    assert not read(path).damaged
    assert (tmp_path / "h200.jsonl.damaged").read_text() == "{broken\n"


def test_lookup_prefers_the_exact_problem_then_the_nearest_rows(tmp_path: Path) -> None:
    for rows, us in ((1024, 3.0), (8192, 14.0), (65536, 110.0)):
        size = problem(rows=rows)
        found = {"problem": size.question, "bytes": size.compulsory_bytes}
        adopt(record(us=us, schedule=default_schedule(size, H200), **found), tmp_path, H200)
    exact = lookup(problem(), H200, folders=[tmp_path])
    assert exact.exact
    assert exact.record is not None
    assert exact.record.us == 14.0
    near = lookup(problem(rows=2000), H200, folders=[tmp_path])
    assert not near.exact
    assert near.record is not None
    assert near.record.problem.rows == 1024
    assert near.schedule == near.record.schedule
    assert near.reason == "tuned for 1024x768, the nearest to 2000x768"


def test_lookup_prefers_measured_records_and_the_asked_place(tmp_path: Path) -> None:
    user, shipped = tmp_path / "user", tmp_path / "shipped"
    predicted = record(outcome=Outcome.PREDICTED, measured=False, times_us=None, predicted_us=1.0)
    adopt(predicted, user, H200)
    adopt(record(us=14.0), shipped, H200)
    adopt(record(us=12.0, place=Place(setting=Setting.HOT)), shipped, H200)
    for place, us in ((Place(), 14.0), (Place(setting=Setting.HOT), 12.0)):
        found = lookup(problem(), H200, place=place, folders=[user, shipped]).record
        assert found is not None
        assert found.us == us


COLD_ALONE = Place(context=Context.ALONE, setting=Setting.COLD)


def test_what_was_measured_alone_comes_before_a_prediction_and_says_where_it_was_timed(tmp_path: Path) -> None:
    adopt(record(outcome=Outcome.PREDICTED, measured=False, times_us=None, predicted_us=1.0), tmp_path, H200)
    adopt(record(us=12.0, place=COLD_ALONE), tmp_path, H200)
    found = lookup(problem(), H200, folders=[tmp_path])
    assert found.record is not None
    assert found.record.measured
    assert found.reason == "tuned for this problem, cold alone (no record is in place yet)"
    plain = record(us=12.0, place=COLD_ALONE, schedule=default_schedule(problem(rows=2000), H200))
    adopt(plain, tmp_path, H200, force=True)
    near = lookup(problem(rows=2000), H200, folders=[tmp_path])
    assert near.reason.endswith("the nearest to 2000x768, cold alone (no record is in place yet)")


def test_a_slower_record_in_place_comes_before_a_faster_one_alone(tmp_path: Path) -> None:
    user, shipped = tmp_path / "user", tmp_path / "shipped"
    adopt(record(us=3.0, place=COLD_ALONE), user, H200)
    adopt(record(us=14.0), shipped, H200)
    found = lookup(problem(), H200, folders=[user, shipped])
    assert (found.record, found.reason) == (record(us=14.0), "tuned for this problem")


def test_of_two_records_the_one_tuned_last_serves_whatever_times_each_machine_had(tmp_path: Path) -> None:
    user, shipped = tmp_path / "user", tmp_path / "shipped"
    adopt(record(us=9.0, created="2026-11-24T22:18:00Z"), shipped, H200)
    adopt(record(us=12.0, created="2026-11-25T03:57:00Z"), user, H200)
    for folders in ([user, shipped], [shipped, user]):
        found = lookup(problem(), H200, folders=folders).record
        assert found is not None
        assert found.us == 12.0
    adopt(record(us=14.0, created="2026-11-26T08:00:00Z"), shipped, H200, force=True)  # a later version's
    found = lookup(problem(), H200, folders=[user, shipped]).record
    assert found is not None
    assert found.us == 14.0


def test_a_record_of_another_place_is_evidence_that_only_its_name_reaches(tmp_path: Path) -> None:
    for elsewhere in (Place(setting=Setting.HOT), Place(context=Context.MATMUL)):
        adopt(record(us=3.0, place=elsewhere), tmp_path, H200)
        assert lookup(problem(), H200, folders=[tmp_path]).record is None
        assert lookup(problem(), H200, place=elsewhere, folders=[tmp_path]).exact
    adopt(record(us=14.0), tmp_path, H200)
    found = lookup(problem(), H200, place=Place(context=Context.CHAIN), folders=[tmp_path])
    assert (found.record, found.reason) == (record(us=14.0), "tuned for this problem, fresh")


def test_a_winner_in_place_replaces_what_was_timed_alone(tmp_path: Path) -> None:
    other = problem(cols=1024).question
    hot_alone = Place(context=Context.ALONE, setting=Setting.HOT)
    for line in (record(place=COLD_ALONE), record(place=hot_alone), record(problem=other, place=COLD_ALONE)):
        adopt(line, tmp_path, H200)
    predicted = record(outcome=Outcome.PREDICTED, measured=False, times_us=None, predicted_us=1.0)
    adopt(predicted, tmp_path, H200)
    assert len(read(tmp_path / "h200.jsonl").records) == 4  # a prediction replaces no measurement
    adopt(record(us=99.0), tmp_path, H200)
    found = read(tmp_path / "h200.jsonl").records
    assert [(r.problem.cols, str(r.place)) for r in found] == [(768, "fresh"), (1024, "cold alone")]


def test_a_record_that_failed_serves_nobody(tmp_path: Path) -> None:
    append(tmp_path / "h200.jsonl", record(outcome=Outcome.WRONG_RESULT, times_us=None).line())
    assert lookup(problem(), H200, folders=[tmp_path]).record is None


def test_a_line_waits_for_the_lock_and_goes_to_the_file_that_is_there_then(tmp_path: Path) -> None:
    path = tmp_path / "candidates.jsonl"
    append(path, record(seed=1).line())
    with locked(path):
        late = threading.Thread(target=append, args=(path, record(seed=3).line()))
        late.start()
        late.join(0.3)
        assert late.is_alive()
        write_atomically(path, record(seed=2).line())
    late.join()
    assert [r.seed for r in read(path).records] == [2, 3]


def test_a_record_of_a_variance_method_that_is_searched_no_more_is_served_with_two_passes(tmp_path: Path) -> None:
    adopt(record(schedule=Schedule(threads_per_row=64, vector=4, variance="sum_of_squares")), tmp_path, H200)
    found = lookup(problem(), H200, folders=[tmp_path])
    assert found.schedule == Schedule(threads_per_row=64, vector=4)
    assert found.reason == "tuned for this problem, with two passes for its variance"


H100 = TARGETS["h100"]


def test_a_record_of_another_gpu_of_the_architecture_serves_who_has_none_of_his_own(tmp_path: Path) -> None:
    adopt(record(), tmp_path, H200)
    kin = lookup(problem(), H100, folders=[tmp_path])
    assert kin.record == record()
    assert kin.schedule == record().schedule
    assert not kin.exact  # a tune on this GPU is worth its while
    assert kin.reason == "tuned for this problem on NVIDIA H200"
    own = record(us=99.0, device=H100.as_dict(), schedule=Schedule(threads_per_row=128, vector=4))
    adopt(own, tmp_path, H100)
    found = lookup(problem(), H100, folders=[tmp_path])
    assert (found.record, found.exact, found.reason) == (own, True, "tuned for this problem")
    assert lookup(problem(), H200, folders=[tmp_path]).record == record()
    assert lookup(problem(), TARGETS["b200"], folders=[tmp_path]).record is None


def test_what_another_gpu_ran_is_served_where_it_is_legal_and_what_was_predicted_for_it_is_not(
    tmp_path: Path,
) -> None:
    wide = record(schedule=Schedule(threads_per_row=64, vector=4, hold="shared"))
    adopt(wide, tmp_path, H200)
    assert lookup(problem(), H100, folders=[tmp_path]).schedule == wide.schedule
    small = dataclasses.replace(H100, shared_per_block=64)
    assert lookup(problem(), small, folders=[tmp_path]).schedule != wide.schedule
    predicted = record(outcome=Outcome.PREDICTED, measured=False, times_us=None, predicted_us=1.0)
    adopt(predicted, tmp_path / "predicted", H200)
    assert not lookup(problem(), H100, folders=[tmp_path / "predicted"]).reason.startswith("tuned for this problem")


def test_a_neighbour_of_another_gpu_is_named_and_comes_after_one_of_this_gpu_as_near(tmp_path: Path) -> None:
    def near(rows: int, **changes: Any) -> Record:
        size = problem(rows=rows)
        found = {"problem": size.question, "bytes": size.compulsory_bytes}
        return record(schedule=default_schedule(size, H100), **(found | changes))

    adopt(near(4096), tmp_path, H200)
    assert lookup(problem(rows=5000), H100, folders=[tmp_path]).reason == (
        "tuned for 4096x768, the nearest to 5000x768 on NVIDIA H200"
    )
    adopt(near(8192, device=H100.as_dict()), tmp_path, H100)
    assert lookup(problem(rows=5000), H100, folders=[tmp_path]).reason == "tuned for 8192x768, the nearest to 5000x768"


def test_on_an_h100_the_records_of_an_h200_take_what_tunes_there_find() -> None:
    """18 problems of all kinds, whose schedules were timed there, too: 0.993 of the tuned chains, geometric mean."""
    kin = {r.line(): r for r in records_of(H100, [shipped_folder()])}
    over = []
    for race in races("h100"):
        if race.tuned is not None:
            found = lookup(race.problem, H100, records=kin.values())
            if found.schedule in race.chains:
                over.append(race.chains[found.schedule] / race.chains[race.tuned])
    assert len(over) == 18
    assert statistics.geometric_mean(over) <= 1.001


def test_a_miss_says_why(tmp_path: Path) -> None:
    adopt(record(), tmp_path, H200)
    other_text = dataclasses.replace(problem(), spec=dataclasses.replace(problem().spec, sha256="cd" * 32))
    other_op = dataclasses.replace(problem(), spec=dataclasses.replace(problem().spec, name="rmsnorm"))
    assert "another text of its spec" in lookup(other_text, H200, folders=[tmp_path]).reason
    assert "no record of rmsnorm forward" in lookup(other_op, H200, folders=[tmp_path]).reason
    far = lookup(problem(cols=8192), H200, folders=[tmp_path])
    assert "near enough to 8192x8192" in far.reason
    assert "NVIDIA A100" in lookup(problem(), TARGETS["a100"], folders=[tmp_path]).reason
    assert (far.record, far.schedule) == (None, None)


def test_a_gpu_outside_the_table_has_a_file_name_too() -> None:
    assert winners.gpu_slug(H200) == "h200"
    stranger: Device = dataclasses.replace(H200, name="NVIDIA RTX A6000 (x2)")
    assert winners.gpu_slug(stranger) == "nvidia-rtx-a6000-x2"
    assert winners.gpu_slug(dataclasses.replace(H200, name="../../etc/passwd")) == "etc-passwd"
    for nameless in ("", "../..", "x" * 200):
        with pytest.raises(UsageError, match="a GPU's name"):
            winners.gpu_slug(dataclasses.replace(H200, name=nameless))


def test_a_promise_takes_records_without_it_only_when_there_are_none_with_it(tmp_path: Path) -> None:
    promising = dataclasses.replace(problem(), stable_parameters=True)
    adopt(record(), tmp_path, H200)
    assert lookup(promising, H200, folders=[tmp_path]).exact
    own = record(us=15.0, problem=promising.question)
    adopt(own, tmp_path, H200)
    assert lookup(promising, H200, folders=[tmp_path]).record == own
    assert lookup(problem(), H200, folders=[tmp_path]).record == record()


def test_the_state_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path / "here"))
    assert winners.state_folder() == tmp_path / "here"
    assert winners.record_folders()[0] == tmp_path / "here" / "records"


def test_winners_of_two_specs_of_one_name_are_both_kept_and_each_is_found(tmp_path: Path) -> None:
    """A built-in spec has one text at a time: the winner of a new one takes the place of the old one's."""
    found = [record(us=us, spec=f"text {us}", problem=of_spec(f"{us:064.0f}")) for us in (10.0, 12.0)]
    for one in found:
        assert adopt(one, tmp_path, H200)
    assert adopt(record(), tmp_path, H200)
    assert adopt(record(us=99.0, problem=of_spec("f" * 64)), tmp_path, H200)
    assert sorted(r.us or 0 for r in read(tmp_path / "h200.jsonl").records) == [10.0, 12.0, 99.0]
    assert adopt(dataclasses.replace(found[0], times_us=record(us=9.0).times_us), tmp_path, H200)
    assert sorted(r.us or 0 for r in read(tmp_path / "h200.jsonl").records) == [9.0, 12.0, 99.0]


def of_spec(sha256: str) -> Question:
    return dataclasses.replace(record().problem, spec_sha256=sha256)


def test_a_line_is_exchanged_and_all_others_stay_to_the_byte(tmp_path: Path) -> None:
    file = tmp_path / "h200.jsonl"
    kept, old, gone = record(us=1.0), record(us=2.0), record(us=3.0)
    spaced = kept.line().replace('": ', '" : ')
    file.write_text(spaced + "{broken\n" + old.line() + gone.line())
    winners.exchange(tmp_path, [(kept, kept), (old, record(us=4.0)), (gone, None)])
    assert file.read_text() == spaced + "{broken\n" + record(us=4.0).line()
