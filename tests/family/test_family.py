"""The fused and quantising operations against references that are written by hand from the libraries' descriptions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from normgen.cpu import find_compiler
from normgen.cuda.compiler import compile_module
from normgen.pipeline import emit
from normgen.program.rewrites.reductions import applicable
from normgen.program.source import problem_for, written_program
from normgen.spec.reader import list_specs, load
from normgen.verify import make_outputs
from normgen.verify.bounded import within_cells
from normgen.verify.check import Part
from tests.classes import of_rows
from tests.codegen.executors import Built, CpuExecutor, new_workspace
from tests.family.cases import H200, Case, by_hand, cases, expected, inputs_of
from tests.family.references import FORWARD, Array
from tests.samples import CORE

CASES = cases()


def wanted(case: Case) -> Iterator[tuple[Part, Array]]:
    """Each part of what a check expects, and the same by hand."""
    values = by_hand(case.problem)
    for part in expected(case.problem, case.schedule).parts:
        with np.errstate(all="ignore"):
            value = within_cells(values[part.tensor.name], part.tensor.dtype)
        value = value.reshape(-1, part.want.shape[1])
        yield part, value if part.rows[0] < 0 else value[part.rows]


ELSEWHERE = {  # references in these modules of tests/codegen
    "adaln": "test_batches",
    "dropout_add_rmsnorm": "test_random",
    "dyt": "test_totals",
    "full_sum": "test_totals",
    "head_layernorm": "test_heads",
    "qk_norm_rope": "test_rolls",
    "qk_norm_rope_pairs": "test_rolls",
}


def test_every_operation_that_ships_has_a_reference_by_hand() -> None:
    assert of_rows(list_specs()) - set(CORE) - set(ELSEWHERE) == set(FORWARD)
    for op, module in ELSEWHERE.items():
        assert f'"{op}"' in (Path(__file__).parents[1] / "codegen" / f"{module}.py").read_text()


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_loss_may_read_its_row_once(direction: str) -> None:
    """Its maximum is a constant to the gradient, and the online softmax is found behind it."""
    problem = problem_for(load("cross_entropy"), shape="8x4096", direction=direction)
    assert "online" in applicable(written_program(problem))["softmax"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_spec_says_what_its_libraries_compute(case: Case) -> None:
    """In float64, wherever float32 has a bound: within a thousandth of it, or, where a spec rounds, within it.

    The project's own reference rounds nowhere, and lets the bound cover what a cast rounds.
    """
    share = 1.0 if any("cast(" in formula.text for formula in case.problem.spec.formulas) else 1e-3
    for part, value in wanted(case):
        is_known = np.isfinite(np.broadcast_to(part.bound, value.shape)) | ~np.isfinite(part.want)
        assert is_known.any()
        with np.errstate(all="ignore"):
            near = np.abs(value - part.want) <= share * part.bound + 1e-12 * np.abs(value)
        same = near | (value == part.want) | (np.isnan(value) & np.isnan(part.want))
        # Where the model knows no more than that it is no finite number.
        same |= ~np.isfinite(value) & ~np.isfinite(part.want) & np.isinf(part.bound)
        assert np.all(same | ~is_known), part.tensor.name


@pytest.fixture(scope="module")
def kernels() -> dict[str, Built]:
    """All kernels in few compiler calls."""
    if find_compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    built = CpuExecutor().build([emit(case.problem, case.schedule) for case in CASES])
    return {str(case): kernel for case, kernel in zip(CASES, built, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_computes_what_is_written_by_hand(case: Case, kernels: dict[str, Built]) -> None:
    """Within the bound of the error model; a code is the one of a value that float32 may find."""
    problem, kernel = case.problem, kernels[str(case)]
    inputs, outputs = inputs_of(problem), make_outputs(problem)
    assert not kernel.run(inputs, outputs, workspace=new_workspace(kernel.module, problem.rows))
    parts = tuple(replace(part, want=value) for part, value in wanted(case))
    verdict = replace(expected(problem, case.schedule), parts=parts).check(outputs)
    assert verdict.ok, verdict.summary()
    for part in parts:
        if part.tensor.name == "q":
            codes = part.tensor.dtype.by_element(outputs.arrays["q"])
            wrong = np.argwhere(~right_codes(part, codes[part.rows]))
            assert not wrong.size, f"q at {wrong[0]}"


def test_the_texts_compile_for_a_gpu() -> None:
    for case in CASES[::4]:
        compile_module(emit(case.problem, case.schedule), H200.arch)


def right_codes(part: Part, got: Array) -> Array:
    """Whether each code is one between those of want - bound and want + bound: one but near a rounding boundary."""
    dtype, ends = part.tensor.dtype, (part.want - part.bound, part.want + part.bound)
    with np.errstate(all="ignore"):
        low, high, code = (v.astype(np.float64) for v in (*map(dtype.stored, ends), got))
    is_nan = np.isnan(part.want)
    return np.where(is_nan, np.isnan(code), ((low <= code) & (code <= high)) | np.isinf(part.bound))
