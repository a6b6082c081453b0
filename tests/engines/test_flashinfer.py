"""FlashInfer's folders in the hands of its own code: flashinfer-bench reads and builds, Trace Apply serves calls."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import normgen
from normgen.cli.export import export
from normgen.device import target
from normgen.errors import NothingValidError, UsageError
from normgen.records.record import Record

from ..export.cases import record
from .libraries import HERE, NEEDS_CLIENT, called, fake_driver, place, run, tensor

IN_PLACE = {"h": "residual", "y": "x"}
RECORDS = (
    record("rmsnorm", shape="64x256", dtype="bf16"),
    record("rmsnorm", shape="8x256", dtype="bf16"),
    record("rmsnorm", shape="64x256", dtype="f16"),
    record("add_rmsnorm", shape="64x256", dtype="bf16", in_place=IN_PLACE),
    record("layernorm", shape="64x256"),
    record("gemma_rmsnorm", shape="64x256", dtype="bf16", without=("residual", "h")),
    record("flashinfer_rmsnorm_to_fp8", shape="64x256", dtype="bf16"),
    record("flashinfer_add_rmsnorm_to_fp8", shape="64x256", dtype="bf16", in_place={"h": "residual"}),
)
OTHERS = (  # none of these is what FlashInfer calls by these names
    record("rmsnorm", shape="64x512", dtype="bf16", direction="backward"),
    record("add_rmsnorm", shape="64x512", dtype="bf16"),
    record("softmax", shape="64x512"),
    record("gemma_rmsnorm", shape="64x512", dtype="bf16", without=("h",)),
    record("flashinfer_add_rmsnorm_to_fp8", shape="64x512", dtype="bf16"),
)
NAMES = (
    "fused_add_rmsnorm_h256",
    "fused_add_rmsnorm_quant_h256",
    "gemma_rmsnorm_h256",
    "layernorm_h256",
    "rmsnorm_h256",
    "rmsnorm_quant_h256",
)
BENCH = all(map(importlib.util.find_spec, ("flashinfer_bench", "torch")))
needs_bench = pytest.mark.skipif(not BENCH, reason="flashinfer-bench and torch are not here")
NVCC = shutil.which("nvcc")
needs_flashinfer = pytest.mark.skipif(
    importlib.util.find_spec("flashinfer") is None or NVCC is None,
    reason="FlashInfer, or the nvcc that it asks, is not here",
)


def exported(folder: Path, *records: Record) -> Any:
    (folder / "some.jsonl").write_text("".join(one.line() for one in records))
    return CliRunner().invoke(export, [str(folder / "some.jsonl"), "--flashinfer", str(folder / "trace")])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("flashinfer")
    done = exported(made, *RECORDS, *OTHERS)
    assert done.exit_code == 0, done.output
    return made / "trace"


def built(folder: Path, source: str, name: str) -> Path:
    """The library of a solution, its function being normgen_<name>; a warning fails."""
    (folder / f"{name}.cc").write_text(source)
    flags = ["-std=c++17", "-O0", "-Wall", "-Werror", "-shared", "-fPIC", "-isystem", place() / "include"]
    library = folder / f"{name}.so"
    run("g++", *flags, folder / f"{name}.cc", "-L", place() / "lib", "-ltvm_ffi", "-ldl", "-o", library)
    return library


def loaded(folder: Path, what: str) -> dict[str, Any]:
    return {p.stem.removeprefix("normgen_"): json.loads(p.read_text()) for p in (folder / what).rglob("*.json")}


def test_operations_of_flashinfer_are_exported_by_its_names_and_no_others(folder: Path) -> None:
    definitions, solutions = loaded(folder, "definitions"), loaded(folder, "solutions")
    assert sorted(definitions) == sorted(solutions) == [*NAMES]
    rms = definitions["rmsnorm_h256"]
    assert rms["inputs"]["hidden_states"] == {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"}
    assert rms["axes"] == {"batch_size": {"type": "var"}, "hidden_size": {"type": "const", "value": 256}}
    (workloads,) = folder.glob("workloads/*/rmsnorm_h256.jsonl")
    asked = [json.loads(line) for line in workloads.read_text().splitlines()]
    assert [one["workload"]["axes"]["batch_size"] for one in asked] == [8, 64]


def test_records_of_other_operations_alone_are_refused_with_a_sentence(tmp_path: Path) -> None:
    refused = exported(tmp_path, *OTHERS).exception
    assert isinstance(refused, NothingValidError)
    assert "FlashInfer's definitions are of forward kernels" in str(refused)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_records_of_two_architectures_make_no_solution(dtype: str, tmp_path: Path) -> None:
    refused = exported(tmp_path, RECORDS[0], record("rmsnorm", shape="64x256", dtype=dtype, device=target("b200")))
    assert isinstance(refused.exception, UsageError)
    said = "the solution of rmsnorm_h256 has the machine code of one GPU architecture\n  received: sm_90, sm_100\n"
    assert said in str(refused.exception)
    assert not (tmp_path / "trace").exists()


@NEEDS_CLIENT
def test_a_solution_launches_the_dtypes_kernel_and_copies_what_is_not_in_place(folder: Path, tmp_path: Path) -> None:
    driver, solutions, libraries = fake_driver(tmp_path), loaded(folder, "solutions"), {}
    for name in ("rmsnorm_h256", "fused_add_rmsnorm_h256"):
        libraries[name] = built(tmp_path, solutions[name]["sources"][0]["content"], name)

    def call(name: str, *arguments: Any) -> dict[str, Any]:
        return {"library": str(libraries[name]), "function": f"normgen_{name}", "arguments": list(arguments)}

    def rows(at: int, dtype: tuple[int, int]) -> dict[str, Any]:
        return tensor(at, (8, 256), dtype)

    def weight(dtype: tuple[int, int]) -> dict[str, Any]:
        return tensor(8192, (256,), dtype)

    bf16, f16, f32 = (4, 16), (2, 16), (2, 32)
    x, residual = rows(1 << 20, bf16), rows(1 << 21, bf16)
    found = called(
        [
            *(call("rmsnorm_h256", rows(4096, d), weight(d), rows(1 << 16, d)) for d in (bf16, f16, f32)),
            call("fused_add_rmsnorm_h256", x, residual, weight(bf16), x, residual),
            call("fused_add_rmsnorm_h256", x, residual, weight(bf16), rows(1 << 22, bf16), rows(1 << 23, bf16)),
        ],
        driver=driver,
    )
    launched = [[line.split()[0] for line in lines if not line.startswith("device")] for lines in found]
    assert launched == [["launch", "="], ["launch", "="], ["="], ["launch", "="], ["copy", "copy", "launch", "="]]
    assert "rmsnorm_fwd_bf16" in found[0][-2]
    assert "rmsnorm_fwd_f16" in found[1][-2]
    assert re.fullmatch(r"= TypeError: rmsnorm_fwd_f16: 'y' is stored as float16; received float32", found[2][-1])
    copies = [line for line in found[4] if line.startswith("copy")]
    assert copies == [f"copy {1 << 22} {1 << 20} {8 * 256 * 2}", f"copy {1 << 23} {1 << 21} {8 * 256 * 2}"]


@NEEDS_CLIENT
def test_a_solution_launches_a_kernel_without_the_tensors_that_its_function_does_not_take(
    folder: Path, tmp_path: Path
) -> None:
    name, bf16 = "gemma_rmsnorm_h256", (4, 16)
    library = built(tmp_path, loaded(folder, "solutions")[name]["sources"][0]["content"], name)
    x, weight, y = (tensor(at, shape, bf16) for at, shape in ((4096, (8, 256)), (1 << 16, (256,)), (1 << 20, (8, 256))))
    call = {"library": str(library), "function": f"normgen_{name}", "arguments": [x, weight, y]}
    (lines,) = called([call], driver=fake_driver(tmp_path))
    assert [line.split()[0] for line in lines if not line.startswith("device")] == ["launch", "="], lines


@NEEDS_CLIENT
def test_a_scale_is_a_tensor_of_one_element_and_a_sum_without_memory_of_its_own_is_in_place(
    folder: Path, tmp_path: Path
) -> None:
    """Trace Apply hands `out` over twice: it has no memory for the residual but the residual itself."""
    name, driver = "fused_add_rmsnorm_quant_h256", fake_driver(tmp_path)
    library = built(tmp_path, loaded(folder, "solutions")[name]["sources"][0]["content"], name)
    bf16, f32, fp8 = (4, 16), (2, 32), (10, 8)
    x, residual, weight = tensor(1 << 20, (8, 256), bf16), tensor(1 << 21, (8, 256), bf16), tensor(8192, (256,), bf16)
    out, other = tensor(1 << 22, (8, 256), fp8), tensor(1 << 23, (8, 256), bf16)

    def call(shape: tuple[int, ...], residual_out: dict[str, Any], dtype: tuple[int, int] = f32) -> dict[str, Any]:
        arguments = [x, residual, weight, tensor(4096, shape, dtype), out, residual_out]
        return {"library": str(library), "function": f"normgen_{name}", "arguments": arguments}

    calls = [call((1,), out), call((), residual), call((1, 1), other), call((2,), out), call((1,), out, bf16)]
    found = called(calls, driver=driver)
    launched = [[line.split()[0] for line in lines if not line.startswith("device")] for lines in found]
    assert launched == [["launch", "="], ["launch", "="], ["copy", "launch", "="], ["="], ["="]]
    assert [line for line in found[2] if line.startswith("copy")] == [f"copy {1 << 23} {1 << 21} {8 * 256 * 2}"]
    assert "'scale' is []; received [2]" in found[3][-1]
    assert "'scale' is stored as float32; received bfloat16" in found[4][-1]


@needs_bench
def test_flashinfer_bench_reads_and_builds_what_is_exported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path))
    from flashinfer_bench.compile import BuilderRegistry
    from flashinfer_bench.data import TraceSet

    found = TraceSet.from_path(str(folder))
    assert sorted(found.definitions) == sorted(found.solutions) == sorted(found.workloads) == [*NAMES]
    name = "fused_add_rmsnorm_h256"
    built = BuilderRegistry.get_instance().build(found.definitions[name], found.solutions[name][0])
    x, weight = torch.zeros(4, 256, dtype=torch.bfloat16), torch.zeros(256, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="is on a CUDA device; received DLPack device type 1"):
        built.call_destination_passing(x, x, weight, x, x)


OURS: dict[str, dict[str, Any]] = {
    "rmsnorm_h256": {"op": "rmsnorm", "without": ("rstd",)},
    "fused_add_rmsnorm_h256": {"op": "add_rmsnorm", "without": ("rstd",)},
    "layernorm_h256": {"op": "layernorm", "without": ("mean", "rstd")},
    "gemma_rmsnorm_h256": {"op": "gemma_rmsnorm", "without": ("residual", "h", "rstd")},
    "rmsnorm_quant_h256": {"op": "flashinfer_rmsnorm_to_fp8", "without": ("rstd",)},
    "fused_add_rmsnorm_quant_h256": {"op": "flashinfer_add_rmsnorm_to_fp8", "without": ("rstd",)},
}
SHAPES = {"weight": (256,), "bias": (256,), "scale": ()}


@pytest.mark.parametrize("name", OURS)
def test_a_definitions_reference_is_what_our_kernel_computes(name: str, folder: Path) -> None:
    torch = pytest.importorskip("torch", reason="a definition's reference is a program of torch")
    definition, scope = loaded(folder, "definitions")[name], {}
    exec(definition["reference"], scope)
    kernel = normgen.kernel(**OURS[name], shape=(8, 256), dtype="f32", device="cpu")
    random, ours = np.random.default_rng(7), {"hidden_states": "x", "output": "y", "residual_out": "h", "out": "q"}
    given = {
        n: np.asarray(random.standard_normal(SHAPES.get(n, (8, 256)), dtype=np.float32)) for n in definition["inputs"]
    }
    wanted = scope["run"](**{n: torch.from_numpy(value) for n, value in given.items()})
    eps = {"eps": 1e-6} if name == "layernorm_h256" else {}
    results = kernel(**{ours.get(n, n): value for n, value in given.items()}, **eps)
    names = [t.name for t in kernel.problem.tensors if t.is_written]
    found = dict(zip(names, results if len(names) > 1 else (results,), strict=True))
    for output, values in zip(definition["outputs"], wanted if len(names) > 1 else (wanted,), strict=True):
        is_fp8 = output == "out"  # the fourth bit of an element that lies between two may be rounded either way
        value = np.asarray(found[ours[output]]).astype(np.float32)
        np.testing.assert_allclose(value, values.float().numpy(), rtol=0.13 if is_fp8 else 2e-5, atol=2e-6)
        assert np.mean(value != values.float().numpy()) < 0.01 or not is_fp8


@needs_flashinfer
def test_an_unmodified_call_of_flashinfer_goes_to_the_solution(folder: Path, tmp_path: Path) -> None:
    """Its own code finds the definition, compiles the solution, loads it and calls it; the GPU is what is missing."""
    home = tmp_path / "cuda"
    (home / "lib64").mkdir(parents=True)
    (home / "bin").mkdir()
    (home / "bin" / "nvcc").symlink_to(str(NVCC))
    (fake_driver(home / "lib64") / "libcuda.so.1").rename(home / "lib64" / "libcuda.so")
    (tmp_path / "nothing.cpp").write_text("")
    run("g++", "-shared", "-fPIC", tmp_path / "nothing.cpp", "-o", home / "lib64" / "libcudart.so")
    variables = {
        "CUDA_HOME": str(home),
        "HOME": str(tmp_path),
        "FLASHINFER_WORKSPACE_BASE": str(tmp_path),
        "FLASHINFER_CUDA_ARCH_LIST": "9.0",
        "LD_LIBRARY_PATH": f"{home / 'lib64'}:{os.environ.get('LD_LIBRARY_PATH', '')}",
    }
    done = subprocess.run(
        [sys.executable, HERE / "flashinfer_apply.py", folder],
        env=os.environ | variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "wrapped True"
    refused = "is on a CUDA device; received DLPack device type 1, which is the CPU"
    assert [line for line in said if refused in line] == [
        f"ValueError: rmsnorm_fwd_bf16: 'y' {refused}",
        f"ValueError: add_rmsnorm_fwd_bf16_h_over_residual_y_over_x: 'x' {refused}",
        f"ValueError: gemma_rmsnorm_fwd_bf16_without_h: 'y' {refused}",
        f"ValueError: flashinfer_rmsnorm_to_fp8_fwd_bf16: 'q' {refused}",
        f"ValueError: flashinfer_add_rmsnorm_to_fp8_fwd_bf16_h_over_residual: 'q' {refused}",
    ]
