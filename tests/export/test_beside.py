"""Two specs of one name: a header, a symbol or a record of the other one in the folder is an error, not lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from normgen.cli import main as cli
from normgen.errors import UsageError
from normgen.export import Header, export_record, headers_of
from normgen.records.record import Record
from normgen.records.winners import kept
from normgen.spec.reader import parse
from normgen.spec.spec import Spec
from normgen.tuning.tuner import tune

from .cases import record

HEADER = "own_fwd_f32_sm90.cu"


@pytest.fixture(autouse=True)
def unchecked_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC would take 0.8 s a header, and is no part of these claims."""
    monkeypatch.setattr(Header, "check", lambda _: None)


def spec(factor: int, file: str = "<spec>") -> Spec:
    text = f'name = "own"\n[tensors]\nx = "input"\ny = "output"\n[formulas]\ny = "{factor} * x"\n'
    return parse(text, file=file)


def own(factor: int, **asked: Any) -> Record:
    found = spec(factor)
    return Record(**{**vars(record(found, shape="8x96", **asked)), "spec": found.text})


def run(*arguments: Any) -> int:
    """A command; its exit code."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("name", [HEADER, "renamed.cuh"])
def test_a_header_of_another_spec_stays_and_both_files_are_named(name: str, tmp_path: Path) -> None:
    path = export_record(own(2), tmp_path, spec=spec(2))
    there = path.rename(tmp_path / name)
    before = there.read_text()
    with pytest.raises(UsageError, match="one spec of a name") as refused:
        export_record(own(3), tmp_path, spec=spec(3, file="here/own.toml"))
    assert str(there) in str(refused.value.received)
    assert "here/own.toml" in str(refused.value.received)
    assert "--replace" in str(refused.value.hint)
    assert [(p, p.read_text()) for p in tmp_path.iterdir()] == [(there, before)]
    assert "y = 3 * x" in export_record(own(3), tmp_path, spec=spec(3), replace=True).read_text()
    other = export_record(own(3, dtype="bf16"), tmp_path, spec=spec(3))  # other symbols
    assert other.name == "own_fwd_bf16_sm90.cu"


def test_a_tune_says_so_before_it_searches(tmp_path: Path) -> None:
    before = export_record(own(2), tmp_path, spec=spec(2)).read_text()
    asked: dict[str, Any] = {"shape": "8x96", "device": "cpu", "trials": 2, "output": tmp_path}
    with pytest.raises(UsageError, match="one spec of a name"):
        tune(spec(3), **asked, progress=None)
    assert (tmp_path / HEADER).read_text() == before
    assert tune(spec(3), **asked, replace=True).header_path == tmp_path / HEADER
    assert "y = 3 * x" in (tmp_path / HEADER).read_text()


def test_an_export_keeps_the_records_and_headers_of_the_other_spec(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, files = tmp_path / "out", [tmp_path / f"{factor}.jsonl" for factor in (2, 3)]
    for factor, file in zip((2, 3), files, strict=True):
        file.write_text(own(factor).line())
    assert run("export", files[0], "--output", out) == 0
    before = {path: path.read_bytes() for path in out.rglob("*.*")}
    assert run("export", files[1], "--output", out) == 2
    said = capsys.readouterr().err
    assert str(files[1]) in said
    assert str(out / "records") in said
    assert {path: path.read_bytes() for path in out.rglob("*.*")} == before
    assert run("export", files[1], "--output", out, "--replace") == 0
    assert [one.spec for one in kept(out / "records" / "h200.jsonl")] == [spec(3).text]
    assert "y = 3 * x" in (out / HEADER).read_text()
    (out / "records" / "h200.jsonl").write_text(own(2).line())  # a folder whose header is another spec's
    assert run("export", "--output", out) == 2
    assert "y = 3 * x" in (out / HEADER).read_text()
    assert run("export", "--output", out, "--replace") == 0
    assert "y = 2 * x" in (out / HEADER).read_text()


def test_one_header_has_no_kernels_of_two_specs() -> None:
    for pair in ((own(2), own(3)), (own(3), own(2))):
        with pytest.raises(UsageError, match="a header named own_fwd_f32 is of one spec") as refused:
            headers_of(pair)
        assert all(spec(factor).sha256[:12] in str(refused.value.received) for factor in (2, 3))
    names = [header.file_name for header in headers_of([own(2), own(3, dtype="bf16")])]
    assert names == ["own_fwd_bf16_sm90.cu", HEADER]  # other symbols


def test_a_link_of_the_headers_name_is_replaced_and_what_it_names_stays(tmp_path: Path) -> None:
    other, out = tmp_path / "other.txt", tmp_path / "out"
    other.write_text("mine\n")
    out.mkdir()
    (out / HEADER).symlink_to(other)
    path = export_record(own(2), out, spec=spec(2))
    assert other.read_text() == "mine\n"
    assert not path.is_symlink()
    assert "y = 2 * x" in path.read_text()
