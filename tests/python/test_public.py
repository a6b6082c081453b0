"""What `import normgen` offers: names, errors, dtypes and specs in the caller's own form, and commands that work."""

from __future__ import annotations

import dataclasses
import inspect
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np
import pytest

import normgen
from normgen import errors
from normgen.cli.options import problem_arguments
from normgen.cli.tune.command import tune as tune_cli
from normgen.device import target
from normgen.dtypes import dtype
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.python import handle
from normgen.python.executor import executor_for
from normgen.records.questions import tune_command
from normgen.records.winners import spec_path
from normgen.spec.given import spec_of, toml_text
from normgen.spec.reader import list_specs, load
from tests.python.devices import NEEDS_COMPILER


def test_dir_shows_what_there_is_and_nothing_is_loaded_for_it() -> None:
    program = (
        "import sys, normgen; found = dir(normgen)\n"
        "print(all(name in found for name in normgen.__all__), 'numpy' in sys.modules, normgen.errors.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "normgen.errors"]
    assert all(getattr(normgen, name).__name__ == name for name in normgen.__all__)


def test_errors_are_public() -> None:
    raised = {n for n, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, errors.NormgenError)}
    assert raised - {"BrokenError", "ProgramError"} <= set(normgen.__all__)
    assert normgen.UsageError is errors.UsageError
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        normgen.nothing  # noqa: B018


class _Torch:
    def __repr__(self) -> str:
        return "torch.bfloat16"


class _Jax:
    """As jax.numpy.bfloat16: no class, but an object with the dtype."""

    dtype = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (np.float32, "f32"),
        (np.dtype("float16"), "f16"),
        (ml_dtypes.bfloat16, "bf16"),
        (np.dtype(ml_dtypes.bfloat16), "bf16"),
        (ml_dtypes.float8_e4m3fn, "f8e4m3"),
        (_Torch(), "bf16"),
        (_Jax(), "bf16"),
        ("Float32", "f32"),
        (np.int32, "i32"),
    ],
)
def test_dtypes_are_known_as_objects_of_libraries(given: Any, name: str) -> None:
    assert dtype(given).name == name


@pytest.mark.parametrize("given", [None, np.float64, "float99", object(), 3])
def test_other_dtypes_are_refused(given: Any) -> None:
    with pytest.raises(normgen.UsageError, match="unknown dtype"):
        dtype(given)


def test_torchs_own_dtypes_are_known() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
    assert [dtype(t).name for t in (torch.float32, torch.bfloat16, torch.float16)] == ["f32", "bf16", "f16"]


SPEC = """name = "scaled"
summary = "A row times a weight."

[tensors]
x = "input"
weight = "parameter"
y = "output"

[formulas]
y = "x * weight"
"""


def test_a_spec_may_be_a_text_a_mapping_or_itself(tmp_path: Path) -> None:
    file = tmp_path / "scaled.toml"
    file.write_text(SPEC)
    wanted = load(file)
    for given in (SPEC, tomllib.loads(SPEC), wanted, file, str(file)):
        assert spec_of(given).sha256 == wanted.sha256
    assert spec_of("rmsnorm").sha256 == load("rmsnorm").sha256
    with pytest.raises(normgen.UsageError, match="name, path, text"):
        spec_of(3)  # type: ignore[arg-type]
    with pytest.raises(normgen.SpecError, match="<text>"):
        spec_of(SPEC.replace("x * weight", "x * wheight"))
    for wrong in ({1: "x"}, {"name": object()}):
        with pytest.raises(normgen.UsageError, match="of a spec are texts"):
            spec_of(wrong)  # type: ignore[dict-item]


@pytest.mark.parametrize("name", sorted(list_specs()))
def test_every_spec_survives_as_a_mapping(name: str) -> None:
    data = tomllib.loads(load(name).text)
    assert tomllib.loads(toml_text(data)) == data
    assert spec_of(data).sha256 == load(name).sha256


@NEEDS_COMPILER
def test_a_spec_without_a_file_becomes_a_kernel() -> None:
    scaled = normgen.kernel(SPEC, shape=96, dtype=np.float32, device="cpu")
    x, weight = np.arange(192, dtype=np.float32).reshape(2, 96), np.full(96, 0.5, np.float32)
    np.testing.assert_array_equal(scaled(x, weight), x * 0.5)
    assert scaled.problem.rows == 1


def asked_by(command: str) -> Problem:
    """The problem that a command line of `normgen tune` asks for."""
    words = shlex.split(command)
    assert words[:2] == ["normgen", "tune"]
    with tune_cli.make_context("tune", words[2:]) as context:
        options = dict(context.params)
        return problem_for(spec_of(options["op"]), **problem_arguments(options))


QUESTIONS: dict[str, dict[str, Any]] = {
    "mixed": {"shape": (3, 96), "dtype": "bf16", "dtypes": {"weight": "f32"}, "without": ("rstd",)},
    "backward": {"shape": (3, 96), "direction": "backward", "gradients": ("x",)},
    "accumulating": {"shape": (4, 96), "direction": "backward", "accumulate": True, "deterministic": True},
    "promises": {"shape": (4, 96), "batch_invariant": True, "stable_parameters": True, "pitch": 128, "align": 4},
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_command_of_a_problem_asks_for_that_problem(name: str) -> None:
    problem = problem_for(load("rmsnorm"), **QUESTIONS[name])
    assert asked_by(tune_command("rmsnorm", problem)).question == problem.question


def test_the_command_that_a_warning_proposes_works_for_a_spec_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path))
    file = tmp_path / "scaled.toml"
    file.write_text(SPEC)
    gpu = executor_for("cpu")
    gpu.index = 0  # records are looked up for GPUs
    for given in (SPEC, str(file), tomllib.loads(SPEC)):
        problem = problem_for(spec_of(given), shape=(5, 72), dtype="bf16")
        handle._warned.clear()
        with pytest.warns(UserWarning, match="no record for") as caught:
            handle._Maker(executor=gpu, device="cpu", op=given).choose(problem)
        command = str(caught[0].message).split("`")[1]
        assert asked_by(command).question == problem.question
    assert spec_path(load("rmsnorm"), load("rmsnorm")) == "rmsnorm"


@NEEDS_COMPILER
def test_a_tunes_result_is_short_and_becomes_its_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path))
    result = normgen.tune(SPEC, shape=64, device="cpu", trials=1, budget_s=20.0)
    assert len(repr(result).splitlines()) == 3
    assert len(repr(result)) < 500
    made = result.kernel(device="cpu")
    assert made.schedule == result.record.schedule
    x = np.ones((3, 64), np.float32)
    np.testing.assert_array_equal(made(x, x[0] * 2), x * 2)
    assert asked_by(result.record.command).question == result.record.problem
    assert target("h200").name in repr(result)


def test_present_and_without_exclude_each_other() -> None:
    with pytest.raises(normgen.UsageError, match="say the same"):
        normgen.kernel("rmsnorm", shape=(2, 64), present=("weight",), without=("rstd",), device="cpu")
    assert dataclasses.is_dataclass(normgen.Spec)
    assert isinstance(tune_cli, click.Command)
