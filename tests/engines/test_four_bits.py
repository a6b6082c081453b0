"""Outputs of four bits in functions of TVM-FFI and LibTorch: tensors of bytes; scales in tiles are refused there."""

from __future__ import annotations

import pytest

from normgen.engines.tvm_ffi import function_of, shape_of, use_of
from normgen.errors import UsageError
from normgen.export.groups import HeaderGroup
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.spec.reader import load


def problem(**asked: object) -> Problem:
    return problem_for(load("rmsnorm_to_nvfp4"), shape="8x256", dtype="bf16", without=("y",), **asked)  # type: ignore[arg-type]


def group(of: Problem) -> HeaderGroup:
    return HeaderGroup(name="rmsnorm_to_nvfp4_fwd_bf16", arch=90, problem=of, optional=(), nullable=(), entries=())


def test_an_output_of_four_bits_is_a_tensor_of_bytes() -> None:
    """Half as many as columns, of DLPack's whole numbers without a sign."""
    q = problem().tensor("q")
    assert shape_of(q) == "[.., cols / 2]"
    assert use_of(q) == '{"q", "[.., cols / 2]", "uint8", {1, 8}, true, true, 2, {{kRows, 1, 1}, {kCols, 1, 2}}}'
    described = function_of(group(problem()), [], file_name="f").described
    assert any(line.startswith("q ") and "[.., cols / 2] uint8, written" in line for line in described)


def test_scales_in_tiles_are_refused_with_a_sentence() -> None:
    with pytest.raises(UsageError, match="the functions of TVM-FFI and of LibTorch take scales in lines"):
        function_of(group(problem(layout={"scale": "swizzled"})), [], file_name="f")
