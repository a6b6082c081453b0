"""Runs that are killed go on where they were; runs side by side share what they measure. Real processes, real kills."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from normgen.codegen.module import Module
from normgen.cuda.cubin import Cubin
from normgen.device import TARGETS
from normgen.errors import LostCompilerError
from normgen.measure.isolation.turns import turn
from normgen.measure.timing import Policy
from normgen.records.place import Place
from normgen.records.record import Outcome, Record
from normgen.records.winners import read, state_folder
from normgen.schedule.schedule import Schedule
from normgen.tuning.campaign import Campaign
from normgen.tuning.compile import Submit
from normgen.tuning.finals import finalist_records
from normgen.tuning.measured import memory_of
from normgen.tuning.progress import Silent
from normgen.tuning.run import open_run
from normgen.tuning.search.search import Search
from tests.measure.simulated import problem
from tests.samples import is_full, sized
from tests.tuning.test_campaign import BY_KEY, SimulatedBench, campaign_on, compile_now
from tests.tuning.test_search import DEFAULT, LEGAL, PREDICTED, truth

TRIALS = 48
KILLS = sized(4, 20)
VERSIONS = {"normgen": "0.1.0", "protocol": "abc", "nvrtc": "13.0"}
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.tuning.test_resume", "optuna", "normgen.tuning.predicted", "normgen.cuda.pool"])


class LoggedBench(SimulatedBench):
    """Writes down, past any kill, which kernels were timed; `is_quiet`: repeats every time exactly."""

    def __init__(self, log: Path, *, seed: int, is_quiet: bool) -> None:
        super().__init__(seed=seed)
        if is_quiet:
            self._noise = self._drift = self._spikes = 0.0
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def warm_up(self, key: str) -> None:
        super().warm_up(key)
        os.write(self._log, key.encode() + b"\n")

    def sample(self, key: str) -> float:
        time.sleep(2e-5)  # a process that only waits can be killed while others work
        return super().sample(key)


def simulated_run(
    folder: Path, name: str, *, resume: bool = False, seed: int = 0, reuse: bool = True, is_quiet: bool = False
) -> None:
    """A measured run up to its winner, which goes to `<name>.json`; what was timed to `<name>.log`."""
    os.environ["NORMGEN_STATE_DIR"] = str(folder / "state")
    os.environ["NORMGEN_CACHE_DIR"] = str(folder / "cache")
    with open_run(
        problem(), TARGETS["h200"], place=Place(), seed=5, trials=TRIALS, budget_s=60.0, progress=Silent(),
        command="test", versions=VERSIONS, measured=True, resume=resume, reuse=reuse,
    ) as run:  # fmt: skip
        run.memory = memory_of(run, Policy())
        bench = LoggedBench(folder / f"{name}.log", seed=seed, is_quiet=is_quiet)
        campaign = campaign_on(
            run, bench, turn=lambda: turn("gpu-0", state_folder() / "turns", patience_s=lambda: 30.0, warn=run.note)
        )
        finish = campaign.finish()
        winner = finalist_records(campaign, finish)[0]
        finalists = [c.key for c in finish.candidates]
        run.finish()
    facts = {"winner": winner.schedule.key, "us": truth(winner.schedule), "finalists": finalists}
    facts |= {"notes": run.notes, "counts": dict(run.counts), "folder": str(run.folder)}
    (folder / f"{name}.json").write_text(json.dumps(facts))


def in_process(target: Callable[..., None], *arguments: object, **options: object) -> BaseProcess:
    process = SERVER.Process(target=target, args=arguments, kwargs=options)
    process.start()
    return process


def timed(folder: Path, name: str) -> list[str]:
    log = folder / f"{name}.log"
    return [key for key in log.read_text().split() if key in BY_KEY] if log.exists() else []


def killed_at(process: BaseProcess, seconds: float) -> bool:
    """Whether the kill came before the end."""
    process.join(seconds)
    assert process.pid is not None
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode == -signal.SIGKILL


def killed_behind(process: BaseProcess, folder: Path, lines: int) -> bool:
    """As `killed_at`, once that many candidates are written: on a busy machine seconds say little."""
    while process.is_alive() and sum(f.read_bytes().count(b"\n") for f in candidate_files(folder)) < lines:
        process.join(0.001)
    return killed_at(process, 0)


def searched(file: Path) -> list[Record]:
    """What the search of a run proposed: how many points are drawn at random behind it is a matter of time."""
    return [r for r in read(file).records if r.search["chosen"] != "random"]


def candidate_files(folder: Path) -> list[Path]:
    return list(folder.glob("state/runs/*/candidates.jsonl"))


def test_a_measured_run_killed_at_any_moment_goes_on_and_measures_nothing_again(tmp_path: Path) -> None:
    in_process(time.sleep, 0).join()  # the server has imported everything
    start = time.monotonic()
    process = in_process(simulated_run, tmp_path, "whole", reuse=False, is_quiet=True)
    process.join()
    length_s = time.monotonic() - start
    assert process.exitcode == 0
    whole = json.loads((tmp_path / "whole.json").read_text())
    proposed = {r.schedule for r in searched(Path(whole["folder"]) / "candidates.jsonl")}
    moments = random.Random(1)
    kills = partly = 0
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        first = in_process(simulated_run, folder, "first", reuse=False, is_quiet=True)
        if number % 2:
            kills += killed_behind(first, folder, moments.randint(1, TRIALS - 1))
        else:
            kills += killed_at(first, moments.uniform(0, length_s))
        before = {r.schedule.key for f in candidate_files(folder) for r in read(f).records if r.outcome is Outcome.OK}
        second = in_process(simulated_run, folder, "second", resume=True, reuse=False, is_quiet=True)
        second.join()
        assert second.exitcode == 0
        result = json.loads((folder / "second.json").read_text())
        again = before & set(timed(folder, "second"))
        if "resumed" in result["notes"][0]:  # else it had begun nothing, or had ended
            partly += bool(before)
            assert again <= {DEFAULT.key, *result["finalists"]}
            assert len(candidate_files(folder)) <= 2  # two only where the kill came before the first one was named
        kept = read(Path(result["folder"]) / "candidates.jsonl")
        assert not kept.damaged
        assert len(kept.records) == len({r.schedule for r in kept.records})
        found = searched(Path(result["folder"]) / "candidates.jsonl")
        assert len(found) == TRIALS
        assert {r.schedule for r in found} == proposed  # the search went the way it would have gone
        assert result["winner"] == whole["winner"]
    assert kills >= KILLS // 4
    assert partly >= KILLS // 4


@pytest.mark.parametrize("lines", [0, 3, 8, 9, 30, 47, 48] if is_full() else [0, 9, 47])
def test_a_run_resumed_from_any_line_proposes_what_it_would_have_proposed(tmp_path: Path, lines: int) -> None:
    in_process(simulated_run, tmp_path, "whole", reuse=False, is_quiet=True).join()
    whole = json.loads((tmp_path / "whole.json").read_text())
    path = Path(whole["folder"]) / "candidates.jsonl"
    written = path.read_text().splitlines(keepends=True)
    path.write_text("".join(written[:lines]) + written[lines][:200] if lines < TRIALS else "".join(written))
    manifest = path.with_name("run.json")
    manifest.write_text(manifest.read_text().replace('"finished": true', '"finished": false'))
    in_process(simulated_run, tmp_path, "rest", resume=True, reuse=False, is_quiet=True).join()
    rest = json.loads((tmp_path / "rest.json").read_text())
    assert rest["folder"] == whole["folder"]
    again = path.read_text().splitlines(keepends=True)
    assert again[:lines] == written[:lines]
    schedules = [[json.loads(line)["schedule"] for line in some][:TRIALS] for some in (written, again)]
    assert schedules[0] == schedules[1]
    assert rest["winner"] == whole["winner"]
    assert path.with_name("candidates.jsonl.damaged").exists() == (lines < TRIALS)


def test_two_processes_on_one_problem_share_their_results(tmp_path: Path) -> None:
    processes = [in_process(simulated_run, tmp_path, name, seed=n) for n, name in enumerate(("one", "two"))]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    results = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two")]
    finalists = {DEFAULT.key, *results[0]["finalists"], *results[1]["finalists"]}
    assert not (set(timed(tmp_path, "one")) & set(timed(tmp_path, "two"))) - finalists
    for result in results:
        kept = read(Path(result["folder"]) / "candidates.jsonl")
        assert not kept.damaged
        assert len(searched(Path(result["folder"]) / "candidates.jsonl")) == TRIALS
    (shared,) = (tmp_path / "cache" / "results").rglob("*.jsonl")
    reading = read(shared)
    assert not reading.damaged
    assert len(reading.records) == len({r.schedule for r in reading.records}) >= TRIALS - 2  # but for failed launches
    assert results[0]["us"] == pytest.approx(results[1]["us"], rel=0.06)


class SlowerBench(SimulatedBench):
    """A device that is slower by a factor, and as steady as none is."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self._noise = self._drift = self._spikes = 0.0
        self.factor = factor

    def sample(self, key: str) -> float:
        return super().sample(key) * self.factor


class Heard(Search):
    """Keeps what it is told."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.told: list[tuple[int, float | None]] = []

    def tell(self, number: int, us: float | None, **how: Any) -> None:
        self.told.append((number, us))
        super().tell(number, us, **how)


def opened(
    runs: contextlib.ExitStack, bench: SimulatedBench, *seeds: Schedule,
    trials: int = 16, resume: bool = False, submit: Submit = compile_now,
) -> Any:  # fmt: skip
    """A campaign of a run beside others, up to its first two batches."""
    made = open_run(
        problem(), TARGETS["h200"], place=Place(), seed=5, trials=trials, budget_s=60.0, progress=Silent(),
        command="test", versions=VERSIONS, measured=True, resume=resume,
    )  # fmt: skip
    run = runs.enter_context(made)
    if not resume:
        run.memory = memory_of(run, Policy())
    search = Heard(LEGAL, predicted=PREDICTED, seeds=(DEFAULT, *seeds), seed=run.seed)
    campaign = campaign_on(run, bench, search=search, submit=submit)
    campaign.ask_ahead()
    return campaign


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def outcomes(campaign: Campaign) -> dict[Schedule, Outcome]:
    return {r.schedule: r.outcome for r in read(campaign.run.candidates_path).records}


def test_two_runs_beside_each_other_say_once_what_both_find_out(place: Path) -> None:
    """A text that is refused, one that does not compile and a twin, which no device is asked for, too."""
    wrong = Schedule(threads_per_row=64, vector=4, hold="registers", variance="welford")
    refused = Schedule(threads_per_row=1024, vector=4, hold="registers", params="early")
    no_text = Schedule(threads_per_row=1, rows_per_block=8, hold="registers")
    same = [Schedule(threads_per_row=1, hold="registers", load=load) for load in ("default", "streaming")]
    seeds, bench = (wrong, refused, no_text, *same), SimulatedBench()
    with contextlib.ExitStack() as runs:
        one, other = opened(runs, SimulatedBench(), *seeds), opened(runs, bench, *seeds)
        one.finish()
        end = other.finish()
    assert {*bench.timed} & {*BY_KEY} <= {DEFAULT.key, *(c.key for c in end.candidates)}
    (shared,) = (place / "cache" / "results").rglob("*.jsonl")
    records = read(shared).records
    assert len(records) == len({r.schedule for r in records})
    assert outcomes(one) == outcomes(other)
    found = [Outcome.WRONG_RESULT, Outcome.COMPILE_ERROR, Outcome.ILLEGAL, Outcome.OK, Outcome.OK]
    assert [outcomes(one)[schedule] for schedule in seeds] == found


@pytest.mark.usefixtures("place")
def test_a_compiler_that_was_killed_says_nothing_to_other_runs() -> None:
    best = min(LEGAL, key=truth)

    def killed(module: Module) -> Future[Cubin]:
        if module.kernels[0].name.endswith(f"_{best.key}"):
            answer: Future[Cubin] = Future()
            answer.set_exception(LostCompilerError("compiling must not end its process", log="", received="signal 9"))
            return answer
        return compile_now(module)

    with contextlib.ExitStack() as runs:
        one, other = opened(runs, SlowerBench(), best, submit=killed), opened(runs, SlowerBench(), best)
        assert one.finish().winner.schedule != best
        assert other.finish().winner.schedule == best
    assert (outcomes(one)[best], outcomes(other)[best]) == (Outcome.TIMEOUT, Outcome.OK)


@pytest.mark.usefixtures("place")
def test_a_kernel_is_one_finalist_whatever_its_schedules_are_called() -> None:
    """Twins that an earlier run timed are known by their times, as any others are."""
    hints = [{"load": load, "store": store} for load in ("default", "streaming") for store in ("default", "streaming")]
    twins = [s for hint in hints if (s := Schedule(threads_per_row=1, hold="registers", **hint)) in LEGAL]
    assert len(twins) > 2
    best = min(LEGAL, key=truth)

    class Fast(SlowerBench):
        def load(self, key: str, module: Module, cubin: Cubin) -> None:
            super().load(key, module, cubin)
            if BY_KEY[key] in twins:
                self.truth[key] = 0.9 * truth(best)

    with contextlib.ExitStack() as runs:
        one, other = (opened(runs, Fast(), *twins, trials=24) for _ in range(2))
        ends = [one.finish(), other.finish()]
    with contextlib.ExitStack() as runs:
        ends.append(opened(runs, Fast(), *twins, trials=24).finish())
    assert [len({*twins} & {c.schedule for c in end.candidates}) for end in ends] == [1, 1, 1]
    assert {len(end.candidates) for end in ends} == {len(ends[0].candidates)}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("factor", [1.03, 1.25])
def test_times_are_held_against_those_that_were_taken_over_first_and_a_resumed_run_hears_the_same(
    factor: float,
) -> None:
    """However much slower the device of the second run is."""
    with contextlib.ExitStack() as runs:
        one, other = opened(runs, SlowerBench(), trials=12), opened(runs, SlowerBench(factor), trials=40)
        one.finish()
        end = other.finish()
    assert end.winner.schedule == min(LEGAL, key=truth)
    with contextlib.ExitStack() as runs:
        bench = SlowerBench(factor)
        again = opened(runs, bench, trials=40, resume=True)
        assert again.run.folder == other.run.folder
        again.finish()
    assert again.search.told == other.search.told
    assert {*bench.timed} & {*BY_KEY} <= {DEFAULT.key, *(c.key for c in end.candidates)}


def test_a_second_run_times_only_what_is_new_and_the_finalists(tmp_path: Path) -> None:
    for name, reuse in (("one", True), ("two", True), ("three", False)):
        process = in_process(simulated_run, tmp_path, name, reuse=reuse)
        process.join()
        assert process.exitcode == 0
    second = json.loads((tmp_path / "two.json").read_text())
    kept = read(Path(second["folder"]) / "candidates.jsonl").records
    assert second["counts"]["reused"] == len(kept) - second["counts"].get("launch_error", 0) > TRIALS // 2
    assert set(timed(tmp_path, "two")) <= {DEFAULT.key, *second["finalists"]}
    assert len(set(timed(tmp_path, "three"))) > TRIALS // 2
    assert all(r.search.get("reused") for r in kept if r.outcome is not Outcome.LAUNCH_ERROR)


def test_a_finished_run_is_not_resumed_and_says_so(tmp_path: Path) -> None:
    for name in ("one", "two"):
        process = in_process(simulated_run, tmp_path, name, resume=True)
        process.join()
        assert process.exitcode == 0
    one, two = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    assert "no run was left unfinished" in one["notes"][0]
    assert "is finished, as one that Ctrl-C ends is; a new run begins" in two["notes"][0]
    assert one["folder"] != two["folder"]


def test_a_run_of_another_space_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its measurements are shared, its order of proposals is not: that follows from the space."""
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))
    narrow = replace(problem(), spec=replace(problem().spec, knobs={"vector": (4,)}))
    notes = []
    for asked in (narrow, problem(), narrow):
        with open_run(
            asked, TARGETS["h200"], place=Place(), seed=5, trials=TRIALS, budget_s=60.0, progress=Silent(),
            command="test", versions=VERSIONS, measured=True, resume=True, reuse=True,
        ) as run:  # fmt: skip
            notes.append(" ".join(run.notes))
    assert "is of another space" in notes[1]
    assert "resumed" in notes[2]
