"""The command line: quick help, plain output, one JSON object, exit codes."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from normgen.bench.rounds import Rounds, against
from normgen.cli import bench_command
from normgen.cli import main as cli
from normgen.cli import options as cli_options
from normgen.cli.main import COMMANDS
from normgen.codegen.module import Module
from normgen.device import TARGETS
from normgen.errors import UsageError
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.gradient.differentiate import differentiate
from normgen.program.ir import Map, RowProgram
from normgen.program.source import written_program
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import list_presets, list_specs
from normgen.text import filled
from normgen.trials.file import read
from normgen.trials.head import opening

ONE_RECORD = (Path(__file__).parents[2] / "generated" / "records" / "h200.jsonl").read_text("utf-8").partition("\n")[0]
WITHOUT_A_STUDY = {
    "show": "cli.main(['show', '--shape', '8x64'], standalone_mode=False)",
    "space": "cli.main(['space', '--shape', '8x64'], standalone_mode=False)",
    "explain": "cli.main(['explain', '--shape', '8x64'], standalone_mode=False)",
    "verify": "cli.main(['verify', '--shape', '2x8'], standalone_mode=False)",
    "export": "cli.main(['export', 'one.jsonl', '--output', 'headers'], standalone_mode=False)",
    "emit": "import normgen; from normgen.pipeline import emit; from normgen.program.source import problem_for; "
    "from normgen.spec.reader import load; from normgen.schedule.schedule import Schedule; "
    "emit(problem_for(load('layernorm'), shape='8x64'), Schedule())",
    "what tunes, before its first kernels compile": "import normgen.cli.tune.run",
    "a handle": "import normgen; normgen.kernel('layernorm', shape=(2, 8), device='cpu')",
}
HEAVY = ("numpy", "sympy", "optuna", "rich", "cuda", "ml_dtypes", "jinja2", "platformdirs")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path / "state"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command."""
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    output = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, output.out, output.err


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from normgen.cli.main import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "Exit codes: 0 ok, 1 a fault of normgen, 2 usage, or a file that cannot be read" in done.stdout


@pytest.mark.parametrize("name", WITHOUT_A_STUDY)
def test_what_does_not_tune_loads_no_study(name: str, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text(ONE_RECORD + "\n", encoding="utf-8")
    program = (
        "import sys\n"
        "from normgen.cli.main import cli\n"
        f"{WITHOUT_A_STUDY[name]}\n"
        "print([m for m in ('optuna', 'sqlalchemy') if m in sys.modules], 'sympy' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == "[] True"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_begins_as_its_line_in_the_help_of_all(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, name, "--help")
    assert code == 0
    words = re.findall(r"[A-Za-z]+", out.partition("\n\n")[2])
    said = re.findall(r"[A-Za-z]+", COMMANDS[name][1])
    assert [w.lower() for w in words[:4]] == [w.lower() for w in said[:4]]


def test_the_help_of_a_target_names_every_gpu_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "explain", "--help")
    assert set(TARGETS) <= {*re.findall(r"[a-z0-9]+", out)}


def test_help_answers_in_less_than_0_15_s() -> None:
    """Of CPU: beside other work a machine takes longer."""
    seconds = []
    for _ in range(5):
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "normgen.cli.main", "--help"], capture_output=True, check=True)
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime)
    assert min(seconds) < 0.15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tune",), "give --shape for one problem, or --suite"),
        (
            ("tune", "--shape", "8x8", "--suite", "decode_h200"),
            "received: --shape and --suite\n  hint: leave out all but",
        ),
        (("tune", "--rows", "1..4"), "hint: for example --shape '*x4096'"),
        (("tune", "--shape", "*x64"), "hint: --rows 1..16384 --shape '*x64'"),
        (("tune", "--shape", "8xx"), "the last one being cols\n  received: 8xx\n  hint: for example 8x1024x768"),
        (("tune", "--shape", "8x8", "--op", "layernrom"), "did you mean 'layernorm'?"),
        (("tune", "--shape", "8x8", "--dtype", "f64"), "unknown dtype\n  received: f64"),
        (
            ("tune", "--shape", "8x8", "--device", "gpu0"),
            "a device is the number of a GPU, or 'cpu'\n  received: 'gpu0'\n  hint: 0 is",
        ),
        (("tune", "--shape", "8x8", "--device", "cpu", "--target", "h300"), "did you mean 'h"),
        (("tune", "--shape", "8x8", "--budget", "soon"), "received: soon"),
        (("tune", "--suite", "decode_h200", "--sampler", "tpe"), "--sampler is for one problem"),
        (("tune", "--shape", "8x8", "--trials", "0"), "at least one trial"),
        (("tune", "--shape", "0x8"), "a shape without rows has nothing to tune"),
        (("show", "--shape", "8x8", "--schedule", "vectr=4"), "did you mean 'vector'?"),
        (("show", "--shape", "8x8", "--schedule", "vector"), "expected name=value"),
        (("show", "--op", "linear", "--shape", "8x8", "--size", "inner="), "hint: for example inner=4096"),
        (("show", "--op", "linear", "--shape", "8x8", "--size", "8"), "hint: for example inner=4096"),
        (("show", "--op", "linear", "--shape", "8x8", "--layout", "w"), "hint: for example w=cols_inner"),
        (("show", "--op", "bmm", "--shape", "2x8x8", "--size", "inner=8", "--batches", "3"), "which 16 is a multiple"),
        (("show", "--op", "head_layernorm", "--shape", "2x8x8", "--batches", "0"), "which 16 is a multiple"),
        (("show", "--shape", "65536x65536x8"), "hint: split the rows among several calls"),
        (("show", "--shape", "8x7", "--schedule", "vector=4 edges=exact"), "received: "),
        (("verify", "--shape", "8x8", "--without", "weigth"), "did you mean 'weight'?"),
        (("dance",), "unknown command\n  received: dance"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_a_gpu_that_is_not_there_ends_with_6(capsys: pytest.CaptureFixture[str]) -> None:
    from normgen.cuda.driver import find_gpu
    from normgen.errors import NoDeviceError

    try:
        found = find_gpu(None)
    except NoDeviceError:
        found = None
    if found is not None:
        pytest.skip("there is a GPU here")
    code, _, err = run(capsys, "tune", "--shape", "8x8", "--device", "0")
    assert code == 6
    assert "the CUDA driver must" in err


def test_an_interrupt_ends_with_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("normgen.cli.show.list_specs", stop)
    code, out, err = run(capsys, "list")
    assert (code, out, err.strip()) == (130, "", "interrupted")


def test_list_names_the_built_in_specs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "list")
    assert code == 0
    names = [line.split()[0] for line in out.splitlines()]
    assert names == [*list_specs(), *list_presets()]
    assert {"layernorm", "log_softmax", "vllm_add_rmsnorm"} <= set(names)
    assert "Layer normalisation" in out
    specs = json.loads(run(capsys, "list", "--json")[1])
    assert {"layernorm", "rmsnorm", "softmax"} <= set(specs)
    assert specs["softmax"]["file"].endswith("softmax.toml")


def test_spec_check_prints_the_program_or_the_line_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "l2norm.toml"
    text = 'name = "l2norm"\n[tensors]\nx = "input"\ny = "output"\n[scalars]\neps = 1e-6\n[formulas]\n'
    file.write_text(text + 'y = "x * rsqrt(sum(x*x) + eps)"\n')
    code, out, _ = run(capsys, "spec", "check", str(file))
    assert code == 0
    assert "store  y" in out
    assert "\nbackward: dx\n" in out
    file.write_text(text + 'y = "max(x) + 0 * x"\n'.replace("0", "eps"))
    _, out, _ = run(capsys, "spec", "check", str(file))
    assert f"\nbackward: none: {file}:8: the gradient of max is supported only where it cancels" in out
    file.write_text(text + 'y = "x * rsqr(sum(x*x) + eps)"\n')
    code, _, err = run(capsys, "spec", "check", str(file))
    assert code == 2
    assert f"{file}:8" in err
    assert "rsqrt" in err


def test_spec_check_lists_what_has_no_gradient_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mixed.toml"
    tensors = {
        "x": '"input"',
        "gain": '{ role = "parameter", group = 8 }',
        "scale": '"scalar_input"',
        "mask": '{ role = "input", dtypes = ["bool"] }',
        "seed": '"seed"',
        "bias": '"parameter"',
        "y": '"output"',
    }
    lines = "\n".join(f"{name} = {value}" for name, value in tensors.items())
    formula = "where(mask and random(seed) > 0.5, x * gain * scale + bias, 0)"
    file.write_text(f'name = "mixed"\n[tensors]\n{lines}\n[formulas]\ny = "{formula}"\n')
    code, out, _ = run(capsys, "spec", "check", str(file))
    assert code == 0
    told = out.partition("\nbackward: ")[2].splitlines()
    assert told[0] == "dx, dgain, dbias"
    reasons = (
        "learned number has the role scalar_parameter",
        "whole numbers",
        "whole",
    )
    assert [line.split(":")[0] for line in told[1:]] == ["no dscale", "no dmask", "no dseed"]
    assert all(why in line for why, line in zip(reasons, told[1:], strict=True))
    found = json.loads(run(capsys, "spec", "check", str(file), "--json")[1])
    assert list(found["no_gradient"]) == ["scale", "mask", "seed"]


def test_spec_check_of_a_product_tells_which_gradients_a_kernel_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "normed_linear.toml"
    sides = 'x = { role = "input", axes = ["rows", "inner"] }\ngain = { role = "parameter", axes = ["inner"] }\n'
    text = f'name = "normed_linear"\n[tensors]\n{sides}w = {{ role = "parameter", axes = ["cols", "inner"] }}\n'
    file.write_text(text + 'y = "output"\n[formulas]\ny = "(x * gain) @ w"\n')
    code, out, _ = run(capsys, "spec", "check", str(file))
    assert code == 0
    assert "reduce y : elem = dot_inner(gain*x, w)" in out
    assert f"\nbackward: dx\nno dgain: {file}:8: a kernel of products reduces its sides over cols" in out
    assert out.endswith("\ndw\n")
    file.write_text(text + 'y = "output"\n[formulas]\ny = "((x - mean(x)) * gain) @ w"\n')
    code, out, _ = run(capsys, "spec", "check", str(file))
    assert code == 0
    assert "reduce x_sum : row = sum_inner(x)" in out
    assert f"no dw: {file}:8: a kernel of products reduces its sides over rows" in out


def test_show_prints_program_text_and_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    problem = ("--op", "rmsnorm", "--shape", "64x256", "--dtype", "bf16")
    ir = run(capsys, "show", *problem, "--ir")[1]
    assert "program rmsnorm(eps)" in ir
    cuda = run(capsys, "show", *problem, "--cuda")[1]
    assert 'extern "C" __global__' in cuda
    assert "Config" not in cuda.partition("struct Pass1")[2]
    assert run(capsys, "show", *problem)[1] == cuda
    assert cuda.endswith(run(capsys, "show", *problem, "--kernel")[1])
    assert "template <class Config>\n__global__" in run(capsys, "show", *problem, "--template")[1]
    knobs = run(capsys, "show", *problem, "--print-schedule", "--schedule", "vector=4 load=streaming")[1]
    assert "vector = 4\n" in knobs
    assert "load = streaming\n" in knobs


def test_space_counts_and_explains(capsys: pytest.CaptureFixture[str]) -> None:
    problem = ("--op", "softmax", "--shape", "64x1000", "--dtype", "f16")
    plain = run(capsys, "space", *problem)[1]
    why = run(capsys, "space", *problem, "--why")[1]
    found = json.loads(run(capsys, "space", *problem, "--json")[1])
    assert f"{found['legal']} legal schedules, {found['refused']} other combinations refused" in plain
    assert found["refused"] == sum(r["count"] for r in found["refusals"])
    assert why.startswith(plain)
    assert all(r["reason"] in why for r in found["refusals"])


def test_verify_on_the_cpu_says_ok_or_ends_with_4(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(capsys, "verify", "--device", "cpu", "--shape", "24x64")
    assert code == 0
    assert "on the CPU executor" in out
    assert "rstd: ok" in out

    def wrong(problem: Problem, schedule: Schedule) -> Module:
        module = emit(problem, schedule)
        return replace(module, text=module.text.replace("rsqrtf(", "2.0f * rsqrtf("))

    monkeypatch.setattr("normgen.cli.show.emit", wrong)
    code, out, _ = run(capsys, "verify", "--device", "cpu", "--shape", "24x64", "--json")
    assert code == 4
    found = json.loads(out)
    assert found["ok"] is False
    assert "y: " in found["summary"]


def test_verify_at_a_value_of_a_scalar_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("verify", "--device", "cpu", "--shape", "24x64")
    code, out, _ = run(capsys, *asked, "--set", "eps=1e-3")
    assert code == 0
    assert "  ok with all families of rows, eps=0.001\n" in out
    file = tmp_path / "bounded.toml"
    file.write_text(
        'name = "bounded"\n[tensors]\nx = "input"\ny = "output"\n[formulas]\ny = "x * k"\n'
        "[scalars]\nk = { default = 1, ranges = [[0, 2]] }\n"
    )
    for op, word, says in (
        ("layernorm", "epsilon=1", "did you mean 'eps'?"),
        ("layernorm", "eps=inf", "a scalar is a finite number that fits float32"),
        ("layernorm", "eps=1e-60", "a scalar is a finite number that fits float32"),
        ("softmax", "eps=1", "'softmax' has no scalar"),
        (str(file), "k=3", "0 to 2"),
        ("cross_entropy", "ignore_index=0.5", "'ignore_index' is a whole number"),
    ):
        code, _, error = run(capsys, *asked, "--op", op, "--set", word)
        assert code == 2, word
        assert says in error


@pytest.mark.parametrize("command", [("verify",), ("tune", "--trials", "2")], ids=lambda words: words[0])
def test_a_derived_backward_that_is_no_derivative_ends_with_4(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "scaled.toml"
    text = '[tensors]\nx = "input"\ny = "output"\n[formulas]\ny = "x * rsqrt(sum(x*x))"\n'
    file.write_text('name = "scaled"\nsummary = "x by its length"\n' + text)

    def wrong(program: RowProgram, **options: Any) -> RowProgram:
        return _halved(differentiate(program, **options))

    monkeypatch.setattr("normgen.program.source.differentiate", wrong)
    written_program.cache_clear()
    code, out, err = run(
        capsys, *command, "--device", "cpu", "--shape", "24x64", "--op", str(file), "--direction", "backward"
    )
    written_program.cache_clear()
    assert code == 4, out
    assert "error: the derived dx of spec 'scaled' is not the derivative of its formula" in err
    assert re.search(r"<dx, d> for row 0 of 7 x 33: derived -?\d.*, by differences -?\d.* ± \d", err)


def _halved(program: RowProgram) -> RowProgram:
    """The program with half of dx."""
    halves = (replace(s, expr=s.expr / 2) if isinstance(s, Map) and s.name == "dx" else s for s in program.statements)
    return replace(program, statements=tuple(halves))


BACKWARD = ("--direction", "backward", "--shape", "24x64")


@pytest.mark.parametrize(
    ("options", "tensors"),
    [
        (("--gradients", "x"), ["dx"]),
        (("--gradients", "weight,bias", "--accumulate"), ["dweight", "dbias"]),
        (("--deterministic", "--accumulate"), ["dx", "dweight", "dbias"]),
    ],
)
def test_verify_of_chosen_gradients_added_or_in_a_fixed_order(
    options: tuple[str, ...], tensors: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "verify", "--device", "cpu", *BACKWARD, *options)
    assert code == 0
    assert [name for name in ("dx", "dweight", "dbias") if f"{name}: ok" in out] == tensors


def test_deterministic_explains_itself_and_refuses_atomics(capsys: pytest.CaptureFixture[str]) -> None:
    why = run(capsys, "space", *BACKWARD, "--deterministic", "--why")[1]
    assert "one block that loops over all rows" in why
    rest = "threads_per_row=16 rows_per_block=8 persistent=0 stages=1 params=late dependent_launch=off"
    for columns, reason in [
        ("atomic", "deterministic: atomics keep the order of rows only where"),
        ("shared_atomic", "deterministic: atomics add the sums of blocks in whatever order these end"),
    ]:
        asked = ("--deterministic", "--schedule", f"{rest} columns={columns}")
        code, _, err = run(capsys, "show", *BACKWARD, *asked)
        assert code == 2
        assert reason in err


def test_in_place_reaches_the_kernel_and_its_check(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--op", "rmsnorm", "--shape", "24x64", "--without", "rstd")
    code, out, _ = run(capsys, "show", *asked, "--in-place", "y=x")
    assert code == 0
    assert "// y takes the place of x." in out
    assert run(capsys, "verify", "--device", "cpu", *asked, "--in-place", "y=x")[0] == 0
    code, _, err = run(capsys, "show", *asked, "--in-place", "y=weight")
    assert code == UsageError.exit_code
    assert "'weight' is none that is read" in err
    code, _, err = run(capsys, "show", *asked, "--in-place", "y=x", "--in-place", "y=x")
    assert code == UsageError.exit_code
    assert "--in-place names a tensor once" in err


def test_a_matrix_in_the_order_of_torch_reaches_the_kernel_its_check_and_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("--op", "linear", "--shape", "20x24", "--size", "inner=17")
    code, out, _ = run(capsys, "show", *asked, "--layout", "w=cols_inner")
    assert code == 0
    assert "w + (n0 + threadIdx.x / kLineN) * w_pitch + threadIdx.x % kLineN" in out
    assert run(capsys, "verify", "--device", "cpu", *asked, "--layout", "w=cols_inner")[0] == 0
    code, _, err = run(capsys, "show", *asked, "--layout", "w=row_major")
    assert code == 2
    assert "error: unknown order of a matrix\n  received: w=row_major\n  hint: known names: cols_inner" in err


def test_a_layout_reaches_the_kernel_and_its_check(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--op", "quantize_to_fp8_group", "--shape", "24x256")
    code, out, _ = run(capsys, "show", *asked, "--layout", "scale=column_major")
    assert code == 0
    assert "// scale is column-major." in out
    assert run(capsys, "verify", "--device", "cpu", *asked, "--layout", "scale=column_major")[0] == 0
    code, _, err = run(capsys, "show", *asked, "--layout", "scale=packed")
    assert code == UsageError.exit_code
    assert "packed scales are four f8e8m0 in a word\n  received: scale: f32" in err
    code, _, err = run(capsys, "show", *asked, "--layout", "scale=row_major", "--layout", "scale=column_major")
    assert code == UsageError.exit_code
    assert "--layout names a tensor once" in err


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("--schedule", "vector=2 vector=4"), "a schedule names a knob once"),
        (("--dtypes", "weight=f32,weight=bf16"), "--dtypes names a tensor once"),
        (("--in-place", "y=x,y=x"), "--in-place names a tensor once"),
        (("--size", "inner=8,inner=9"), "--size names an axis once"),
        (("--set", "eps=1", "--set", "eps=2"), "--set names a scalar once"),
    ],
)
def test_what_is_said_twice_is_refused(words: tuple[str, ...], rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "verify", "--device", "cpu", "--op", "rmsnorm", "--shape", "4x64", *words)
    assert code == UsageError.exit_code
    assert f"error: {rule}\n  received: " in err
    assert "hint: leave out one" in err


def test_accumulate_shows_in_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert "+= " in run(capsys, "show", *BACKWARD, "--accumulate", "--ir")[1]
    assert "+= " not in run(capsys, "show", *BACKWARD, "--ir")[1]
    code, _, err = run(capsys, "show", "--shape", "24x64", "--accumulate")
    assert code == 2
    assert "belong to the backward direction" in err


def test_tune_without_a_gpu_predicts_and_writes_record_and_header(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune = ("tune", "--device", "cpu", "--shape", "8x1024x768", "--trials", "4")
    code, out, _ = run(capsys, *tune)
    assert code == 0
    assert "rows = 8192, cols = 768" in out
    assert "predicted, not measured" in out
    found = json.loads(run(capsys, *tune, "--json")[1])
    assert found["measured"] is False
    assert (found["rows"], found["cols"]) == (8192, 768)
    assert Path(found["paths"]["record"]).read_text().startswith('{"schema": 1, "op": "layernorm"')
    assert Path(found["paths"]["header"]).is_file()
    assert len(list((tmp_path / "state" / "records").glob("h200.jsonl"))) == 1


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60.0), ("2m", 120.0), ("1.5", 1.5), ("1h", 3600.0)])
def test_times_have_units(text: str, seconds: float) -> None:
    assert cli_options.parse_seconds(text) == seconds


def test_pairs_are_separated_by_spaces_or_commas() -> None:
    assert cli_options.parse_pairs("a=1 b=x,c=3") == {"a": "1", "b": "x", "c": "3"}
    assert cli_options.parse_pairs("") == {}
    with pytest.raises(UsageError, match="name=value"):
        cli_options.parse_pairs("a=")


def test_report_writes_a_page_and_names_damaged_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from tests.report import made

    source = made.write(tmp_path / "a.jsonl", made.candidates(made.key()))
    source.write_text(source.read_text() + "damaged\n")
    code, out, err = run(capsys, "report", str(source), "--out", str(tmp_path / "report.html"))
    assert (code, out) == (0, f"{tmp_path / 'report.html'}\n")
    assert "a.jsonl:13: set aside: not JSON" in err
    assert "layernorm" in (tmp_path / "report.html").read_text()


def test_report_of_nothing_is_exit_3_and_of_no_records_exit_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normgen.report.evidence.record_folders", lambda: ())
    monkeypatch.setattr("normgen.report.evidence.shipped", lambda name: tmp_path / name)
    assert run(capsys, "report", "--out", str(tmp_path / "a.html"))[0] == 3
    (tmp_path / "notes.txt").write_text("notes\n")
    code, _, err = run(capsys, "report", str(tmp_path / "notes.txt"), "--out", str(tmp_path / "a.html"))
    assert code == 2
    assert "a report is made from files of records" in err
    assert not (tmp_path / "a.html").exists()


def test_explain_says_what_a_schedule_costs(capsys: pytest.CaptureFixture[str]) -> None:
    for extra, key in (((), "occupancy"), (("--json",), '"waves"')):
        with pytest.raises(SystemExit) as ended:
            cli.main(["explain", "--shape", "8192x768", "load=streaming", *extra])
        assert ended.value.code == 0
        assert key in capsys.readouterr().out


def test_a_replay_of_what_is_no_sweep_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("{}\n")
    with pytest.raises(SystemExit) as ended:
        cli.main(["replay", str(file)])
    assert ended.value.code == 2
    assert "what `normgen sweep` wrote" in capsys.readouterr().err


OWN = """
name = "scaled_square"
summary = "Each row's squares over their sum."
[tensors]
x = { role = "input" }
y = { role = "output", follows = "x" }
[formulas]
y = "x**2 / (sum(x**2) + 1)"
"""


def test_the_record_of_an_own_spec_is_exported_without_the_spec(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "scaled_square.toml"
    own.write_text(OWN, encoding="utf-8")
    code, _, err = run(capsys, "tune", "--op", str(own), "--shape", "64x256", "--device", "cpu", "--trials", "3")
    assert code == 0, err
    (winner,) = (tmp_path / "state").rglob("winner.jsonl")
    own.unlink()
    code, _, err = run(capsys, "export", str(winner), "--output", str(tmp_path / "headers"))
    assert code == 0, err
    (header,) = (tmp_path / "headers").glob("*.cu")
    assert "scaled_square_fwd_f32" in header.read_text(encoding="utf-8")


def test_completion_is_a_command_for_each_shell(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        code, out, _ = run(capsys, "completion", shell)
        assert code == 0
        assert "_NORMGEN_COMPLETE" in out
    code, _, err = run(capsys, "completion", "csh")
    assert code == 2
    assert err.startswith("error: ")


def test_clicks_own_refusals_have_the_form_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "tune", "--shpae", "8x8")
    assert code == 2
    assert err.splitlines()[0].startswith("error: No such option")
    assert "`normgen tune --help`" in err


def test_a_spec_in_this_folder_is_hinted_at_by_its_path(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("l2norm.toml").write_text("", encoding="utf-8")
    assert "--op ./l2norm.toml" in run(capsys, "tune", "--op", "l2norm", "--shape", "8x8")[2]
    assert "sm_70 is not supported" in run(capsys, "show", "--shape", "8x8", "--target", "V100")[2]


def test_a_pass_that_changes_nothing_is_one_line_and_the_kernel_stands_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    problem = ("--op", "rmsnorm", "--shape", "8x768")
    _, out, _ = run(capsys, "show", *problem, "--ir", "--schedule", "plain")
    _, found, _ = run(capsys, "show", *problem, "--ir", "--schedule", "plain", "--json")
    passes = json.loads(found)["ir"]
    changed = [a["program"] != b["program"] for a, b in pairwise(passes)]
    assert out.count(": unchanged\n") == changed.count(False) > 0
    assert out.count("program rmsnorm") == 1 + changed.count(True)
    _, whole, _ = run(capsys, "show", *problem)
    _, kernel, _ = run(capsys, "show", *problem, "--kernel")
    assert whole.rstrip().endswith(kernel.strip())
    assert kernel.count("__global__") == 1
    assert "__device__ __forceinline__ float element(" not in kernel


def test_a_column_that_no_row_fills_is_not_printed() -> None:
    text = filled(("", "us", "low", "roof", "schedule"), [["best", "2.1", "-", "", "a"], ["", "2.2", "-", "-", "b"]])
    assert [line.split() for line in text.splitlines()] == [["us", "schedule"], ["best", "2.1", "a"], ["2.2", "b"]]


def test_commands_that_print_have_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert json.loads(run(capsys, "report", "--out", str(file), "--json")[1]) == {"written": [str(file)]}
    spec = json.loads(run(capsys, "spec", "check", str(list_specs()["rmsnorm"]), "--json")[1])
    assert spec["name"] == "rmsnorm"
    assert spec["program"].startswith("program rmsnorm")


def test_a_file_to_write_needs_a_folder_that_is_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    away = tmp_path / "away" / "file"
    commands = (("report", "--out"), ("bench", "decode_h200", "--json"), ("ladder", "reduce", "--page"))
    for words in (*commands, ("ladder", "reduce", "--plot"), ("sweep", "--shape", "8x96", "--out")):
        assert run(capsys, *words, str(away))[0] == 2
        _, _, said = run(capsys, *words, str(away))
        assert f"must exist\n  received: {away}\n  hint: mkdir -p {away.parent}" in said
    assert not away.parent.exists()


def test_a_shape_of_one_number_says_that_it_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, said = run(capsys, "show", "--shape", "96", "--print-schedule")
    assert (code, said) == (0, "--shape 96 is one row of 96 columns; 8x96 are eight\n")
    assert "rows_per_block" in out


def test_an_unknown_command_gets_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = run(capsys, "tun")
    assert code == 2
    assert "error: unknown command\n  received: tun\n  hint: did you mean 'tune'?" in said


def test_what_a_call_or_a_model_costs_is_a_table_and_a_file_or_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Rounds(
        **opening(TARGETS["h200"], {}, {}), name="host", about="host time", unit="µs", base="add",
        contenders=tuple(against({"add": (2.0,) * 6, "rmsnorm": (4.5,) * 6}, "add")),
    )  # fmt: skip
    times = ModuleType("normgen.bench.host_times")
    times.host_times = lambda **_: found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, times.__name__, times)
    for json_to in (None, str(tmp_path / "host.json")):
        bench_command.run_host(json_to, rounds=1, device=0)
        assert capsys.readouterr().out == f"{found}\n"
    assert re.search(r"rmsnorm +4.500 +2.250 \[2.250, 2.250\]", str(found))
    assert read(Rounds, tmp_path / "host.json") == found
    bench_command.run_host("-", rounds=1, device=0)
    told = json.loads(capsys.readouterr().out)["contenders"]
    assert [(one["name"], one["median"]) for one in told] == [("add", 2.0), ("rmsnorm", 4.5)]
