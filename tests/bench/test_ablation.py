"""What techniques are worth: cases of records and suites, contests on a modelled device, the table of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from normgen.bench.ablation import Ablation, Line, ablation_text, cases_of, run_ablation, tuned_entries
from normgen.cli import main as cli
from normgen.errors import NothingValidError, UsageError
from normgen.measure.isolation import process
from normgen.program.source import problem_for
from normgen.records.winners import adopt
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.studies.techniques import all_techniques
from normgen.trials.contest import Venue
from normgen.trials.file import read
from normgen.trials.versions import environment
from normgen.tuning.progress import Silent
from tests.bench.modelled import H200, tuned
from tests.measure.fake_device import plant_in_workers
from tests.measure.planted import all_workers_end

VENUE = Venue(facts=H200, index=0, samples=12, seed=3)
HELD = Schedule(threads_per_row=128, vector=8, hold="registers", unroll=0, load="streaming")
ONE_LOOK = Schedule(threads_per_row=256, rows_per_block=2, vector=4, variance="welford", hold="registers", unroll=0)
RECORDS = [
    tuned(problem_for(load("rmsnorm"), shape="2048x4096", dtype="bf16"), HELD),
    tuned(problem_for(load("rmsnorm"), shape="1024x4096", dtype="bf16"), HELD),
    tuned(problem_for(load("layernorm"), shape="4096x1024", dtype="bf16"), ONE_LOOK),
]


@pytest.fixture(autouse=True)
def device(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cubins"))
    monkeypatch.setattr(process, "BENCH", "tests.bench.modelled:ModelledBench")
    monkeypatch.setattr("normgen.cuda.driver.device_facts", lambda _: H200)
    monkeypatch.setattr(
        "normgen.trials.contest.environment",
        lambda *, measured: environment(measured=False),  # noqa: ARG005
    )
    with all_workers_end(monkeypatch):
        yield


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "winners.jsonl"
    path.write_text("".join(record.line() for record in RECORDS))
    return path


def run(file: Path, *, each: int = 2, most: int = 25) -> Ablation:
    cases, unused = cases_of(tuned_entries(str(file), H200, []), each=each, most=most)
    return run_ablation(str(file), cases, unused, VENUE, tried=3, progress=Silent())


def test_winners_come_from_a_file_or_from_the_tuned_entries_of_a_suite(file: Path, tmp_path: Path) -> None:
    assert [(e.label, s) for e, s in tuned_entries(str(file), H200, [])] == [
        ("rmsnorm fwd 2048x4096 bf16 fresh", HELD),
        ("rmsnorm fwd 1024x4096 bf16 fresh", HELD),
        ("layernorm fwd 4096x1024 bf16 fresh", ONE_LOOK),
    ]
    suite = tmp_path / "few.toml"
    suite.write_text(
        'name = "few"\nsummary = "two"\n[[entry]]\nop = "rmsnorm"\nshape = ["2048x4096", "64x512"]\ndtype = "bf16"\n'
    )
    with pytest.raises(NothingValidError, match="begins with measured records"):
        tuned_entries(str(suite), H200, [tmp_path])
    adopt(RECORDS[0], tmp_path, H200)
    assert [e.shape for e, _ in tuned_entries(str(suite), H200, [tmp_path])] == ["2048x4096"]
    file.write_text("{}\n")
    with pytest.raises(UsageError, match="a file of records has at least one"):
        tuned_entries(str(file), H200, [])


def test_each_technique_is_asked_of_a_few_shapes_and_rare_ones_choose_first(file: Path) -> None:
    winners = tuned_entries(str(file), H200, [])
    cases, unused = cases_of(winners, each=1, most=25)
    asked = {t.name: case.entry.shape for case in cases for t in case.techniques}
    assert asked == {
        "variance=welford": "4096x1024",
        "row_barriers": "4096x1024",
        "load=streaming": "2048x4096",  # the more bytes of two
        "hold=registers": "2048x4096",
    }
    assert set(unused) == {t.name for t in all_techniques()} - set(asked)
    assert [len(case.techniques) for case in cases_of(winners, each=1, most=1)[0]] == [3]
    both = cases_of(winners, each=2, most=25)[0]
    assert sum(t.name == "load=streaming" for case in both for t in case.techniques) == 2


def test_a_line_has_the_best_right_kernel_without_the_technique(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(file, each=1)
    assert found.finished
    lines = {line.technique: line for line in found.lines}
    assert set(lines) == {"variance=welford", "row_barriers", "load=streaming", "hold=registers"}
    for line in lines.values():
        assert line.gain is not None
        assert line.with_us is not None
        assert line.without_us is not None
        assert line.gain.median == pytest.approx(line.without_us / line.with_us, rel=0.01)
        assert 1 <= line.tried <= 3
        assert line.changed
    assert "load=default" in lines["load=streaming"].changed
    assert "rows_per_block=1" in lines["row_barriers"].changed
    plant_in_workers(monkeypatch, **{"!using Load = Streaming;": "wrong"})
    again = {line.technique: line for line in run(file, each=1).lines}
    assert (again["load=streaming"].gain, again["load=streaming"].tried) == (None, 0)
    assert again["load=streaming"].note.startswith("wrong result")
    assert again["hold=registers"].gain is not None


def test_the_table_names_what_helps_beyond_the_noise_and_what_nobody_uses(file: Path) -> None:
    found = run(file)
    text = ablation_text(found)
    assert text.splitlines()[0].split() == [
        "technique",
        "shape",
        "with",
        "µs",
        "without",
        "µs",
        "gain",
        "without",
        "it",
    ]
    order = [line.split()[0] for line in text.splitlines()[1 : 1 + len(found.lines)]]
    names = [t.name for t in all_techniques()]
    assert order == sorted(order, key=names.index)
    helped = [line for line in found.lines if line.technique == "hold=registers" and line.gain and line.gain.low > 1]
    assert f"hold=registers {len(helped)} of 2" in text
    assert "in no winner: cluster, " in text
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert (data["source"], data["finished"]) == ("winners.jsonl", True)
    assert {line["technique"] for line in data["lines"]} == {line.technique for line in found.lines}
    assert "columns=atomic" in data["unused"]


def test_a_kernel_that_needs_its_technique_says_so() -> None:
    line = Line(
        technique="cluster", label="a", with_us=1.0, without_us=None, gain=None, schedule="", changed="", tried=0,
        note="no schedule near it is legal without",
    )  # fmt: skip
    found = Ablation(
        source="x", device={}, versions={}, options={}, started="", seconds=1.0, finished=True, note="", lines=(line,),
        unused=(),
    )  # fmt: skip
    assert "no schedule near it is legal without" in ablation_text(found)
    assert "beyond the noise: cluster 0 of 1" in ablation_text(found)


def test_the_command_prints_the_table_and_writes_the_figures(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "techniques.json"
    arguments = ["--each", "1", "--tried", "1", "--samples", "6", "--json", str(out)]
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "--ablation", str(file), *arguments])
    captured = capsys.readouterr()
    assert ended.value.code == 0
    assert captured.out.startswith("technique")
    assert "[2/2] layernorm fwd 4096x1024 bf16 fresh: " in captured.err
    assert read(Ablation, out).options["tried"] == 1
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "--ablation", "no_suite"])
    assert ended.value.code == 2
