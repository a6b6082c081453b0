"""A folder of Hugging Face's `kernels`, in the hands of its own package and of transformers' models, on the CPU.

There the layer is the formula by torch; its operators, their gradients and their traces are those of the GPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from normgen.cli.export import export
from normgen.device import Device, target
from normgen.errors import NothingValidError, UsageError
from normgen.records.record import Record

from ..export.cases import H200, record
from .libraries import HERE, NEEDS_CLIENT

FOUND = all(map(importlib.util.find_spec, ("torch", "kernels", "transformers")))
needs_kernels = pytest.mark.skipif(not FOUND, reason="torch, kernels and transformers are not here")


def both(op: str, dtype: str, *, device: Device = H200, **backward: Any) -> tuple[Record, Record]:
    shape: dict[str, Any] = {"shape": "64x256", "dtype": dtype, "device": device}
    return record(op, **shape), record(op, **shape, direction="backward", **backward)


PLAIN = both("rmsnorm", "bf16")
ROUNDS = both("vllm_ir_rmsnorm", "bf16", without=("rstd",))


def exported(folder: Path, *records: Record, options: tuple[str, ...] = ()) -> Any:
    (folder / "some.jsonl").write_text("".join(one.line() for one in records))
    return CliRunner().invoke(export, [str(folder / "some.jsonl"), "--hf-kernels", str(folder / "hub"), *options])


@pytest.fixture(scope="module", params=[PLAIN, ROUNDS], ids=["unrounded", "rounds as transformers"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bool, Path]:
    """Whether it rounds as transformers, and the folder."""
    made, rounds = tmp_path_factory.mktemp("hub"), request.param is ROUNDS
    done = exported(made, *request.param, *(PLAIN if rounds else ()))
    assert done.exit_code == 0, done.output
    return rounds, made / "hub"


@NEEDS_CLIENT
def test_the_folder_has_a_variant_for_cuda_with_libraries_and_one_for_cpus(folder: tuple[bool, Path]) -> None:
    rounds, place = folder
    op = "vllm_ir_rmsnorm" if rounds else "rmsnorm"
    found = {v.name: sorted(f.name for f in v.iterdir()) for v in (place / "build").iterdir()}
    module, left_out = ["__init__.py", "metadata.json"], "_without_rstd" * rounds
    libraries = [f"{op}_bwd_bf16{left_out}.so", f"{op}_fwd_bf16.so"]
    assert found == {"torch-cuda": [*module, *libraries], "torch-cpu": module}
    text = (place / "build" / "torch-cuda" / "__init__.py").read_text()
    assert not [line for line in text.splitlines() if "import" in line and "normgen" in line]
    assert "found[0](y, rstd, x, weight, eps)" in text
    assert f"found[1](dx, dweight, dy, x, weight, {'eps' if rounds else 'rstd'})" in text
    assert ("(scaled.to(weight.dtype) * weight).to(x.dtype)" in text) == rounds


@NEEDS_CLIENT
def test_what_makes_no_layer_and_a_folder_of_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(exported(tmp_path, PLAIN[0]).exception, NothingValidError)
    other = tmp_path / "hub" / "build" / "torch-cuda"
    other.mkdir(parents=True)
    (other / "metadata.json").write_text(json.dumps({"name": "mine"}))
    assert isinstance(exported(tmp_path, *PLAIN[:2]).exception, UsageError)
    assert list(other.iterdir()) == [other / "metadata.json"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    refused = exported(tmp_path, *PLAIN[:2], options=("--replace",)).exception
    assert isinstance(refused, UsageError)
    assert "it is not installed" in str(refused)
    assert "pip install apache-tvm-ffi" in str(refused)


def test_libraries_of_two_architectures_or_of_other_arguments_make_no_layer(tmp_path: Path) -> None:
    forward, backward = both("rmsnorm", "bf16", device=target("b200"))
    others = {
        "are of one GPU architecture": [(PLAIN[0], backward), (*PLAIN, forward, backward)],
        "take the same arguments in every dtype": [(*PLAIN, *both("rmsnorm", "f16", without=("rstd",)))],
    }
    for rule, cases in others.items():
        for records in cases:
            refused = exported(tmp_path, *records).exception
            assert isinstance(refused, UsageError)
            assert f"the libraries of a layer {rule}\n" in str(refused)
            assert not (tmp_path / "hub").exists()


@NEEDS_CLIENT
@needs_kernels
def test_kernelize_puts_the_layer_into_a_llama_in_its_four_modes(folder: tuple[bool, Path], tmp_path: Path) -> None:
    rounds, place = folder
    done = subprocess.run(
        [sys.executable, HERE / "kernelized.py", place],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["normgen"] is False
    assert found["replaced"] == [5] * 4  # two norms a layer and the last one, in each mode
    limits = {"logits": 0.0 if rounds else 0.05, "weights": 0.05}
    assert [max(found[name]) <= limit for name, limit in limits.items()] == [True, True], found
    assert len(found["weights"]) == 2 * 5


@NEEDS_CLIENT
@needs_kernels
def test_a_layer_hands_over_rows_as_its_libraries_take_them(folder: tuple[bool, Path], tmp_path: Path) -> None:
    """However rows and the gradient behind them lie; results lie as the compiler is told that they do."""
    done = subprocess.run(
        [sys.executable, HERE / "layered.py", folder[1]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 2 * 3 * 9
    assert {case: result for case, result in found.items() if result != [True] * 4} == {}
