"""Records of rows side by side: no header takes them, which is said; records, others' headers and cubins do."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from normgen.cli.export import export
from normgen.errors import UsageError
from normgen.export import export_folder, export_record, require_same
from normgen.export.cubins import read_cubins, write_cubins
from normgen.export.groups import NoHeaderError, header_problem, leaving_problem
from normgen.pipeline import emit
from normgen.records.record import Record
from normgen.records.winners import kept_of
from normgen.spec.reader import load
from tests.export.cases import H200, record


def beside() -> Record:
    return record("softmax", shape="256x32", col_stride=64)


def plain() -> Record:
    return record("softmax", shape="256x64")


def written(folder: Path, *records: Record) -> Path:
    (folder / "records").mkdir(parents=True, exist_ok=True)
    (folder / "records" / "h200.jsonl").write_text("".join(r.line() for r in records))
    return folder


def test_a_header_refuses_rows_side_by_side_and_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(NoHeaderError, match="none of rows side by side") as refused:
        header_problem(beside(), load("softmax"))
    assert "normgen.kernel(axis=)" in str(refused.value)
    with pytest.raises(NoHeaderError, match="none of rows side by side"):
        export_folder(written(tmp_path, beside()))
    assert list(tmp_path.glob("*.cu")) == []


def test_others_of_the_folder_have_their_headers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path, beside(), plain())
    (header,) = export_folder(folder)
    said = capsys.readouterr().err
    assert "64 rows side by side, f32: a header has" in said
    assert "normgen.kernel(axis=) calls it from Python" in said
    require_same(folder)
    alone = tmp_path / "alone"
    export_folder(written(alone, plain()))
    assert header.read_text() == (alone / header.name).read_text()
    one = export_record(record("softmax", shape="256x128"), folder)
    assert "64 rows side by side" not in one.read_text()


def test_the_command_takes_both_and_says_which_has_no_header(tmp_path: Path) -> None:
    (tmp_path / "both.jsonl").write_text(beside().line() + plain().line())
    done = CliRunner().invoke(export, [str(tmp_path / "both.jsonl"), "--output", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "no header of softmax forward 256 x 32, 64 rows side by side" in done.output
    assert len(list(kept_of(tmp_path / "out" / "records" / "h200.jsonl"))) == 2
    assert [path.name for path in (tmp_path / "out").glob("*.cu")] == ["softmax_fwd_f32_sm90.cu"]


def test_machine_code_of_rows_side_by_side_is_exported(tmp_path: Path) -> None:
    given = beside()
    write_cubins([given], lambda _: load("softmax"), tmp_path)
    found = read_cubins(tmp_path)
    assert [r.problem.col_stride for r in found.records] == [64]
    problem = leaving_problem(given, load("softmax"))
    assert found.find(emit(problem, given.schedule), H200.arch).data
    with pytest.raises(UsageError, match="must hold the kernel"):
        found.find(emit(problem, given.schedule), 80)
