"""Headers that share their device library, and sets for several GPUs."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from normgen import export
from normgen.cli.main import cli
from normgen.cuda import nvrtc
from normgen.cuda.nvrtc import header_folders
from normgen.errors import CompileError, NothingValidError, UsageError
from normgen.export import Header, HeaderForm, headers_of
from normgen.records.record import Record
from normgen.records.winners import adopt
from tests.mutation.machine_code import sections
from tests.samples import is_full

from .cases import H200, build, layernorm_records, nvcc, put, record
from .test_headers import CLUSTERS, HERE, backward_records, needs_nvcc

SHARED = HeaderForm(shared_library=True)
SET = HeaderForm(archs=(80, 90))
LIBRARY = "normgen_device.cuh"


def folder_with(folder: Path, *records: Record) -> Path:
    for one in records:
        assert adopt(one, folder / "records", H200)
    return folder


def test_shared_device_functions_stand_in_one_file_and_in_no_header() -> None:
    library, *headers = headers_of([*layernorm_records(), *backward_records()], form=SHARED)
    alone = headers_of([*layernorm_records(), *backward_records()])
    assert (library.file_name, len(headers)) == (LIBRARY, 2)
    for header, own in zip(headers, alone, strict=True):
        header.check()
        assert f'#include "{LIBRARY}"' in header.text
        assert "struct Vec" in library.text
        assert "struct Vec" in own.text
        assert "struct Vec" not in header.text
        kernels = own.text[own.text.index("// What a tuned shape is") :]
        assert header.text.endswith(kernels)  # kernels and host part: byte for byte
    assert "#include <" not in library.text


@needs_nvcc
@pytest.mark.skipif(not is_full(), reason="a normal run compiles sets with a shared library in two files")
def test_headers_with_a_shared_library_compile_in_two_files_of_a_program(tmp_path: Path) -> None:
    for header in headers_of([*layernorm_records(), *backward_records()], form=SHARED):
        put(header, tmp_path)
    for source in ("use.cu", "use_too.cu"):
        shutil.copy(HERE / source, tmp_path)
    build(tmp_path, "use.cu", "use_too.cu")


@needs_nvcc
def test_a_header_refuses_the_device_functions_of_another_export(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, records in ((one, layernorm_records()), (other, backward_records())):
        folder.mkdir()
        for header in headers_of(records, form=SHARED):
            put(header, folder)
    both = tmp_path / "both.cu"
    both.write_text('#include "one/layernorm_fwd_f32_sm90.cu"\n#include "other/layernorm_bwd_bf16_sm90.cu"\n')
    refused = nvcc("-c", both, "-o", tmp_path / "both.o")
    assert f"layernorm_bwd_bf16_sm90.cu was exported with another {LIBRARY}: export both again" in refused.stderr
    shutil.copy(other / LIBRARY, one)
    refused = nvcc("-c", one / "layernorm_fwd_f32_sm90.cu", "-o", tmp_path / "one.o")
    assert f"layernorm_fwd_f32_sm90.cu was exported with another {LIBRARY}" in refused.stderr


def machine_code(header: Header) -> list[bytes]:
    folders = [f"--include-path={folder}" for folder in header_folders()]
    compiled = nvrtc.compile_text(
        header.text.encode(),
        name=header.file_name,
        options=["--gpu-architecture=sm_90", "-std=c++17", *folders],
        instances=header.kernels,
        includes={name: text.encode() for name, text in header.includes.items()},
    )
    assert (compiled.error, compiled.log.strip()) == ("", "")
    return sorted(content for name, _, content in sections(compiled.cubin) if name.startswith(".text."))


def test_a_kernel_has_the_same_machine_code_in_every_form() -> None:
    """A normal run takes two forms, which differ in all that a form says."""
    records = [*layernorm_records(), *backward_records()]
    forms = (export.PLAIN, HeaderForm(archs=(80, 90), shared_library=True))
    forms += (SHARED, SET, HeaderForm(archs=(90,), shared_library=True)) if is_full() else ()
    found = [
        {
            header.file_name: machine_code(header)
            for header in headers_of(records, form=form)
            if "sm90" in header.file_name
        }
        for form in forms
    ]
    assert [len(code) for code in found[0].values()] == [4, 9]
    assert all(one == found[0] for one in found)


def test_nothing_is_replaced_when_one_header_does_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path, record())
    export.export_folder(folder, form=SHARED)
    before = {path.name: path.read_bytes() for path in folder.glob("*.cu*")}
    assert LIBRARY in before
    folder_with(folder, record("softmax", shape="64x4096", dtype="f16"))
    broken = replace(headers_of([record()])[0], text="the kernel of another language;\n")
    monkeypatch.setattr(export, "headers_of", lambda *_, **__: (*headers_of([record()], form=SHARED), broken))
    with pytest.raises(CompileError):
        export.export_folder(folder, form=SHARED)
    assert {path.name: path.read_bytes() for path in folder.glob("*.cu*")} == before


def test_a_set_has_a_header_for_each_arch_and_says_which_was_not_tuned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_with(tmp_path, record())
    names = [path.name for path in export.export_folder(folder, form=SET)]
    assert names == ["layernorm_fwd_f32_sm80.cu", "layernorm_fwd_f32_sm90.cu", "layernorm_fwd_f32.cu"]
    said = "not tuned: there is no record of sm_80; every call takes the general kernel"
    assert capsys.readouterr().err == f"layernorm_fwd_f32_sm80.cu: {said}\n"
    assert f"// note      {said}\n" in (folder / names[0]).read_text()
    assert f"//   layernorm_fwd_f32_sm80.cu  {said}\n" in (folder / names[2]).read_text()
    assert "//   layernorm_fwd_f32_sm90.cu  1 tuned shape\n" in (folder / names[2]).read_text()
    assert export.differences(folder, form=SET) == []
    assert "layernorm_fwd_f32.cu: no record asks for it" in export.differences(folder)


@needs_nvcc
def test_a_set_compiles_for_one_of_its_archs_alone_and_its_headers_refuse_the_other(tmp_path: Path) -> None:
    one = record("rmsnorm", shape="4096x4096", direction="backward", schedule=CLUSTERS)
    for header in headers_of([one], form=SET):
        put(header, tmp_path)
    sm80, sm90, sm75 = (f"-arch=compute_{number}" for number in (80, 90, 75))
    for arch in (sm80, sm90, sm75):
        done = nvcc(arch, "-c", tmp_path / "rmsnorm_bwd_f32.cu", "-o", tmp_path / "set.o")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert nvcc(sm80, "-c", tmp_path / "rmsnorm_bwd_f32_sm80.cu", "-o", tmp_path / "one.o").returncode == 0
    for arch, name in ((sm80, "rmsnorm_bwd_f32_sm90.cu"), (sm90, "rmsnorm_bwd_f32_sm80.cu")):
        assert "for these GPUs include rmsnorm_bwd_f32.cu" in nvcc(arch, "-c", tmp_path / name).stderr


FAT = ("-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90")


@needs_nvcc
def test_sets_are_used_from_two_files_of_a_program_for_two_archs(tmp_path: Path) -> None:
    made = [record("softmax", shape="64x768"), record("rmsnorm", shape="64x768", direction="backward")]
    for header in headers_of(made, form=HeaderForm(archs=(80, 90), shared_library=True)):
        put(header, tmp_path)
    includes = '#include "softmax_fwd_f32.cu"\n#include "rmsnorm_bwd_f32.cu"\n'
    size = "normgen::rmsnorm_bwd_f32_workspace_bytes(rows, 768)"
    (tmp_path / "one.cu").write_text(f"{includes}std::size_t other(int rows) {{ return {size}; }}\n")
    (tmp_path / "two.cu").write_text(
        f"{includes}std::size_t other(int rows);\n"
        "int main(int rows, char**) {\n"
        "  const auto status = normgen::softmax_fwd_f32(nullptr, nullptr, rows, 768);\n"
        f"  return status + (other(rows) == {size});\n}}\n"
    )
    done = nvcc(*FAT, "-o", tmp_path / "program", tmp_path / "one.cu", tmp_path / "two.cu")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_command_writes_and_checks_both_forms(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, record())
    run = CliRunner().invoke
    asked = ["export", "--output", str(folder), "--arch", "sm90,80", "--shared-library"]
    written = run(cli, asked, catch_exceptions=False).stdout.split()
    assert [Path(name).name for name in written] == [
        LIBRARY,
        *("layernorm_fwd_f32_sm80.cu", "layernorm_fwd_f32_sm90.cu", "layernorm_fwd_f32.cu"),
    ]
    assert run(cli, [*asked, "--check"]).exit_code == 0
    with pytest.raises(UsageError, match=r"layernorm_fwd_f32_sm90\.cu: differs; normgen_device\.cuh: no record"):
        run(cli, [*asked[:3], "--check"], catch_exceptions=False)


@pytest.mark.parametrize("text", ["sm91", "80,", "all", "sm80;sm90", "²"])
def test_what_is_no_arch_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="arch"):
        CliRunner().invoke(cli, ["export", "--output", str(tmp_path), "--arch", text], catch_exceptions=False)


def test_a_set_of_archs_that_have_no_record_is_not_written(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, record())
    with pytest.raises(NothingValidError, match="no record of sm80 to export"):
        CliRunner().invoke(cli, ["export", "--output", str(folder), "--arch", "sm80"], catch_exceptions=False)
    assert list(folder.glob("*.cu")) == []


def test_an_export_without_records_names_what_was_read_and_where_some_are(tmp_path: Path) -> None:
    (empty := tmp_path / "empty.jsonl").touch()
    for given, read in (((), str(tmp_path / "records")), ((str(empty),), str(empty))):
        with pytest.raises(NothingValidError, match=re.escape(f"received: {read}\n")) as caught:
            CliRunner().invoke(cli, ["export", *given, "--output", str(tmp_path)], catch_exceptions=False)
        assert "a run's winner.jsonl" in str(caught.value.hint)
