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


@pytest.mark.parametrize("name", [HEADER, "renamed.cuh", "renamed.h"])
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


def written(folder: Path) -> dict[str, bytes]:
    """What a folder holds, by name."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def given(folder: Path, *records: Record) -> Path:
    file = folder / f"given{len(list(folder.glob('given*')))}.jsonl"
    file.write_text("".join(one.line() for one in records))
    return file


def test_no_half_of_another_specs_set_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("export", given(tmp_path, own(2)), "--output", out, "--arch", "sm80,sm90") == 0
    assert len(list(out.glob("*.cu"))) == 3
    (out / HEADER).unlink()
    (out / "records" / "h200.jsonl").unlink()
    (out / "mine.cu").write_text('#include "own_fwd_f32.cu"\n')
    before = written(out)
    assert run("export", given(tmp_path, own(3)), "--output", out) == 2  # beside its half for sm_80
    assert written(out) == before
    assert run("export", given(tmp_path, own(3)), "--output", out, "--replace") == 0
    assert sorted(path.name for path in out.glob("*.cu")) == ["mine.cu", HEADER]
    assert "y = 3 * x" in (out / HEADER).read_text()
    assert run("export", "--output", out, "--arch", "sm80,sm90") == 0
    assert run("export", given(tmp_path, own(2)), "--output", out, "--arch", "sm80,sm90", "--replace") == 0
    assert all("y = 2 * x" in (out / f"own_fwd_f32_sm{arch}.cu").read_text() for arch in (80, 90))


def test_two_specs_of_one_name_are_refused_in_one_call_whatever_their_dtypes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, file = tmp_path / "out", given(tmp_path, own(2), own(3, dtype="bf16"))
    for more in ([], ["--replace"]):
        assert run("export", file, "--output", out, *more) == 2
        said = capsys.readouterr().err
        assert str(file) in said
        assert all(spec(factor).sha256[:12] in said for factor in (2, 3))
    assert written(tmp_path) == {file.name: file.read_bytes()}
    (out / "records").mkdir(parents=True)
    (out / "records" / "h200.jsonl").write_bytes(file.read_bytes())  # as older versions took them in
    assert run("export", "--output", out) == 2
    assert [path.name for path in out.iterdir()] == ["records"]


def test_a_header_of_another_spec_without_records_is_seen_whatever_its_dtype(tmp_path: Path) -> None:
    path = export_record(own(2), tmp_path / "out", spec=spec(2))
    before = written(tmp_path / "out")
    assert run("export", given(tmp_path, own(3, dtype="bf16")), "--output", path.parent) == 2
    assert written(tmp_path / "out") == before  # no record was taken in either
    assert run("export", given(tmp_path, own(3, dtype="bf16")), "--output", path.parent, "--replace") == 0
    assert [found.name for found in path.parent.glob("*.cu")] == ["own_fwd_bf16_sm90.cu"]


def test_what_is_refused_when_headers_are_made_takes_no_record_in(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("export", given(tmp_path, own(2)), "--output", out) == 0
    before = written(out)
    assert run("export", given(tmp_path, own(2, dtype="bf16")), "--output", out, "--arch", "sm80") == 3
    assert written(out) == before


def test_a_file_that_normgen_did_not_write_stays_unless_it_may_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / HEADER).write_text("// my own\nint main() {}\n")
    before = written(out)
    file = given(tmp_path, own(2))
    assert run("export", file, "--output", out) == 2
    assert str(out / HEADER) in capsys.readouterr().err
    with pytest.raises(UsageError, match="none of normgen's"):
        export_record(own(2), out, spec=spec(2))
    with pytest.raises(UsageError, match="none of normgen's"):
        tune(spec(2), shape="8x96", device="cpu", trials=2, output=out, progress=None)
    assert written(out) == before
    assert run("export", file, "--output", out, "--replace") == 0
    assert "y = 2 * x" in (out / HEADER).read_text()
    (out / HEADER).unlink()
    (out / HEADER).mkdir()
    assert run("export", file, "--output", out, "--replace") == 2


def test_a_check_does_not_send_to_an_export_that_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run("export", given(tmp_path, own(2)), "--output", out) == 0
    for changed, hint in (({"error": {"y": 3.0}}, "tune again"), ({"text": "0" * 16}, "writes them again")):
        (out / "records" / "h200.jsonl").write_text(Record(**{**vars(own(2)), **changed}).line())
        capsys.readouterr()
        assert run("export", "--check", "--output", out) == 2
        assert hint in capsys.readouterr().err.split("hint:")[1]


def test_a_header_of_an_older_text_of_a_built_in_spec_gives_way_to_a_new_record(tmp_path: Path) -> None:
    out, now = tmp_path / "out", record(shape="8x96")
    assert run("export", given(tmp_path, now), "--output", out) == 0
    old = "1" * 64
    for path in (out / "layernorm_fwd_f32_sm90.cu", out / "records" / "h200.jsonl"):
        path.write_text(path.read_text().replace(now.problem.spec_sha256, old))
    assert run("export", given(tmp_path, now), "--output", out) == 0
    assert old not in "".join(path.read_text() for path in out.rglob("*.*"))
