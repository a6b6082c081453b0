"""What a kernel sees in variables that it has not initialised: a pattern, never the zero of a fresh stack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen.cpu import Compiler, build, find_compiler
from normgen.cpu.compiler import report_unfilled
from tests.cpu.cases import ROWS, kernel, module, pointer

FILLED = pytest.mark.skipif(
    not getattr(find_compiler(), "fills_variables", False), reason="no compiler here that fills uninitialised variables"
)

FEW = replace(ROWS, name="few")

# `few` elements of a variable are set, and the kernel reads others.
VARIABLES = {
    "a register": "float v; if (few > 3) v = 1.0f; y[threadIdx.x] = v;",
    "a register set on one of two paths": "float v; if (threadIdx.x < few) v = 1.0f; y[threadIdx.x] = v;",
    "an element of an array": "float v[4]; for (int i = 0; i < few; ++i) v[i] = 1.0f; y[threadIdx.x] = v[3];",
    "a member": "float4 v; v.x = 1.0f; y[threadIdx.x] = v.w;",
    "a sum over an array": (
        "float v[4], sum = 0.0f; for (int i = 0; i < few; ++i) v[i] = 1.0f; "
        "for (float one : v) sum += one; y[threadIdx.x] = sum;"
    ),
}


@FILLED
@pytest.mark.parametrize("name", VARIABLES)
def test_an_uninitialised_variable_is_no_small_number(name: str) -> None:
    text = f'extern "C" __global__ void __launch_bounds__(32) unset(float* y, int few) {{ {VARIABLES[name]} }}'
    program = build(module(text, kernel("unset", [pointer("y", "float*"), FEW], threads=32, blocks=1)))
    y = np.zeros(32, dtype=np.float32)
    assert program.run({"y": y}, rows=2, cols=32).faults == ()
    assert not (np.abs(y[2:]) < 1e38).any(), y


@pytest.mark.parametrize(
    ("version", "fills"),
    [
        ("g++ (Debian 12.2.0-14) 12.2.0", True),
        ("g++ (Ubuntu 11.4.0-1ubuntu1) 11.4.0", False),
        ("Debian clang version 14.0.6", True),
        ("clang version 7.1.0", False),
        ("c++ of a kind that nobody knows", False),
    ],
)
def test_a_compiler_that_cannot_fill_says_so_once(
    version: str, fills: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    report_unfilled.cache_clear()
    compiler = Compiler(command=("c++",), version=version)
    assert ("-ftrivial-auto-var-init=pattern" in compiler.kernel_flags) == fills
    report_unfilled(compiler)
    report_unfilled(compiler)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == (0 if fills else 1)
    assert fills or (version in said[0] and "g++ 12 or clang++ 8 can" in said[0])
