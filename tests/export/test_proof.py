"""Records are held against today's code: what leaves is legal today, of today's text, and was within its bound."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from normgen.cli import main as cli
from normgen.cpu import find_compiler
from normgen.errors import UsageError, VerificationError
from normgen.export import Header, HeaderForm, differences, export_folder, export_record, headers_of, proof
from normgen.export.proof import proven
from normgen.measure import cpu_check
from normgen.pipeline import emit
from normgen.records.compare import compare_files
from normgen.records.questions import device_of
from normgen.records.record import Outcome, Record, parse_line
from normgen.records.winners import adopt, kept, lookup, read, shipped_folder
from normgen.spec.reader import load
from normgen.studies.t4 import t4_results

from .cases import GPU_CHECK, H200, record

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler for the CPU executor")
GOOD = record(shape="64x768")
BAD = record(shape="8x96", measured=True)
ILLEGAL = {"threads_per_row": 1024, "rows_per_block": 256}
REFUSED: dict[str, tuple[Callable[[Record], Record], str]] = {
    "illegal": (
        lambda r: replace(r, schedule=replace(r.schedule, **ILLEGAL)),
        "its schedule is not legal: ",
    ),
    "another question's": (
        lambda r: replace(r, problem=replace(r.problem, rows=4096)),
        "its figures are another question's: it moved",
    ),
    "other bytes": (lambda r: replace(r, bytes=2 * r.bytes), "its figures are another question's: it moved"),
    "beyond its bound": (lambda r: replace(r, error=r.error | {"y": 500.0}), "beyond its bound: y 500 of it"),
    "not finite": (lambda r: replace(r, error=r.error | {"mean": None}), "beyond its bound: mean not finite"),
    "unknown tensors": (
        lambda r: replace(r, problem=replace(r.problem, dtypes=(*r.problem.dtypes, ("z", "f32")))),
        "a record of ",
    ),
    "unusable": (lambda r: replace(r, outcome=Outcome.WRONG_RESULT), "usable kernels of fixed cols"),
}
OLDER: dict[str, Callable[[Record], Record]] = {
    "no text": lambda r: replace(r, text=""),
    "another text": lambda r: replace(r, text="0123456789abcdef"),
    "not compared": lambda r: replace(r, verified=None),
    "compared where any value passes": lambda r: replace(r, verified=replace(GPU_CHECK, cols=(96,), unbounded=1.0)),
    "compared on rows of no family": lambda r: replace(r, verified=replace(GPU_CHECK, cols=(96,), families=())),
    "no row compared": lambda r: replace(r, verified=replace(GPU_CHECK, cols=(96,), compared=0)),
    "called without rows": lambda r: replace(r, verified=replace(GPU_CHECK, cols=(96,), rows=(0,))),
    "a tensor not compared": lambda r: replace(r, error={"y": 0.5}),
    "another text of a built-in spec": lambda r: replace(r, problem=replace(r.problem, spec_sha256="0" * 64)),
}


@pytest.fixture(autouse=True)
def unchecked_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC would take 0.8 s a header, and is no part of these claims."""
    monkeypatch.setattr(Header, "check", lambda _: None)


def run(*arguments: Any) -> int:
    """A command; its exit code."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def file_of(folder: Path, *records: Record) -> Path:
    path = folder / "given.jsonl"
    path.write_text("".join(one.line() for one in records))
    return path


@pytest.mark.parametrize("name", REFUSED)
def test_a_record_that_lies_is_named_with_the_reason_and_the_others_of_its_file_leave(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, why = REFUSED[name]
    file, out = file_of(tmp_path, change(BAD), GOOD), tmp_path / "out"
    assert run("export", file, "--output", out) == 4
    said = capsys.readouterr()
    assert "refused: layernorm forward " in said.err
    assert why in said.err
    text = (out / "layernorm_fwd_f32_sm90.cu").read_text()
    assert "//   64 x 768 " in text
    assert not re.search(r"^// +\d+ x 96 ", text, re.MULTILINE)
    assert kept(out / "records" / "h200.jsonl") == (GOOD,)


def test_json_names_what_is_refused_and_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = file_of(tmp_path, REFUSED["beyond its bound"][0](BAD), GOOD)
    assert run("export", file, "--output", tmp_path / "out", "--json") == 4
    found = json.loads(capsys.readouterr().out)
    assert found["refused"] == [
        {"op": "layernorm", "direction": "forward", "rows": 8, "cols": 96,
         "why": "its error is beyond its bound: y 500 of it"}
    ]  # fmt: skip
    assert [Path(path).name for path in found["written"]] == ["layernorm_fwd_f32_sm90.cu"]


@pytest.mark.parametrize("name", REFUSED)
def test_no_other_door_lets_such_a_record_out(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, why = REFUSED[name]
    lying = change(BAD)
    file, cubins, out = file_of(tmp_path, lying), tmp_path / "cubins", tmp_path / "out"
    assert run("export", file, "--cubin", cubins) == 4
    assert why in capsys.readouterr().err
    assert not (cubins / "manifest.json").exists()
    assert run("export", file, "--arch", "sm80,sm90", "--output", out) == 4
    assert not list(out.glob("*.cu"))
    (tmp_path / "there" / "records").mkdir(parents=True)
    line = GOOD.line() + lying.line()
    (tmp_path / "there" / "records" / "h200.jsonl").write_text(line)
    assert why in "; ".join(differences(tmp_path / "there"))
    with pytest.raises(VerificationError, match="leaves only as it was compared"):
        export_folder(tmp_path / "there")
    assert not list((tmp_path / "there").glob("*.cu"))
    assert run("export", "--output", tmp_path / "there") == 4
    assert [path.name for path in (tmp_path / "there").glob("*.cu")] == ["layernorm_fwd_f32_sm90.cu"]
    assert (tmp_path / "there" / "records" / "h200.jsonl").read_text() == line  # nothing is lost
    path = export_record(record(shape="16x768"), tmp_path / "there")  # beside it, as a tune's winner
    assert re.findall(r"^//   (\d+ x \d+) ", path.read_text(), re.MULTILINE) == ["16 x 768", "64 x 768"]
    assert why in capsys.readouterr().err


@needs_compiler
@pytest.mark.parametrize("name", OLDER)
def test_a_record_of_an_older_text_is_proven_again_once_and_leaves(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = OLDER[name](BAD)
    out = tmp_path / "out"
    assert run("export", file_of(tmp_path, older), "--output", out) == 0
    assert capsys.readouterr().err.count("proven again on the CPU executor: layernorm forward 8 x 96") == 1
    (found,) = kept(out / "records" / "h200.jsonl")
    assert found.verified is not None
    assert found.verified.site.executor == "cpu"
    assert set(found.error) >= {"y", "mean", "rstd"}
    assert found.problem == BAD.problem
    assert (found.times_us, found.text) == (older.times_us, older.text)  # of the text that was timed
    text = (out / "layernorm_fwd_f32_sm90.cu").read_text()
    assert "verified  CPU executor" in text
    assert "on the CPU executor where emitted as another text" in " ".join(text.replace("//", " ").split())
    assert differences(out) == []
    assert run("export", "--output", out) == 0
    assert "proven again" not in capsys.readouterr().err
    with pytest.raises(VerificationError):
        headers_of([replace(older, problem=BAD.problem)] if "spec" not in name else [replace(BAD, text="")])


@needs_compiler
def test_a_kernel_that_is_wrong_today_does_not_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(*asked: Any) -> Any:
        module = emit(*asked)
        return replace(module, text=re.sub(r"if \((mean|rstd) != nullptr\) ", "", module.text))

    proof.text_today.cache_clear()
    monkeypatch.setattr(proof, "emit", wrong)
    assert run("export", file_of(tmp_path, BAD), "--output", tmp_path / "out") == 4
    proof.text_today.cache_clear()
    assert "its kernel is wrong today: WRONG with null mean" in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("*.*"))


def test_where_it_cannot_be_compared_the_reason_is_said_and_a_tune_keeps_its_record_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cpu_check, "has_compiler", lambda: False)
    with pytest.raises(VerificationError, match=r"no C\+\+ compiler was found"):
        proven(replace(BAD, verified=None), load("layernorm"))
    assert proven(BAD, load("layernorm")) is BAD
    words = ("--shape", "8x96", "--device", "cpu", "--trials", 2, "--output", tmp_path / "out", "--json")
    assert run("tune", *words) == 4
    result = json.loads(capsys.readouterr().out)
    assert result["paths"]["header"] is None
    assert not list((tmp_path / "out").iterdir())
    said = "no header: its kernel was not compared with the reference; `normgen export winner.jsonl` compares it"
    assert any(note.startswith(said) for note in result["notes"])
    (winner,) = read(Path(result["paths"]["record"])).records
    assert winner.verified is None


def test_a_gpu_that_a_record_made_up_widens_no_limit() -> None:
    wide = replace(BAD, device={**BAD.device, "shared_per_block": 1 << 40, "registers_per_sm": 1 << 40})
    assert device_of(wide) == H200
    assert device_of(replace(BAD, device={**BAD.device, "shared_per_block": 1 << 10})).shared_per_block == 1 << 10


def test_every_record_that_ships_leaves_as_it_stands() -> None:
    records = [one for path in shipped_folder().glob("*.jsonl") for one in read(path).records]
    assert len(records) >= 204
    assert all(proven(one, load(one.problem.op), tell=pytest.fail) is one for one in records)


@pytest.mark.parametrize("name", ["illegal", "other bytes", "beyond its bound", "not finite"])
def test_no_handle_takes_such_a_record(name: str, tmp_path: Path) -> None:
    lying = parse_line(REFUSED[name][0](replace(BAD, created="2027")).line())
    (tmp_path / "h200.jsonl").write_text(lying.line())
    problem = proof.problem_of(BAD.problem, load("layernorm"))
    found = lookup(problem, H200, folders=[tmp_path])
    assert found.schedule is None
    assert found.reason.startswith("the record of this problem is of no use: ")
    near = lookup(problem.with_rows(16), H200, folders=[tmp_path])
    assert near.schedule is None
    (tmp_path / "h200.jsonl").write_text(lying.line() + BAD.line())
    assert lookup(problem, H200, folders=[tmp_path]).record == parse_line(BAD.line())
    assert lookup(problem.with_rows(16), H200, folders=[tmp_path]).record == parse_line(BAD.line())


def test_a_record_beyond_its_bound_is_no_winner(tmp_path: Path) -> None:
    lying = REFUSED["beyond its bound"][0](BAD)
    assert not adopt(lying, tmp_path, H200)
    assert adopt(BAD, tmp_path, H200)
    assert not adopt(replace(lying, created="2027"), tmp_path, H200)


def test_a_set_is_made_of_proven_kernels_alone() -> None:
    with pytest.raises(VerificationError):
        headers_of([REFUSED["illegal"][0](BAD)], form=HeaderForm(archs=(80, 90)))


def test_a_record_beyond_its_bound_is_no_result_to_compare_and_no_right_one_elsewhere(tmp_path: Path) -> None:
    lying = REFUSED["beyond its bound"][0](BAD)
    file = file_of(tmp_path, lying)
    with pytest.raises(UsageError, match="at least one usable result"):
        compare_files(file, file)
    assert [one["correctness"] for one in t4_results([lying, BAD])["results"]] == [0.0, 1.0]
