"""Headers of products of matrices: `inner` is an argument, and columns of it choose the kernel as cols do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from normgen.codegen.parts import short_names
from normgen.export import headers_of
from normgen.export.groups import groups_of
from normgen.ladder.kernels import comparable
from normgen.pipeline import emit, emit_parts
from normgen.problem.problem import LARGEST_TILED
from normgen.records.questions import problem_of
from normgen.records.record import Record, parse_line
from normgen.schedule.schedule import schedule_from
from normgen.spec.reader import load
from normgen.spec.spec import Spec
from tests.verify.contraction import linear

from .cases import nvcc, put, record
from .driven import Call, PartsOfHeader, Program, expected
from .test_headers import needs_nvcc

AXES = ("rows", "cols", "inner")
INVALID_VALUE, INVALID_CONFIGURATION = 1, 9  # of cudaError_t
SIZES = ((64, 768, 512), (4096, 768, 512), (64, 768, 1024), (64, 100, 36))


def spec_of(name: str) -> Spec:
    return load(name) if name in ("bmm", "linear_add_rms") else linear.spec_of(name)


def records(name: str, gradient: str = "") -> list[Record]:
    backward: dict[str, Any] = {"direction": "backward", "gradients": (gradient,)} if gradient else {}
    spec = spec_of(name)
    return [record(spec, shape=f"{rows}x{cols}", inner=inner, **backward) for rows, cols, inner in SIZES]


FUNCTIONS = [("linear_add_rms", ""), ("torch_linear", ""), ("normed", ""), ("linear", "x"), ("linear", "w")]
FUNCTIONS += [("bmm", ""), ("bmm", "x"), ("bmm", "w")]


def header_text(name: str, gradient: str, *made: Record) -> str:
    (header,) = headers_of(made or records(name, gradient), spec=spec_of(name))
    return header.text


def test_inner_stands_behind_cols_in_the_signature_and_in_the_table() -> None:
    text = header_text("torch_linear", "")
    assert "int rows, int cols, int inner," in text
    assert "int rows, cols, inner;" in text
    assert "constexpr int select(int rows, int cols, int inner, int align," in text
    assert "rows < 0 || cols < 1 || inner < 1 || y_pitch < cols || x_pitch < inner || up_pitch < inner" in text
    assert "y [rows, cols]; x [rows, inner]; up [cols, inner]; bias [cols]" in text
    assert "//   64 x 768 x 1024 " in text
    assert max(map(len, text.splitlines())) <= 120


def test_records_of_products_give_the_same_bytes_in_any_order_and_after_a_round_trip() -> None:
    made = records("torch_linear")
    text = header_text("torch_linear", "", *made)
    assert header_text("torch_linear", "", *reversed(made)) == text
    assert header_text("torch_linear", "", *(parse_line(r.line()) for r in made)) == text


@pytest.mark.parametrize("entry", records("torch_linear"), ids=lambda r: f"{r.problem.rows}x{r.problem.inner}")
def test_the_kernel_of_a_product_is_the_tuned_text(entry: Record) -> None:
    asked = (problem_of(entry.problem, linear.spec_of("torch_linear")), entry.schedule)
    parts, text = emit_parts(*asked), header_text("torch_linear", "")
    alone = parts.renamed(short_names([parts]))
    assert emit(*asked).text.endswith(f"{alone.config.text}\n\n{alone.text}")
    spec = linear.spec_of("torch_linear")
    (group,) = groups_of(records("torch_linear"), lambda _: spec)
    parts = PartsOfHeader.of(group).of_schedule(entry.schedule, group)
    assert comparable(parts.text) == comparable(alone.text)
    assert text.count(parts.config.text) == text.count(parts.text) == 1


@needs_nvcc
@pytest.mark.parametrize(("name", "gradient"), FUNCTIONS)
def test_a_call_launches_the_kernel_of_its_cols_and_inner_on_a_block_for_each_tile(
    name: str, gradient: str, tmp_path: Path
) -> None:
    spec, made = spec_of(name), records(name, gradient)
    (group,), (header,) = groups_of(made, lambda _: spec), headers_of(made, spec=spec)
    program = Program(tmp_path, [header], header.file_name, f"normgen::sm90::{group.name}")
    named = PartsOfHeader.of(group)
    tuned, ((general,),) = named.tuned, named.general
    known = {program.linked(k, "sm90"): k for k in named.kernels}
    calls = [(Call(rows=p.rows, cols=p.cols, inner=p.inner), (p, parts)) for p, parts in tuned]
    calls += [
        (Call(rows=rows, cols=cols, inner=inner, odd=odd), general)
        for rows, cols, inner, odd in ((64, 768, 513, 0), (64, 769, 512, 0), (64, 768, 512, 4), (2**20, 1, 1, 0))
    ]
    calls += [(Call(rows=0, cols=768, inner=512), tuned[0])]
    scalars = [s for s in ("eps",) if any(p.key == s for p in general[1].kernels[0].params)]
    workspace = bool(general[1].workspace.fixed)
    answers = program.asks([call.words(group, scalars, workspace=workspace) for call, _ in calls], known)
    for (call, (problem, parts)), answer in zip(calls, answers, strict=True):
        nothing = call.rows == 0 and (name, gradient) != ("linear", "w")  # of no rows there are no batches
        launched = [] if nothing else expected(group, call, problem, parts)
        assert answer[-1] == "= 0"
        if call.rows or nothing:
            assert answer[:-1] == launched, call
        else:
            assert len(answer) == 2  # zeros are written, by the kernel of the nearest rows
    # Tiles would end beyond 31 bits, or be more than a launch has blocks: refused before anything is launched.
    beyond = [Call(**({"rows": 1, "cols": 1, "inner": 1} | {axis: LARGEST_TILED + 1})) for axis in AXES]
    many = Call(**({"rows": LARGEST_TILED} | dict.fromkeys(AXES[1:], LARGEST_TILED)))
    answers = program.asks([c.words(group, scalars, workspace=workspace) for c in (*beyond, many)], known)
    assert answers[:-1] == [[f"= {INVALID_VALUE}"]] * len(beyond)
    assert answers[-1][-1] == f"= {INVALID_CONFIGURATION}"
    assert not any(line.startswith("launch") for line in answers[-1])


def test_the_workspace_of_what_reduces_its_result_grows_with_the_tiles_of_every_kernel() -> None:
    text = header_text("linear_add_rms", "")
    assert "std::size_t linear_add_rms_fwd_f32_workspace_bytes(int rows, int cols, int inner) {" in text
    assert "linear_add_rms_fwd_f32_workspace_bytes(rows, cols, inner) bytes" in text
    assert "if (tuned.cols != cols || tuned.inner != inner) continue;" in text
    assert text.count("workspace.per_block * static_cast<std::size_t>(blocks)") == 2, "general kernels and tuned ones"
    made = records("linear_add_rms")[0]
    module = emit(problem_of(made.problem, load("linear_add_rms")), made.schedule)
    tiles = module.kernels[0].launch.grid(rows=64, sm_count=1, cols=768)
    assert tiles > 1
    found = module.workspace_bytes(rows=64, sm_count=1, cols=768, inner=512)
    assert found == module.workspace.fixed + tiles * module.workspace.block


def test_a_header_of_batches_says_how_many_rows_they_have() -> None:
    text = header_text("bmm", "")
    assert "int rows, int cols, int inner, int rows_per_batch," in text
    assert "w [batches, inner, cols]" in text
    assert "rows_per_batch: row r takes row r / rows_per_batch of each tensor of batches." not in text
    assert "rows_per_batch: row r takes matrix r / rows_per_batch of w." in text


def test_only_headers_of_products_have_inner() -> None:
    (header,) = headers_of([record("rmsnorm", shape="64x768")])
    assert "inner" not in header.text.replace("innermost", "")


def test_a_header_of_a_turned_matrix_has_a_name_and_a_signature_of_its_own() -> None:
    made = record("linear", shape="64x768", inner=512, layout={"w": "cols_inner"})
    (header,) = headers_of([made])
    assert header.file_name == "linear_fwd_f32_w_cols_inner_sm90.cu"
    assert "//   w is stored as [cols, inner]\n" in header.text
    assert "w_pitch < inner" in header.text
    assert headers_of([parse_line(made.line())])[0].text == header.text
    asked = (problem_of(made.problem, load("linear")), made.schedule)
    parts = emit_parts(*asked)
    parts = parts.renamed(short_names([parts]))
    assert emit(*asked).text.endswith(f"{parts.config.text}\n\n{parts.text}")
    (group,) = groups_of([made], lambda r: load(r.problem.op))
    named = PartsOfHeader.of(group).of_schedule(made.schedule, group)
    assert comparable(named.text) == comparable(parts.text)
    assert header.text.count(named.config.text) == header.text.count(named.text) == 1
    header.check()


def made_of_teams(op: str, dtype: str = "bf16", **others: int) -> Record:
    words = {"vector": 8, "tile_k": 64} if dtype == "bf16" else {"vector": 4, "tile_k": 32}
    knobs = {"hold": "shared", "copy": "bulk", "fragment": "wgmma", "stages": 4, **words}
    teams = schedule_from({**knobs, "tile_m": 128, "tile_n": 256, "thread_m": 2, "thread_n": 64})
    asked: dict[str, Any] = {"dtype": dtype, "layout": {"w": "cols_inner"}}
    return record(load(op), shape="4096x4096", inner=4096, schedule=teams.varied(**others), **asked)


def of_teams(folder: Path, op: str = "linear", dtype: str = "bf16", **others: int) -> str:
    """The header of a kernel of teams, in a file of the folder; its name."""
    (header,) = headers_of([made_of_teams(op, dtype, **others)], spec=load(op))
    return put(header, folder).name


def test_a_header_of_teams_encodes_tensor_maps_of_a_calls_pointers_for_as_many_blocks_as_sms(tmp_path: Path) -> None:
    text = (tmp_path / of_teams(tmp_path)).read_text()
    assert "status = encode(&x_map, call.x, call.x_pitch, call.inner, call.rows, 64, 128);" in text
    assert "status = encode(&w_map, call.w, call.w_pitch, call.inner, call.cols, 64, 256);" in text
    assert "return launch.persistent > 0 && tiles > resident ? resident : tiles;" in text
    assert "status = encode(&y_map, call.y, call.y_pitch, call.cols, call.rows, 64, 128);" in text
    assert "call.rows, x_map, w_map, y_map);" in text
    assert "on sm_90 alone" in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_header_of_teams_has_lines_of_narrow_boxes_swizzled_as_such(tmp_path: Path) -> None:
    text = (tmp_path / of_teams(tmp_path, tile_n=160, thread_n=40)).read_text()
    assert "status = encode(&y_map, call.y, call.y_pitch, call.cols, call.rows, 32, 128);" in text
    assert "const int swizzle = box_elements * 2 == 64 ? 2 : 3;" in text
    assert "box, steps, 0,\n                           swizzle, 2 /*" in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_workspace_of_teams_that_reduce_their_result_grows_with_tiles_not_blocks(tmp_path: Path) -> None:
    text = (tmp_path / of_teams(tmp_path, "linear_add_rms")).read_text()
    assert text.count("k::grid(k::of_each_tile(") == 2, "general kernels and tuned ones"
    made = made_of_teams("linear_add_rms")
    module = emit(problem_of(made.problem, load("linear_add_rms")), made.schedule)
    found = module.workspace_bytes(rows=4096, sm_count=132, cols=4096, inner=4096)
    assert found == module.workspace.fixed + 32 * 16 * 128 * 4


def test_a_header_of_tf32_has_the_copy_engine_round(tmp_path: Path) -> None:
    text = (tmp_path / of_teams(tmp_path, "linear_tf32", "f32")).read_text()
    assert "status = encode(&x_map, call.x, call.x_pitch, call.inner, call.rows, 32, 128, 11, 4);" in text
    assert "status = encode(&w_map, call.w, call.w_pitch, call.inner, call.cols, 32, 256, 11, 4);" in text
    assert "tiled(map, kind, 2, const_cast<void*>(address)" in text
    assert "{size(bytes * pitch)}" in text


def test_a_header_of_teams_that_share_k_has_as_many_blocks_as_tiles_have_parts(tmp_path: Path) -> None:
    text = (tmp_path / of_teams(tmp_path, tile_n=128, thread_n=32, cluster=2)).read_text()
    assert "{{384, 128, 128, 0, 1, false, 0, 0, 0, 2, 1, " in text, "no persistent grid, clusters of two"
    assert "const long long tiles = lines * tiles_of(cols, launch.tile_cols) * launch.cluster;" in text
    assert "attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;" in text


@needs_nvcc
@pytest.mark.parametrize(
    ("op", "dtype", "columns"),
    [("linear", "bf16", 256), ("linear", "bf16", 96), ("linear_add_rms", "bf16", 256), ("linear_tf32", "f32", 256)],
)
def test_a_header_of_teams_compiles_for_its_one_architecture_and_says_so_elsewhere(
    tmp_path: Path, op: str, dtype: str, columns: int
) -> None:
    use = tmp_path / "use.cu"
    use.write_text(
        f'#include "{of_teams(tmp_path, op, dtype, tile_n=columns, thread_n=columns // 4)}"\nint main() {{}}\n'
    )
    target = "arch=compute_90a,code=sm_90a"
    done = nvcc("-gencode", target, "-o", tmp_path / "program", use)
    assert done.returncode == 0, done.stderr
    done = nvcc("-arch=sm_90", "-o", tmp_path / "program", use)
    assert "has instructions of sm_90 alone" in done.stderr
    assert f"compile with -gencode {target}" in done.stderr


def test_a_header_of_groups_takes_whole_ones() -> None:
    spec = load("linear_swiglu_to_fp8_group")
    (header,) = headers_of([record(spec, shape="64x256", inner=64)], spec=spec)
    assert "cols % 128 != 0 || " in header.text
    assert "scale_pitch < cols / 128" in header.text
