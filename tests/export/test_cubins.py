"""Folders of cubins: machine code beside its records, loaded without a compiler."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import normgen
from normgen.cli.export import export
from normgen.cuda import nvrtc
from normgen.cuda.arrays import DeviceArray
from normgen.cuda.cubin import entries_of
from normgen.device import target
from normgen.errors import NormgenError, UsageError
from normgen.export.cubins import MANIFEST, read_cubins
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.python import handle, kernels
from normgen.python.executor import executor_for
from normgen.records.record import Record
from normgen.records.winners import lookup, records_of, shipped_folder
from normgen.spec.reader import load, parse
from tests.export.cases import record

H200 = target("h200")
QUESTION: dict[str, Any] = {"dtype": "bf16", "without": ("rstd",)}
ROWS = (1, 4096)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels of two shipped records, as the command writes them."""
    place = tmp_path_factory.mktemp("cubins")
    wanted = {r.line() for rows in ROWS if (r := record_of(rows))}
    (place / "two.jsonl").write_text("".join(sorted(wanted)))
    done = CliRunner().invoke(export, [str(place / "two.jsonl"), "--cubin", str(place / "out")])
    assert done.exit_code == 0, done.output
    assert len(done.output.splitlines()) == 3
    return place / "out"


def record_of(rows: int) -> Record:
    problem = problem_for(load("rmsnorm"), shape=(rows, 4096), **QUESTION)
    found = lookup(problem, H200, folders=[shipped_folder()])
    assert found.exact
    assert isinstance(found.record, Record)
    return found.record


class _Asked(Exception):
    """The compiler was asked for."""


def refuse(*_: Any, **__: Any) -> Any:
    raise _Asked


def test_a_handle_finds_its_machine_code_without_a_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "version", refuse)
    monkeypatch.setattr(nvrtc, "compile_text", refuse)
    gpu, bound = executor_for("cpu"), []
    gpu.index = 0  # records are looked up for GPUs

    def bind(problem: Any, module: Any, cubin: Any) -> Any:
        bound.append((problem, module, cubin))
        return type(gpu).bind(gpu, problem, module, None)  # type: ignore[arg-type]

    monkeypatch.setattr(gpu, "bind", bind)
    for place in (handle, kernels):
        monkeypatch.setattr(place, "executor_for", lambda _: gpu)
    norm = normgen.kernel("rmsnorm", shape=(-1, 4096), cubins=folder, **QUESTION)
    norm.kernel_for(4096)  # type: ignore[attr-defined]
    assert len(bound) == len(ROWS)
    for rows, (_, module, cubin) in zip(ROWS, bound, strict=True):
        assert cubin.arch == 90
        assert module.kernels[0].name in " ".join(entries_of(cubin.data))
        assert module.digest == emit(norm.problem.with_rows(rows), record_of(rows).schedule).digest


def test_what_the_folder_does_not_hold_is_said(folder: Path, tmp_path: Path) -> None:
    held = read_cubins(folder)
    assert len(held.entries) == len(ROWS)
    other = emit(problem_for(load("rmsnorm"), shape=(8, 512)), record_of(1).schedule)
    with pytest.raises(UsageError, match="must hold the kernel"):
        held.find(other, 90)
    mine = emit(problem_for(load("rmsnorm"), shape=(1, 4096), **QUESTION), record_of(1).schedule)
    assert held.find(mine, 90).data
    with pytest.raises(UsageError, match="must hold the kernel"):
        held.find(mine, 80)
    with pytest.raises(UsageError, match="has a manifest"):
        read_cubins(tmp_path)


def test_damaged_and_hostile_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    manifest = tmp_path / "copy" / MANIFEST
    good = json.loads(manifest.read_text())
    held = read_cubins(tmp_path / "copy")
    module = emit(problem_for(load("rmsnorm"), shape=(1, 4096), **QUESTION), record_of(1).schedule)
    file = tmp_path / "copy" / held.entries[module.digest, 90]["file"]
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(UsageError, match="the bytes that its manifest says"):
        held.find(module, 90)
    file.unlink()
    with pytest.raises(UsageError, match="can be read"):
        held.find(module, 90)
    for key, value in (("file", "../x.cubin"), ("nvrtc", "thirteen"), ("nvrtc", 13), ("record", {}), ("arch", None)):
        changed = [{**entry, key: value} for entry in good["kernels"]]
        manifest.write_text(json.dumps({**good, "kernels": changed}))
        with pytest.raises(UsageError, match="has a manifest"):
            read_cubins(tmp_path / "copy")
    for text in ("", "[]", "{", json.dumps({**good, "schema": 2})):
        manifest.write_text(text)
        with pytest.raises(UsageError, match="has a manifest"):
            read_cubins(tmp_path / "copy")


def test_records_that_are_not_there_are_none_to_export(tmp_path: Path) -> None:
    done = CliRunner().invoke(export, ["--output", str(tmp_path), "--cubin", str(tmp_path / "out")])
    assert isinstance(done.exception, NormgenError | SystemExit)
    assert not (tmp_path / "out").exists()


@pytest.mark.gpu
def test_a_handle_runs_from_a_folder_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = executor_for(0).facts
    known = [r for r in records_of(found) if r.problem.op == "rmsnorm" and r.problem.direction == "forward"]
    record = next(r for r in known if r.problem.cols == 4096 and set(dict(r.problem.dtypes).values()) == {"bf16"})
    (tmp_path / "one.jsonl").write_text(replace(record, spec="").line())
    done = CliRunner().invoke(export, [str(tmp_path / "one.jsonl"), "--cubin", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    monkeypatch.setattr(nvrtc, "version", refuse)
    monkeypatch.setattr(nvrtc, "compile_text", refuse)
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))
    norm = normgen.kernel("rmsnorm", shape=(record.problem.rows, 4096), cubins=tmp_path / "out", **QUESTION)
    draw = np.random.default_rng(1)
    x, weight = (draw.standard_normal(s).astype(norm.problem.dtype.numpy) for s in ((3, 4096), 4096))
    y = norm(DeviceArray.of(x), DeviceArray.of(weight)).numpy().astype(np.float64)
    wide = x.astype(np.float64)
    right = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * weight.astype(np.float64)
    np.testing.assert_allclose(y, right, rtol=1e-2, atol=1e-2)


CODES = """
name = "f4"
[tensors]
x = "input"
y = { role = "output", dtypes = ["f4e2m1"] }
[formulas]
y = "x"
"""
WITHOUT_A_HEADER = {
    "rows side by side": record("softmax", shape="18x40", col_stride=6),
    "share a byte": record(parse(CODES, file="f4.toml"), shape="4x10"),
}


@pytest.mark.parametrize("what", WITHOUT_A_HEADER)
def test_a_record_that_no_header_has_is_named_and_its_machine_code_leaves(what: str, tmp_path: Path) -> None:
    without, plain = WITHOUT_A_HEADER[what], record("softmax", shape="18x40")
    (tmp_path / "records.jsonl").write_text(without.line() + plain.line())
    (tmp_path / "f4.toml").write_text(CODES)
    arguments = [str(tmp_path / "records.jsonl"), "--output", str(tmp_path / "out"), "--specs", str(tmp_path)]
    done = CliRunner().invoke(export, arguments)
    assert done.exit_code == 0, done.output
    assert what in done.output
    assert [path.name for path in (tmp_path / "out").glob("*.cu")] == ["softmax_fwd_f32_sm90.cu"]
    done = CliRunner().invoke(export, [*arguments, "--cubin", str(tmp_path / "cubins")])
    assert done.exit_code == 0, done.output
    assert len(read_cubins(tmp_path / "cubins").records) == 2
