"""Headers say what records and specs say, byte for byte."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from normgen import export
from normgen.cli.main import cli
from normgen.codegen.parts import short_names
from normgen.cpu import find_compiler
from normgen.cuda import nvrtc
from normgen.cuda.compiler import identity_of
from normgen.errors import CompileError, NoDeviceError, UsageError
from normgen.export import Header, headers_of
from normgen.export.groups import groups_of
from normgen.ladder.kernels import comparable
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit, emit_parts
from normgen.program.source import problem_for
from normgen.records.place import Context, Place, Setting
from normgen.records.questions import problem_of
from normgen.records.record import Record, parse_line
from normgen.records.statistics import Price, summarise
from normgen.records.winners import adopt
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.legality import refusal
from normgen.spec.reader import load, parse
from tests.samples import is_full

from .cases import CREATED, H200, layernorm_records, record
from .driven import PartsOfHeader

GENERATED = Path(__file__).parents[2] / "generated"


def only(*records: Record) -> Header:
    (header,) = headers_of(records)
    return header


def folder_with(folder: Path, *records: Record) -> Path:
    for one in records:
        assert adopt(one, folder / "records", H200)
    return folder


def test_records_give_the_same_bytes_in_any_order_and_after_a_round_trip_through_their_file() -> None:
    records = layernorm_records()
    text = only(*records).text
    assert only(*reversed(records)).text == text
    assert only(*(parse_line(r.line()) for r in records)).text == text


def test_a_folder_exported_twice_holds_the_same_bytes(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, *layernorm_records(), record("softmax", shape="64x4096", dtype="f16"))
    first = {path.name: path.read_bytes() for path in export.export_folder(folder)}
    assert sorted(first) == ["layernorm_fwd_f32_sm90.cu", "softmax_fwd_f16_sm90.cu"]
    assert {path.name: path.read_bytes() for path in export.export_folder(folder)} == first
    assert export.differences(folder) == []


def test_what_is_in_generated_is_what_its_records_say() -> None:
    assert export.differences(GENERATED) == []


@pytest.mark.parametrize("entry", layernorm_records(), ids=lambda r: f"{r.problem.rows}x{r.problem.cols}")
def test_the_kernel_text_is_the_tuned_text(entry: Record) -> None:
    """Byte for byte, but for digits in names: the strategy's kernel, and the line that makes it that of this shape."""
    asked = (problem_of(entry.problem, load("layernorm")), entry.schedule)
    parts, header = emit_parts(*asked), only(*layernorm_records()).text
    alone = parts.renamed(short_names([parts]))
    types = "".join(f"\n{text}" for text in alone.every_type)
    assert emit(*asked).text.endswith(f"{alone.config.text}\n{types}\n{alone.text}")
    (group,) = groups_of(layernorm_records(), lambda r: load(r.problem.op))
    parts = PartsOfHeader.of(group).of_schedule(entry.schedule, group)
    assert comparable(parts.text) == comparable(alone.text)
    assert header.count(parts.config.text) == header.count(parts.text) == 1
    assert all(header.count(text) == 1 for text in parts.every_type)


def test_shapes_that_share_a_kernel_print_it_once() -> None:
    schedule = layernorm_records()[0].schedule
    header = only(record(shape="8192x768", schedule=schedule), record(shape="2048x768", schedule=schedule))
    kernel = emit(problem_for(load("layernorm"), shape="8192x768"), schedule).kernels[0]
    assert header.text.count(f"{kernel.name}(\n") == header.text.count(f"struct {kernel.config} ") == 1
    lines = re.findall(r"\{(\d+), 768, 16, 0u, 0u, false, \{\{(.*?)\}\},\n", header.text, re.DOTALL)
    assert [rows for rows, _ in lines] == ["2048", "8192"]
    assert lines[0][1] == lines[1][1]
    assert f"run<{kernel.expression}>" in lines[0][1]


def test_a_predicted_record_says_so_and_a_measured_one_shows_its_figures() -> None:
    predicted = only(record(us=12.5)).text
    assert "**predicted, not measured**" in predicted
    assert " 12.5 " in next(line for line in predicted.splitlines() if line.startswith("//   8192 x 768"))
    assert "predicted us" in predicted
    assert "price us" not in predicted  # a prediction is none
    measured = only(record(us=15.0, measured=True)).text
    row = next(line for line in measured.splitlines() if line.startswith("//   8192 x 768"))
    moved = (2 * 8192 * 768 + 2 * 8192 + 2 * 768) * 4
    assert row.split()[-6:] == ["15", f"{moved / 15e3:.0f}", "98.0", "%", "1.50x", "fresh"]
    assert "chain us" not in measured  # nothing stands there
    assert "predicted" not in measured


def test_a_record_in_place_shows_its_price_first_and_one_that_was_timed_alone_is_marked() -> None:
    in_place = record(us=21.0, measured=True)
    base = summarise([6.0] * 8)
    found = replace(
        in_place, chain_us=base, price_us=Price(median=15.0, low=14.9, high=15.1), alone_us=13.5, roof_us=12.0,
        default_us=28.5,
    )  # fmt: skip
    text = only(found).text
    row = next(line for line in text.splitlines() if line.startswith("//   8192 x 768"))
    rate = f"{found.bytes / 15e3:.0f}"
    assert row.split()[-10:] == ["15", "21", "/", "6", rate, "80.0", "%", "1.50x", "13.5", "fresh"]
    assert "// times     price: what the kernel adds to a chain" in text
    words = " ".join(line.removeprefix("//").strip() for line in text.splitlines())
    assert "above 100 % this one costs less than that kernel" in words
    assert "More than 1 is refused; rounding to 16 bits or fewer alone comes close to 1" in words
    alone = only(replace(in_place, place=Place(context=Context.ALONE, setting=Setting.COLD))).text
    row = next(line for line in alone.splitlines() if line.startswith("//   8192 x 768"))
    assert "price us" not in alone
    assert row.split()[-3:] == ["21", "cold", "alone"]
    assert "// times     alone: of launches behind each other" in alone
    assert "price: what the kernel adds" not in alone


def test_the_banner_names_formula_spec_device_and_records_and_no_date() -> None:
    banner = only(record()).text.split("#ifndef")[0]
    spec = load("layernorm")
    for wanted in (
        "var  = sum((x - mean)**2) / cols",
        "weight = 1, bias = 0 where the pointer is null",
        spec.sha256,
        "NVIDIA H200",
        "sm_90",
        "NVRTC 13.0",
    ):
        assert wanted in banner
    assert "records/h200.jsonl: schedule, command and all figures" in banner
    assert "`normgen show`" in banner
    assert record().command not in banner
    assert CREATED[:10] not in banner


def test_a_kernel_that_is_not_the_one_that_was_tuned_says_so() -> None:
    tuned = identity_of(emit(problem_for(load("layernorm"), shape="8192x768"), record().schedule))
    assert "another text" not in only(record()).text
    assert "another text" not in only(record(text=tuned)).text
    said = only(record(text="0123456789abcdef")).text
    assert "emitted as another text than the one that was tuned: 8192 x 768" in said


def test_a_backward_header_without_a_statistic_writes_the_zero_gradient_of_what_only_that_statistic_reads(
    tmp_path: Path,
) -> None:
    tensors = 'x = "input"\nb = "parameter"\ny = "output"\nm = { role = "statistic", optional = true }\n'
    spec = parse(f'name = "own"\n[tensors]\n{tensors}[formulas]\nm = "mean(x + b)"\ny = "2 * x"\n')
    made = record(spec, direction="backward", without=("m",))
    text = export.export_record(made, tmp_path, spec=spec).read_text()
    assert re.search(r"own_bwd_f32_without_m\(\s*float\* dx, float\* db,", text)
    assert "write_element(db, column, db_total);" in text


def test_measured_records_win_over_predicted_ones_and_cold_ones_over_hot_ones() -> None:
    slow, fast = record(us=20.0, measured=True), record(us=10.0)
    hot = record(us=5.0, measured=True, place=Place(context=Context.ALONE, setting=Setting.HOT))
    for order in itertools.permutations([slow, fast, hot]):
        (group,) = groups_of(order, lambda r: load(r.problem.op))
        assert [e.record for e in group.entries] == [slow]


def test_a_record_of_a_general_kernel_is_refused() -> None:
    general = replace(record(), problem=replace(record().problem, any_cols=True))
    with pytest.raises(UsageError, match="usable kernels of fixed cols"):
        headers_of([general])


def test_of_equal_shapes_the_kernel_without_statistics_comes_first() -> None:
    """The dispatch takes the first that fits: a call without statistics gets what was tuned without them."""
    whole, bare = record(), record(without=["mean", "rstd"])
    for order in ([whole, bare], [bare, whole]):
        (group,) = groups_of(order, lambda r: load(r.problem.op))
        assert [e.problem.absent for e in group.entries] == [("mean", "rstd"), ()]


def test_general_kernels_promise_nothing_about_where_rows_start() -> None:
    (group,) = groups_of([record(dtype="bf16")], lambda r: load(r.problem.op))
    assert len(group.general) == 1  # it takes null for weight and bias
    for problem in group.general:
        assert [problem.row_alignment(t) for t in problem.elem_tensors] == [2, 2]


def test_another_dtype_of_a_parameter_is_another_header() -> None:
    names = [h.file_name for h in headers_of([record(dtype="bf16"), record(dtype="bf16", dtypes={"weight": "f32"})])]
    assert names == ["layernorm_fwd_bf16_sm90.cu", "layernorm_fwd_bf16_weight_f32_sm90.cu"]


def test_a_record_of_another_text_of_its_spec_is_refused() -> None:
    text = Path(load("layernorm").file).read_text()
    changed = parse(text.replace("1e-5", "1e-6"))
    with pytest.raises(UsageError, match="present text of its spec"):
        headers_of([record()], spec=changed)


def test_a_record_of_a_users_spec_is_exported_with_that_spec(tmp_path: Path) -> None:
    text = 'name = "l2norm"\n[tensors]\nx = "input"\ny = "output"\n[scalars]\neps = 1e-6\n[formulas]\n'
    spec = parse(text + 'y = "x * rsqrt(sum(x*x) + eps)"\n')
    path = export.export_record(record(spec), tmp_path, spec=spec)
    assert path.name == "l2norm_fwd_f32_sm90.cu"
    assert "y = x * rsqrt(sum(x * x) + eps)" in path.read_text()


def test_a_formula_of_several_lines_is_one_line_of_the_header(tmp_path: Path) -> None:
    text = 'name = "scaled"\n[tensors]\nx = "input"\nw = { role = "parameter", optional = true, absent = "1 +\\n 1" }\n'
    spec = parse(text + 'y = "output"\n[formulas]\ny = """x *\n  (w *\n\tsum(x))"""\n')
    banner = export.export_record(record(spec), tmp_path, spec=spec).read_text().split("#ifndef")[0]
    assert "//   y = x * (w * sum(x))\n//   w = 2 where the pointer is null\n" in banner


BROKEN = "the kernel of another language;\n"


def test_a_header_that_does_not_compile_is_not_kept(tmp_path: Path) -> None:
    good = only(record())
    path = good.write(tmp_path)
    broken = replace(good, text=good.text.replace("}  // namespace layernorm_fwd_f32_detail", BROKEN, 1))
    assert BROKEN in broken.text
    with pytest.raises(CompileError, match="must compile for sm_90") as caught:
        broken.write(tmp_path)
    assert "layernorm_fwd_f32_sm90.cu(" in str(caught.value.received)
    assert [(p, p.read_text()) for p in tmp_path.iterdir()] == [(path, good.text)]


def test_without_a_compiler_a_header_is_kept_and_one_line_says_it_was_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent() -> None:
        raise NoDeviceError("the library must load", received="no such library")

    monkeypatch.setattr(nvrtc, "_nvrtc", absent)
    nvrtc.supported_archs.cache_clear()
    header = only(record())
    assert header.write(tmp_path).read_text() == header.text
    said = "layernorm_fwd_f32_sm90.cu: not compiled (the library must load: no such library)\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"arch": "0/../../../evil"}, "device.arch must be a whole number: '0/../../../evil'"),
        ({"arch": 91}, "an arch is one of"),
        ({"name": "/"}, "a GPU's name has a letter"),
        ({"op": "../evil"}, "a spec's name is lower-case"),
    ],
)
def test_a_record_that_would_leave_the_folder_is_refused_in_one_line(
    change: dict[str, str], complaint: str, tmp_path: Path
) -> None:
    data = json.loads(record().line())
    (data if "op" in change else data["device"]).update(change)
    file, output = tmp_path / "hostile.jsonl", tmp_path / "a" / "b" / "c"
    file.write_text(json.dumps(data) + "\n")
    with pytest.raises(UsageError, match=complaint) as caught:
        CliRunner().invoke(cli, ["export", str(file), "--output", str(output)], catch_exceptions=False)
    assert "\n" not in str(caught.value.received)
    assert [p.name for p in tmp_path.rglob("*")] == ["hostile.jsonl"]


def test_one_record_exported_keeps_the_other_shapes_of_its_header(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, record(shape="64x768"), record("softmax", shape="64x768"))
    path = export.export_record(record(shape="128x1024"), folder)
    assert "{ 64,  768,  8, 0u, 0u, false, {" in path.read_text()  # whose rows are read by 8 bytes
    assert "{128, 1024, 16, 0u, 0u, false, {" in path.read_text()
    assert [p.name for p in folder.glob("*.cu")] == [path.name]


def test_the_command_writes_headers_and_checks_them(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, record())
    run = CliRunner().invoke
    assert run(cli, ["export", "--output", str(folder)]).output.split() == [str(folder / "layernorm_fwd_f32_sm90.cu")]
    assert run(cli, ["export", "--output", str(folder), "--check"]).exit_code == 0
    (folder / "layernorm_fwd_f32_sm90.cu").write_text("edited by hand\n")
    (folder / "old_sm90.cu").write_text("\n")
    with pytest.raises(UsageError, match=r"layernorm_fwd_f32_sm90\.cu: differs; old_sm90\.cu: no record"):
        run(cli, ["export", "--output", str(folder), "--check"], catch_exceptions=False)


PROBLEMS = [
    *(("layernorm", "forward", without) for without in ((), ("weight",), ("bias",), ("bias", "weight"))),
    *(("layernorm", "backward", without) for without in ((), ("weight",), ("bias", "weight"))),
    ("softmax", "forward", ()),
    ("rmsnorm", "backward", ()),
]


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler for the CPU executor")
@pytest.mark.parametrize(
    ("op", "direction", "without", "dtype"),
    [
        (*problem, dtype)
        for number, problem in enumerate(PROBLEMS)
        for dtype in (("f32", "bf16") if is_full() else (("f32", "bf16")[number % 2],))
    ],
)
def test_the_general_kernel_is_right_at_any_cols(op: str, direction: str, without: tuple[str, ...], dtype: str) -> None:
    for cols in (1, 7, 2400):
        problem = problem_for(
            load(op),
            shape=f"5x{cols}",
            dtype=dtype,
            direction=direction,
            without=without,
            pitch=cols + 3,
            align=4,
            any_cols=True,
        )
        for schedule in fallback_schedules(problem):
            assert cols < 2400 or refusal(problem, schedule, H200) is None
            checked = check_on_cpu(problem, emit(problem, schedule))
            assert checked.ok, checked.summary
