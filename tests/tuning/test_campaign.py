"""A whole run on a simulated device: what is proposed, compiled, checked, timed, recorded and confirmed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normgen.tuning.campaign as campaigns
from normgen.codegen.module import KernelEntry, Launch, Module
from normgen.cuda.cubin import Cubin, Resources
from normgen.device import TARGETS
from normgen.errors import CompileError, NormgenError, NothingValidError, ProgramError
from normgen.measure.protocol import Check, DeviceLostError, KernelFaultError, twin_name
from normgen.measure.timing import Policy
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.place import Context, Place
from normgen.records.record import Outcome, Record
from normgen.records.winners import read
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.tuning.campaign import BATCH, Campaign
from normgen.tuning.compile import Builder, Submit
from normgen.tuning.finals import finalist_records
from normgen.tuning.progress import Silent
from normgen.tuning.run import TuningRun, open_run
from normgen.tuning.search.search import SETTLED_AFTER, Search
from tests.measure.simulated import SimulatedTimer, problem
from tests.records.test_verified import VERIFIED
from tests.tuning.test_search import DEFAULT, LEGAL, OPTIMUM, PREDICTED, truth

BY_KEY = {s.key: s for s in LEGAL}
SAMPLED = replace(VERIFIED, calls=1, rows=(170,), own_pitches=(), nulls=())
COPY_US = 0.98 * OPTIMUM
BASE_US = 6.0  # the chain without a kernel


class SimulatedBench(SimulatedTimer):
    """A device that takes what `truth` says, finds `wrong` kernels wrong and refuses to launch `refused` ones."""

    roofs = ("copy",)

    def __init__(self, *, stop_after: int | None = None, seed: int = 0) -> None:
        super().__init__({"copy": COPY_US}, seed=seed, base_us=BASE_US)
        self.timed: list[str] = []
        self.full_checks: list[str] = []
        self.wrong: set[str] = set()
        self._stop_after = stop_after

    def load(self, key: str, module: Module, cubin: Cubin) -> None:
        assert module.kernels[0].name in cubin.resources
        if BY_KEY[key].threads == 1024 and BY_KEY[key].rows_per_block == 8:
            raise ProgramError("too many resources requested for launch")
        self.truth[key] = truth(BY_KEY[key])

    def check(self, key: str, *, full: bool) -> Check:
        if full:
            self.full_checks.append(key)
        is_wrong = BY_KEY[key].variance == "welford" or (full and key in self.wrong)
        if is_wrong:
            return Check(ok=False, summary="y[0, 0]: got 1, want 2", error={"y": 0.5})
        return Check(ok=True, summary="", error={"y": 0.5}, verified=VERIFIED if full else SAMPLED)

    def warm_up(self, key: str) -> None:
        super().warm_up(key)
        self.timed.append(key)
        if self._stop_after is not None and len(self.timed) > self._stop_after:
            raise KeyboardInterrupt

    def unload(self, key: str) -> None:
        del self.truth[key]


def emit(asked: Problem, schedule: Schedule) -> Module:
    """A module whose text says all that decides the simulated code: hints of a thread-per-row kernel do not."""
    assert asked == problem()
    if schedule.threads_per_row == 1 and schedule.rows_per_block == 8:
        raise ProgramError("eight rows a thread do not fit")
    shown = schedule.as_dict()
    if schedule.threads_per_row == 1:
        shown |= {"load": "default", "store": "default"}
    name = f"layernorm_{schedule.key}"
    kernel = KernelEntry(name=name, params=(), launch=Launch(threads=schedule.threads))
    return Module(instructions="", text=f"{name} {shown}", kernels=(kernel,))


def compile_now(module: Module) -> Future[Cubin]:
    """A finished compilation; what prefetches its parameters is refused at 1024 threads."""
    answer: Future[Cubin] = Future()
    name = module.kernels[0].name
    if "'threads_per_row': 1024" in module.text and "early" in module.text:
        answer.set_exception(CompileError("NVRTC must accept the text", log="error: line 1"))
    else:
        facts: dict[str, Any] = {"arch": 90, "log": "", "seconds": 0.0, "nvrtc_version": (13, 0), "key": name}
        answer.set_result(Cubin(data=module.text.encode(), resources={name: Resources(registers=40)}, **facts))
    return answer


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TuningRun]:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path))
    with open_run(
        problem(), TARGETS["h200"], place=Place(), seed=5, trials=80, budget_s=60.0, progress=Silent(),
        command="test", versions={"normgen": "0.1.0"},
    ) as opened:  # fmt: skip
        yield opened


def campaign_on(
    run: TuningRun, bench: SimulatedBench, *, search: Search | None = None, submit: Submit = compile_now, **more: Any
) -> Campaign:
    return Campaign(
        run,
        search=search or Search(LEGAL, predicted=PREDICTED, seeds=(DEFAULT,), seed=run.seed),
        builder=Builder(run.problem, emit=emit, submit=submit),
        bench=bench,
        default=DEFAULT,
        policy=Policy(),
        **more,
    )


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_search_told_how_many_to_try_goes_on_where_nothing_promises_more(run: TuningRun, *, goes_on: bool) -> None:
    run.goes_on = goes_on
    search = Search(LEGAL, predicted=PREDICTED, seeds=(DEFAULT,), seed=run.seed)
    campaign_on(run, SimulatedBench(), search=search).finish()
    assert (search.trials == run.trials) is goes_on
    assert search.trials >= SETTLED_AFTER


def test_the_first_candidates_compile_before_the_device_is_ready_and_are_the_same(run: TuningRun) -> None:
    class Unready(SimulatedBench):
        is_ready = False

        def __getattribute__(self, name: str) -> Any:
            assert name in ("is_ready", "__class__") or self.is_ready, f"the device was asked for {name}"
            return super().__getattribute__(name)

    begun: list[str] = []
    bench = SimulatedBench()
    bench.__class__ = Unready
    campaign = campaign_on(run, bench, submit=lambda module: begun.append(module.text) or compile_now(module))
    campaign.ask_ahead()
    ahead = len(begun)
    assert ahead >= BATCH
    Unready.is_ready = True
    campaign.finish()
    asked_late: list[str] = []
    campaign_on(run, SimulatedBench(), submit=lambda m: asked_late.append(m.text) or compile_now(m)).finish()
    assert asked_late[:ahead] == begun[:ahead]


def test_the_winner_is_near_the_optimum_and_beats_the_default(run: TuningRun) -> None:
    campaign = campaign_on(run, SimulatedBench())
    finish = campaign.finish()
    assert truth(finish.winner.schedule) <= 1.02 * OPTIMUM
    assert finish.roof.us == pytest.approx(COPY_US, rel=0.05)
    assert finish.default_us == pytest.approx(BASE_US + truth(DEFAULT), rel=0.05)
    records = finalist_records(campaign, finish)
    assert records[0].schedule == finish.winner.schedule
    assert DEFAULT in [r.schedule for r in records]
    assert records[0].percent_of_roof == pytest.approx(98, abs=2.5)
    assert set(records[0].roofs_us) == set(SimulatedBench.roofs)
    assert min(records[0].roofs_us.values()) == records[0].roof_us
    assert {r.place for r in records} == {run.place}
    assert SETTLED_AFTER <= records[0].search["trials"] <= 80
    assert 0 < records[0].search["noise_floor"] < 0.02


def test_a_finalist_is_recorded_with_its_price_and_with_what_it_takes_alone(run: TuningRun) -> None:
    campaign = campaign_on(run, SimulatedBench())
    finish = campaign.finish()
    for record in finalist_records(campaign, finish):
        assert record.times_us is not None
        assert record.chain_us is not None
        assert record.price_us is not None
        assert record.times_us.median == pytest.approx(BASE_US + truth(record.schedule), rel=0.05)
        assert record.chain_us.median == pytest.approx(BASE_US, rel=0.05)
        assert record.price_us.low <= record.price_us.median <= record.price_us.high
        assert record.price_us.median == pytest.approx(truth(record.schedule), rel=0.05)
        assert record.cost_us == record.price_us.median
        assert record.alone_us == pytest.approx(truth(record.schedule), rel=0.05)
        assert record.chain_us.n == 2 * record.times_us.n
    searched = read(run.folder / "candidates.jsonl").records
    assert all(r.price_us is None and r.alone_us is None for r in searched)
    assert all(r.chain_us is not None for r in searched)


def test_a_winner_that_loses_to_the_default_between_matrix_products_is_passed_over(run: TuningRun) -> None:
    first = campaign_on(run, SimulatedBench()).finish()
    assert first.winner.schedule != DEFAULT
    bench = SimulatedBench()
    bench.between = {twin_name(first.winner.key, Context.MATMUL): 6.0}
    campaign = campaign_on(run, bench)
    second = campaign.finish()
    assert second.winner.key != first.winner.key
    assert f"passed over, it loses to the default between matrix products: {first.winner.schedule}" in run.notes
    found = finalist_records(campaign, second)[0].search["matmul"]
    assert found[first.winner.key]["to_default"]["low"] > 1.05
    assert found[second.winner.key]["to_default"]["low"] <= 1.05
    assert found[DEFAULT.key]["chain_us"] == pytest.approx(5 * BASE_US, rel=0.05)
    assert first.winner.key in {c.key for c in second.candidates}  # it stays as evidence


def test_a_device_without_cublas_is_told_and_costs_no_winner(run: TuningRun, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SimulatedBench()
    twin = bench.twin

    def refusing(key: str, context: Context | None = None) -> str:
        if context is Context.MATMUL:
            raise NormgenError("the context matmul needs cuBLAS", received="no wheel of it is installed")
        return twin(key, context)

    monkeypatch.setattr(bench, "twin", refusing)
    finish = campaign_on(run, bench).finish()
    assert truth(finish.winner.schedule) <= 1.02 * OPTIMUM
    assert finish.matmul == {}
    assert "not compared between matrix products: no wheel of it is installed" in run.notes


def test_a_hot_chain_that_does_not_stay_in_the_l2_is_told(run: TuningRun, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SimulatedBench()
    monkeypatch.setattr(bench, "conditions", lambda: {"spills": "a chain takes 48 MiB and does not stay in L2"})
    campaign = campaign_on(run, bench)
    finish = campaign.finish()
    assert "not hot: a chain takes 48 MiB and does not stay in L2" in run.notes
    assert finalist_records(campaign, finish)[0].search["conditions"]["spills"].startswith("a chain takes 48 MiB")


@pytest.mark.parametrize("where", [Context.MATMUL, Context.ALONE])
def test_a_finalist_that_faults_elsewhere_is_out(
    run: TuningRun, monkeypatch: pytest.MonkeyPatch, where: Context
) -> None:
    first = campaign_on(run, SimulatedBench()).finish()
    bench = SimulatedBench()
    sample = bench.sample

    def faulty(key: str) -> float:
        if key == twin_name(first.winner.key, where):
            raise KernelFaultError("it left its tensors", key=first.winner.key, outcome=Outcome.LAUNCH_ERROR)
        return sample(key)

    monkeypatch.setattr(bench, "sample", faulty)
    finish = campaign_on(run, bench).finish()
    assert first.winner.key not in {c.key for c in finish.candidates}
    assert finish.winner.key != first.winner.key
    last = read(run.folder / "candidates.jsonl").records[-1]
    assert (last.schedule, last.outcome) == (first.winner.schedule, Outcome.LAUNCH_ERROR)


def test_every_candidate_is_recorded_with_its_outcome_and_no_wrong_one_is_timed(run: TuningRun) -> None:
    bench = SimulatedBench()
    campaign_on(run, bench).finish()
    records = read(run.folder / "candidates.jsonl").records
    assert SETTLED_AFTER <= len(records) <= 80
    assert len({r.schedule for r in records}) == len(records)
    for record in records:
        if record.outcome is not Outcome.OK:
            assert record.schedule.key not in bench.timed
            assert record.times_us is None
            assert record.reason
        if record.outcome is Outcome.WRONG_RESULT:
            assert record.reason == "y[0, 0]: got 1, want 2"
        assert record.schedule.variance != "welford" or record.outcome is not Outcome.OK
        assert record.verified == (SAMPLED if record.outcome is Outcome.OK else None)
    assert {"ok", "wrong_result"} <= {r.outcome.value for r in records}
    by_schedule = dict(zip(LEGAL, PREDICTED, strict=True))
    assert all(r.predicted_us == pytest.approx(by_schedule[r.schedule], rel=1e-4) for r in records)


def test_the_winner_is_recorded_with_the_calls_of_its_full_check_and_its_rivals_with_their_plain_call(
    run: TuningRun,
) -> None:
    bench = SimulatedBench()
    campaign = campaign_on(run, bench)
    finish = campaign.finish()
    winner, *rivals = finalist_records(campaign, finish)
    assert winner.verified == VERIFIED
    assert rivals
    assert {r.verified for r in rivals} == {SAMPLED}
    assert bench.full_checks == [winner.schedule.key]


def test_each_way_to_fail_has_its_outcome(run: TuningRun) -> None:
    wrong = Schedule(threads_per_row=64, vector=4, hold="registers", variance="welford")
    refused = Schedule(threads_per_row=1024, vector=4, hold="registers", params="early")
    too_big = Schedule(threads_per_row=128, rows_per_block=8, vector=4, hold="registers")
    no_text = Schedule(threads_per_row=1, rows_per_block=8, hold="registers")
    same = [Schedule(threads_per_row=1, hold="registers", load=load) for load in ("default", "streaming")]
    planted = [wrong, refused, too_big, no_text, *same]
    run.trials = 16
    campaign_on(run, SimulatedBench(), search=Search(LEGAL, predicted=PREDICTED, seeds=(DEFAULT, *planted))).finish()
    outcome = {r.schedule: r for r in read(run.folder / "candidates.jsonl").records}
    assert outcome[wrong].outcome is Outcome.WRONG_RESULT
    assert outcome[refused].outcome is Outcome.COMPILE_ERROR
    assert "error: line 1" in outcome[refused].reason
    assert outcome[too_big].outcome is Outcome.LAUNCH_ERROR
    assert outcome[no_text].outcome is Outcome.ILLEGAL
    assert outcome[same[1]].reason == f"same code as {same[0]}"
    assert outcome[same[1]].times_us == outcome[same[0]].times_us
    assert outcome[same[1]].verified == outcome[same[0]].verified == SAMPLED
    assert run.counts["same_code"] == 1


def test_a_winner_that_fails_the_full_check_is_out_and_those_that_are_left_race_again(run: TuningRun) -> None:
    first = campaign_on(run, SimulatedBench()).finish()
    bench = SimulatedBench()
    bench.wrong = {first.winner.key}
    second = campaign_on(run, bench).finish()
    assert bench.full_checks == [first.winner.key, second.winner.key]
    said = [note for note in run.notes if note.startswith("left out: ")]
    assert f"left out: {first.winner.schedule}: y[0, 0]: got 1, want 2" in said
    assert len(said) == 3  # the first of each search, and the finalist
    assert second.winner.key != first.winner.key
    last = read(run.folder / "candidates.jsonl").records[-1]
    assert (last.schedule, last.outcome) == (first.winner.schedule, Outcome.WRONG_RESULT)


def test_an_interrupt_keeps_the_best_so_far(run: TuningRun) -> None:
    finish = campaign_on(run, SimulatedBench(stop_after=30)).finish()
    assert finish.interrupted
    assert finish.confirmation is None
    timed = [r.us for r in read(run.folder / "candidates.jsonl").records if r.us is not None]
    assert finish.winner.times_us is not None
    assert finish.winner.times_us.median == pytest.approx(min(timed), rel=1e-3)
    assert "not confirmed" in run.notes[-1]


def test_an_interrupt_before_anything_is_usable_is_an_interrupt(run: TuningRun) -> None:
    with pytest.raises(KeyboardInterrupt):
        campaign_on(run, SimulatedBench(stop_after=1)).finish()


def test_nothing_valid_is_an_error_that_counts_what_happened(run: TuningRun) -> None:
    only_wrong = [s for s in LEGAL if s.variance == "welford"][:20]
    campaign = campaign_on(run, SimulatedBench(), search=Search(only_wrong, predicted=[1.0] * 20))
    with pytest.raises(NothingValidError, match="wrong_result"):
        campaign.finish()


def test_a_budget_that_ends_before_the_search_gives_the_default_and_says_so(run: TuningRun) -> None:
    run.clock.budget_s = 0.0
    finish = campaign_on(run, SimulatedBench()).finish()
    assert finish.winner.schedule == DEFAULT
    assert not finish.interrupted
    assert "the budget ended before the search began: only the default was compiled" in run.notes
    assert len(read(run.folder / "candidates.jsonl").records) == 1


def test_time_runs_out_between_batches_but_the_first_one_finishes(
    run: TuningRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = SimulatedBench()
    load = bench.load

    def last_load(key: str, module: Module, cubin: Cubin) -> None:
        load(key, module, cubin)
        if len(bench.truth) > 2 * BATCH:
            run.clock.budget_s = 0.0

    monkeypatch.setattr(bench, "load", last_load)
    finish = campaign_on(run, bench).finish()
    assert 2 * BATCH <= len(read(run.folder / "candidates.jsonl").records) < 80
    assert not finish.interrupted


def test_what_the_time_does_not_reach_is_recorded_as_a_timeout(run: TuningRun, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SimulatedBench()
    check = bench.check

    def slow_check(key: str, *, full: bool) -> Check:
        if not full:
            run.clock.budget_s = 0.0  # the first check took all the time there was
        return check(key, full=full)

    monkeypatch.setattr(bench, "check", slow_check)
    finish = campaign_on(run, bench).finish()
    assert finish.winner.schedule == DEFAULT
    outcomes = [r.outcome for r in read(run.folder / "candidates.jsonl").records]
    assert outcomes[0] is Outcome.OK
    assert outcomes[1:] == [Outcome.TIMEOUT] * (BATCH - 1)


def test_a_lost_device_ends_the_run_with_the_best_so_far(run: TuningRun, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SimulatedBench()
    load = bench.load

    def fatal_load(key: str, module: Module, cubin: Cubin) -> None:
        if len(bench.truth) > 25:
            raise DeviceLostError("a kernel ended the device's context", received="CUDA_ERROR_ILLEGAL_ADDRESS")
        load(key, module, cubin)

    monkeypatch.setattr(bench, "load", fatal_load)
    monkeypatch.setattr(bench, "unload", lambda _: None)
    finish = campaign_on(run, bench).finish()
    assert not finish.interrupted
    assert finish.confirmation is None
    assert "ILLEGAL_ADDRESS" in run.notes[-1]
    last = read(run.folder / "candidates.jsonl").records[-1]
    assert last.outcome is Outcome.LAUNCH_ERROR
    assert "ILLEGAL_ADDRESS" in last.reason


def test_two_runs_with_one_seed_agree_on_every_proposal(run: TuningRun) -> None:
    proposals: list[list[Any]] = []
    for _ in range(2):
        campaign = campaign_on(run, SimulatedBench())
        campaign.finish()
        proposals.append([t.params for t in campaign.search.study.get_trials()])
    assert proposals[0] == proposals[1]


def test_a_record_says_how_its_schedule_was_chosen(run: TuningRun) -> None:
    given = LEGAL[100]
    search = Search(LEGAL, predicted=PREDICTED, seeds=(DEFAULT, given), seed=run.seed)
    campaign = campaign_on(run, SimulatedBench(), search=search)
    finish = campaign.finish()
    records = read(run.folder / "candidates.jsonl").records
    how = {r.schedule: r.search["chosen"] for r in records}
    assert (how[DEFAULT], how[given]) == ("default", "record")
    by_model = [r.predicted_us for r in records if r.search["chosen"] == "model" and r.schedule.variance == "two_pass"]
    assert max(by_model) < np.median(PREDICTED)
    counts = Counter(how.values())
    assert set(counts) == {"default", "record", "model", "search", "region", "random"}
    assert counts["default"] == counts["record"] == 1
    assert counts["search"] > counts["region"] > 0  # two polished of each batch of eight at least
    assert {r.search["chosen"] for r in finalist_records(campaign, finish)} <= set(counts)


def test_points_drawn_at_random_are_timed_behind_the_search_which_does_not_hear_of_them(
    run: TuningRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tuned(seed: int) -> tuple[list[Any], list[Record]]:
        before = len(read(run.candidates_path).records)
        campaign = campaign_on(run, SimulatedBench(seed=seed))
        campaign.finish()
        return [t.params for t in campaign.search.study.get_trials()], read(run.candidates_path).records[before:]

    proposals, records = tuned(0)
    drawn = [r for r in records if r.search["chosen"] == "random"]
    assert 6 <= len(drawn) <= campaigns.RANDOM
    assert records[-len(drawn) :] == tuple(drawn)
    assert len(records) == len(proposals) + len(drawn)
    assert len({r.schedule for r in records}) == len(records)
    # A fair sample of what the search left: the order of the draw without what was tried.
    order = random.Random(run.seed).sample(range(len(LEGAL)), run.trials + campaigns.RANDOM)
    tried = {r.schedule for r in records} - {r.schedule for r in drawn}
    assert [r.schedule for r in drawn] == [s for i in order if (s := LEGAL[i]) not in tried][: len(drawn)]
    monkeypatch.setattr(campaigns, "RANDOM", 0)
    without, records = tuned(0)
    assert without == proposals
    assert {r.search["chosen"] for r in records} == {"default", "model", "search", "region"}


def test_a_drawn_point_that_is_the_fastest_wins_and_one_that_is_wrong_is_recorded(run: TuningRun) -> None:
    campaign_on(run, SimulatedBench()).finish()
    first = [r for r in read(run.candidates_path).records if r.search["chosen"] == "random"]
    fast, wrong = [r.schedule.key for r in first if r.outcome is Outcome.OK][:2]

    class Bench(SimulatedBench):
        def load(self, key: str, module: Module, cubin: Cubin) -> None:
            super().load(key, module, cubin)
            if key == fast:
                self.truth[key] = 0.5 * OPTIMUM

        def check(self, key: str, *, full: bool) -> Check:
            return Check(ok=False, summary="no", error={"y": 2.0}) if key == wrong else super().check(key, full=full)

    finish = campaign_on(run, Bench()).finish()
    assert finish.winner.key == fast
    last = {r.schedule.key: r for r in read(run.candidates_path).records}
    assert last[wrong].outcome is Outcome.WRONG_RESULT
    assert last[wrong].search["chosen"] == "random"


@pytest.mark.parametrize(("share", "most"), [(0.0, 0), (1e9, 8)])
def test_drawn_points_take_no_more_than_their_share_of_the_time(
    run: TuningRun, monkeypatch: pytest.MonkeyPatch, share: float, most: int
) -> None:
    monkeypatch.setattr(campaigns, "RANDOM_SHARE", share)
    campaign_on(run, SimulatedBench()).finish()
    drawn = [r for r in read(run.candidates_path).records if r.search["chosen"] == "random"]
    assert (len(drawn) > 0) == (most > 0)
    assert len(drawn) <= most


def test_a_drawn_point_that_the_search_asks_for_first_is_compiled_once_and_is_the_searchs(run: TuningRun) -> None:
    begun: list[str] = []
    order = random.Random(run.seed).sample(range(len(LEGAL)), run.trials + campaigns.RANDOM)
    asked = LEGAL[order[0]]
    search = Search(LEGAL, predicted=PREDICTED, seeds=(DEFAULT, asked), seed=run.seed)
    campaign_on(
        run, SimulatedBench(), search=search, submit=lambda m: begun.append(m.kernels[0].name) or compile_now(m)
    ).finish()
    records = [r for r in read(run.candidates_path).records if r.schedule == asked]
    assert [r.search["chosen"] for r in records] == ["record"]
    assert begun.count(f"layernorm_{asked.key}") == 1


def test_the_search_is_told_prices_and_the_best_is_the_chains_time(run: TuningRun) -> None:
    campaign = campaign_on(run, SimulatedBench())
    campaign.finish()
    study, best = campaign.search.study, campaign.search.best
    assert best is not None
    assert study.best_value == pytest.approx(best[1] - BASE_US, rel=0.05)
    assert Schedule(**study.best_params) == best[0]
    assert campaign.search.ask(1)[0].predicted_us in PREDICTED


def bare_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path))
    asked = problem_for(load("layernorm"), shape="8192x768", without=("mean", "rstd"))
    monkeypatch.setattr("tests.tuning.test_campaign.problem", lambda: asked)
    return open_run(
        asked, TARGETS["h200"], place=Place(), seed=5, trials=80, budget_s=60.0, progress=Silent(),
        command="test", versions={"normgen": "0.1.0"},
    )  # fmt: skip


@pytest.mark.parametrize(("gain", "wins"), [(0.05, True), (0.004, False), (-0.02, False)])
def test_statistics_are_left_out_of_a_winner_only_where_that_gains_a_hundredth(
    gain: float, wins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record serves callers with and without them."""
    bare = {replace(s, statistics="left_out").key: replace(s, statistics="left_out") for s in LEGAL}
    monkeypatch.setattr("tests.tuning.test_campaign.BY_KEY", {**BY_KEY, **bare})
    plain = truth

    def shortened(schedule: Schedule) -> float:
        own = replace(schedule, statistics="nullable")
        return plain(own) * (1 - gain * (own != schedule))

    monkeypatch.setattr("tests.tuning.test_campaign.truth", shortened)
    with bare_run(tmp_path, monkeypatch) as run:
        finish = campaign_on(run, SimulatedBench()).finish()
    tried = [c.schedule for c in finish.candidates if c.schedule.statistics == "left_out"]
    assert len(tried) == 1
    assert (finish.winner.schedule.statistics == "left_out") is wins


def test_a_leader_without_statistics_races_the_kernel_that_serves_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a leader comes from the records: it would race against itself, and nothing would hold it to its gain."""
    best = replace(min(LEGAL, key=truth), statistics="left_out")
    bare = {replace(s, statistics="left_out").key: replace(s, statistics="left_out") for s in LEGAL}
    monkeypatch.setattr("tests.tuning.test_campaign.BY_KEY", {**BY_KEY, **bare})
    plain = truth
    monkeypatch.setattr("tests.tuning.test_campaign.truth", lambda s: plain(replace(s, statistics="nullable")))
    with bare_run(tmp_path, monkeypatch) as run:
        search = Search([best, DEFAULT], predicted=[1.0, 2.0], seeds=(DEFAULT,), seed=run.seed)
        finish = campaign_on(run, SimulatedBench(), search=search).finish()
    schedules = [c.schedule for c in finish.candidates]
    assert len(set(schedules)) == len(schedules) == 3
    assert finish.winner.schedule == replace(best, statistics="nullable")
