"""TVM-FFI libraries in the hands of the client's own package: what they refuse, and what they launch.

The driver is a made-up one that says what it is asked; the machine code is real, and so is the package that calls.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from normgen import export as headers
from normgen.cli.export import export
from normgen.cuda import nvrtc
from normgen.cuda.cubin import entries_of
from normgen.engines import tvm_ffi
from normgen.engines.tvm_ffi import beside_header, described, image_of, of_machine_code
from normgen.errors import UsageError
from normgen.export.groups import groups_of
from normgen.export.header import Halves, halves
from normgen.problem.tensors import TensorUse
from normgen.records.record import Record
from normgen.report.readme import ROOT
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import parse

from ..export.cases import layernorm_records, record
from ..export.driven import ROWS_PER_BATCH, WORKSPACE, Call, expected, scalar
from .libraries import CPU, HERE, NEEDS_CLIENT, built, built_by_nvcc, called, fake_driver, place, run, tensor

pytestmark = NEEDS_CLIENT
STREAM = 7
ENTRY = re.compile(r'^ +\{reinterpret_cast<const void\*>\((.+)\), "(\w+)"\},$', re.MULTILINE)
F32, BF16 = (2, 32), (4, 16)


GROUPED = parse("""
name = "scaled_by_groups"
[tensors]
x = "input"
scale = { role = "batch_parameter", group = 32 }
weight = { role = "parameter", group = 128 }
y = "output"
[formulas]
y = "x * rsqrt(mean(x * x) + 1e-5) * scale * weight"
""")


def halves_of(*records: Record) -> Halves:
    own = GROUPED if records[0].problem.op == GROUPED.name else None
    (group,) = groups_of(records, headers.specs_of(spec=own))
    return halves(group)


class Library:
    """A header's library, built by g++ from machine code."""

    def __init__(self, folder: Path, *records: Record) -> None:
        self.halves = halves_of(*records)
        name, text = of_machine_code(self.halves)
        (folder / name).write_text(text, encoding="utf-8")
        self.path = built(folder / name)
        self.function = described(self.halves, file_name=name)
        kernels = {k.expression: k for c in self.halves.device.kernels for k in c.parts.kernels}
        self.named = {symbol: expression for expression, symbol in ENTRY.findall(text)}
        sizes = {
            s: "".join("4" if p.ctype in ("int", "float") else "8" for p in kernels[e].params)
            for s, e in self.named.items()
        }
        self.variables = {
            "NORMGEN_FAKE_SIZES": ";".join(f"{symbol}={digits}" for symbol, digits in sizes.items()),
            "NORMGEN_FAKE_MEMORY": str(WORKSPACE),
        }

    def call(self, arguments: Sequence[Any], number: int = 0) -> dict[str, Any]:
        said = {"library": str(self.path), "function": self.function.name, "arguments": list(arguments)}
        return said | {"stream": STREAM, "number": number}

    def given(self, call: Call, **other: Any) -> list[Any]:
        """The arguments of a call; `other`: in the place of these tensors."""
        return [
            *(other[t.name] if t.name in other else self.tensor(call, t) for t in self.function.tensors),
            *(float(scalar(name)) for name, _ in self.function.scalars),
        ]

    def tensor(self, call: Call, use: TensorUse) -> dict[str, Any] | None:
        if use.name in call.null:
            return None
        at = call.address(self.halves.group, use.name)
        sizes = {"rows": call.rows, "cols": call.cols, "batches": -(-call.rows // ROWS_PER_BATCH), "inner": call.inner}
        shape = [call.cols // use.group if axis == "groups" else sizes[axis] for axis in use.axes]
        pitch = call.pitch(use) if use.kind.is_matrix else 0
        return tensor(at, shape, use.dtype.dlpack, pitch=pitch)

    def asked(self, driver: Path, calls: Sequence[dict[str, Any]]) -> list[list[str]]:
        """What each call asked the driver, in the words of `expected`."""
        found = []
        for lines in called(calls, driver=driver, **self.variables):
            said = []
            for line in lines:
                words = line.split(" ")
                if words[0] == "launch":
                    assert words[7] == str(STREAM)
                    words = ["launch", self.named[words[1]], *words[2:7], *words[8:]]
                elif words[0] == "zero":
                    words[1] = str(int(words[1]) - WORKSPACE)
                said.append(" ".join(words))
            found.append(said)
        return found


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def layernorm(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(tmp_path_factory.mktemp("layernorm"), *layernorm_records())


def without_device(lines: list[str]) -> list[str]:
    """Less what says that the tensors' device became the current one, and that scratch memory went back."""
    return [line for line in lines if line.split(" ")[0] not in ("device", "freed")]


def test_calls_launch_the_kernel_and_the_arguments_of_the_headers_own_dispatch(
    layernorm: Library, driver: Path
) -> None:
    group, kernels = layernorm.halves.group, layernorm.halves.device.kernels
    calls = [
        Call(
            rows=entry.problem.rows,
            cols=entry.problem.cols,
            null=frozenset(entry.problem.absent),
            odd=4 * entry.record.schedule.peels,
        )
        for entry in group.entries
    ]
    calls += [Call(rows=3, cols=13), Call(rows=3, cols=13, odd=4, apart=4)]
    assert len({c.main.expression for c in kernels}) >= 9
    found = layernorm.asked(driver, [layernorm.call(layernorm.given(call)) for call in calls])
    for call, compiled, lines in zip(calls, kernels, found, strict=True):
        assert without_device(lines) == [*expected(group, call, compiled.problem, compiled.parts), "= None"]


def test_leading_sizes_are_rows_and_a_call_without_rows_launches_nothing(layernorm: Library, driver: Path) -> None:
    flat, call = Call(rows=6, cols=13), Call(rows=6, cols=13)
    deep = {
        t.name: {
            **tensor(
                call.address(layernorm.halves.group, t.name), (2, 3, *((13,) if t.kind.by_col else ())), t.dtype.dlpack
            )
        }
        for t in layernorm.function.tensors
        if t.kind.by_row
    }
    empty = Call(rows=0, cols=13)
    asks = [layernorm.given(flat), layernorm.given(call, **deep), layernorm.given(empty)]
    first, second, third = layernorm.asked(driver, [layernorm.call(a) for a in asks])
    assert len(without_device(first)) == 2
    assert first == second
    assert without_device(third) == ["= None"]


def test_tensors_of_another_device_are_launched_there(layernorm: Library, driver: Path) -> None:
    given = layernorm.given(Call(rows=3, cols=13))
    there = [{**a, "device": (2, 1)} if isinstance(a, dict) else a for a in given]
    (lines,) = layernorm.asked(driver, [layernorm.call(there, number=1)])
    assert lines[0] == "device 1"
    mixed = [*there[:3], given[3], *there[4:]]
    (refused,) = layernorm.asked(driver, [layernorm.call(mixed, number=1)])
    assert refused == [
        "= ValueError: layernorm_fwd_f32: all tensors are on the device of 'y', cuda:1; received 'x' on cuda:0"
    ]


SHAPE, GIVEN = Call(rows=4, cols=8), tensor(4096, (4, 8), F32)
LINES = "'x' has its last axis contiguous and its lines equally far apart, none over another; received the strides"
NO_COLUMNS = {"x": tensor(4096, (4, 0), F32), "y": tensor(4096, (4, 0), F32), "weight": None, "bias": None}
# Leading sizes whose product is 0 in 64 bits.
MANY = {name: tensor(4096, (1 << 32, 1 << 32, 8), F32) for name in ("x", "y")} | {"mean": None, "rstd": None}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (
        {"x": {**GIVEN, "device": CPU}},
        "Value",
        "'x' is on a CUDA device; received DLPack device type 1, which is the CPU",
    ),
    ({"x": {**GIVEN, "dtype": BF16}}, "Type", "'x' is stored as float32; received bfloat16"),
    ({"weight": tensor(4096, (7,), F32)}, "Value", "'weight' is [cols], 8 long along cols as 'y' is; received [7]"),
    ({"weight": tensor(4096, (1, 8), F32)}, "Value", "'weight' is [cols]; received [1, 8]"),
    (
        {"x": tensor(4096, (2, 2, 8), F32)},
        "Value",
        "'x' is [.., cols] with the leading sizes of 'y', [4]; received [2, 2, 8]",
    ),
    ({"rstd": tensor(4096, (5,), F32)}, "Value", "'rstd' is [..] with the leading sizes of 'y', [4]; received [5]"),
    ({"x": {**GIVEN, "strides": [1, 4]}}, "Value", f"{LINES} [1, 4]"),
    ({"x": {**GIVEN, "strides": [0, 1]}}, "Value", f"{LINES} [0, 1]"),
    (
        {"bias": {**tensor(4096, (8,), F32), "strides": [2]}},
        "Value",
        "'bias' is contiguous; received the strides [2]",
    ),
    (NO_COLUMNS, "Value", "cols is at least 1 and less than 2^31; received 0"),
    (MANY, "Value", "rows is at least 0 and less than 2^31; received 2147483648"),
    (
        {"x": {**GIVEN, "at": 4098}},
        "Value",
        "'x' lies at a whole number of its elements' 4 bytes; received an address that does not",
    ),
]


def test_what_does_not_fit_is_refused_with_a_sentence(layernorm: Library, driver: Path) -> None:
    calls = [layernorm.call(layernorm.given(SHAPE, **other)) for other, _, _ in REFUSED]
    wanted = [[f"= {kind}Error: layernorm_fwd_f32: {sentence}"] for _, kind, sentence in REFUSED]
    assert layernorm.asked(driver, calls) == wanted


def test_a_scalar_that_float32_makes_another_of_is_refused(layernorm: Library, driver: Path, tmp_path: Path) -> None:
    """One that is compared with labels is the number that was given: of 2^24 + 1 float32 makes 2^24."""
    losses = Library(tmp_path, record("cross_entropy", shape="64x512"))
    given = losses.given(Call(rows=4, cols=8))
    place_of = [name for name, _ in losses.function.scalars].index("ignore_index") - len(losses.function.scalars)

    def ignoring(label: float) -> dict[str, Any]:
        return losses.call([*given[:place_of], label, *given[place_of:][1:]])

    (fine,), (refused,), (infinite,) = (
        [line for line in lines if line[0] in "=l"][-1:]
        for lines in losses.asked(driver, [ignoring(2**24), ignoring(2**24 + 1), ignoring(-1e39)])
    )
    name = losses.function.name
    assert fine == "= None"
    wanted = "compared with whole numbers, and one that float32 holds exactly; received 16777217"
    assert refused == f"= ValueError: {name}: 'ignore_index' is {wanted}"
    assert re.fullmatch(
        rf"= ValueError: {name}: 'ignore_index' is a number that float32 holds; received -\S+e\+3\d", infinite
    )
    (found,) = layernorm.asked(driver, [layernorm.call([*layernorm.given(SHAPE)[:-1], 2**24 + 1])])
    assert found[-1] == "= None"  # an eps is compared with nothing


def test_a_machine_without_a_driver_and_another_gpu_are_said(layernorm: Library, driver: Path, tmp_path: Path) -> None:
    call = layernorm.call(layernorm.given(SHAPE))
    (other,) = called([call], driver=driver, **layernorm.variables, NORMGEN_FAKE_ARCH="120")
    assert other[-1] == (
        "= RuntimeError: layernorm_fwd_f32: its machine code is for another GPU architecture than this one's"
    )
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    (none,) = called([call], driver=tmp_path)
    assert none == ["= RuntimeError: a kernel needs NVIDIA's driver of CUDA 12 or later; it lacks libcuda.so.1"]


BACKWARD = record("layernorm", shape="8192x768", direction="backward")
(CLUSTERS,) = (
    one
    for one in headers.folder_records(ROOT / "generated")
    if (one.problem.op, one.problem.direction, one.problem.cols) == ("rmsnorm", "forward", 131072)
)
NO_ROWS = Call(rows=0, cols=768)
OTHERS: dict[str, tuple[Record, Call]] = {
    "backward, with scratch memory": (BACKWARD, Call(rows=8192, cols=768)),
    "batches": (record("adaln", shape="4096x512", batches=4), Call(rows=4096, cols=512)),
    "in place": (record("add_rmsnorm", shape="64x512", in_place={"h": "residual", "y": "x"}), Call(rows=64, cols=512)),
    "groups": (record("rmsnorm_to_fp8_group", shape="64x512", dtype="bf16"), Call(rows=64, cols=512)),
    "a persistent grid of clusters": (CLUSTERS, Call(rows=4096, cols=131072, null=frozenset({"rstd"}))),
    "gradients of groups": (
        record(GROUPED, shape="4096x512", dtype="bf16", batches=4, direction="backward"),
        Call(rows=4096, cols=512),
    ),
    "labels": (record("cross_entropy", shape="64x512"), Call(rows=64, cols=512)),
    "whole numbers": (record("rmsnorm_to_int8_token", shape="64x512", dtype="bf16"), Call(rows=64, cols=512)),
    "a matrix that is not there": (
        record("masked_softmax", shape="64x512", without=("mask",)),
        Call(rows=64, cols=512, null=frozenset({"mask"})),
    ),
    "an input that is not there, of two": (
        record("gemma_rmsnorm", shape="64x512", dtype="bf16", without=("residual", "h")),
        Call(rows=64, cols=512, null=frozenset({"residual", "rstd"})),
    ),
    "blocks that share rows": (
        record("softmax", shape="4x65536", schedule=Schedule(threads_per_row=64, parts=6, vector=4, persistent=1)),
        Call(rows=4, cols=65536),
    ),
    "a product": (record("linear", shape="64x256", inner=128), Call(rows=64, cols=256, inner=128)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_kind_of_function_is_launched_as_the_header_launches_it(name: str, driver: Path, tmp_path: Path) -> None:
    made, call = OTHERS[name]
    library = Library(tmp_path, made)
    calls = [call, *([NO_ROWS] if made is BACKWARD else [])]
    compiled = library.halves.device.kernels[0]
    found = library.asked(driver, [library.call(library.given(call)) for call in calls])
    for call, lines in zip(calls, found, strict=True):
        wanted = expected(library.halves.group, call, compiled.problem, compiled.parts)
        assert without_device(lines) == [*wanted, "= None"]


def test_a_parameter_and_its_gradient_are_there_together(driver: Path, tmp_path: Path) -> None:
    """A kernel without the parameter would leave the gradient's memory as it is."""
    library = Library(tmp_path, BACKWARD)
    call = OTHERS["backward, with scratch memory"][1]
    calls = [library.call(library.given(call, **{name: None})) for name in ("weight", "dweight")]
    rule = "layernorm_bwd_f32: 'dweight' is there where 'weight' is, and there alone; received"
    assert library.asked(driver, calls) == [[f"= ValueError: {rule} {what}"] for what in ("a tensor", "None")]
    (launched,) = library.asked(driver, [library.call(library.given(call, weight=None, dweight=None))])
    assert launched[-1] == "= None"


def test_the_drivers_types_and_numbers_are_those_of_cudas_header() -> None:
    templates = Path(tvm_ffi.__file__).parent / "templates"
    includes = [word for found in nvrtc.header_folders() for word in ("-isystem", found)]
    run("g++", "-std=c++17", "-fsyntax-only", *includes, "-I", templates, HERE / "driver_types.cpp")


def test_the_machine_code_has_every_kernel_that_the_library_names(layernorm: Library) -> None:
    image = image_of(layernorm.halves)
    assert {symbol for _, symbol in image.entries} == set(entries_of(image.code))
    assert len(image.entries) == len(layernorm.halves.instances)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on this machine")
@pytest.mark.parametrize("archs", [(), (80, 90)], ids=["one", "set"])
def test_nvcc_builds_the_library_beside_the_header(archs: tuple[int, ...], tmp_path: Path) -> None:
    made = record("rmsnorm", shape="64x512", dtype="bf16")
    form = headers.HeaderForm(archs=archs, binding=beside_header)
    for header in headers.headers_of([made], form=form):
        header.keep(tmp_path)
    (source,) = tmp_path.glob("*_ffi.cu")
    library = built_by_nvcc(source, min(archs, default=90))
    y = tensor(4096, (4, 512), BF16, device=CPU)
    said = {"library": str(library), "function": "rmsnorm_fwd_bf16", "arguments": [y, None, y, None, 1e-6]}
    (answer,) = called([said])
    assert answer[0].startswith("= ValueError: rmsnorm_fwd_bf16: 'y' is on a CUDA device; received")


def test_the_command_writes_libraries_beside_headers_or_with_machine_code(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text(record("softmax", shape="64x512").line())
    command = CliRunner().invoke
    done = command(export, [str(tmp_path / "one.jsonl"), "--output", str(tmp_path / "out"), "--tvm-ffi"])
    assert done.exit_code == 0, done.output
    assert {f.name for f in (tmp_path / "out").glob("*.cu")} == {
        "softmax_fwd_f32_sm90.cu",
        "softmax_fwd_f32_sm90_ffi.cu",
    }
    assert command(export, ["--output", str(tmp_path / "out"), "--tvm-ffi", "--check"]).exit_code == 0
    unasked = command(export, ["--output", str(tmp_path / "out"), "--check"]).exception
    assert "softmax_fwd_f32_sm90_ffi.cu: no record asks for it" in str(unasked)
    code = [str(tmp_path / "one.jsonl"), "--tvm-ffi", "--cubin", str(tmp_path / "code")]
    done = command(export, code)
    assert done.exit_code == 0, done.output
    (library,) = (tmp_path / "code").iterdir()
    assert library.name == "softmax_fwd_f32_sm90_ffi.cc"
    library.write_text("// mine\n")
    assert isinstance(command(export, code).exception, UsageError)
    assert library.read_text() == "// mine\n"
    assert command(export, [*code, "--replace"]).exit_code == 0
    assert isinstance(command(export, [*code, "--arch", "sm80,sm90"]).exception, UsageError)


RUSTC = shutil.which("rustc")
PROGRAMS = ["cpp", pytest.param("rs", marks=pytest.mark.skipif(RUSTC is None, reason="rustc is not here"))]


@pytest.fixture(scope="module")
def norm(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(tmp_path_factory.mktemp("norm"), record("rmsnorm", shape="64x512"))


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request: pytest.FixtureRequest, norm: Library, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The example of a language, built with every warning an error, and the library that it calls."""
    source, made = ROOT / "examples" / f"tvm_ffi.{request.param}", tmp_path_factory.mktemp("program") / "program"
    if request.param == "rs":
        links = ["-L", place() / "lib", "-l", "tvm_ffi", "-C", f"link-arg=-Wl,-rpath,{place() / 'lib'}"]
        run("rustc", "--edition", "2021", "-D", "warnings", source, *links, "-o", made)
    else:
        links = ["-L", place() / "lib", "-ltvm_ffi", "-ldl", f"-Wl,-rpath,{place() / 'lib'}"]
        flags = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
        run("g++", *flags, "-isystem", place() / "include", source, *links, "-o", made)
    return [made, norm.path]


def test_a_program_calls_a_library_without_python(program: list[Path]) -> None:
    done = subprocess.run([*program, "4", "64"], capture_output=True, text=True, check=False)
    refused = "ValueError: rmsnorm_fwd_f32: 'y' is on a CUDA device; received DLPack device type 1, which is the CPU\n"
    assert done.returncode == 0, done.stderr
    assert done.stdout == refused or re.fullmatch(r"4 x 64: largest error \d\.\de-\d+\n", done.stdout)
    needed = subprocess.run(["ldd", program[0]], capture_output=True, text=True, check=True).stdout
    names = [Path(line.split()[0]).name for line in needed.splitlines()]
    assert "libtvm_ffi.so" in names
    assert not [name for name in names if "python" in name]


def test_a_program_hands_over_its_memory_and_compares_what_comes_back(
    program: list[Path], norm: Library, tmp_path: Path
) -> None:
    """A driver that launches nothing: what the program copied there is there still, and is wrong."""
    variables = norm.variables | {"LD_LIBRARY_PATH": str(fake_driver(tmp_path))}
    done = subprocess.run(
        [*program, "4", "64"], capture_output=True, text=True, check=False, env=os.environ | variables
    )
    said = done.stdout.splitlines()
    memory = [line.split()[1:] for line in said if line.startswith("memory")]
    assert sorted(int(size) for _, size in memory) == [64 * 4, 4 * 64 * 4, 4 * 64 * 4]
    (launch,) = (line.split() for line in said if line.startswith("launch"))
    assert {address for address, _ in memory} <= {*launch[8:]}
    assert done.returncode == 1
    assert re.fullmatch(r"4 x 64: largest error \d\.\de[+-]?\d+", said[-1])
