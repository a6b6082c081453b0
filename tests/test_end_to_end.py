"""From a formula that no library has to verified kernels, with nothing written but the ten lines of its spec."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from normgen import verify
from normgen.choice.first import default_schedule
from normgen.cpu import build, find_compiler
from normgen.device import target
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.report.readme import ROOT
from normgen.spec.reader import load

H200 = target("h200")
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
# By hand: with r = rsqrt(Σx² + eps) and d = dy gain, y = x r gain has dx = r d - x r³ Σ(x d); dgain sums dy x r.
L2NORM_BACKWARD = (
    ("r", "rsqrt(sum(x * x) + eps)"),
    ("scaled", "dy * gain"),
    ("along_x", "sum(x * scaled)"),
    ("dx", "r * scaled - x * r * r * r * along_x"),
    ("dgain", "sum_rows(dy * x * r)"),
)


@pytest.fixture
def l2norm(tmp_path: Path) -> Path:
    """The spec that the README shows, in a folder of its own."""
    shown = re.search(r"<!-- file: l2norm.toml -->\n```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    path = tmp_path / "l2norm.toml"
    path.write_text(shown[1], encoding="utf-8")
    return path


def normgen(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line as a user runs it, with its state in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", "normgen", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "NORMGEN_STATE_DIR": str(folder / "state"), "PYTHONPATH": str(ROOT)},
    )


@needs_compiler
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("shape", [(37, 96), (5, 123)], ids=str)
def test_a_new_spec_gives_a_verified_forward_kernel(l2norm: Path, shape: tuple[int, int], dtype: str) -> None:
    problem = problem_for(load(l2norm), shape=shape, dtype=dtype)
    inputs, outputs = verify.make_inputs(problem), verify.make_outputs(problem)
    program = build(emit(problem, default_schedule(problem, H200)))
    run = program.run({**inputs.arrays, **outputs.arrays}, rows=shape[0], cols=shape[1], scalars=inputs.scalars)
    assert not run.faults
    found = verify.check(problem, inputs, outputs)
    assert found.ok, found.summary()
    rows = [i for i, family in enumerate(inputs.families) if family == "normal"]
    x = inputs.arrays["x"][rows].astype(np.float64)
    want = x / np.sqrt((x * x).sum(axis=1, keepdims=True) + 1e-6) * inputs.arrays["gain"].astype(np.float64)
    unit = problem.dtype.unit_roundoff
    np.testing.assert_allclose(outputs.arrays["y"][rows].astype(np.float64), want, rtol=unit + 1e-5)


@needs_compiler
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("shape", [(37, 96), (5, 123)], ids=str)
def test_a_new_spec_gives_a_verified_backward_kernel(l2norm: Path, shape: tuple[int, int], dtype: str) -> None:
    problem = problem_for(load(l2norm), shape=shape, dtype=dtype, direction="backward")
    assert [t.name for t in problem.tensors] == ["dx", "dgain", "dy", "x", "gain"]
    inputs, outputs = verify.make_inputs(problem), verify.make_outputs(problem)
    program = build(emit(problem, default_schedule(problem, H200)))
    run = program.run({**inputs.arrays, **outputs.arrays}, rows=shape[0], cols=shape[1], scalars=inputs.scalars)
    assert not run.faults
    found = verify.check(problem, inputs, outputs, formulas=L2NORM_BACKWARD)
    assert found.ok, found.summary()
    derived = verify.check(problem, inputs, outputs)
    assert derived.ok, derived.summary()


@needs_compiler
def test_the_commands_take_a_new_spec(l2norm: Path) -> None:
    folder = l2norm.parent
    checked = normgen(folder, "spec", "check", "l2norm.toml")
    assert checked.returncode == 0, checked.stderr
    assert "sum(x**2)" in checked.stdout
    verified = normgen(folder, "verify", "--op", "l2norm.toml", "--shape", "37x96", "--device", "cpu")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "y: ok" in verified.stdout
    backward = ("--op", "l2norm.toml", "--shape", "37x96", "--device", "cpu", "--direction", "backward")
    verified = normgen(folder, "verify", *backward)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "dx: ok" in verified.stdout
    assert "dgain: ok" in verified.stdout
    tuned = normgen(folder, "tune", *backward, "--target", "h200", "--dtype", "bf16", "--trials", "4", "--json")
    assert tuned.returncode == 0, tuned.stdout + tuned.stderr
    result = json.loads(tuned.stdout)
    assert result["problem"] == "l2norm_bwd_bf16"
    assert set(result["best"]["error"]) == {"dx", "dgain"}
    assert any("verified on the CPU executor" in note for note in result["notes"])
    shown = normgen(folder, "show", "--op", "l2norm.toml", "--shape", "8192x768", "--ir", "--direction", "backward")
    assert re.search(r"store +dx", shown.stdout), shown.stderr
    assert re.search(r"reduce +dgain *: col", shown.stdout)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:no record for")
def test_the_readmes_kernels_agree_with_autograd(l2norm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    shown = re.search(r"<!-- needs: gpu -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    monkeypatch.chdir(l2norm.parent)
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(l2norm.parent / "cache"))
    exec(compile(shown[1], "README.md", "exec"), {})  # its own last lines compare


def test_a_spec_cannot_run_python(tmp_path: Path, l2norm: Path) -> None:
    mark = tmp_path / "ran"
    evil = tmp_path / "evil.toml"
    text = l2norm.read_text().replace(
        "x * rsqrt(sum(x*x) + eps) * gain", f"__import__('pathlib').Path('{mark}').touch()"
    )
    evil.write_text(text)
    done = normgen(tmp_path, "spec", "check", "evil.toml")
    assert done.returncode == 2
    assert "evil.toml:10" in done.stderr
    assert not mark.exists()


@needs_compiler
def test_tune_without_a_gpu_ends_with_a_prediction(tmp_path: Path) -> None:
    tune = ("tune", "--device", "cpu", "--shape", "8x64x768", "--target", "h200", "--trials", "6", "--budget", "60s")
    done = normgen(tmp_path, *tune)
    assert done.returncode == 0, done.stderr
    assert "rows = 512, cols = 768" in done.stdout
    assert "predicted, not measured" in done.stdout
    assert "verified on the CPU executor" in done.stdout + done.stderr
