"""What a kernel accepts, refuses, and passes on to the general kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.codegen.module import Module
from normgen.cuda.arrays import ON_CPU, ArrayView
from normgen.dtypes import BF16, F32
from normgen.errors import UsageError
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.python.arguments import TensorNeeds, expectations
from normgen.schedule.schedule import Schedule
from normgen.spec.spec import Formula, Kind, Role, Sizes, Spec, Tensor
from tests.cuda import modules

COLS = 96
X = TensorUse(name="x", kind=Kind.ELEM, dtype=BF16, is_written=False)
Y = TensorUse(name="y", kind=Kind.ELEM, dtype=BF16, is_written=True)
W = TensorUse(name="w", kind=Kind.COL, dtype=BF16, is_written=False)
MEAN = TensorUse(name="mean", kind=Kind.ROW, dtype=F32, is_written=True)

SPEC = Spec(
    name="scale",
    summary="",
    tensors=(Tensor(name="x", role=Role.INPUT), Tensor(name="y", role=Role.OUTPUT)),
    formulas=(Formula(name="y", text="x"),),
)


def _expected(tensor: TensorUse, *, alignment: int = 16, fixed_pitch: int | None = None) -> TensorNeeds:
    return TensorNeeds(
        tensor=tensor,
        width=tensor.width(Sizes(1, COLS)),
        pitch=COLS,
        alignment=alignment,
        fixed_pitch=fixed_pitch,
    )


def _view(shape: tuple[int, ...], strides: tuple[int, ...], *, dtype: str = "bf16", pointer: int = 4096) -> ArrayView:
    return ArrayView(pointer, shape, strides, dtype, 0, False, None, None)


FOLDED = {
    "contiguous": ((8, 4, COLS), (4 * COLS, COLS, 1), 32, COLS),
    "two dimensions": ((5, COLS), (128, 1), 5, 128),
    "strided, leading dimensions fold": ((8, 4, COLS), (4 * 128, 128, 1), 32, 128),
    "dimensions of one have any stride": ((8, 1, 4, COLS), (4 * 128, 7, 128, 1), 32, 128),
    "one row, as a vector": ((COLS,), (1,), 1, COLS),
    "one row, any stride": ((1, COLS), (7, 1), 1, COLS),
    "no rows": ((0, COLS), (1, 1), 0, COLS),
}


@pytest.mark.parametrize("case", FOLDED)
def test_leading_dimensions_fold_into_rows_at_one_pitch(case: str) -> None:
    shape, strides, rows, pitch = FOLDED[case]
    placed = _expected(X).place(_view(shape, strides), device=0)
    assert (placed.rows, placed.pitch, placed.misfit) == (rows, pitch, "")


REFUSED = {
    "other cols": (X, _view((8, 95), (95, 1)), r"wrong shape of 'x': expected \[\.\., cols\] with cols = 96"),
    "scalar": (X, _view((), ()), r"received: \(\)"),
    "columns apart": (X, _view((8, COLS), (192, 2)), r"wrong stride of 'x': expected contiguous columns"),
    "transposed": (X, _view((COLS, COLS), (1, COLS)), "contiguous columns"),
    "rows at two distances": (X, _view((3, 4, COLS), (1000, 128, 1)), "expected rows at one distance"),
    "rows overlap": (X, _view((8, COLS), (95, 1)), "at least cols = 96 elements apart"),
    "expanded rows": (X, _view((8, COLS), (0, 1)), "expected rows at one distance"),
    "reversed rows": (X, _view((8, COLS), (-96, 1)), "expected rows at one distance"),
    "other dtype": (X, _view((8, COLS), (COLS, 1), dtype="f32"), "wrong dtype of 'x': expected bf16\n  received: f32"),
    "foreign dtype": (X, _view((8, COLS), (COLS, 1), dtype="float64"), "received: float64"),
    "half an element": (X, _view((8, COLS), (COLS, 1), pointer=4097), "wrong address of 'x'"),
    "other device": (X, _view((8, COLS), (COLS, 1))._replace(device=1), "expected GPU 0\n  received: GPU 1"),
    "host memory": (X, _view((8, COLS), (COLS, 1))._replace(device=ON_CPU), "received: the CPU"),
    "read-only output": (Y, _view((8, COLS), (COLS, 1))._replace(readonly=True), "expected a writable array"),
    "parameter of rows": (W, _view((8, COLS), (COLS, 1)), r"expected \[cols\] = \(96,\)"),
    "strided parameter": (W, _view((COLS,), (2,)), "expected a contiguous array"),
    "strided statistic": (MEAN, _view((8,), (2,), dtype="f32"), "expected a contiguous array"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_with_expected_and_received(case: str) -> None:
    tensor, facts, message = REFUSED[case]
    with pytest.raises(UsageError, match=message):
        _expected(tensor, alignment=2).place(facts, device=0)


def test_a_read_only_input_is_fine() -> None:
    facts = _view((8, COLS), (COLS, 1))._replace(readonly=True)
    assert _expected(X).place(facts, device=0).rows == 8


MISFITS = {
    "pointer": (X, _view((8, COLS), (COLS, 1), pointer=4096 + 2), "rows of x do not start at multiples of 16 bytes"),
    "pitch": (X, _view((8, COLS), (97, 1)), "rows of x do not start at multiples of 16 bytes"),
    "parameter": (W, _view((COLS,), (1,), pointer=4096 + 2), "rows of w do not start"),
    "statistic": (MEAN, _view((8,), (1,), dtype="f32", pointer=4100), "rows of mean do not start"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_layout_the_tuned_kernel_does_not_cover_is_a_misfit_not_an_error(case: str) -> None:
    tensor, facts, message = MISFITS[case]
    assert message in _expected(tensor).place(facts, device=0).misfit
    assert _expected(tensor, alignment=tensor.dtype.bytes).place(facts, device=0).misfit == ""


def test_a_pitch_the_text_does_not_take_as_an_argument_must_be_the_problems() -> None:
    fixed = _expected(X, fixed_pitch=COLS)
    assert fixed.place(_view((8, COLS), (COLS, 1)), device=0).misfit == ""
    assert "pitch 128" in fixed.place(_view((8, COLS), (128, 1)), device=0).misfit
    assert fixed.place(_view((1, COLS), (128, 1)), device=0).misfit == ""


def test_one_row_needs_no_aligned_pitch() -> None:
    assert _expected(X).place(_view((1, COLS), (97, 1)), device=0).misfit == ""


def _problem() -> Problem:
    return Problem(spec=SPEC, rows=8, cols=COLS, tensors=(replace(Y, dtype=F32), replace(X, dtype=F32)), pitch=COLS)


def test_expectations_follow_from_problem_schedule_and_the_kernels_parameters() -> None:
    module: Module = modules.scale(COLS)
    wide = expectations(_problem(), Schedule(vector=4), module)
    assert (wide["x"].fixed_pitch, wide["y"].fixed_pitch) == (None, COLS)
    assert wide["x"].alignment == 16
    narrow = expectations(_problem(), Schedule(vector=1), module)
    assert narrow["x"].alignment == 4
