"""The examples: each runs as it stands and compares its own results; on a GPU where there is one."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from normgen.report.readme import ROOT

EXAMPLES = ROOT / "examples"
# What a program prints on any machine, and what it needs beside torch.
PROGRAMS = {
    "patch_transformers.py": (r"5 x replaced: llama_rms_norm.*\n(.*\n)*loss [\d.]+ before", "transformers"),
    "training_step.py": (r"step 11: torch [\d.]+, ours [\d.]+", ""),
    "custom_norm/in_torch.py": (r"dweight: largest error \d\.\de-0[5-9]", ""),
}
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the path")


def run(*command: str | Path, cwd: Path, gpu: bool) -> str:
    state = {name: str(cwd / name.lower()) for name in ("NORMGEN_STATE_DIR",)}
    paths = {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    hidden = {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
    environment = os.environ | state | paths | hidden
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


DEVICES = [pytest.param(False, id="cpu"), pytest.param(True, id="gpu", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("gpu", DEVICES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_and_its_results_agree(name: str, gpu: bool, tmp_path: Path) -> None:
    pattern, library = PROGRAMS[name]
    for needed in ("torch", library):
        if needed and importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    told = run(sys.executable, EXAMPLES / name, cwd=tmp_path, gpu=gpu)
    assert re.search(pattern, told), told


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """layernorm.cu, compiled by the line of the index, with every warning an error."""
    (line,) = re.findall(r"^(nvcc .*?) && ", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    out = tmp_path_factory.mktemp("program") / "layernorm"
    words = [str(out) if word == "layernorm" else word for word in line.split()]
    run(*words, "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra", cwd=ROOT, gpu=False)
    return out


@needs_nvcc
def test_the_cpp_program_compiles_and_says_that_there_is_no_gpu(program: Path) -> None:
    assert "no CUDA device" in run(program, cwd=program.parent, gpu=False)


@needs_nvcc
@pytest.mark.gpu
@pytest.mark.parametrize("shape", [("8192", "768"), ("37", "1000"), ("3", "1023")], ids="x".join)
def test_the_cpp_program_agrees_with_float64(program: Path, shape: tuple[str, str]) -> None:
    assert "largest error" in run(program, *shape, cwd=program.parent, gpu=True)


def test_the_index_names_every_example() -> None:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    files = [file for file in EXAMPLES.rglob("*") if file.suffix in (".py", ".cu", ".toml")]
    assert len(files) >= 5
    assert {file for file in files if f"({file.relative_to(EXAMPLES)})" not in index} == set()
