"""Exported headers compile alone, twice, in two files of a program, and by NVRTC; and they choose as documented."""

from __future__ import annotations

import hashlib
import math
import random
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from normgen.codegen import parts
from normgen.codegen.module import Launch
from normgen.cuda import nvrtc
from normgen.cuda.compiler import compile_module
from normgen.cuda.cubin import parse_resources, symbol_of
from normgen.cuda.nvrtc import header_folders
from normgen.errors import UsageError
from normgen.export import HeaderForm, headers_of
from normgen.export.groups import TunedShape, groups_of
from normgen.export.host_part import launch_values
from normgen.knobs import Hold
from normgen.pipeline import emit, emit_parts
from normgen.records.questions import problem_of
from normgen.records.record import Record
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse
from normgen.spec.spec import Spec
from tests.codegen.hostile import names_of
from tests.codegen.hostile import specs as hostile_specs
from tests.codegen.test_grouped_parameters import of as of_groups
from tests.codegen.test_in_place import ADD_RMSNORM
from tests.codegen.test_stored_dtypes import MICROSCALED
from tests.samples import is_full, sized

from .cases import build, layernorm_records, nvcc, put, record
from .driven import PartsOfHeader, Program

HERE = Path(__file__).parent
INVALID_VALUE = 1  # cudaErrorInvalidValue
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the path")


def backward_records() -> list[Record]:
    return [record(shape="4096x1024", dtype="bf16", direction="backward")]


CLUSTERS = Schedule(threads_per_row=128, cluster=4, vector=4, hold="registers", persistent=2, stages=2, unroll=0)
PAIRS = replace(CLUSTERS, cluster=2, vector=2)


LAST_FIRST = Schedule(
    threads_per_row=32,
    rows_per_block=4,
    vector=4,
    hold="registers",
    persistent=2,
    stages=2,
    unroll=0,
    row_order="descending",
)


def single_records() -> dict[str, list[Record]]:
    """One header each; between them every dtype, both directions, a spec without parameters or scalars."""
    return {
        "layernorm": layernorm_records(),
        "layernorm_bf16_backward": backward_records(),
        "softmax_f16": [record("softmax", shape="64x4096", dtype="f16")],
        "rmsnorm_mixed": [record("rmsnorm", shape="64x1000", dtype="f16", dtypes={"weight": "f32"})],
        "rmsnorm_backward_clusters": [record("rmsnorm", shape="4096x4096", direction="backward", schedule=CLUSTERS)],
        "layernorm_backward_pairs": [record(shape="300x768", direction="backward", schedule=PAIRS)],
        "layernorm_backward_deterministic": [record(shape="64x256", direction="backward", deterministic=True)],
        "layernorm_backward_only_dx": [record(shape="64x256", direction="backward", gradients=("x",))],
        "rmsnorm_backward_only_dweight": [
            record("rmsnorm", shape="64x256", direction="backward", gradients=["weight"])
        ],
        "rmsnorm_last_rows_first": [
            record("rmsnorm", shape="4096x256", schedule=replace(LAST_FIRST, persistent=0, stages=1)),
            record("rmsnorm", shape="4096x512", schedule=LAST_FIRST),
        ],
        "rmsnorm_backward_last_rows_first": [
            record("rmsnorm", shape="4096x512", direction="backward", schedule=LAST_FIRST)
        ],
        "rmsnorm_in_place": [record("rmsnorm", shape="64x1000", dtype="bf16", in_place={"y": "x"})],
        "dyt_backward": [record("dyt", shape="64x256", dtype="bf16", direction="backward")],
        "llama_without_h": [record("llama_rmsnorm", shape="64x256", without=["residual", "h"])],
        "llama_without_h_backward": [
            record("llama_rmsnorm", shape="64x256", direction="backward", without=["residual", "h"])
        ],
        "full_sum": [record("full_sum", shape="64x256")],
        "rmsnorm_backward_accumulate": [record("rmsnorm", shape="64x256", direction="backward", accumulate=True)],
    }


# The words of a header's launch functions, for the names of specs.
HOST_WORDS = """
    status align alike blocks absent k launch grid select alignment address pitch_bytes kTuned kCompiledOut at rows
    workspace Launch cudaError_t cudaSuccess nullptr x x_pitch y cudaStream_t const unsigned switch default std size_t
    hostile_fwd_f32 normgen sm90 fitting_grid call kernel tuned invalid missing zeroed run run_any_cols kMain stream
    Arguments Kernel Tuned Workspace launch_on kGeneral bfloat16 given run_any_cols_and_finish
    arch known found device compiled_arch compiled_for sm80
"""
HOSTILE = hostile_specs(names_of(HOST_WORDS))


# Those that test_dispatch.py or `program` compile as well, alike but for the name: alone with --full only.
ELSEWHERE = (
    *("layernorm", "layernorm_bf16_backward", "softmax_f16", "layernorm_backward_deterministic", "rmsnorm_in_place"),
    *("rmsnorm_backward_clusters", "layernorm_backward_pairs"),
)
ALONE = {name: records for name, records in single_records().items() if is_full() or name not in ELSEWHERE}
DEPENDENT = Schedule(
    threads_per_row=32, rows_per_block=4, vector=4, hold="registers", persistent=2, unroll=0, dependent_launch="on"
)


@needs_nvcc
@pytest.mark.parametrize("records", ALONE.values(), ids=ALONE.keys())
def test_a_header_compiles_alone_without_a_warning(records: list[Record], tmp_path: Path) -> None:
    (header,) = headers_of(records)
    done = nvcc("-c", put(header, tmp_path), "-o", tmp_path / "header.o")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_nvcc
@pytest.mark.parametrize("spec", HOSTILE[:: sized(5, 1)], ids=lambda spec: spec.tensors[0].name)
def test_a_header_compiles_whose_spec_has_the_headers_own_words_for_names(spec: Spec, tmp_path: Path) -> None:
    direction = ("forward", "backward")[HOSTILE.index(spec) % 2]
    made = [record(spec, shape="4096x4096", direction=direction, schedule=one) for one in (None, CLUSTERS)]
    made += [record(spec, shape="64x1024", direction=direction, dtype="bf16")] if direction == "forward" else []
    for header in headers_of(made, spec=spec, form=HeaderForm(archs=(80, 90), shared_library=True)):
        path = put(header, tmp_path)
        if "_sm" not in path.name and path.suffix == ".cu":  # the file that picks among the others
            done = nvcc("-arch=compute_80", "-c", path, "-o", tmp_path / "header.o")
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for header in headers_of(made, spec=spec):
        done = nvcc("-c", put(header, tmp_path), "-o", tmp_path / "header.o")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("arch", ["lowest", "120"])
@pytest.mark.parametrize("records", single_records().values(), ids=single_records().keys())
def test_nvrtc_takes_the_device_part_without_a_warning(records: list[Record], arch: str) -> None:
    (header,) = headers_of(records)
    needed = max(emit(problem_of(r.problem, load(r.problem.op)), r.schedule).min_arch for r in records)
    number = str(needed) if arch == "lowest" else arch
    includes = [f"--include-path={folder}" for folder in header_folders()]
    options = [f"--gpu-architecture=sm_{number}", "-std=c++17", *includes]
    compiled = nvrtc.compile_text(
        header.text.encode(), name=header.file_name, options=options, instances=header.kernels
    )
    assert (compiled.error, compiled.log.strip()) == ("", "")


@needs_nvcc
def test_an_older_cpp_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = put(headers_of(layernorm_records())[0], tmp_path)
    assert "layernorm_fwd_f32 needs C++17: compile with -std=c++17" in nvcc("-std=c++14", "-c", path).stderr


@pytest.mark.parametrize("records", [layernorm_records(), backward_records()], ids=["forward", "backward"])
def test_the_banner_shows_a_call_with_an_argument_for_every_parameter(records: list[Record]) -> None:
    for header in headers_of(records):
        banner, rest = header.text.split("#ifndef NORMGEN", 1)
        shown = "".join(line.removeprefix("//") for line in banner[banner.index("// use ") :].splitlines())
        function = re.search(r"normgen::sm90::(\w+)\((.*)\);", shown)
        assert function
        declared = re.search(rf"inline cudaError_t {function[1]}\((.*?)\) {{", rest, re.DOTALL)
        assert declared
        names = [part.split(" = ")[0].split()[-1].lstrip("*") for part in declared[1].split(",")]
        assert [word.strip() for word in function[2].split(",")] == names


@needs_nvcc
def test_a_header_with_a_dependent_launch_compiles_for_sm_90_and_refuses_older_gpus(tmp_path: Path) -> None:
    (header,) = headers_of([record(shape="4096x512", direction="backward", schedule=DEPENDENT)])
    path = put(header, tmp_path)
    assert nvcc("-c", path, "-o", tmp_path / "header.o").returncode == 0
    older = nvcc("-arch=compute_80", "-c", path, "-o", tmp_path / "header.o")
    assert "layernorm_bwd_f32 needs sm_90 or newer: compile with -arch=sm_90" in older.stderr
    assert "for several GPUs write a header for each: normgen export --arch sm80,sm90" in older.stderr


@needs_nvcc
@pytest.mark.parametrize("archs", [(), (80, 90)], ids=["one", "set"])
def test_a_compiler_without_cuda_is_told_in_one_sentence(archs: tuple[int, ...], tmp_path: Path) -> None:
    """nvcc gives a .cpp file to the host compiler; without the sentence each word of CUDA in the header is an error."""
    made = [put(header, tmp_path) for header in headers_of([record()], form=HeaderForm(archs=archs))]
    source = tmp_path / "program.cpp"
    source.write_text(f'#include "{made[-1].name}"\nint main() {{}}\n')
    errors = [line for line in nvcc("-c", source, "-o", tmp_path / "x.o").stderr.splitlines() if "error:" in line]
    said = "this file has CUDA kernels: nvcc compiles what includes it; for .cpp files: normgen export --declarations"
    assert len(errors) == 1
    assert made[-1].name in errors[0]
    assert said in errors[0]


@needs_nvcc
def test_a_program_asks_at_compile_time_whether_a_size_is_tuned(tmp_path: Path) -> None:
    """The answer is that of `select` for an aligned call: held to it over sizes in and between the tuned ones."""
    (header,) = headers_of(layernorm_records())
    put(header, tmp_path)
    function = "normgen::sm90::layernorm_fwd_f32"
    assert {r.problem.cols for r in layernorm_records()} == {768, 770, 771, 1024, 16384}
    asked = {(64, 768): 64, (700, 768): 64, (800, 768): 8192, (1, 16384): 128, (64, 767): 0, (64, 2880): 0}
    lines = [f"static_assert({function}_tuned_rows({r}, {c}) == {found});" for (r, c), found in asked.items()]
    lines += [f"static_assert({function}_is_tuned({r}, {c}) == {int(found > 0)});" for (r, c), found in asked.items()]
    detail = f"{function}_detail"
    lines += [
        "constexpr bool agrees() {",
        "  for (int rows = 0; rows < 20000; rows += 997) {",
        "    for (int cols : {1, 767, 768, 1024, 16384}) {",
        f"      const int line = {detail}::select(rows, cols, 32), found = {function}_tuned_rows(rows, cols);",
        f"      if (found != (line < 0 ? 0 : {detail}::kTuned[line].rows)) return false;",
        "    }",
        "  }",
        "  return true;",
        "}",
        "static_assert(agrees());",
    ]
    source = tmp_path / "ask.cu"
    source.write_text("\n".join([f'#include "{header.file_name}"', *lines, ""]))
    done = nvcc("-c", source, "-o", tmp_path / "ask.o")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("name", "function", "arguments"),
    [
        (
            "layernorm_backward_deterministic",
            "layernorm_bwd_f32_deterministic",
            "dx dweight dbias dy x weight mean rstd",
        ),
        ("layernorm_backward_only_dx", "layernorm_bwd_f32_only_dx", "dx dy x weight mean rstd"),
        ("rmsnorm_backward_only_dweight", "rmsnorm_bwd_f32_only_dweight", "dweight dy x rstd"),
        ("rmsnorm_backward_accumulate", "rmsnorm_bwd_f32_accumulate", "dx dweight dy x weight rstd"),
    ],
)
def test_a_header_is_named_after_its_promise_and_takes_its_tensors(name: str, function: str, arguments: str) -> None:
    (header,) = headers_of(single_records()[name])
    assert header.file_name == f"{function}_sm90.cu"
    signature = header.text.rpartition(f"inline cudaError_t {function}(")[2].partition(")")[0]
    pointers = [word.strip(",*") for word in signature.partition("int rows")[0].split() if word.endswith(",")]
    assert pointers == arguments.split()


def test_a_deterministic_header_has_no_grid_of_atomics() -> None:
    (header,) = headers_of(single_records()["layernorm_backward_deterministic"])
    said = "dweight, dbias: summed over the rows in a fixed order, the same bits in every run"
    assert said in header.text
    (varying,) = headers_of([record(shape="64x256", direction="backward")])
    assert said not in varying.text
    assert "in no fixed order: the general kernel" in varying.text
    one_block = launch_values(Launch(threads=256, blocks=1, min_blocks=1))
    assert header.text.count(f"{{{one_block}}}") == 2  # vectors and single elements
    assert one_block not in varying.text


CHAINED = Schedule(threads_per_row=256, vector=8, hold="registers", unroll=0, params="early", dependent_launch="start")


@needs_nvcc
@pytest.mark.parametrize("stable", [False, True])
def test_a_header_launches_its_first_kernel_early_and_states_the_promise_it_needs(stable: bool, tmp_path: Path) -> None:
    one = record("rmsnorm", shape="16x4096", dtype="bf16", schedule=CHAINED, stable_parameters=stable)
    (header,) = headers_of([one])
    path = put(header, tmp_path)
    assert path.name == f"rmsnorm_fwd_bf16{'_stable_parameters' if stable else ''}_sm90.cu"
    assert "{{256, 1, true}," in header.text
    assert ("promises that nothing which may still run" in header.text) is stable
    done = nvcc("-c", path, "-o", tmp_path / "header.o")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_shapes_of_one_kernel_keep_their_own_grids() -> None:
    """A grid is no part of a Config: two shapes may have the kernel and the Config in common, and be launched apart."""
    schedule = Schedule(threads_per_row=128, vector=4, hold=Hold.REGISTERS, unroll=0)
    records = [record("rmsnorm", shape=f"{1024 * n}x4096", schedule=replace(schedule, persistent=n)) for n in (2, 4)]
    (header,) = headers_of(records)
    lines = re.findall(r"\{(.+)\}, (run<\w+<Cols4096>>)\}\},", header.text)
    assert len(lines) == 2
    assert [line[0][-1] for line in lines] == ["2", "4"]
    assert len({kernel for _, kernel in lines}) == 1


def test_texts_of_one_digest_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests are short: of 300 Configs of as many columns two have the same one. Here 8 of 16 do."""
    monkeypatch.setattr(parts, "digest", lambda text: f"{hashlib.sha256(text.encode()).hexdigest()[0]}000")
    every = [
        record("rmsnorm", shape=f"{64 * n}x4096", schedule=Schedule(threads_per_row=32 * n, vector=4))
        for n in range(1, 9)
    ]
    alike = {emit_parts(problem_of(r.problem, load("rmsnorm")), r.schedule).config.name for r in every}
    assert len(alike) < len(every)
    (header,) = headers_of(every)
    threads = dict(re.findall(r"struct (Cols4096\w+) : [^;]+;[^;]*kThreads = (\d+)", header.text))
    lines = re.findall(r"\{\{(\d+).*?run<\w+<(Cols4096\w+)>>", header.text)
    assert len(threads) == len(lines) == len(every)
    assert all(threads[config] == said for said, config in lines)


def test_a_headers_kernels_need_the_registers_of_the_tuned_ones() -> None:
    records = layernorm_records()
    (header,) = headers_of(records)
    (group,) = groups_of(records, lambda r: load(r.problem.op))
    parts = PartsOfHeader.of(group)
    includes = [f"--include-path={folder}" for folder in header_folders()]
    options = ["--gpu-architecture=sm_90", "-std=c++17", "--ptxas-options=-v", "--no-cache", *includes]
    compiled = nvrtc.compile_text(header.text.encode(), name="header.cu", options=options, instances=header.kernels)
    found = parse_resources(compiled.log)
    for one in records:
        module = emit(problem_of(one.problem, load("layernorm")), one.schedule)
        tuned = compile_module(module, 90).resources
        named = parts.of_schedule(one.schedule, group).kernels
        for kernel, in_header in zip(module.kernels, named, strict=True):
            # A neighbour's dynamic shared memory pads static memory to 128 bytes.
            figures, own = tuned[kernel.name], found[symbol_of(in_header, found)]
            padded = -(-figures.static_shared_bytes // 128) * 128
            assert replace(own, static_shared_bytes=padded) == replace(figures, static_shared_bytes=padded)
            assert own.static_shared_bytes in (figures.static_shared_bytes, padded)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """use.cu and use_too.cu with the headers of both directions, each included in both files, one of them twice."""
    folder = tmp_path_factory.mktemp("headers")
    for header in headers_of([*layernorm_records(), *backward_records()]):
        put(header, folder)
    for source in ("use.cu", "use_too.cu"):
        shutil.copy(HERE / source, folder)
    return build(folder, "use.cu", "use_too.cu")


def ask(program: Path, questions: Iterable[str]) -> list[int]:
    done = subprocess.run([program], input="\n".join(questions) + "\n", capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


def expected(entries: tuple[TunedShape, ...], rows: int, cols: int, align: int, absent: int, alike: bool) -> int:
    """The documented choice, by hand: cols equal, alignment enough, parameters alike, rows nearest by ratio.

    Statistics may always be null; of equally near lines the one timed with those of the call is taken.
    """
    bits = {"weight": 1, "bias": 2, "mean": 4, "rstd": 8}
    fits = []
    for index, entry in enumerate(entries):
        without = sum(bits[name] for name in entry.problem.absent)
        peeled = entry.record.schedule.edges == "peel"
        needed = 4 if peeled else min(16, 4 * entry.record.schedule.vector)
        if entry.problem.cols == cols and align >= needed and without & 3 == absent & 3 and (alike or not peeled):
            far = abs(math.log(max(rows, 1)) - math.log(entry.problem.rows))
            fits.append((round(far, 9), without != absent, index))
    return min(fits, default=(0, False, -1))[-1]


@needs_nvcc
def test_a_header_selects_by_cols_nearest_rows_alignment_and_null_parameters(program: Path) -> None:
    (group,) = groups_of(layernorm_records(), lambda r: load(r.problem.op))
    drawn = random.Random(0)
    cases = [
        (drawn.choice([0, 1, 63, 64, 724, 725, 8192, 10**6, 2**31 - 1]), cols, align, absent, alike)
        for cols in (1, 767, 768, 770, 771, 1024, 16384)
        for align in (4, 8, 16, 32)
        for absent in range(16)
        for alike in (False, True)
    ]
    answers = ask(program, (f"select {r} {c} {a} {b} {int(k)}" for r, c, a, b, k in cases))
    assert answers == [expected(group.entries, *case) for case in cases]
    assert set(answers) == {-1, *range(len(group.entries))}


@needs_nvcc
def test_the_grid_in_the_header_is_the_grid_of_the_launch(program: Path) -> None:
    launches = [
        Launch(threads=128, rows_per_block=r, cluster=c, persistent=p, blocks=b, period=d, min_blocks=m)
        for r, c, p, b, d, m in [
            (1, 1, 0, 0, 1, 0),
            (4, 1, 0, 0, 1, 0),
            (1, 4, 0, 0, 1, 0),
            (2, 1, 3, 0, 1, 0),
            (2, 1, 3, 0, 8, 0),
            (1, 8, 1, 0, 1, 0),
            (4, 1, 2, 0, 1, 1),
            (1, 1, 0, 64, 1, 0),
            (1, 16, 1, 0, 4, 1),
        ]
    ]
    cases = [(s, rows, sms) for s in launches for rows in (0, 1, 5, 1000, 2**31 - 1) for sms in (1, 13, 132)]
    questions = (
        f"blocks {s.rows_per_block} {s.cluster} {s.persistent} {s.blocks} {s.period} {s.min_blocks} {rows} {sms}"
        for s, rows, sms in cases
    )
    most = 2**31 - 1
    for (launch, rows, sms), blocks in zip(cases, ask(program, questions), strict=True):
        if blocks <= most:
            assert launch.grid(rows=rows, sm_count=sms) == blocks
        else:
            with pytest.raises(UsageError, match=f"at most {most} blocks"):
                launch.grid(rows=rows, sm_count=sms)


def test_a_grid_cut_to_the_clusters_that_fit_keeps_whole_clusters_and_periods() -> None:
    for cluster in (2, 4, 8):
        for period in (1, 4, 8):
            launch = Launch(threads=128, cluster=cluster, persistent=1, period=period)
            whole = launch.grid(rows=10**6, sm_count=132)
            for clusters in (0, 1, 7, 16, 33, 200):
                blocks = launch.fitting(whole, clusters=clusters)
                assert blocks % (cluster * period) == 0
                assert 0 < blocks <= max(clusters, period) * cluster
                assert blocks == whole or blocks + cluster * period > clusters * cluster
            assert launch.fitting(cluster, clusters=33) == cluster  # few rows


@needs_nvcc
def test_the_alignment_is_the_largest_common_power_of_two_up_to_32(program: Path) -> None:
    bits = [0, 1, 2, 4, 8, 16, 32, 48, 64, 4 | 4096, 2**40 + 16]
    assert ask(program, (f"align {b}" for b in bits)) == [32, 1, 2, 4, 8, 16, 32, 16, 32, 4, 16]


@needs_nvcc
def test_calls_without_rows_succeed_and_wrong_ones_are_refused_before_any_launch(program: Path) -> None:
    calls = {"0 768 0": 0, "0 768 9": 0, "-1 768 0": INVALID_VALUE, "5 0 0": INVALID_VALUE, "0 0 0": INVALID_VALUE}
    calls |= {"5 768 1": INVALID_VALUE, "5 768 8": INVALID_VALUE}  # y or x is null
    assert ask(program, (f"call {c}" for c in calls)) == list(calls.values())
    pitches = {"768 768": 0, "800 769": 0, "767 768": INVALID_VALUE, "768 767": INVALID_VALUE}
    assert ask(program, (f"pitched 0 768 {p}" for p in pitches)) == list(pitches.values())


@needs_nvcc
def test_the_workspace_covers_the_general_kernel_and_without_a_gpu_says_nothing_of_a_persistent_one(
    program: Path,
) -> None:
    general = [(5, 33), (10**6, 33), (1, 1), (0, 100), (-1, 100), (5, 0)]
    assert ask(program, (f"workspace {r} {c}" for r, c in general)) == [128 + 8 * 33] * 2 + [136, 928, 0, 0]
    (tuned,) = backward_records()
    module = emit(problem_of(tuned.problem, load("layernorm")), tuned.schedule)
    (answer,) = ask(program, ["workspace 4096 1024"])
    sizes = {module.workspace_bytes(rows=4096, sm_count=sms) for sms in range(1, 257)}
    assert answer == 0 or answer in sizes


@needs_nvcc
@pytest.mark.gpu
def test_on_the_gpu_every_branch_of_a_header_computes_its_formula(tmp_path: Path) -> None:
    clusters = record(
        shape="33x768", dtype="bf16", direction="backward", schedule=replace(CLUSTERS, threads_per_row=32)
    )
    pairs = record(shape="300x770", dtype="bf16", direction="backward", schedule=PAIRS)
    for header in headers_of([*layernorm_records(), *backward_records(), clusters, pairs]):
        put(header, tmp_path)
    shutil.copy(HERE / "run.cu", tmp_path)
    program = build(tmp_path, "run.cu")
    cases = [(rows, cols, 0, cols, 0) for rows in (1, 33, 4096) for cols in (1, 7, 768, 770, 1024, 16384)]
    cases += [(33, 768, 0, 768, null) for null in range(16)]
    cases += [(33, 768, 1, 768, 0), (33, 768, 0, 773, 0), (33, 770, 1, 771, 0), (33, 770, 3, 773, 3)]
    questions = "\n".join(" ".join(map(str, case)) for case in cases)
    done = subprocess.run([program], input=questions, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    errors = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    assert len(errors) == len(cases)
    for case, (forward, backward) in zip(cases, errors, strict=True):
        assert forward < 1e-5, case  # |y| < 3; eight float32 roundings and a sum of 16384 terms stay below
        assert backward <= 2**-8, case  # one rounding to bfloat16


def test_a_header_in_place_takes_one_pointer_for_both() -> None:
    (forward,) = headers_of(single_records()["rmsnorm_in_place"])
    assert forward.file_name == "rmsnorm_fwd_bf16_y_over_x_sm90.cu"
    signature = r"inline cudaError_t rmsnorm_fwd_bf16_y_over_x\(\s+float\* rstd, __nv_bfloat16\* x, const"
    assert re.search(signature, forward.text)
    assert "//   y takes the place of x\n" in forward.text
    assert "// y takes the place of x, which is overwritten.\n" in forward.text
    assert "y_pitch" not in forward.text


@pytest.mark.parametrize(
    ("op", "direction", "without"),
    [
        ("llama_rmsnorm", "forward", ["residual", "h"]),
        ("llama_rmsnorm", "backward", ["residual", "h"]),
        ("add_layernorm", "forward", ["residual2", "h"]),
        ("rmsnorm_to_fp8_token", "forward", ["y"]),
    ],
)
def test_an_output_that_a_record_leaves_out_is_no_argument(op: str, direction: str, without: list[str]) -> None:
    """A call could pass it, and find it as it was: the tuned kernel does not write it."""
    (header,) = headers_of([record(op, shape="64x512", direction=direction, without=without)])
    (left_out,) = (name for name in without if name in ("h", "y"))
    assert f"_without_{left_out}" in header.file_name
    (signature,) = re.findall(
        rf"inline cudaError_t {header.file_name.removesuffix('_sm90.cu')}\(([^)]*)\)", header.text
    )
    names = set(re.findall(r"\w+", signature))
    assert not names & {left_out, f"d{left_out}"}
    assert names >= {name for name in without if name != left_out}, "inputs stay, and may be null"


def test_a_header_says_how_scales_lie_in_memory() -> None:
    asked = record("quantize_to_fp8_group", shape="64x1024", dtype="bf16", layout={"scale": "column_major"})
    (header,) = headers_of([asked])
    assert header.file_name == "quantize_to_fp8_group_fwd_bf16_scale_column_major_sm90.cu"
    assert "//   scale is stored as [groups, rows]\n" in header.text
    assert "scale_pitch < rows" in header.text
    assert re.search(r"// [^/]*scale \[groups, rows\]", header.text)
    header.check()


@needs_nvcc
def test_a_header_of_packed_scales_compiles_and_takes_whole_words_alone(tmp_path: Path) -> None:
    spec = parse(MICROSCALED)
    (header,) = headers_of([record(spec, shape="64x96", dtype="bf16", layout={"scale": "packed"})], spec=spec)
    assert header.file_name == "microscaled_fwd_bf16_scale_packed_sm90.cu"
    assert "// q, x [rows, cols]; scale [groups / 4, rows, 4]: device pointers" in header.text
    program = Program(tmp_path, [header], header.file_name, "normgen::sm90::microscaled_fwd_bf16_scale_packed")

    def call(pitch: int, rows: int) -> str:
        """With q, scale and x at addresses, then their pitches, rows, cols and a stream."""
        return f"call 0 4096 8192 12288 96 {pitch} 96 {rows} 96 7"

    wrong = [call(16, rows=5), call(19, rows=5), call(22, rows=5), call(2**31, rows=2**31 - 1)]
    assert program.asks(wrong, {}) == [[f"= {INVALID_VALUE}"]] * len(wrong)
    assert program.asks([call(0, rows=0)], {}) == [["= 0"]]


def test_a_header_says_which_gradients_are_one() -> None:
    (header,) = headers_of([record(ADD_RMSNORM, shape="64x256", direction="backward")], spec=ADD_RMSNORM)
    assert "//   differentiated: dx = dresidual, dweight from the gradients of the outputs\n" in header.text
    assert "// dx holds dx and dresidual, which are the same values.\n" in header.text
    assert "dresidual_pitch" not in header.text
    header.check()


@needs_nvcc
def test_a_header_of_parameters_of_groups_compiles_and_takes_whole_groups_alone(tmp_path: Path) -> None:
    spec = of_groups("batch_parameter", 20)
    asked = [record(spec, shape="8x4x120", dtype="bf16"), record(spec, shape="4x4x240", dtype="bf16")]
    (header,) = headers_of(asked, spec=spec)
    said = " ".join(header.text.replace("// ", "").split())
    assert "weight [groups]; bias [cols]; scale [batches, groups]: device pointers" in said
    assert "weight and scale: column c takes value c / 20, one for each group of 20 columns." in said
    assert "k::address(bias)" in header.text
    assert "k::address(weight)" not in header.text  # its values are read one by one, wherever they lie
    assert "k::address(scale)" not in header.text
    program = Program(tmp_path, [header], header.file_name, "normgen::sm90::grouped_fwd_bf16")

    def call(cols: int = 120, *, scale_pitch: int = 6, rows: int = 0) -> str:
        """With y, rms, x, weight, bias, scale at addresses, the pitches of y, x and scale, sizes, eps and a stream."""
        tensors = " ".join(str(4096 * (number + 1)) for number in range(6))
        return f"call 0 {tensors} {cols} {cols} {scale_pitch} {rows} {cols} 4 1 7"

    wrong = [call(130), call(121), call(scale_pitch=5), call(140, scale_pitch=6, rows=4)]
    assert program.asks(wrong, {}) == [[f"= {INVALID_VALUE}"]] * len(wrong)
    assert program.asks([call(), call(140, scale_pitch=7)], {}) == [["= 0"]] * 2


@pytest.mark.parametrize("role", ["batch_parameter", "head_parameter"])
def test_a_header_says_what_the_gradients_of_groups_are(role: str) -> None:
    spec = of_groups(role, 20)
    (header,) = headers_of([record(spec, shape="8x4x120", dtype="bf16", direction="backward")], spec=spec)
    said = " ".join(header.text.replace("// ", "").split())
    axis = "heads" if role == "head_parameter" else "batches"
    assert f"dscale, scale [{axis}, groups]" in said
    assert "weight and scale: column c takes value c / 20, one for each group of 20 columns." in said
    assert "dweight and dscale: value g is the sum over columns g * 20 to g * 20 + 19, and over rows." in said
    assert f"dscale: row b is the sum over the rows of {axis[:4]}" in said
    assert "dscale_pitch < cols / 20" in header.text
    header.check()
