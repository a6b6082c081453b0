"""Results as a run leaves them: one entry that wins, one that loses, one with a wrong peer, one of ours that fails."""

from __future__ import annotations

from normgen.bench.entry import conclude, failed_entry
from normgen.bench.result import EntryResult, Results
from normgen.bench.table import OURS
from normgen.device import TARGETS
from normgen.measure import timing
from normgen.measure.gpu import COPY
from normgen.schedule.schedule import schedule_from
from normgen.suites.suite import Entry, parse_suite
from normgen.trials.contest import Contest
from normgen.trials.entrant import Draft
from normgen.trials.file import of_text
from tests.measure.simulated import ELEMENTWISE, SimulatedTimer

SUITE = parse_suite(
    'name = "few"\nsummary = "four"\n[[entry]]\nop = "rmsnorm"\ndtype = "bf16"\nwithout = ["rstd"]\n'
    'shape = ["4096x4096", "16384x8192", "4096x131072"]\n[[entry]]\nop = "softmax"\nshape = "64x128"\n'
)
BASE_US = 10.0  # what the chain takes without a kernel


def results_of(text: str) -> Results:
    """The results of a text: of a file's lines, or of one printed object."""
    return of_text(Results, text.encode())


def draft(name: str, failed: str = "") -> Draft:
    return Draft(key=name, failed=failed, error={"y": 0.25}, prepare_s=0.5)


def raced(
    entry: Entry, truth: dict[str, float], failed: dict[str, str] | None = None, note: str = "", **knobs: str
) -> EntryResult:
    """The entry's result from an interleaved race on a device that needs `truth` µs for each provider."""
    timer = SimulatedTimer(truth, noise=0.003, seed=1, base_us=BASE_US)
    series = timing.race(timer, [*truth, *timer.bases], samples=40, seed=0)
    drafts = {name: draft(name) for name in (OURS, *truth) if name not in (COPY, ELEMENTWISE)}
    drafts |= {name: draft(name, reason) for name, reason in (failed or {}).items()}
    alone_us = {name: 0.9 * us for name, us in truth.items()}
    contest = Contest(
        series={name: series[name] for name in truth if name not in (COPY, ELEMENTWISE)},
        roofs={name: series[name] for name in (COPY, ELEMENTWISE)},
        base=[series[name] for name in timer.bases],
        alone_us=alone_us,
    )
    return conclude(entry, drafts, contest, note=note, schedule=schedule_from({"vector": 8, **knobs}), seconds=3.2)


def results(finished: bool = True) -> Results:
    first, second, third, fourth = SUITE.entries
    wide = "does not launch: RuntimeError: Cannot launch Triton kernel since n = 131072 exceeds the blocksize"
    entries = (
        raced(first, {OURS: 18.0, COPY: 17.8, ELEMENTWISE: 17.6, "torch": 24.0, "compile": 18.9}),
        raced(second, {OURS: 130.0, COPY: 140.0, ELEMENTWISE: 128.0, "torch": 200.0, "compile": 126.1}, note="default"),
        raced(
            third,
            {OURS: 510.0, COPY: 600.0, ELEMENTWISE: 506.0, "torch": 830.0},
            {"compile": "wrong result: y", "liger": wide},
        ),
        failed_entry(fourth, "no memory", ("torch", "compile")),
    )
    return Results(
        suite=SUITE.name,
        summary=SUITE.summary,
        device=TARGETS["h200"].as_dict(),
        versions={"torch": "2.11.0"},
        options={"seed": 0},
        started="2026-11-20T10:00:00Z",
        seconds=12.5,
        finished=finished,
        note="" if finished else "interrupted",
        entries=entries,
    )
