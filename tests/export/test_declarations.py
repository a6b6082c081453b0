"""Headers for other builds: the suffix .cuh, and declarations in plain C++ with the unit that defines them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from normgen import export
from normgen.cli.main import cli
from normgen.engines.tvm_ffi import beside_header
from normgen.export import HeaderForm, headers_of
from normgen.spec.spec import Spec
from tests.samples import sized

from .cases import nvcc, put, record
from .test_forms import folder_with
from .test_headers import CLUSTERS, HOSTILE, needs_nvcc

DECLARED = HeaderForm(suffix="cuh", declarations=True)
CALLS = """
int main(int rows, char**) {
  namespace n = normgen::linked::SCOPE;
  const std::size_t bytes = n::rmsnorm_bwd_f32_workspace_bytes(rows, 96);
  const cudaError_t refused = n::rmsnorm_bwd_f32(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, -1, 96, nullptr);
  if (n::rmsnorm_bwd_f32_is_tuned(rows, 97)) return 2;
  return refused == cudaErrorInvalidValue ? 0 : static_cast<int>(bytes);
}
"""


def test_a_header_is_the_same_text_under_either_suffix_but_for_its_name() -> None:
    made = [record(), record("softmax", shape="64x768")]
    for archs in ((), (80, 90)):
        plain, other = (headers_of(made, form=HeaderForm(suffix=suffix, archs=archs)) for suffix in ("cu", "cuh"))
        names = [header.file_name for header in other]
        assert all(name.endswith(".cuh") for name in names)
        assert [re.sub(r"\.cuh\b", ".cu", header.text) for header in other] == [header.text for header in plain]
        assert [header.guard for header in other] == [header.guard for header in plain]  # never both in one file


def test_a_binding_of_an_engine_stays_a_unit_and_includes_the_header_under_its_suffix() -> None:
    for archs, included in (((), "layernorm_fwd_f32_sm90.cuh"), ((80, 90), "layernorm_fwd_f32.cuh")):
        *_, bound = headers_of([record()], form=HeaderForm(suffix="cuh", archs=archs, binding=beside_header))
        assert bound.file_name == f"{included.removesuffix('.cuh')}_ffi.cu"
        assert f'#include "{included}"' in bound.text


def test_the_command_writes_and_checks_headers_of_either_suffix_beside_their_declarations(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, record("softmax", shape="64x768"))
    asked = ["export", "--output", str(folder), "--suffix", "cuh", "--declarations"]
    written = CliRunner().invoke(cli, asked, catch_exceptions=False).stdout.split()
    stem = "softmax_fwd_f32_sm90"
    assert [Path(name).name for name in written] == [f"{stem}.cuh", f"{stem}.h", f"{stem}_unit.cu"]
    assert CliRunner().invoke(cli, [*asked, "--check"]).exit_code == 0
    assert export.differences(folder) == [f"{stem}.cu: missing", f"{stem}_unit.cu: no record asks for it"]
    for name in (f"{stem}.h", f"{stem}_unit.cu"):
        before = (folder / name).read_text()
        (folder / name).write_text(before + "// mine\n")
        assert export.differences(folder, form=DECLARED) == [f"{name}: differs"]
        (folder / name).write_text(before)


@needs_nvcc  # which gives a .cpp file to the host compiler, with the folder of the runtime's headers
@pytest.mark.parametrize("archs", [(), (80, 90)], ids=["one", "set"])
def test_the_host_compiler_takes_the_declarations_without_a_warning(archs: tuple[int, ...], tmp_path: Path) -> None:
    one = record("rmsnorm", shape="64x96", direction="backward")
    files = [put(header, tmp_path) for header in headers_of([one], form=HeaderForm(declarations=True, archs=archs))]
    stem, scope = ("rmsnorm_bwd_f32", "") if archs else ("rmsnorm_bwd_f32_sm90", "sm90")
    assert {f"{stem}.h", f"{stem}_unit.cu"} < {path.name for path in files}
    calls = CALLS.replace("::SCOPE", f"::{scope}" if scope else "")
    (tmp_path / "call.cpp").write_text(f'#include "{stem}.h"\n{calls}')
    done = nvcc("-c", tmp_path / "call.cpp", "-o", tmp_path / "call.o")
    assert (done.returncode, done.stderr) == (0, "")


@needs_nvcc
def test_a_program_of_cpp_files_and_one_unit_links_beside_a_file_that_includes_the_header(tmp_path: Path) -> None:
    one = record("rmsnorm", shape="64x96", direction="backward", dtype="bf16")
    for header in headers_of([one], form=DECLARED):
        put(header, tmp_path)
    stem, name = "rmsnorm_bwd_bf16_sm90", "rmsnorm_bwd_bf16_workspace_bytes"
    null = ", ".join(["nullptr"] * 6)
    asked = " && ".join(
        f"{no}normgen::linked::sm90::rmsnorm_bwd_bf16_is_tuned(9, {c})" for no, c in (("", 96), ("!", 95))
    )
    call = f"normgen::linked::sm90::rmsnorm_bwd_bf16({null}, -1, 96, nullptr)"
    (tmp_path / "call.cpp").write_text(
        f'#include "{stem}.h"\nstd::size_t direct(int rows);\n'
        f"int main(int n, char**) {{\n"
        f"  const bool same = normgen::linked::sm90::{name}(n, 96) == direct(n);\n"
        f"  return {asked} && same && {call} == cudaErrorInvalidValue ? 0 : 1;\n}}\n"
    )
    (tmp_path / "direct.cu").write_text(
        f'#include "{stem}.cuh"\nstd::size_t direct(int rows) {{ return normgen::sm90::{name}(rows, 96); }}\n'
    )
    sources = ("call.cpp", "direct.cu", f"{stem}_unit.cu")
    done = nvcc("-o", tmp_path / "program", *(tmp_path / source for source in sources))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert subprocess.run([tmp_path / "program"], check=False).returncode == 0


@needs_nvcc
@pytest.mark.parametrize("spec", HOSTILE[:: sized(9, 1)], ids=lambda spec: spec.tensors[0].name)
def test_declarations_and_units_compile_whose_spec_has_their_own_words_for_names(spec: Spec, tmp_path: Path) -> None:
    made = [record(spec, shape="4096x4096", direction="backward", schedule=CLUSTERS)]
    files = [put(header, tmp_path) for header in headers_of(made, spec=spec, form=DECLARED)]
    (unit,) = [path for path in files if path.name.endswith("_unit.cu")]
    done = nvcc("-arch=compute_90", "-c", unit, "-o", tmp_path / "unit.o")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
