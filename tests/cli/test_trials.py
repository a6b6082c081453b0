"""What has been timed: shown, merged, pushed into a shared folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from normgen.cli import main as cli
from normgen.device import TARGETS
from normgen.records.record import Outcome
from normgen.schedule.schedule import Schedule
from normgen.studies.sweep_file import read_sweep
from normgen.studies.trial_files import read_trials
from normgen.trials.file import read, write
from normgen.trials.kept import Trials, joined
from tests.report.made import candidates, key
from tests.trials.test_kept import trials

ROOT = Path(__file__).parents[2]
SWEEP = ROOT / "generated" / "sweeps" / "rmsnorm_16x8192_bf16_fresh.jsonl.xz"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["trials", *map(str, arguments)])
    output = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, output.out, output.err


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path / "state"))
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl.xz"
    write(a, joined(trials("one")))
    other = trials("two", device=TARGETS["h100"].as_dict(), cols=1024)
    write(b, joined([*trials("one", count=2), *(replace(t, chosen="random") for t in other)]))
    return a, b


def test_files_are_merged_each_trial_once_and_counted(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl.xz"
    assert run(capsys, "merge", *files, "-o", out) == (0, "", f"{out}: 8 trials\n")
    found = read(Trials, out, is_strict=True).trials
    assert [t.run for t in found] == ["one"] * 4 + ["two"] * 4
    assert [(t.device or {})["name"] for t in found[3:5]] == [TARGETS[name].name for name in ("h200", "h100")]
    code, text, _ = run(capsys, "merge", out, files[0])
    assert code == 0
    assert len(text.splitlines()) == 1 + 8
    code, text, _ = run(capsys, "show", out, "--json")
    counted = json.loads(text)
    assert (counted["trials"], counted["timed"], counted["questions"], counted["runs"]) == (8, 8, 2, 2)
    assert counted["chosen"] == {"search": 4, "random": 4}
    assert counted["devices"] == {"NVIDIA H200": 4, TARGETS["h100"].name: 4}
    assert "chosen    4 search, 4 random" in run(capsys, "show", out)[1]
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    assert run(capsys, "merge", bad, "-o", out)[0] == 2
    assert len(read(Trials, out).trials) == 8


def test_runs_are_pushed_once_and_a_folder_is_read_as_a_file(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "shared"
    assert run(capsys, "push", shared)[0] == 2
    assert not shared.exists()
    for name, file in zip(("one", "two"), files, strict=True):
        folder = tmp_path / "state" / "runs" / name
        folder.mkdir(parents=True)
        write(folder / "trials.jsonl", joined(read_trials(file)))
    assert run(capsys, "push", shared)[:2] == (0, f"{shared}: 2 new of 2 files\n")
    assert run(capsys, "push", shared)[:2] == (0, f"{shared}: 0 new of 2 files\n")
    assert run(capsys, "push", shared, SWEEP)[:2] == (0, f"{shared}: 1 new of 1 files\n")
    assert len(list(shared.iterdir())) == 3
    swept = len(read_sweep(SWEEP).points)
    assert json.loads(run(capsys, "show", shared, "--json")[1])["trials"] == 8 + swept


def test_a_sweep_and_a_runs_candidates_are_trials(tmp_path: Path) -> None:
    sweep = read_sweep(SWEEP)
    found = read_trials(SWEEP)
    assert [(t.schedule, t.us, t.registers) for t in found] == [(p.schedule, p.us, p.registers) for p in sweep.points]
    assert {t.base_us for t in found} == {sweep.chain_us}
    assert {t.chosen for t in found} == {"sample"}
    assert all(t.question == sweep.problem and t.device == sweep.device for t in found)
    path = tmp_path / "runs" / "20261127-some" / "candidates.jsonl"
    path.parent.mkdir(parents=True)
    records = candidates(key())
    path.write_text("".join(r.line() for r in records))
    assert [(t.schedule, t.run) for t in read_trials(path)] == [
        (r.schedule, "20261127-some") for r in records if r.outcome is not Outcome.PREDICTED
    ]


def test_a_tune_pushes_what_it_timed(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    own = {"NORMGEN_STATE_DIR": str(tmp_path / "state"), "NORMGEN_CACHE_DIR": str(tmp_path / "cache")}
    asked = ("tune", "--op", "rmsnorm", "--shape", "64x256", "--trials", "8", "--json", "--push", str(shared))
    done = subprocess.run(
        [sys.executable, "-m", "tests.tuning.fake_tune", *asked],
        cwd=ROOT, env=os.environ | own, capture_output=True, text=True, check=True,
    )  # fmt: skip
    result = json.loads(done.stdout)
    (file,) = shared.iterdir()
    found = read(Trials, file, is_strict=True).trials
    assert found == read_trials(Path(result["paths"]["candidates"]).with_name("trials.jsonl"))
    assert Schedule(**result["best"]["schedule"]) in {t.schedule for t in found if t.price_us}
    assert {t.chosen for t in found} >= {"default", "model", "random"}
    assert read_trials(tmp_path / "state" / "trials.jsonl") == found
