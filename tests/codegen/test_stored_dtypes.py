"""What 8-bit and whole-number dtypes store and read, bit by bit, against numpy and ml_dtypes."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.choice.first import default_schedule
from normgen.cpu import build_many
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.dtypes import BOOL, DTYPES, F8E4M3, F8E5M2, F8E8M0, FLOATS, I8, I32, I64, U8, DType
from normgen.errors import CompileError
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.spec.reader import parse
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor, GpuExecutor
from tests.codegen.matrix import report, wrong

SMALL = tuple(d for d in DTYPES.values() if d not in FLOATS)
COLS = 512


def copies(dtype: DType, *, to: bool) -> Problem:
    """float32 stored as a dtype, or read from it."""
    x, y = ("f32", dtype.name) if to else (dtype.name, "f32")
    tensors = f'x = {{ role = "input", dtypes = ["{x}"] }}\ny = {{ role = "output", dtypes = ["{y}"] }}'
    spec = parse(f'name = "copy"\n[tensors]\n{tensors}\n[formulas]\ny = "x"')
    return problem_for(spec, shape=f"8x{COLS}", dtype=x)


def numbers(dtype: DType) -> np.ndarray:
    """Ties, their neighbours, the ends of the range and beyond them, subnormals, and what is no number."""
    rng = np.random.default_rng(1)
    held = np.array([]) if dtype.bytes > 1 else np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float64)
    held = np.sort(held[np.isfinite(held)])
    ties = (held[1:] + held[:-1]) / 2
    ends = np.array([dtype.least, dtype.largest, 1e30, np.inf, np.nan, 0.0, 0.5, 1.5, 2.5, 1e-30])
    some = np.concatenate([held, ties, np.nextafter(ties, 1e9), np.nextafter(ties, -1e9), 1.2 * ends, ends])
    some = np.concatenate([some, -some])[: 8 * COLS - 64]
    drawn = rng.standard_normal(8 * COLS - some.size) * 10.0 ** rng.integers(-4, 6, 8 * COLS - some.size)
    return np.concatenate([some, drawn]).astype(np.float32).reshape(8, COLS)


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_a_number_is_stored_as_its_dtype_rounds_and_saturates(dtype: DType) -> None:
    problem, x = copies(dtype, to=True), numbers(dtype)
    (program,) = build_many([emit(problem, default_schedule(problem, target("h200")))], workers=1)
    y = dtype.in_units(np.zeros(x.shape, dtype.numpy))
    assert program.run({"x": x, "y": y}, rows=8, cols=COLS).faults == ()
    y, want = dtype.by_element(y), dtype.stored(x.astype(np.float64))
    if dtype in (I32, I64):  # float32 has no number at the upper end
        want = np.where(x >= dtype.largest, np.iinfo(dtype.numpy).max, want)
    np.testing.assert_array_equal(y.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize("dtype", [F8E4M3, F8E5M2, F8E8M0, I8, U8, BOOL], ids=str)
def test_every_stored_byte_is_read_as_its_number(dtype: DType) -> None:
    problem = copies(dtype, to=False)
    (program,) = build_many([emit(problem, default_schedule(problem, target("h200")))], workers=1)
    count = 2 if dtype is BOOL else 256
    x = np.resize(np.arange(count, dtype=np.uint8), (8, COLS)).view(dtype.numpy)
    y = np.zeros((8, COLS), np.float32)
    assert program.run({"x": x, "y": y}, rows=8, cols=COLS).faults == ()
    np.testing.assert_array_equal(y, x.astype(np.float32))


NORM = """
name = "quantised_norm"
[tensors]
x = "input"
weight = "parameter"
q = { role = "output", dtypes = ["f8e4m3", "f8e5m2", "i8"] }
scale = "statistic"
y = { role = "output", optional = true }
[formulas]
y = "x * rsqrt(mean(x * x) + 1e-6) * weight"
scale = "maximum(absmax(y), 1e-10) / 100"
q = "y / scale"
"""
READ = """
name = "dequantised"
[tensors]
x = { role = "input", dtypes = ["i8", "u8", "f8e4m3", "f8e5m2"] }
s = { role = "row_input" }
keep = { role = "input", dtypes = ["bool"] }
label = { role = "row_input", dtypes = ["i64", "i32"] }
y = { role = "output", dtypes = ["bf16"] }
[formulas]
y = "where(keep and col != label, x * s, 1)"
"""
MICROSCALED = """
name = "microscaled"
[tensors]
x = "input"
q = { role = "output", dtypes = ["f8e4m3"] }
scale = { role = "group_statistic", dtypes = ["f8e8m0"] }
[formulas]
scale = "cast(absmax(x, 32) / 448, f8e8m0)"
q = "x / scale"
"""


def cases() -> list[Case]:
    norm, read, microscaled = parse(NORM), parse(READ), parse(MICROSCALED)
    shapes = (("9x96", "f8e4m3", ()), ("7x97", "i8", ("y",)), ("5x64", "f8e5m2", ()))
    problems = [problem_for(norm, shape=s, dtype="bf16", dtypes={"q": q}, without=w) for s, q, w in shapes]
    problems += [problem_for(read, shape=s, dtype=x) for s, x in (("9x96", "i8"), ("7x97", "f8e4m3"), ("7x33", "u8"))]
    problems += [problem_for(microscaled, shape="9x96", dtype=x) for x in ("bf16", "f32")]
    return [(problem, default_schedule(problem, target("h200"))) for problem in problems]


def test_quantising_and_dequantising_kernels_are_right_on_the_cpu() -> None:
    found = list(wrong(cases(), CpuExecutor(), seed=0))
    assert not found, report(found, cases())


@pytest.mark.gpu
def test_quantising_and_dequantising_kernels_are_right_on_the_gpu() -> None:
    found = list(wrong(cases(), GpuExecutor(), seed=0))
    assert not found, report(found, cases())


def test_a_kernel_of_8_bit_floats_needs_a_gpu_that_has_them() -> None:
    module = emit(*cases()[0])
    assert module.min_arch == 89
    with pytest.raises(CompileError, match="sm_89 and later"):
        compile_module(module, 80)
    assert "e4m3x2" in module.instructions
