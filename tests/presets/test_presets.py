"""Specs with the bits of a library: none differs from an independent computation, given the row statistic."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen import verify
from normgen.choice.first import default_schedule
from normgen.device import target
from normgen.dtypes import DTYPES
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.spec.reader import list_presets, load
from normgen.verify.rows import TIES_OF_4, draw_rows
from tests.codegen.executors import Built, CpuExecutor, Executor, GpuExecutor
from tests.presets.fp4 import FP4, codes
from tests.presets.references import BITS, CLOSE, Given, Values
from tests.samples import sized

BITS = BITS | FP4
COLS = 1024
ROWS = 100  # of a call: 10^5 values
CALLS = sized(1, 100)
FLOATS = ("f32", "f16", "bf16")
# Quantisation alone, by rules that say what becomes of a largest magnitude that is infinite: a norm's rstd is 0 then.
TAKES_INFINITY = (
    *(f"{engine}_quantize_to_nvfp4" for engine in ("flashinfer", "vllm", "te")),
    *(f"{engine}_quantize_to_mxfp4" for engine in ("flashinfer", "quack")),
)


def problem_of(op: str) -> Problem:
    return problem_for(load(op), shape=(ROWS, COLS), dtype="f16" if op.startswith("vllm_quantize") else "bf16")


@cache
def built(executor: type[Executor]) -> dict[str, Built]:
    """The kernels of all operations, in few compiler calls."""
    problems = [problem_of(op) for op in BITS]
    modules = [emit(problem, default_schedule(problem, target("h200"))) for problem in problems]
    return dict(zip(BITS, executor().build(modules), strict=True))


def drawn(problem: Problem, seed: int) -> verify.Inputs:
    """Rows from 2^-12 to 2^8 with outliers, one of zeros and, at a static scale, one with infinity and one with NaN.

    Of codes of four bits rows of ties, at global scales that are powers of two by turns, subnormals and an infinity.
    """
    rng, made = np.random.default_rng(seed), verify.make_inputs(problem, families=("normal",))
    size = np.exp2(rng.uniform(-12, 8, (ROWS, 1)))
    is_static = problem.spec.name.endswith("to_fp8")
    for use in problem.tensors:
        if use.is_written:
            continue
        array = made.arrays[use.name]
        if use.kind.is_elem:
            array[...] = size * rng.standard_normal(array.shape) * np.where(rng.random(array.shape) < 1e-3, 50, 1)
            array[1] = 0
        elif use.kind.by_col:
            array[...] = 1 + 0.5 * rng.standard_normal(array.shape)
        elif use.name == "global_scale":
            array[...] = np.exp2(rng.integers(-2, 9) if seed % 2 == 0 else rng.uniform(-2, 9))
        else:  # a static scale, or the bound of a dynamic one
            array[...] = rng.uniform(1.5, 3) if use.name == "scale_ub" else rng.uniform(0.002, 0.02)
    if is_static:
        made.arrays["x"][2, 3], made.arrays["x"][3, 5] = np.inf, np.nan
    if problem.spec.name in FP4:
        x = made.arrays[problem.row_inputs[0].name]
        x[10:40] = draw_rows((TIES_OF_4,) * 30, COLS, problem.dtype, rng)
        x[40:44] = rng.standard_normal((4, COLS)) * problem.dtype.smallest_normal
        if problem.spec.name in TAKES_INFINITY:
            x[44, ::48] = np.inf
    return made


def wanted(problem: Problem, inputs: verify.Inputs, outputs: verify.Outputs) -> Values:
    values = {t.name: inputs.arrays[t.name].astype(np.float32) for t in problem.tensors if not t.is_written}
    if "rstd" in outputs.arrays:
        values["rstd"] = outputs.arrays["rstd"].astype(np.float32)[:, None]
    if "gate" in values:
        values["y"] = outputs.arrays["y"].astype(np.float32)
    weight = next((t.dtype for t in problem.tensors if t.name == "weight"), problem.dtype)
    with np.errstate(all="ignore"):
        return BITS[problem.spec.name](Given(values, problem.dtype.scalar_type, weight.scalar_type))


def differing(problem: Problem, kernel: Built) -> dict[str, int]:
    """How many elements of each tensor have other bits; two NaN are the same."""
    found = dict[str, int]()
    for call in range(CALLS):
        inputs = drawn(problem, call)
        outputs = verify.make_outputs(problem)
        faults = kernel.run(inputs, outputs)
        assert not faults, faults
        for name, want in wanted(problem, inputs, outputs).items():
            layout = problem.tensor(name).layout
            got = (
                layout.by_row(outputs.arrays[name])[: len(want)] if layout.value == "swizzled" else outputs.arrays[name]
            )
            assert got.dtype == want.dtype, name
            bits = np.dtype(f"u{got.dtype.itemsize}")
            is_same = np.ascontiguousarray(got).view(bits) == np.ascontiguousarray(want).view(bits)
            is_same |= np.isnan(got.astype(np.float32)) & np.isnan(want.astype(np.float32))
            found[name] = found.get(name, 0) + int((~is_same).sum())
    return found


def test_every_preset_has_a_reference() -> None:
    assert set(list_presets()) <= {*BITS, *CLOSE}
    for name, file in list_presets().items():
        assert load(name) == load(file)


@pytest.mark.parametrize("op", BITS)
def test_no_bit_differs_from_the_library(op: str) -> None:
    found = differing(problem_of(op), built(CpuExecutor)[op])
    assert found
    assert not any(found.values()), found


@pytest.mark.gpu
@pytest.mark.parametrize("op", BITS)
def test_no_bit_differs_from_the_library_on_the_gpu(op: str) -> None:
    found = differing(problem_of(op), built(GpuExecutor)[op])
    assert found
    assert not any(found.values()), found


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["flashinfer_add_rmsnorm_to_nvfp4", "vllm_quantize_to_mxfp4"])
def test_no_bit_differs_in_tiles_of_scales_and_in_other_dtypes(op: str, dtype: str) -> None:
    problem = problem_for(load(op), shape=(ROWS, COLS), dtype=dtype, layout={"scale": "swizzled"})
    (kernel,) = CpuExecutor().build([emit(problem, default_schedule(problem, target("h200")))])
    found = differing(problem, kernel)
    assert found
    assert not any(found.values()), found


def test_codes_are_those_of_the_open_format() -> None:
    """The middles themselves, their neighbours, and every number that an f4e2m1 holds."""
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    middles = (numbers[1:] + numbers[:-1]) / 2
    below, above = np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(9))
    assert codes(numbers).tolist() == list(range(8))
    assert codes(-numbers).tolist() == list(range(8, 16))
    assert codes(below).tolist() == list(range(7))
    assert codes(above).tolist() == list(range(1, 8))
    assert codes(middles).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert codes(np.array([np.inf, -np.inf, np.nan, 1e30, -7], np.float32)).tolist() == [7, 15, 7, 7, 15]


def ir_cases(op: str) -> list[Problem]:
    """Every dtype of the row with every one of the weight, and with no weight."""
    spec, found = load(op), []
    for x, weight in product(FLOATS, (*FLOATS, None)):
        absent = {"without": ("weight",)} if weight is None else {"dtypes": {"weight": weight}}
        found.append(problem_for(spec, shape=(ROWS, 256), dtype=x, **absent))
    return found


@pytest.mark.parametrize("op", ["vllm_ir_rmsnorm", "vllm_ir_add_rmsnorm"])
@pytest.mark.parametrize("executor", [CpuExecutor, pytest.param(GpuExecutor, marks=pytest.mark.gpu)])
def test_no_bit_differs_from_vllm_ir_in_any_dtype(op: str, executor: type[Executor]) -> None:
    problems = ir_cases(op)
    modules = [emit(problem, default_schedule(problem, target("h200"))) for problem in problems]
    for problem, kernel in zip(problems, executor().build(modules), strict=True):
        found = differing(problem, kernel)
        assert found
        assert not any(found.values()), (str(problem), found)


@pytest.mark.parametrize("weight", [*FLOATS, None])
@pytest.mark.parametrize("x", FLOATS)
def test_torch_s_own_words_of_vllm_ir_have_the_bits_of_the_preset(x: str, weight: str | None) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import normgen.torch as ng

    names = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    random = torch.Generator().manual_seed(0)
    rows, residual = (torch.randn(64, 1024, generator=random).to(names[x]) for _ in range(2))
    w = None if weight is None else (1 + 0.5 * torch.randn(1024, generator=random)).to(names[weight])

    def by_torch(h: Any) -> Any:
        y = h * torch.rsqrt(h.pow(2).mean(dim=-1, keepdim=True) + 1e-6)
        return (y if w is None else y.to(w.dtype) * w).to(rows.dtype)

    assert torch.equal(ng.operator("vllm_ir_rmsnorm", returns=("y",))(rows, w, eps=1e-6), by_torch(rows.float()))
    total = rows.float() + residual.float()
    y, h = ng.operator("vllm_ir_add_rmsnorm", returns=("y", "h"))(rows, residual, w, eps=1e-6)
    assert torch.equal(y, by_torch(total))
    assert torch.equal(h, total.to(rows.dtype))


@pytest.mark.parametrize("op", CLOSE)
@pytest.mark.parametrize("executor", [CpuExecutor, pytest.param(GpuExecutor, marks=pytest.mark.gpu)])
def test_a_preset_of_a_gate_is_a_unit_of_its_dtype_off_in_few_elements(op: str, executor: type[Executor]) -> None:
    problems = [problem_for(load(op), shape=(ROWS, 256), dtype=dtype) for dtype in ("f16", "bf16")]
    modules = [emit(problem, default_schedule(problem, target("h200"))) for problem in problems]
    for problem, kernel in zip(problems, executor().build(modules), strict=True):
        random, inputs, outputs = np.random.default_rng(0), verify.make_inputs(problem), verify.make_outputs(problem)
        for name in ("gate", "up"):
            inputs.arrays[name][...] = random.standard_normal((ROWS, 256))
        assert not kernel.run(inputs, outputs)
        values = {name: inputs.arrays[name].astype(np.float32) for name in ("gate", "up")}
        values |= {name: outputs.arrays[name].astype(np.float32)[:, None] for name in ("mean", "std")}
        exact = values["gate"].astype(np.float64)
        unit = np.float64(ml_dtypes.finfo(problem.dtype.scalar_type).eps)
        np.testing.assert_allclose(values["mean"][:, 0], exact.mean(axis=1), atol=1e-6)
        np.testing.assert_allclose(values["std"][:, 0], exact.std(axis=1), rtol=unit / 2 + 1e-6)
        values["std_multiplier"] = np.float32(dict(problem.spec.scalars)["std_multiplier"])
        scalar = problem.dtype.scalar_type
        want = CLOSE[op](Given(values, scalar, scalar))["y"].astype(np.float32)
        got = outputs.arrays["y"].astype(np.float32)
        assert (want != 0).sum() > 500
        assert (got != want).sum() <= 0.001 * (want != 0).sum()
        np.testing.assert_allclose(got, want, rtol=2 * unit)


def test_another_rounding_is_seen() -> None:
    """The reference of another library differs where these two do: in the order of its roundings, in NaN, in scales."""
    problem = problem_of("vllm_rmsnorm_to_fp8")
    inputs, outputs = drawn(problem, 0), verify.make_outputs(problem)
    assert not built(CpuExecutor)["vllm_rmsnorm_to_fp8"].run(inputs, outputs)
    values = {t.name: inputs.arrays[t.name].astype(np.float32) for t in problem.tensors if not t.is_written}
    t = DTYPES["bf16"].scalar_type
    given = Given({**values, "rstd": outputs.arrays["rstd"][:, None]}, t, t)
    with np.errstate(all="ignore"):
        other = BITS["flashinfer_rmsnorm_to_fp8"](given)["q"]
    assert (outputs.arrays["q"].view(np.uint8) != other.view(np.uint8)).sum() > 100
