"""First choices are scored by what was timed; what was not is named, and what is measured later stands beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from normgen.choice.first import first_choices
from normgen.choice.ranker import FILE, Ranker
from normgen.cli.main import cli
from normgen.cuda.driver import device_facts
from normgen.device import TARGETS, Device
from normgen.errors import NothingValidError, UsageError
from normgen.files.plain import plain
from normgen.measure.faults import DeviceLostError
from normgen.problem.problem import Problem
from normgen.records.place import DEFAULT_PLACE
from normgen.records.record import Outcome
from normgen.schedule.schedule import Schedule
from normgen.studies.frozen import measure as measuring
from normgen.studies.frozen.draw import COUNT, problems
from normgen.studies.frozen.file import Frozen, read_frozen
from normgen.studies.frozen.first import CHOOSERS, Figures, Scores, scores
from normgen.studies.frozen.measure import Case, completed, drawn, lacking, measure, measured
from normgen.studies.replay import swept_problem
from normgen.studies.sweep_file import Sweep
from normgen.trials.file import write
from normgen.trials.head import opening
from normgen.trials.trial import Trial
from normgen.trials.versions import environment
from normgen.tuning.progress import Silent
from tests.studies.test_frozen import sweep_of

BASE_US = 3.0
SCHEDULES = [Schedule(vector=vector, unroll=unroll) for vector in (1, 2, 4) for unroll in (0, 2, 4)]
US = [5.0, 4.0, 4.02, 6.0, 4.08, 5.5, 4.9, 4.8]  # the ninth was not timed
H200 = TARGETS["h200"]
OPENED = Frozen(**opening(H200, {"protocol": "2"}, {}))


def timed(rows: int = 64, us: list[float] = US, **changed: Any) -> Sweep:
    points = [Trial(schedule=s, chosen="search", us=t) for s, t in zip(SCHEDULES, us, strict=False)]
    points[0] = replace(points[0], chosen="default")
    return replace(sweep_of(rows, seed=rows), default=SCHEDULES[0], points=tuple(points), **changed)


def listing(*places: int) -> Any:
    return lambda *_: [SCHEDULES[i] for i in places]


def figure(found: Scores, count: int, measure: str = "chain") -> Figures:
    return next(f for f in found.figures if (f.count, f.measure) == (count, measure))


def test_a_ratio_is_of_the_chain_and_of_the_price_to_the_best_that_was_timed() -> None:
    found = scores([timed()], listing(0, 3, 4, 7, 2))
    (choice,) = found.choices
    assert choice.chain == pytest.approx({1: 5 / 4, 4: 4.08 / 4, 8: 4.02 / 4, 32: 4.02 / 4})
    assert choice.price == pytest.approx({1: 2 / 1, 4: 1.08, 8: 1.02, 32: 1.02})
    assert (choice.listed, choice.untimed) == (5, ())
    assert [(f.count, f.measure) for f in found.figures] == [(n, m) for n in (1, 4, 8) for m in ("chain", "price")]
    assert figure(found, 8).within == {"1.01": 1.0, "1.03": 1.0}
    assert figure(found, 8, "price").within == {"1.01": 0.0, "1.03": 1.0}


def test_what_was_not_timed_is_named_and_counted_and_makes_no_share_better() -> None:
    asked = {64: (8, 1), 65: (1, 8), 66: (8,)}

    def choose(problem: Problem, device: Device) -> list[Schedule]:
        assert device.name == H200.name
        return [SCHEDULES[i] for i in asked[problem.rows]]

    found = scores([timed(rows) for rows in asked], choose)
    assert [c.untimed for c in found.choices] == [((0, SCHEDULES[8]),), ((1, SCHEDULES[8]),), ((0, SCHEDULES[8]),)]
    assert [c.chain[1] for c in found.choices] == [None, 1.0, None]
    assert [c.chain[4] for c in found.choices] == [1.0, 1.0, None]
    assert found.missing == {1: 2, 4: 3}
    first = figure(found, 1)
    assert (first.problems, first.timed, first.median) == (3, 1, 1.0)
    assert first.within["1.03"] == pytest.approx(1 / 3)
    nothing = scores([timed()], listing(8))
    assert (figure(nothing, 1).median, figure(nothing, 1).worst, figure(nothing, 1).within["1.03"]) == (None, None, 0)


def test_a_choice_that_failed_is_infinitely_far_behind() -> None:
    sweep = timed()
    points = (*sweep.points, Trial(schedule=SCHEDULES[8], chosen="first", outcome=Outcome.COMPILE_ERROR))
    found = scores([replace(sweep, points=points), timed(65)], listing(8, 2))
    assert found.choices[0].chain[1] == math.inf
    assert found.choices[0].chain[4] == pytest.approx(1.005)
    assert found.choices[0].untimed == ()
    assert found.choices[1].chain[1] is None


def test_figures_are_the_median_the_95th_percentile_and_the_worst() -> None:
    sweeps = [timed(rows, [4 + 0.01 * rows, 4.0]) for rows in range(1, 41)]
    first = figure(scores(sweeps, listing(0)), 1)
    assert (first.median, first.p95, first.worst) == pytest.approx((1.05125, 1.095, 1.1))
    assert first.within == {"1.01": 4 / 40, "1.03": 12 / 40}


def test_choosers_of_the_file_are_its_points_in_order_and_the_rules_are_the_default() -> None:
    sweep = replace(timed(), points=(*timed().points, Trial(schedule=SCHEDULES[8], chosen="random", us=4.4)))
    of = {name: make([sweep])(swept_problem(sweep.problem), H200) for name, make in CHOOSERS.items()}
    assert of["search"] == SCHEDULES[:8]
    assert of["random"] == SCHEDULES[8:]
    assert list(of["ranker"]) == list(first_choices(swept_problem(sweep.problem), H200))


def test_searching_on_frozen_problems_is_better_than_chance() -> None:
    sweeps = read_frozen(parts=("choose",))
    found = {name: scores(sweeps, make(sweeps)) for name, make in CHOOSERS.items()}
    assert not any(found["search"].missing.values())
    worst = [figure(found[name], n).p95 or 0 for name, n in (("search", 32), ("search", 8), ("random", 8))]
    assert worst == sorted(worst)


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a tune was asked; it tried the first three schedules."""
    asked: list[dict[str, Any]] = []

    def tune(**question: Any) -> SimpleNamespace:
        asked.append(question)
        return SimpleNamespace(interrupted=question["shape"] == problems()[3]["shape"], candidates_path=Path())

    records = SimpleNamespace(records=[SimpleNamespace(schedule=s) for s in SCHEDULES[:3]])
    monkeypatch.setattr(measuring, "tune", tune)
    monkeypatch.setattr(measuring, "read", lambda _: records)
    return asked


def swept(problem: Problem, **asked: Any) -> Sweep:
    """A sweep on a card that takes twice as long today."""
    took = dict(zip(SCHEDULES, [*US, 4.2], strict=True))
    points = tuple(Trial(schedule=s, chosen=how, us=2 * took[s]) for s, how in asked["first"].items())
    options = {"seed": asked["seed"]}
    return replace(timed(), problem=problem.question.as_dict(), options=options, points=points, place=asked["place"])


def test_measuring_goes_on_with_its_file_and_ctrl_c_loses_nothing(tmp_path: Path, tuned: list[dict[str, Any]]) -> None:
    path = tmp_path / "new.jsonl.xz"
    cases = drawn()
    assert [case.number for case in cases] == list(range(COUNT))

    def go(cases: list[Case]) -> Any:
        one = lambda case: measured(case, device=2, swept=swept)  # noqa: E731
        return measure(OPENED, path, cases, one, progress=Silent())

    stopped = go(cases[:5])
    assert (stopped.finished, stopped.note, stopped.exit_code) == (False, "interrupted", 130)
    assert [sweep.options["seed"] for sweep in stopped.sweeps] == [0, 1, 2]
    assert [p.chosen for p in stopped.sweeps[0].points] == ["search"] * 3
    assert [asked["shape"] for asked in tuned] == [asked["shape"] for asked in problems(4)]
    assert {(a["trials"], a["reuse"], a["device"], a["seed"]) for a in tuned} == {(64, False, 2, 0)}
    found = go([*cases[:3], cases[4]])
    assert len(tuned) == 5
    assert (found.finished, [sweep.options["seed"] for sweep in found.sweeps]) == (True, [0, 1, 2, 4])
    assert [case.number for case in drawn(found.sweeps)] == [3, *range(5, COUNT)]


def test_a_problem_that_cannot_be_measured_is_told_and_left_out_and_a_lost_device_ends_the_run(tmp_path: Path) -> None:
    notes: list[str] = []
    faults: Mapping[int, Exception] = {1: NothingValidError("none is right"), 3: DeviceLostError("it is gone")}

    def one(case: Case) -> Sweep:
        if case.number in faults:
            raise faults[case.number]
        return replace(timed(), problem=case.problem.question.as_dict(), options={"seed": case.number})

    said = SimpleNamespace(phase=lambda _: None, note=notes.append)
    found = measure(OPENED, tmp_path / "a.jsonl.xz", drawn()[:5], one, progress=said)
    assert [sweep.options["seed"] for sweep in found.sweeps] == [0, 2]
    assert (found.note, found.exit_code) == ("device lost: it is gone", 6)
    assert any(note.startswith(f"{drawn()[1].label}: none is right") for note in notes)


def test_a_choice_that_was_not_timed_is_timed_in_the_scale_of_its_sweep() -> None:
    before = timed()
    (case,) = lacking([before, timed(65, [*US, 4.1])], listing(2, 8, 1))
    assert (case.lacks, case.number) == ((SCHEDULES[8],), 64)
    after = completed(case, device=0, swept=swept)
    assert after.points[:-1] == before.points
    assert after.points[-1].us == pytest.approx(4.2)
    assert replace(after.points[-1], us=4.2) == Trial(schedule=SCHEDULES[8], chosen="first", us=4.2)
    assert lacking([after], listing(2, 8, 1)) == []
    (choice,) = scores([after], listing(8)).choices
    assert choice.chain[1] == pytest.approx(4.2 / 4)


def test_choices_are_timed_with_the_default_and_the_fastest_and_on_the_same_card(tmp_path: Path) -> None:
    (case,) = lacking([timed()], listing(8))
    asked: dict[str, Any] = {}

    def kept(problem: Problem, **said: Any) -> Sweep:
        asked.update(said)
        return swept(problem, **said)

    completed(case, device=3, swept=kept)
    assert list(asked["first"])[:3] == [SCHEDULES[0], SCHEDULES[1], SCHEDULES[2]]
    assert list(asked["first"])[-1] == SCHEDULES[8]
    assert (asked["limit"], asked["index"], asked["place"]) == (0, 3, DEFAULT_PLACE)
    other = Frozen(**opening(TARGETS["h100"], {}, {}))
    with pytest.raises(UsageError, match="on the card of their sweeps"):
        measure(other, tmp_path / "a.jsonl", [case], lambda _: timed(), progress=Silent())


@pytest.mark.gpu(alone=True)
def test_a_drawn_problem_is_measured_and_completed_on_a_device(tmp_path: Path) -> None:
    card = Frozen(**opening(device_facts(0), environment(measured=True), {}))
    case = min(drawn(), key=lambda case: case.problem.rows * case.problem.cols)
    found = measure(card, tmp_path / "a.jsonl.xz", [case], partial(measured, device=0), progress=Silent())
    (sweep,) = found.sweeps
    assert (sweep.key, sweep.points[0].chosen) == (case.key, "default")
    assert {p.chosen for p in sweep.points} == {"default", "search", "random"}
    best = min((p for p in sweep.points[1:] if p.us), key=lambda p: p.us or 0.0)
    fewer = replace(sweep, points=tuple(p for p in sweep.points if p != best))
    (lacks,) = lacking([fewer], lambda *_: [best.schedule])
    again = completed(lacks, device=0).points[-1]
    assert (again.schedule, again.chosen) == (best.schedule, "first")
    assert again.us == pytest.approx(best.us, rel=0.1)


def run(*arguments: Any) -> Any:
    done = CliRunner().invoke(cli, ["study", *map(str, arguments), "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(done.stdout)


def test_the_commands_gather_and_score(tmp_path: Path) -> None:
    for rows in range(1, 25):
        write(tmp_path / f"{rows:03d}.jsonl", timed(rows))
    out = tmp_path / "out.jsonl.xz"
    assert run("frozen", tmp_path / "001.jsonl", "-o", out)["problems"] == 1
    whole = run("frozen", tmp_path, "-o", out)
    assert (whole["problems"], sum(whole["parts"].values())) == (24, 24)
    asked = ("first", "--file", out, "--chooser", "search", "--chooser", "ranker")
    said = run(*asked)
    assert [one["name"] for one in said["choosers"]] == ["search", "ranker"]
    assert len(said["choosers"][0]["choices"]) == whole["parts"]["choose"]
    assert not (tmp_path / "looks.txt").exists()
    assert len(run(*asked, "--part", "test", "--why", "a test")["choosers"][0]["choices"]) == whole["parts"]["test"]
    assert (tmp_path / "looks.txt").read_text(encoding="utf-8").endswith(" a test\n")
    shown = CliRunner().invoke(cli, ["study", *map(str, asked)], catch_exceptions=False).stdout
    assert shown.count("ranker: choice 1 of ") == whole["parts"]["choose"]
    with pytest.raises(UsageError, match="a share of"):
        run("frozen", "--measure", "-o", out, "--index", 4, "--of", 4)
    with pytest.raises(UsageError, match="unknown chooser"):
        run("first", "--file", out, "--chooser", "rule")


def test_scores_are_plain_values() -> None:
    said = plain(scores([timed()], listing(8, 1)))
    assert json.loads(json.dumps(said))["missing"] == {"1": 1, "4": 1}
    assert said["choices"][0]["untimed"][0][0] == 0


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "a cut tree": lambda found: found["trees"][0].pop(),
    "an empty tree": lambda found: found["trees"][0].clear(),
    "numbers behind a tree": lambda found: found["trees"][0].append(-1),
    "no number": lambda found: found["trees"][0].__setitem__(1, math.nan),
    "a split by no feature": lambda found: found["names"].pop(),
    "a split by half a feature": lambda found: found["trees"][0].__setitem__(0, 0.5),
    "no scale": lambda found: found.update(scale=0),
    "a scale that is none": lambda found: found.update(scale=math.nan),
    "too many levels": lambda found: found["trees"][0].__setitem__(slice(None), [0, 0.0] * 9999 + [-1] * 10000),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_ranker_is_a_value_error(damage: str) -> None:
    found = json.loads(FILE.read_bytes())
    assert Ranker.of(found).names
    DAMAGE[damage](found)
    with pytest.raises(ValueError, match=r"tree|number|split|scale"):
        Ranker.of(found)
