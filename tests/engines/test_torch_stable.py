"""Operators of LibTorch by its stable ABI, in the hands of torch itself: what they register, refuse, trace and launch.

The driver is a made-up one that says what it is asked; for launches LibTorch says of tensors that they are CUDA's.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from normgen import export as headers
from normgen.cli.export import export
from normgen.engines.source import ExportSource
from normgen.engines.torch_stable import families, library_of, write_operators
from normgen.errors import NothingValidError, UsageError
from normgen.export.groups import groups_of
from normgen.export.header import Halves, halves
from normgen.report.readme import ROOT

from ..export.cases import record
from .libraries import HERE, fake_driver, run

TORCH = importlib.util.find_spec("torch")
COMPILER = shutil.which("g++")
NEEDS_TORCH = pytest.mark.skipif(TORCH is None or COMPILER is None, reason="torch and g++ are not here")
FLAGS = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
RECORDS = [
    record("rmsnorm", shape="64x512", dtype="bf16"),
    record("rmsnorm", shape="64x512"),
    record("rmsnorm_to_fp8_group", shape="64x512", dtype="bf16"),
    record("adaln", shape="4096x512", batches=4),
    record("cross_entropy", shape="64x512"),
]
NAMES = [
    "adaln_saving",
    "adaln",
    "cross_entropy_with_lse_saving",
    "rmsnorm_saving",
    "rmsnorm",
    "rmsnorm_to_fp8_group_with_y_saving",
]


def place() -> Path:
    """The folder of torch."""
    assert TORCH is not None
    assert TORCH.origin is not None
    return Path(TORCH.origin).parent


def of_records(*records: Any) -> list[Halves]:
    return [halves(group) for group in groups_of(records, headers.specs_of())]


def source_of(folder: Path, *records: Any) -> ExportSource:
    (folder / "records.jsonl").write_text("".join(f"{one.line().rstrip()}\n" for one in records))
    return ExportSource(files=(folder / "records.jsonl",), output=folder, specs=(), replace=False)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("operators")
    (found,) = write_operators(source_of(folder, *RECORDS), folder)
    return found


def built(source: Path, *flags: str) -> Path:
    made = source.with_suffix(".so")
    links = ["-L", place() / "lib", "-ltorch_cpu", "-ldl"]
    run("g++", *FLAGS, *flags, "-shared", "-fPIC", "-isystem", place() / "include", source, *links, "-o", made)
    return made


@pytest.fixture(scope="module")
def library(text: Path) -> Path:
    return built(text, "-DNORMGEN_TORCH_NAMESPACE=exported")


@pytest.fixture(scope="module")
def exported(library: Path) -> Iterator[Any]:
    import torch

    torch.ops.load_library(str(library))
    return torch.ops.exported


@NEEDS_TORCH
def test_operators_have_the_names_and_schemas_of_those_that_python_registers(exported: Any) -> None:
    import torch

    import normgen.torch

    normgen.torch.operator("rmsnorm_to_fp8_group", returns=("q", "scale", "y"))
    normgen.torch.operator("cross_entropy", returns=("loss", "lse"))
    for name in NAMES:
        ours, theirs = getattr(exported, name).default, getattr(torch.ops.normgen, name).default
        assert str(ours._schema) == str(theirs._schema).replace("normgen::", "exported::")


@NEEDS_TORCH
def test_traced_results_are_those_that_python_traces(exported: Any) -> None:
    import torch

    def made(ops: Any, name: str, *given: Any) -> list[Any]:
        found = getattr(ops, name)(*given)
        return [(t.shape, t.stride(), t.dtype) for t in (found if isinstance(found, tuple) else (found,))]

    def on_meta(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.empty(shape, dtype=dtype, device="meta")

    half = torch.bfloat16
    calls = [
        ("rmsnorm", on_meta(3, 4, 8), None, 1e-6, torch.float32),
        ("rmsnorm", on_meta(8, 3, 4).permute(1, 2, 0), on_meta(8), 1e-6, torch.float32),
        ("rmsnorm_saving", on_meta(5, 8, dtype=half), on_meta(8, dtype=half), 1e-6, half),
        ("rmsnorm_to_fp8_group_with_y_saving", on_meta(2, 256, dtype=half), None, 1e-6, 0.0, half),
        ("adaln_saving", on_meta(4, 8, 16), on_meta(4, 16), on_meta(4, 16), 1e-6, torch.float32),
        ("rmsnorm", on_meta(5, 8, dtype=half), on_meta(8, dtype=half), 1e-6, None),
        ("adaln_saving", on_meta(4, 8, 16), on_meta(4, 16), on_meta(4, 16), 1e-6, None),
    ]
    for name, *given in calls:
        assert made(exported, name, *given) == made(torch.ops.normgen, name, *given)


@NEEDS_TORCH
@pytest.mark.usefixtures("exported")
def test_a_program_of_any_rows_is_exported_with_the_operator_in_it() -> None:
    import torch

    class Norm(torch.nn.Module):
        def forward(self, x: Any, weight: Any) -> Any:
            y, rstd = torch.ops.exported.rmsnorm_saving(x, weight, 1e-6, torch.float32)
            return y + 1, rstd

    rows = torch.export.Dim("rows", min=2, max=64)
    given = torch.randn(4, 3, 8), torch.ones(8)
    program = torch.export.export(Norm(), given, dynamic_shapes={"x": {0: rows}, "weight": None})
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    assert nodes[0].target is torch.ops.exported.rmsnorm_saving.default
    (symbol,) = program.range_constraints
    y, rstd = nodes[0].meta["val"]
    assert (str(y.shape), str(rstd.shape)) == (f"torch.Size([{symbol}, 3, 8])", f"torch.Size([{symbol}, 3])")


@NEEDS_TORCH
def test_other_dtypes_and_devices_are_refused_with_a_sentence(exported: Any) -> None:
    import torch

    x = torch.randn(2, 8)
    known = "x bfloat16, weight bfloat16 -> bfloat16; or x float32, weight float32 -> float32"
    kernels = re.escape(f"rmsnorm: this library has kernels of {known}; received ")
    with pytest.raises(RuntimeError, match=f"^{kernels}x float32 -> float16$"):
        exported.rmsnorm(x, None, 1e-6, torch.float16)
    with pytest.raises(RuntimeError, match=f"^{kernels}x float16, weight float16 -> float16$"):
        exported.rmsnorm(*torch.empty(2, 1, 8, dtype=torch.float16, device="meta"), 1e-6, torch.float16)
    with pytest.raises(RuntimeError, match=r"^rmsnorm: 'x' is on a CUDA device; received one on the CPU$"):
        exported.rmsnorm(x, None, 1e-6, torch.float32)


CALLER = """
import torch, sys, json
torch.ops.load_library(sys.argv[1])
assert "normgen" not in sys.modules
ops, alive = torch.ops.exported, []
def call(name, *given):
    alive.append(given)
    try:
        found = getattr(ops, name)(*given)
    except RuntimeError as error:
        return print("=", str(error).splitlines()[0], flush=True)
    found = found if isinstance(found, tuple) else (found,)
    alive.append(found)
    addresses = [t.data_ptr() for t in (*found, *given) if isinstance(t, torch.Tensor)]
    print("=", json.dumps([[list(t.shape) for t in found], addresses]), flush=True)
x, w, f32 = torch.randn(2, 3, 512), torch.ones(512), torch.float32
call("rmsnorm", x, w, 0.5, None)
call("rmsnorm_saving", x, w, 0.5, f32)
call("rmsnorm", torch.randn(4, 1024)[:, :512], None, 0.5, f32)
call("rmsnorm", torch.randn(512, 4).t(), None, 0.5, f32)
call("rmsnorm", x[:0], None, 0.5, f32)
call("adaln", x, torch.ones(2, 1, 512), torch.ones(2, 512), 0.5, f32)
call("rmsnorm", x, w[:4], 0.5, f32)
call("adaln", x, torch.ones(4, 512), torch.ones(4, 512), 0.5, f32)
call("rmsnorm", x, w, 1e39, f32)
call("cross_entropy_with_lse_saving", x, torch.ones(2, 3, dtype=torch.int64), 16777217.0, 0.0, 0.0, f32)
"""


@NEEDS_TORCH
def test_calls_launch_kernels_on_the_memory_of_torchs_tensors(library: Path, text: Path, tmp_path: Path) -> None:
    fake = tmp_path / "libfake.so"
    flags = [*FLAGS, "-DUSE_CUDA", "-shared", "-fPIC", "-isystem", place() / "include"]
    run("g++", *flags, HERE / "fake_torch.cpp", "-o", fake)
    symbols = re.findall(r'^ +\{reinterpret_cast<const void\*>\(.+\), "(\w+)"\},$', text.read_text(), re.MULTILINE)
    variables = {
        "PYTHONPATH": str(place().parent),
        "LD_PRELOAD": str(fake),
        "LD_LIBRARY_PATH": str(fake_driver(tmp_path)),
        "NORMGEN_FAKE_SIZES": ";".join(f"{s}={'8' * (4 if 'rmsnorm' in s else 6)}" for s in symbols),
    }
    command = [sys.executable, "-c", CALLER, str(library)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("device")]
    launches = [line.split(" ") for line in lines if line.startswith("launch ")]
    answers = [line.removeprefix("= ") for line in lines if line.startswith("= ")]
    assert all(words[7] == "7" for words in launches)  # the stream
    assert len(launches) == 5
    found = [json.loads(answer) for answer in answers[:6]]
    plain, saving, apart, copied, empty, batches = found
    assert [shapes for shapes, _ in found] == [
        [[2, 3, 512]],
        [[2, 3, 512], [2, 3]],
        [[4, 512]],
        [[4, 512]],
        [[0, 3, 512]],
        [[2, 3, 512]],
    ]
    y, x, weight = plain[1]
    assert launches[0][8:] == [str(y), "0", str(x), str(weight)]
    y, rstd, x, weight = saving[1]
    assert launches[1][8:] == [str(y), str(rstd), str(x), str(weight)]
    assert launches[2][8:] == [*map(str, (apart[1][0], 0, apart[1][1], 0))]
    assert launches[3][8] == str(copied[1][0])
    assert launches[3][10] not in (str(copied[1][1]), "0")  # columns side by side are read from a copy
    y, x, scale, shift = batches[1]
    assert launches[4][8:] == [*map(str, (y, 0, 0, x, scale, shift))]
    assert answers[6] == "rmsnorm: 'weight' is [cols], 512 long along cols as 'x' is; received [4]"
    assert answers[7] == "adaln: the batches have equally many rows; received 6 rows, 4 batches"
    assert answers[8] == "rmsnorm: 'eps' is a number that float32 holds; received 9.9999999999999994e+38"
    wanted = "compared with whole numbers, and one that float32 holds exactly; received 16777217"
    assert answers[9] == f"cross_entropy_with_lse_saving: 'ignore_index' is {wanted}"
    assert empty[1][0] == 0


@NEEDS_TORCH
@pytest.mark.usefixtures("exported")
def test_operators_of_a_name_that_is_taken_stay_and_are_said(
    library: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import torch

    from normgen.torch import library as python

    again = shutil.copy(library, tmp_path / "again.so")
    torch.ops.load_library(str(again))
    said = f"normgen: this process has operators of these names, which stay: {' '.join(NAMES)}. A library that is built"
    assert said in capfd.readouterr().err
    parts: dict[str, Any] = dict.fromkeys(("split", "run", "gives", "packed"), lambda x: x)
    body = python.Body(calls=cast(Any, None), schema="(Tensor x) -> Tensor", names=["x"], elem=[True], **parts)
    with pytest.raises(UsageError, match="normgen::rmsnorm_saving is registered once a process"):
        body.defined("rmsnorm_saving")


@pytest.mark.skipif(COMPILER is None, reason="no g++")
def test_headers_of_no_or_an_older_libtorch_are_refused_with_a_sentence(text: Path, tmp_path: Path) -> None:
    def errors(*includes: str | Path) -> str:
        command = ["g++", "-std=c++17", "-fsyntax-only", *map(str, includes), str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        return next(line for line in done.stderr.splitlines() if "error: #error" in line)

    assert "needs the headers of LibTorch 2.10 or later: -I <torch's folder>/include\"" in errors()
    version = tmp_path / "torch" / "csrc" / "stable" / "version.h"
    version.parent.mkdir(parents=True)
    version.write_text("#define TORCH_ABI_VERSION (((0ULL + 2) << 56) | ((0ULL + 9) << 48))\n")
    assert 'needs LibTorch 2.10 or later: these headers are of an older one"' in errors("-I", tmp_path)


def test_headers_without_an_operator_are_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    others = {
        record("rmsnorm", shape="64x512", direction="backward"): "it is a backward pass: programs without Python infer",
        record("add_rmsnorm", shape="64x512", in_place={"h": "residual", "y": "x"}): "it writes over its inputs",
        record("linear", shape="64x256", inner=128): "it multiplies matrices",
    }
    (family,) = families(of_records(RECORDS[0], *others))
    assert (family.name, [one.group.name for one in family.headers]) == ("rmsnorm", ["rmsnorm_fwd_bf16"])
    said = capsys.readouterr().err
    for one, why in others.items():
        (made,) = of_records(one)
        assert f"{made.group.file_name}: no operator, for {why}\n" in said
    with pytest.raises(NothingValidError, match="an operator is of a forward header of rows"):
        library_of(of_records(*others), False)


def test_headers_of_two_gpus_are_one_library_by_a_set_alone() -> None:
    made = headers.headers_of([RECORDS[0]], form=headers.HeaderForm(archs=(80, 90), library=library_of))
    (text,) = (one.text for one in made if one.file_name == "normgen_torch.cu")
    assert '#include "rmsnorm_fwd_bf16.cu"\n' in text
    assert "check(kName, normgen::rmsnorm_fwd_bf16_pitched(" in text
    two = of_records(RECORDS[0]) * 2
    with pytest.raises(UsageError, match="a library of operators has one header of a name"):
        library_of(two, False)


def test_the_command_writes_operators_beside_headers_or_with_machine_code(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text(RECORDS[1].line())
    command, out = CliRunner().invoke, str(tmp_path / "out")
    done = command(export, [str(tmp_path / "one.jsonl"), "--output", out, "--torch-stable"])
    assert done.exit_code == 0, done.output
    assert {f.name for f in (tmp_path / "out").glob("*.cu")} == {"normgen_torch.cu", "rmsnorm_fwd_f32_sm90.cu"}
    assert command(export, ["--output", out, "--torch-stable", "--check"]).exit_code == 0
    assert "normgen_torch.cu: no record asks for it" in str(command(export, ["--output", out, "--check"]).exception)
    code = [str(tmp_path / "one.jsonl"), "--torch-stable", "--cubin", str(tmp_path / "code")]
    done = command(export, code)
    assert done.exit_code == 0, done.output
    (library,) = (tmp_path / "code").iterdir()
    assert library.name == "normgen_torch.cc"
    assert isinstance(command(export, [*code, "--arch", "sm80,sm90"]).exception, UsageError)


@NEEDS_TORCH
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on this machine")
def test_nvcc_builds_the_operators_beside_the_header(tmp_path: Path) -> None:
    for header in headers.headers_of([RECORDS[0]], form=headers.HeaderForm(library=library_of)):
        header.keep(tmp_path)
    flags = ["-std=c++17", "-O0", "-arch=compute_90", "-shared", "-Xcompiler", "-fPIC", "-I", place() / "include"]
    made = tmp_path / "operators.so"
    links = ["-DNORMGEN_TORCH_NAMESPACE=by_nvcc", "-L", place() / "lib", "-ltorch_cpu", "-ldl"]
    run("nvcc", *flags, tmp_path / "normgen_torch.cu", *links, "-o", made)
    import torch

    torch.ops.load_library(str(made))
    half = torch.randn(2, 8, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match=r"^rmsnorm: 'x' is on a CUDA device; received one on the CPU$"):
        torch.ops.by_nvcc.rmsnorm(half, None, 1e-6, torch.bfloat16)


PACKAGED = """
import sys, torch, normgen.torch
norm = normgen.torch.RMSNorm(512, eps=1e-6).requires_grad_(False)
x = torch.randn(6, 512)
rows = torch.export.Dim("rows", min=2, max=4096)
program = torch.export.export(norm, (x,), dynamic_shapes=({0: rows},))
torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1] + "/norm.pt2")
torch.save(x, sys.argv[1] + "/input.pt")
"""


@NEEDS_TORCH
def test_a_program_of_cpp_runs_a_package_that_calls_the_library(
    text: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--full"):
        pytest.skip("AOTInductor and a program over LibTorch's whole C++ take a minute to compile: --full")
    shutil.copy(text, tmp_path / "operators.cc")
    library = built(tmp_path / "operators.cc")
    includes = ["-isystem", place() / "include", "-isystem", place() / "include/torch/csrc/api/include"]
    links = ["-L", place() / "lib", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]
    program = tmp_path / "program"
    source = ROOT / "examples" / "torch_aoti.cpp"
    run("g++", "-std=c++17", "-O0", *includes, source, *links, f"-Wl,-rpath,{place() / 'lib'}", "-o", program)
    run(sys.executable, "-c", PACKAGED, tmp_path)
    command = [program, library, tmp_path / "norm.pt2", tmp_path / "input.pt", tmp_path / "output.pt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "rmsnorm: 'x' is on a CUDA device; received one on the CPU" in done.stderr
    fake = tmp_path / "libfake.so"
    run("g++", "-std=c++17", "-DUSE_CUDA", "-shared", "-fPIC", *includes, HERE / "fake_torch.cpp", "-o", fake)
    fakes = {"LD_PRELOAD": str(fake), "LD_LIBRARY_PATH": str(fake_driver(tmp_path))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | fakes)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^launch \w*rmsnorm_fwd_f32\w* 6 ", done.stdout, re.MULTILINE)
    needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    names = [Path(line.split()[0]).name for line in needed.splitlines()]
    assert "libtorch_cpu.so" in names
    assert not [name for name in names if "python" in name]
