"""H1, H5, M10: what a spec, a path or a record says reaches no compiler but as what it means."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from normgen.choice.first import default_schedule
from normgen.cuda import nvrtc
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.errors import NormgenError
from normgen.export import headers_of
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.records.record import parse_line
from normgen.spec.reader import load, parse
from tests.codegen.executors import CpuExecutor
from tests.codegen.matrix import wrong
from tests.export.cases import record
from tests.export.test_hostile_text import code_of
from tests.reproductions.commands import ON_CPU, normgen, spec_file, spec_text, verified

CODE = "static int planted = 1;"
ABSENT = r'w = { role = "parameter", optional = true, absent = "1 #\n#include <cstdlib>\nstatic int pwned = 1;\n//" }'
INJECTED = {
    "absent": (5, spec_text('y = "x * w"', f'x = "input"\ny = "output"\n{ABSENT}')),
    "formula": (6, spec_text('m = """mean(x*x)\n#define rsqrtf(a) 1.0f"""\ny = "x * rsqrt(m)"')),
}


@pytest.mark.parametrize("where", INJECTED)
def test_h1_code_behind_a_comment_of_a_formula_is_refused_with_its_line(where: str, tmp_path: Path) -> None:
    line, text = INJECTED[where]
    file = spec_file(tmp_path, text)
    ended = normgen("tune", "--op", file, *ON_CPU, "--trials", "2", "--output", str(tmp_path / "out"))
    assert ended.code == 2
    assert ended.is_one_error
    assert ended.err.startswith(f"error: {file}:{line}: a formula holds no comment and no control character")
    assert not list(tmp_path.rglob("*.cu"))


def test_h1_the_path_of_a_spec_holds_no_line_break(tmp_path: Path) -> None:
    file = tmp_path / f"a\n{CODE}\n.toml"
    file.write_text(spec_text('y = "2 * x"'))
    ended = normgen("tune", "--op", str(file), *ON_CPU, "--output", str(tmp_path / "out"))
    assert (ended.code, ended.is_one_error) == (2, True)
    assert not list(tmp_path.rglob("*.cu"))


PLACES = [("command",), ("device", "name"), ("device", "arch"), ("versions", "nvrtc"), ("versions", "normgen")]


@pytest.mark.parametrize("path", PLACES, ids=".".join)
@pytest.mark.parametrize("mark", ["\n", "\r", "\\\n", "*/", "??/\n"], ids=ascii)
def test_h1_no_text_of_a_record_becomes_a_line_of_its_header(path: tuple[str, ...], mark: str) -> None:
    data = json.loads(record(shape="8x96").line())
    inner = data[path[0]] if len(path) > 1 else data
    inner[path[-1]] = f"{inner[path[-1]]}{mark}{CODE}\n"
    with contextlib.suppress(NormgenError, ValueError):
        (header,) = headers_of([parse_line(json.dumps(data))], spec=load("layernorm"))
        assert "planted" not in code_of(header.text)


def test_h5_a_scalar_named_i_is_the_scalar_and_not_the_index_of_an_element(tmp_path: Path) -> None:
    text = spec_text('y = "x * i"', scalars="i = 1.5")
    problem = problem_for(parse(text), shape="8x96")
    schedule = default_schedule(problem, target("h200"))
    assert "= x_i * spec_i;" in emit(problem, schedule).text
    assert not list(wrong([(problem, schedule)], CpuExecutor(), seed=1))
    assert verified(tmp_path, text).code == 0


NAMES = (
    *("pass1", "Pass1", "kCols", "kVector", "kSteps", "kVectors", "kThreadsPerRow", "kRowsPerBlock", "x_row", "y_row"),
    *("x_held", "y_values", "valid_row", "active", "Vec", "pack", "read_default", "write_default", "column"),
)


def _nvrtc_loads() -> bool:
    try:
        return nvrtc.version() > (0, 0)
    except NormgenError:
        return False


@pytest.mark.skipif(not _nvrtc_loads(), reason="NVRTC does not load on this machine")
@pytest.mark.parametrize("role", ["input", "parameter", "scalar"])
def test_h5_the_names_of_emitted_text_are_free_for_a_spec(role: str) -> None:
    """As names of formulas they compiled before."""
    named = "\n".join(f"{name} = {'1.5' if role == 'scalar' else json.dumps(role)}" for name in NAMES)
    tensors = 'x = "input"\ny = "output"' + ("" if role == "scalar" else f"\n{named}")
    text = spec_text(f'y = "x + {" * ".join(NAMES)}"', tensors, scalars=named if role == "scalar" else "")
    problem = problem_for(parse(text), shape="32x96")
    log = compile_module(emit(problem, default_schedule(problem, target("h200"))), 90).log
    assert "warning" not in log.lower()


@pytest.mark.parametrize(
    "command", [("spec", "check"), ("verify", *ON_CPU), ("tune", *ON_CPU, "--trials", "1")], ids=lambda words: words[0]
)
def test_m10_a_formula_of_several_lines_works_in_every_command(command: tuple[str, ...], tmp_path: Path) -> None:
    text = spec_text('m = "mean(x * x)"\ny = """x *\nw * m"""', 'x = "input"\nw = "parameter"\ny = "output"')
    file = spec_file(tmp_path, text)
    ended = normgen(*command, *((file,) if command[0] == "spec" else ("--op", file)))
    assert (ended.code, "error" in ended.err) == (0, False)


def test_low_a_warning_of_pythons_parser_does_not_reach_stderr(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "normgen", "spec", "check", spec_file(tmp_path, spec_text('y = "1or x"'))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert not re.search("Warning", done.stderr)
    assert "a formula must be readable (invalid decimal literal) (column 1 of the formula)" in done.stderr
