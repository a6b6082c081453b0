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
    "product/in_torch.py": (r"dlinear\.weight: largest error \d\.\de-0[5-9](.*\n)*12 steps: loss [\d.]+ before", ""),
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


CPP = {
    "layernorm": [("8192", "768"), ("37", "1000"), ("3", "1023")],
    "linear_bias_gelu": [("256", "256", "128"), ("37", "100", "50"), ("129", "65", "1031"), ("1", "1", "1")],
}


@pytest.fixture(scope="module", params=CPP)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program by the lines of the index, its header first, where one is made; with every warning an error."""
    name, folder = request.param, tmp_path_factory.mktemp("program")
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for line in re.findall(rf"^normgen (tune --op {name} .*)$", index, re.MULTILINE):
        run(sys.executable, "-m", "normgen", *line.split(), "--device", "cpu", "--trials", "2", cwd=folder, gpu=False)
    (line,) = re.findall(rf"^(nvcc .* examples/{name}\.cu .*?) && ", index, re.MULTILINE)
    paths = {name: folder / name, "headers": folder / "headers"}
    words = [str(paths.get(word, word)) for word in line.split()]
    run(*words, "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra", cwd=ROOT, gpu=False)
    return folder / name


@needs_nvcc
def test_a_cpp_program_compiles_and_says_that_there_is_no_gpu(program: Path) -> None:
    assert "no CUDA device" in run(program, cwd=program.parent, gpu=False)


@needs_nvcc
@pytest.mark.gpu
def test_a_cpp_program_agrees_with_float64(program: Path) -> None:
    for place, sizes in enumerate(CPP[program.name]):
        told = run(program, *sizes, cwd=program.parent, gpu=True)
        assert "largest error" in told
        if program.name != "layernorm":
            assert ("tuned kernel" in told) == (place == 0), told


def test_the_index_names_every_example() -> None:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    files = [file for file in EXAMPLES.rglob("*") if file.suffix in (".py", ".cu", ".toml")]
    assert len(files) >= 5
    assert {file for file in files if f"({file.relative_to(EXAMPLES)})" not in index} == set()
