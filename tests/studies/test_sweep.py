"""A sweep measures each point once, survives being killed, and keeps what it measured in a small file."""

from __future__ import annotations

import functools
import json
import lzma
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from normgen.codegen.module import Module
from normgen.cost.model import predicted_us
from normgen.device import TARGETS
from normgen.errors import UsageError
from normgen.files.decoded import LARGEST_UNPACKED
from normgen.measure.protocol import Check, DeviceLostError
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.place import DEFAULT_PLACE, Place, Setting
from normgen.records.record import Outcome
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import space
from normgen.spec.reader import load
from normgen.studies.fit import read_measured
from normgen.studies.sweep import POLICY, REFERENCE, Sweeper, called_fastest, sample_of, sweep
from normgen.studies.sweep_file import Sweep, read_sweep
from normgen.trials.file import text_of
from normgen.trials.head import opening
from normgen.trials.trial import Trial
from normgen.tuning.compile import Builder
from normgen.tuning.progress import Silent
from tests.measure.simulated import problem
from tests.tuning.test_campaign import BASE_US, COPY_US, SimulatedBench, compile_now, emit
from tests.tuning.test_search import DEFAULT, LEGAL, OPTIMUM, truth

SOME = [s for s in LEGAL if s.threads_per_row in (1, 64, 1024)]


class SweptBench(SimulatedBench):
    """Knows the reference's key; loses the device at `fatal`; counts what it loads."""

    def __init__(self, *, fatal: Schedule | None = None) -> None:
        super().__init__()
        self.loads: Counter[str] = Counter()
        self._fatal = fatal

    def load(self, key: str, module: Module, cubin: Any) -> None:
        if key == REFERENCE:
            self.truth[key] = truth(DEFAULT)
            return
        self.loads[key] += 1
        super().load(key, module, cubin)

    def check(self, key: str, *, full: bool) -> Check:
        if key == REFERENCE:
            return Check(ok=True, summary="")
        if self._fatal is not None and key == self._fatal.key:
            raise DeviceLostError("a kernel ended the device's context", received="ILLEGAL_ADDRESS")
        return super().check(key, full=full)


def describe(legal: Sequence[Schedule], **changed: Any) -> Callable[..., Sweep]:
    facts = {
        "problem": problem().question.as_dict(),
        "place": DEFAULT_PLACE, "bytes": 1, "legal": len(legal), "default": DEFAULT,
        **opening(TARGETS["h200"], {"protocol": "1", "default_text": "ab"}, {"seed": 0}),
    }  # fmt: skip
    return functools.partial(Sweep, **(facts | changed))


def swept(
    path: Path,
    bench: SweptBench,
    *,
    legal: Sequence[Schedule] = SOME,
    limit: int | None = None,
    first: Sequence[Schedule] = (),
    **changed: Any,
) -> Sweep:
    sweeper = Sweeper(
        bench=bench,
        make_builder=lambda: Builder(problem(), emit=emit_any, submit=compile_now),
        default=DEFAULT,
        seed=3,
    )
    opened = describe(legal, **changed)
    said = dict.fromkeys(first, "search")
    return sweep(sweeper, legal, path=path, limit=limit, seed=3, opened=opened, first=said, progress=Silent())


def rounded_points(found: Sweep) -> tuple[Trial, ...]:
    """As a file keeps them."""
    return tuple(replace(p, us=p.us and float(f"{p.us:.5g}")) for p in found.points)


def emit_any(asked: Problem, schedule: Schedule) -> Module:
    return emit(asked, schedule)


def test_every_point_is_there_once_with_its_time_or_its_failure(tmp_path: Path) -> None:
    bench = SweptBench()
    found = swept(tmp_path / "a.jsonl.xz", bench)
    assert {p.schedule for p in found.points} == {*SOME, DEFAULT}
    assert len(found.points) == len({*SOME, DEFAULT})
    for point in found.points:
        s = point.schedule
        if s.threads_per_row == 1 and s.rows_per_block == 8:
            assert (point.outcome, point.us) == (Outcome.ILLEGAL, None)
        elif s.threads_per_row == 1024 and s.params == "early":
            assert (point.outcome, point.us) == (Outcome.COMPILE_ERROR, None)
        elif s.variance == "welford":
            assert (point.outcome, point.us) == (Outcome.WRONG_RESULT, None)
        else:
            assert point.us == pytest.approx(BASE_US + truth(s), rel=0.08)  # noise and what is left of 3 % drift
            assert point.registers == 40


def test_the_best_point_is_the_best_there_is_and_was_timed_again(tmp_path: Path) -> None:
    bench = SweptBench()
    found = swept(tmp_path / "a.jsonl.xz", bench)
    assert truth(found.optimum.schedule) <= 1.02 * OPTIMUM
    assert found.optimum.us == pytest.approx(BASE_US + truth(found.optimum.schedule), rel=0.03)
    assert found.chain_us == pytest.approx(BASE_US, rel=0.03)
    assert found.roof_us == pytest.approx(COPY_US, rel=0.05)
    assert bench.loads[found.optimum.schedule.key] == 2
    assert found.roof_us is not None
    assert 0 < (found.noise_floor or 0) < 0.02


def test_points_with_the_same_code_are_measured_once_and_agree(tmp_path: Path) -> None:
    bench = SweptBench()
    found = swept(tmp_path / "a.jsonl.xz", bench)
    us = {p.schedule: p.us for p in found.points}
    twins = [p for p in found.points if p.twin is not None]
    assert twins
    for point in twins:
        assert point.twin is not None
        assert point.us == us[point.twin]
        assert not bench.loads[point.schedule.key]
        assert replace(point.schedule, load="default", store="default") == replace(
            point.twin, load="default", store="default"
        )


def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.xz"
    good = next(s for s in sample_of(SOME, None, seed=3)[200:] if s.variance == "two_pass" and s.threads_per_row == 64)
    ended = swept(path, SweptBench(fatal=good))
    assert (ended.finished, ended.exit_code) == (False, 6)
    assert ended.note == "device lost: a kernel ended the device's context"
    part = tmp_path / "a.jsonl.xz.part"
    before = read_sweep(path)
    assert not part.exists()
    assert before.points == rounded_points(ended)
    assert 0 < len(before.points) < len(SOME)
    lost = next(p for p in before.points if p.schedule == good)
    assert (lost.outcome, lost.us) == (Outcome.LAUNCH_ERROR, None)
    part.write_bytes(text_of(before).encode() + b'{"schedule": "vec')  # a line that a killed process left
    bench = SweptBench()
    found = swept(path, bench)
    assert {p.schedule for p in found.points} == {*SOME, DEFAULT}
    assert not part.exists()
    fastest = sorted(p.us for p in found.points if p.us is not None)[31]
    for point in before.points:
        if point.us is not None and point.us > 1.1 * fastest:
            assert not bench.loads[point.schedule.key]


def test_a_complete_file_is_not_measured_again_and_a_larger_sample_adds_to_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.xz"
    first = swept(path, SweptBench(), limit=100)
    assert len(first.points) == 100
    bench = SweptBench()
    again = swept(path, bench, limit=100)
    assert again.points == rounded_points(first)
    assert (again.roof_us, again.started) == (float(f"{first.roof_us:.5g}"), first.started)
    assert not bench.loads
    more = swept(path, SweptBench(), limit=160)
    assert {p.schedule for p in first.points} <= {p.schedule for p in more.points}
    assert len(more.points) >= 160


def test_a_sample_holds_what_was_asked_for_first(tmp_path: Path) -> None:
    first = [s for s in SOME if s.variance == "two_pass"][7:12]
    found = swept(tmp_path / "a.jsonl.xz", SweptBench(), limit=20, first=first)
    measured = {p.schedule for p in found.points}
    assert {*first, DEFAULT} <= measured
    assert 20 <= len(measured) <= 26


def test_points_stand_as_they_were_asked_for_and_say_how_they_were_chosen(tmp_path: Path) -> None:
    searched = [DEFAULT, *(s for s in SOME if s.threads_per_row == 64)][:40]
    found = swept(tmp_path / "a.jsonl.xz", SweptBench(), limit=32, first=searched)
    sample = [s for s in sample_of(SOME, 32, seed=3) if s not in searched]
    assert [p.schedule for p in found.points] == [*searched, *sample]
    assert [p.chosen for p in found.points] == ["default", *["search"] * 39, *["random"] * len(sample)]
    assert any(p.us is None for p in found.points[:-5])
    assert read_sweep(tmp_path / "a.jsonl.xz").points == rounded_points(found)
    assert {p.chosen for p in swept(tmp_path / "b.jsonl", SweptBench()).points} == {"", "default"}
    alone = swept(tmp_path / "c.jsonl", SweptBench(), limit=0, first=searched[1:9])
    assert [p.schedule for p in alone.points] == searched[:9]


def test_the_first_choices_are_the_cost_models_and_of_equals_the_plainest() -> None:
    asked = problem_for(load("rmsnorm"), shape="4096x4096", dtype="bf16")
    legal = space(asked, TARGETS["h200"]).legal
    chosen = called_fastest(asked, legal, TARGETS["h200"], Place(), count=200)
    told = [predicted_us(asked, s, TARGETS["h200"]) for s in chosen]
    assert told == sorted(predicted_us(asked, s, TARGETS["h200"]) for s in legal)[:200]
    equals = [(a, b) for (a, b), (x, y) in zip(pairwise(chosen), pairwise(told), strict=True) if x == y]
    assert equals
    assert all(len(str(a)) <= len(str(b)) for a, b in equals)
    assert called_fastest(asked, legal, TARGETS["h200"], Place(), count=0) == []


def test_what_is_far_behind_gets_three_samples_and_what_is_near_all(tmp_path: Path) -> None:
    bench = SweptBench()
    taken: Counter[str] = Counter()
    sample = bench.sample

    def counted(key: str) -> float:
        taken[key] += 1
        return sample(key)

    bench.sample = counted  # type: ignore[method-assign]
    swept(tmp_path / "a.jsonl.xz", bench)
    timed = {s: taken[s.key] for s in SOME if taken[s.key]}
    far = [n for s, n in timed.items() if BASE_US + truth(s) > 1.7 * (BASE_US + OPTIMUM)]
    near = [n for s, n in timed.items() if BASE_US + truth(s) < 1.05 * (BASE_US + OPTIMUM)]
    assert statistics.median(far) == POLICY.drop_after
    assert min(near) >= POLICY.screen_samples


@pytest.mark.parametrize(
    "changed",
    [
        {"place": Place(setting=Setting.HOT)},
        {"device": TARGETS["h100"].as_dict()},
        {"versions": {"protocol": "1", "default_text": "cd"}},
    ],
)
def test_what_cannot_be_compared_is_not_mixed(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = tmp_path / "a.jsonl.xz"
    swept(path, SweptBench(), limit=40)
    with pytest.raises(UsageError, match="of the same question"):
        swept(path, SweptBench(), limit=40, **changed)


def test_a_sample_leaves_no_stratum_out_and_gives_each_its_share() -> None:
    chosen = sample_of(LEGAL, 300, seed=1)
    assert len(set(chosen)) == 300
    assert chosen == sample_of(LEGAL, 300, seed=1)
    assert chosen != sample_of(LEGAL, 300, seed=2)

    def strata(schedules: Sequence[Schedule]) -> Counter[Any]:
        return Counter((s.threads_per_row, s.hold, s.variance) for s in schedules)

    whole, part = strata(LEGAL), strata(chosen)
    assert set(part) == set(whole)
    for stratum, count in whole.items():
        assert part[stratum] == pytest.approx(count * 300 / len(LEGAL), abs=1.6)


def test_thousands_of_points_stay_far_below_a_megabyte(tmp_path: Path) -> None:
    swept(tmp_path / "a.jsonl.xz", SweptBench(), legal=LEGAL)
    size = (tmp_path / "a.jsonl.xz").stat().st_size
    assert size < 40 * len(LEGAL)
    assert json.loads(lzma.decompress((tmp_path / "a.jsonl.xz").read_bytes()).split(b"\n")[0])["schema"] == 3


@pytest.mark.parametrize("text", ["", "no json\n", '{"schema": 9}\n', "[1,2]\n"])
def test_a_file_that_is_no_sweep_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError):
        read_sweep(path)


def test_the_command_sweeps_a_sample_and_the_first_choices_on_a_simulated_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from normgen.cli import main as cli
    from normgen.measure.isolation import process
    from normgen.studies.evaluate import first_choice
    from normgen.studies.fit import read_measured

    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("normgen.studies.sweep.device_facts", lambda _: TARGETS["h200"])
    monkeypatch.setattr(process, "BENCH", "tests.suites.fake_worker:FakeBench")
    monkeypatch.setattr("normgen.studies.sweep.environment", lambda *, measured: {"protocol": "test"})  # noqa: ARG005
    file = tmp_path / "sweep.jsonl.xz"
    asked = ["--op", "rmsnorm", "--shape", "64x512", "--dtype", "bf16", "--setting", "hot", "--out", str(file)]
    with pytest.raises(SystemExit) as end:
        cli.main(["sweep", *asked, "--limit", "24", "--best", "6", "--json"])
    assert end.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert 24 <= found["points"] <= 31
    (points,) = read_measured([file], thinned=False)
    legal = space(points.problem, TARGETS["h200"]).legal
    wanted = called_fastest(points.problem, legal, TARGETS["h200"], Place(setting=Setting.HOT), count=6)
    assert set(wanted) <= {s for s, _ in points.points}
    assert first_choice(points).first == wanted[0]


@pytest.mark.gpu(alone=True)
def test_a_small_sweep_on_a_device(tmp_path: Path) -> None:
    from normgen.studies.sweep import sweep_on_gpu

    asked = problem_for(load("rmsnorm"), shape="64x1024", dtype="bf16")
    where = Place(setting=Setting.HOT)
    found = sweep_on_gpu(asked, place=where, path=tmp_path / "a.jsonl.xz", limit=40, progress=Silent())
    assert len(found.points) == 40
    assert found.default in {p.schedule for p in found.points}
    assert found.optimum.us is not None
    assert found.roof_us is not None
    assert found.optimum.us > 0.5 * found.roof_us
    assert sum(p.us is not None for p in found.points) > 20


@functools.cache
def damaged(damage: str) -> bytes:
    header = b'{"schema": 3}\n'
    whole = lzma.compress(header + b"[0]\n" * 50_000)
    match damage:
        case "torn":
            return whole[: len(whole) // 2]
        case "garbled":
            return whole[:40] + b"\xff" * 16 + whole[56:]
        case "bomb":
            return lzma.compress(header + bytes(LARGEST_UNPACKED), preset=0)
        case "dictionary":
            return lzma.compress(header, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 28}])
    return lzma.compress(header[:-2] + b', "a": ' + b"[" * 100_000 + b"\n")


@pytest.mark.parametrize("reads", [read_sweep, lambda path: read_measured([path])], ids=["replay", "fit"])
@pytest.mark.parametrize("damage", ["torn", "garbled", "bomb", "dictionary", "nested"])
def test_a_damaged_or_exploding_file_is_refused_in_one_sentence(
    tmp_path: Path, reads: Callable[[Path], object], damage: str
) -> None:
    file = tmp_path / "sweep.jsonl.xz"
    file.write_bytes(damaged(damage))
    with pytest.raises(UsageError, match=r"what `normgen sweep` wrote|a file of records has at least one"):
        reads(file)
