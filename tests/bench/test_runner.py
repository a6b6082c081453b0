"""Whole suites on a simulated device: results as they come, interrupts, limits, records, the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from normgen.bench.entry import measure_entry
from normgen.bench.result import Results
from normgen.bench.runner import Wish, run_suite
from normgen.choice.first import default_schedule
from normgen.cli import main as cli
from normgen.device import TARGETS
from normgen.errors import UsageError
from normgen.records import nearest
from normgen.records.place import DEFAULT_PLACE, Context, Place, Setting
from normgen.records.record import Outcome, Record
from normgen.records.statistics import summarise
from normgen.schedule.schedule import Schedule
from normgen.suites.suite import Entry, Suite, parse_suite
from normgen.tuning.progress import Silent
from tests.bench.recorded import results_of
from tests.measure.fake_device import plant_in_workers
from tests.measure.planted import all_workers_end
from tests.measure.simulated import ELEMENTWISE

H200 = TARGETS["h200"]
TEXT = (
    'name = "few"\nsummary = "three"\n[[entry]]\nop = "rmsnorm"\nshape = ["96x256", "64x272"]\ndtype = "bf16"\n'
    '[[entry]]\nop = "layernorm"\nshape = "128x384"\ndirection = "backward"\n'
)


@pytest.fixture(autouse=True)
def device(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cubins"))
    monkeypatch.setattr("normgen.bench.entry.BENCH", "tests.bench.simulated_bench:SimulatedBench")
    monkeypatch.setattr("normgen.cuda.driver.device_facts", lambda _: H200)
    known = {"normgen": "test"}
    monkeypatch.setattr("normgen.trials.contest.environment", lambda *, measured: known if measured else {})
    with all_workers_end(monkeypatch):
        yield


def suite() -> Suite:
    return parse_suite(TEXT)


def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every peer's packages count as installed."""
    monkeypatch.setattr("normgen.bench.peers.missing_packages", lambda _: ())


def interrupt_at(monkeypatch: pytest.MonkeyPatch, cols: int) -> None:
    """Ctrl-C at the entry with so many columns."""

    def measure(entry: Entry, *arguments: Any) -> Any:
        if entry.problem.cols == cols:
            raise KeyboardInterrupt
        return measure_entry(entry, *arguments)

    monkeypatch.setattr("normgen.bench.runner.measure_entry", measure)


class Told(Silent):
    """Keeps its notes."""

    def __init__(self, notes: list[str]) -> None:
        self.note = notes.append  # type: ignore[method-assign]


def record(schedule: Schedule, us: float, place: Place = DEFAULT_PLACE) -> Record:
    return Record(
        problem=suite().entries[0].problem.question,
        place=place,
        schedule=schedule,
        outcome=Outcome.OK,
        measured=True,
        times_us=summarise([us] * 8),
        bytes=suite().entries[0].problem.compulsory_bytes,
        device=H200.as_dict(),
    )


def test_every_entry_is_raced_against_the_roof_and_told_as_it_comes() -> None:
    told: list[Results] = []
    found = run_suite(suite(), Wish(peers=("torch",)), on_results=told.append)
    assert found.finished
    assert [len(results.entries) for results in told] == [1, 2, 3]
    assert not any(results.finished for results in told)
    for entry in found.entries:
        assert entry.ours.failed == ""
        assert entry.ours.to_roof is not None
        assert entry.ours.to_roof.median == pytest.approx(1.05, rel=0.01)
        assert entry.roof == ELEMENTWISE
        assert entry.ours.note == "default schedule"
        assert entry.ours.schedule["vector"] >= 1
    assert set(found.entries[2].ours.error) == {"dx", "dweight", "dbias"}
    assert found.versions["normgen"] == "test"


def test_a_wrong_kernel_is_not_timed_and_the_suite_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_in_workers(monkeypatch, c272="wrong", c384="no_memory")
    first, second, third = run_suite(suite(), Wish(peers=())).entries
    assert first.ours.us is not None
    assert second.ours.us is None
    assert second.ours.failed.startswith("wrong result: y is ")
    assert second.roof_us is not None
    assert "CUDA_ERROR_OUT_OF_MEMORY" in third.ours.failed


@pytest.mark.parametrize("op", ["full_sum", "row_sum"])
def test_kernels_without_an_output_of_rows_and_columns_are_priced_too(op: str) -> None:
    text = f'name = "sums"\nsummary = "Sums."\n[[entry]]\nop = "{op}"\nshape = "64x96"\ndtype = "f32"\n'
    (entry,) = run_suite(parse_suite(text), Wish(peers=())).entries
    assert entry.ours.failed == ""
    assert entry.ours.price_us is not None


def test_an_interrupt_and_a_time_limit_keep_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_suite(suite(), Wish(peers=(), limit_s=0.0))
    assert (found.finished, found.note, found.entries) == (False, "time limit reached", ())
    interrupt_at(monkeypatch, 384)
    found = run_suite(suite(), Wish(peers=()))
    assert (found.finished, found.note, len(found.entries)) == (False, "interrupted", 2)


def test_a_run_goes_on_with_what_another_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_in_workers(monkeypatch, c272="no_memory")
    interrupt_at(monkeypatch, 384)
    first = run_suite(suite(), Wish(peers=(), limit_s=100.0))
    assert [entry.ours.us is None for entry in first.entries] == [False, True]
    plant_in_workers(monkeypatch)
    interrupt_at(monkeypatch, 256)  # that entry is not run again
    told: list[Results] = []
    again = results_of(json.dumps(first.as_dict()))
    found = run_suite(suite(), Wish(peers=()), before=again, on_results=told.append)
    assert found.finished
    assert [entry.shape for entry in found.entries] == ["96x256", "64x272", "128x384"]
    assert found.entries[0] == again.entries[0]
    assert all(entry.ours.us is not None for entry in found.entries)
    assert [len(results.entries) for results in told] == [2, 3]
    assert found.started == first.started
    assert found.seconds >= again.seconds
    with pytest.raises(UsageError, match="same question, device, versions and options") as refused:
        run_suite(suite(), Wish(peers=(), samples=20), before=again)
    assert "'samples': 40" in str(refused.value.received)


def test_a_device_on_which_no_worker_stays_alive_ends_the_suite_with_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant_in_workers(monkeypatch, c272="segv@open")
    found = run_suite(suite(), Wish(peers=()))
    assert (found.finished, len(found.entries)) == (False, 1)
    assert found.note == "device lost: one of 3 worker processes must start"
    assert found.exit_code == 6


def test_a_kernel_of_ours_that_takes_workers_down_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    plant_in_workers(monkeypatch, c272="lost@launch")
    first, second, third = run_suite(suite(), Wish(peers=("torch",))).entries
    assert second.ours.us is None
    assert "CUDA_ERROR_ILLEGAL_ADDRESS; tried again alone" in second.ours.failed
    assert (second.peers["torch"].times_us or second.ours.times_us).n == 40
    assert second.roof_us is not None
    assert first.ours.us is not None
    assert third.ours.us is not None


def test_peers_that_take_workers_down_raise_or_are_wrong_fail_and_the_others_are_raced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch)
    names = ("torch", "compile", "liger", "quack", "triton")
    plant_in_workers(monkeypatch, compile="raises", liger="segv@prepare", quack="lost@sample", triton="wrong")
    notes: list[str] = []
    found = run_suite(suite().only("96x256"), Wish(peers=names), progress=Told(notes))
    (entry,) = found.entries
    failed = {name: peer.failed for name, peer in entry.peers.items()}
    assert failed["torch"] == ""
    assert failed["compile"] == "ValueError: max-autotune-no-cudagraphs is no mode of compile"
    assert failed["liger"] == "the worker process ended by SIGSEGV; tried again alone: the same end (prepare)"
    assert failed["quack"].startswith("a kernel ended the device's context: CUDA_ERROR_ILLEGAL_ADDRESS; tried again")
    assert failed["triton"].startswith("wrong result: y is ")
    assert entry.peers["triton"].error["y"] > 1
    timed = {name: peer.times_us.n for name, peer in {"ours": entry.ours, **entry.peers}.items() if peer.times_us}
    assert timed == {"ours": 40, "torch": 40}
    assert entry.faster is not None
    assert entry.faster.median == pytest.approx(1.25 / 1.05, rel=0.02)
    assert sum("worker lost" in note for note in notes) == 4
    assert found.versions["torch"] == "1.0"


def test_a_peer_that_hangs_or_whose_import_ends_its_process_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    monkeypatch.setattr("normgen.trials.entrant.PREPARE_S", 1.0)
    plant_in_workers(monkeypatch, compile="hang@prepare", liger="segv@import")
    (entry,) = run_suite(suite().only("96x256"), Wish(peers=("compile", "liger", "torch"))).entries
    assert entry.peers["compile"].failed == "no answer within 1.0 s (prepare)"
    assert entry.peers["liger"].failed == "the worker process ended by SIGSEGV"
    assert entry.peers["torch"].us is not None
    assert entry.ours.us is not None


def test_the_schedule_is_the_best_record_of_the_files_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "WORTH", 1.0)  # whatever the ranker says of it
    best = default_schedule(suite().entries[0].problem, H200)
    file = tmp_path / "mine.jsonl"
    elsewhere = replace(record(Schedule(threads_per_row=64), 0.5), device={**H200.as_dict(), "name": "another"})
    file.write_text(elsewhere.line() + record(best, 1.0).line())
    first, second, _ = run_suite(suite(), Wish(peers=(), records=(file,))).entries
    assert first.ours.schedule == best.as_dict()
    assert first.ours.note == ""
    assert second.ours.note == "tuned for 96x256, the nearest to 64x272"
    assert second.ours.schedule == best.as_dict()
    file.write_text(record(best, 1.0, Place(context=Context.ALONE, setting=Setting.HOT)).line())
    assert run_suite(suite(), Wish(peers=(), records=(file,))).entries[0].ours.note == "tuned hot alone"
    file.write_text("{}\n")
    with pytest.raises(UsageError, match="a file of records has at least one"):
        run_suite(suite(), Wish(peers=(), records=(file,)))


def test_too_few_samples_have_no_interval() -> None:
    with pytest.raises(UsageError, match="at least 6 samples"):
        run_suite(suite(), Wish(samples=5))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    output = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, output.out, output.err


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "few.toml"
    path.write_text(TEXT)
    return str(path)


def test_the_command_prints_a_table_and_writes_the_results(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.json"
    code, text, progress = run(capsys, "bench", file, "--peers", "none", "--json", str(out), "--only", "rmsnorm")
    assert code == 0
    assert "rmsnorm fwd 96x256 bf16 fresh" in text
    assert text.splitlines()[-1].startswith("2 entries in ")
    assert "[2/2] rmsnorm fwd 64x272 bf16 fresh: " in progress
    written = results_of(out.read_text())
    assert written.finished
    assert len(written.entries) == 2
    assert [p.name for p in tmp_path.iterdir() if "results" in p.name] == ["results.json"]
    assert run(capsys, "bench", "--from", str(out))[:2] == (0, text)


def test_runs_of_parts_of_a_suite_add_up_in_one_file(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.json"
    common = ("--peers", "none", "--json", str(out), "--resume")
    assert run(capsys, "bench", file, *common, "--skip", "layernorm", "--limit", "9m")[0] == 0
    assert len(results_of(out.read_text()).entries) == 2
    code, text, progress = run(capsys, "bench", file, *common)
    assert code == 0
    assert [e.op for e in results_of(out.read_text()).entries] == ["rmsnorm", "rmsnorm", "layernorm"]
    assert "[3/3] layernorm bwd" in progress
    assert "rmsnorm" not in progress
    assert text.splitlines()[-1].startswith("3 entries in ")


def test_files_of_several_runs_are_joined_and_later_entries_replace_earlier_ones(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, part, out = (tmp_path / f"{name}.json" for name in ("whole", "part", "joined"))
    assert run(capsys, "bench", file, "--peers", "none", "--json", str(whole))[0] == 0
    assert run(capsys, "bench", file, "--peers", "none", "--json", str(part), "--only", "layernorm")[0] == 0
    code, text, _ = run(capsys, "bench", "--from", str(whole), "--from", str(part), "--json", str(out))
    assert code == 0
    old, new, found = (results_of(path.read_text()) for path in (whole, part, out))
    runs = [old.started, old.started, new.started]
    assert found.entries == tuple(
        replace(e, run=run) for e, run in zip((*old.entries[:2], *new.entries), runs, strict=True)
    )
    assert found.note == f"timed on {new.started[:10]} (3 entries)"
    assert (found.finished, found.started) == (True, new.started)
    assert text.splitlines()[-1].startswith("3 entries in ")
    words = tmp_path / "words.json"
    words.write_text(
        part.read_text().replace(json.dumps(old.summary), '"Some of it."').replace('"samples":40', '"samples":9')
    )
    assert results_of(words.read_text()).summary == "Some of it."
    run(capsys, "bench", "--from", str(whole), "--from", str(words), "--json", str(out))
    joined = results_of(out.read_text())
    assert (joined.summary, joined.options) == (old.summary, old.options), "those of the run with more entries"
    run(capsys, "bench", "--from", str(whole), "--from", str(part), "--json", str(out))
    yesterday = tmp_path / "yesterday.json"
    yesterday.write_text(whole.read_text().replace(old.started, "2001-02-03T04:05:06Z"))
    code, text, _ = run(capsys, "bench", "--from", str(yesterday), "--from", str(out), "--from", str(part))
    assert text.splitlines()[-1].endswith(f"timed on {new.started[:10]} (3 entries)"), "each keeps its run's day"
    code, text, _ = run(capsys, "bench", "--from", str(yesterday), "--from", str(part))
    assert text.splitlines()[-1].endswith(f"timed on 2001-02-03 (2 entries) and {new.started[:10]} (1)")
    other = tmp_path / "other.json"
    other.write_text(part.read_text().replace('"suite":"', '"suite":"un'))
    code, _, err = run(capsys, "bench", "--from", str(whole), "--from", str(other))
    assert code == 2
    assert "runs of one suite are joined" in err


def test_parts_of_a_suite_on_two_gpus_are_joined_to_the_whole(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, out = (tmp_path / f"{name}.json" for name in ("first", "second", "whole"))
    for number, path in enumerate((first, second), start=1):
        assert run(capsys, "bench", file, "--peers", "none", "--json", str(path), "--part", f"{number}/2")[0] == 0
    assert [e.shape for e in results_of(first.read_text()).entries] == ["96x256", "128x384"]
    assert run(capsys, "bench", "--from", str(first), "--from", str(second), "--json", str(out))[0] == 0
    assert {e.shape for e in results_of(out.read_text()).entries} == {"96x256", "64x272", "128x384"}


def test_the_command_prints_json_on_stdout(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "bench", file, "--peers", "none", "--json", "-")
    assert code == 0
    assert [entry["shape"] for entry in json.loads(text)["entries"]] == ["96x256", "64x272", "128x384"]


@pytest.mark.parametrize(("planted", "interrupted", "code"), [("wrong", 0, 4), ("no_memory", 0, 3), ("", 384, 130)])
def test_the_exit_code_says_how_it_ended(
    planted: str,
    interrupted: int,
    code: int,
    file: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant_in_workers(monkeypatch, c256=planted)
    interrupt_at(monkeypatch, interrupted)
    found, text, _ = run(capsys, "bench", file, "--peers", "none")
    assert found == code
    assert "rmsnorm fwd 64x272 bf16 fresh" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a suite, or --from"),
        (("forward_h20",), "did you mean 'forward_h200'"),
        (("decode_h200", "--only", "softmax"), "no entry of suite 'decode_h200' matches"),
        (("decode_h200", "--skip", "bf16"), "every entry of suite 'decode_h200' matches the pattern to skip"),
        (("decode_h200", "--part", "3/2"), "every N-th, from the K-th on"),
        (("decode_h200", "--only", "1x2048", "--part", "9/9"), "fewer entries than parts"),
        (("decode_h200", "--resume"), "--json FILE names it"),
        (("decode_h200", "--peers", "torhc"), "did you mean 'torch'"),
        (("decode_h200", "--budget", "soon", "--tune"), "received: soon"),
        (("decode_h200", "--json", "/nowhere/results.json"), "the folder of a file to write must exist"),
        (("decode_h200", "--samples", "3"), "at least 6 samples"),
        (("--from", __file__), "what `normgen bench --json` wrote"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "bench", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_a_plot_without_matplotlib_is_refused_before_anything_is_timed(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    code, out, err = run(capsys, "bench", file, "--plot", "few.png")
    assert (code, out) == (2, "")
    assert "pip install 'normgen[plot]'" in err


def test_one_at_a_time_peer_reasons_reach_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normgen.bench.peers.missing_packages", lambda _: ("torch", "liger_kernel"))
    entry: Any = run_suite(suite().only("96x256"), Wish(peers=("liger",))).entries[0]
    assert entry.peers["liger"].failed == "not installed: torch, liger_kernel"
    assert entry.ours.us is not None


def test_what_each_contender_takes_alone_is_timed_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    plain, *_ = run_suite(suite(), Wish(peers=("torch",))).entries
    assert (plain.ours.alone_us, plain.peers["torch"].alone_us) == (None, None)
    both, *_ = run_suite(suite(), Wish(peers=("torch",), alone=True)).entries
    for provider in (both.ours, both.peers["torch"]):
        assert provider.price_us is not None
        assert provider.alone_us == pytest.approx(provider.price_us.median, rel=0.05)
        assert provider.us is not None
        assert provider.us > 1.2 * provider.alone_us
