"""Derived backward programs: what may be chosen, what is refused, and that the text is always the same."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import sympy as sp

from normgen.errors import ProgramError
from normgen.program.gradient.derivative import derivative
from normgen.program.gradient.differentiate import backward_tensors, differentiate
from normgen.program.ir import Kind, Load, Map, Reduce, Store
from normgen.program.monoid import ABSMAX, MAX, WELFORD, symbol
from tests.program import programs as forward
from tests.program.evaluate import evaluate
from tests.program.gradient.backward_cases import CASES, SCALARS, data_for, m, residual_norm
from tests.program.programs import COL, ELEM, ROW, program, rsqrt, total, values, x


def test_frozen_weights_leave_no_column_reduction() -> None:
    backward = differentiate(forward.layernorm(), wrt=("x",), saved=("mean", "rstd"))
    assert not backward.col_reduces
    assert [s.tensor for s in backward.stores] == ["dx"]


def test_dbias_alone_reads_dy_alone() -> None:
    backward = differentiate(forward.layernorm(), wrt=("bias",), saved=("mean", "rstd"))
    assert [s.name for s in backward.loads] == ["dy"]
    assert not backward.row_reduces


def test_dweight_alone_needs_no_row_reduction() -> None:
    backward = differentiate(forward.layernorm(), wrt=("weight",), saved=("mean", "rstd"))
    assert {s.name for s in backward.loads} == {"dy", "x", "mean", "rstd"}
    assert not backward.row_reduces


def test_residual_inputs_share_one_value() -> None:
    backward = differentiate(residual_norm(), saved=("h", "rstd"))
    assert {s.tensor: s.value for s in backward.stores} == {"dx": "dx", "dresidual": "dx", "dw": "dw"}
    assert {s.name for s in backward.loads} == {"dh", "dy", "h", "w", "rstd"}


def test_chosen_outputs_alone_carry_gradient() -> None:
    backward = differentiate(residual_norm(), saved=("h", "rstd"), cotangents=("y",))
    assert "dh" not in {s.name for s in backward.loads}


def test_a_statistic_carries_gradient_when_asked() -> None:
    p = forward.layernorm(affine=False)
    inputs = data_for(p)
    drstd = np.array([1.0, -2.0, 3.0])
    steps = evaluate(p, inputs, SCALARS, keep_all=True)
    got = evaluate(differentiate(p, cotangents=("rstd",)), {**inputs, "drstd": drstd}, SCALARS)["dx"]
    centred = inputs["x"] - steps["mean"][:, None]
    np.testing.assert_allclose(got, -(drstd * steps["rstd"] ** 3)[:, None] * centred / 5, rtol=1e-12)


def test_an_input_without_influence_has_gradient_zero() -> None:
    p = program("unused", Load("x", ELEM), Load("w", COL), Map("y", ELEM, 2 * x), Store("y", "y", ELEM))
    got = evaluate(differentiate(p), {"dy": np.ones((2, 3))})
    assert got["dw"].tolist() == [0, 0, 0]
    assert (got["dx"] == 2).all()


@pytest.mark.parametrize(("accumulate", "added"), [(True, {"dx", "dweight", "dbias"}), (("dweight",), {"dweight"})])
def test_accumulate_marks_the_stores(accumulate: bool | tuple[str, ...], added: set[str]) -> None:
    backward = differentiate(forward.layernorm(), saved=("mean", "rstd"), accumulate=accumulate)
    assert {s.tensor for s in backward.stores if s.accumulate} == added


def test_backward_tensors_are_in_call_order() -> None:
    tensors = backward_tensors(forward.layernorm(), ("mean", "rstd"))
    listed = [(t.name, t.kind, t.of) for t in tensors]
    assert listed == [
        ("dx", ELEM, "x"),
        ("dweight", COL, "weight"),
        ("dbias", COL, "bias"),
        ("dy", ELEM, "y"),
        ("x", ELEM, "x"),
        ("weight", COL, "weight"),
        ("mean", ROW, "mean"),
        ("rstd", ROW, "rstd"),
    ]
    assert [t.is_written for t in tensors] == [True] * 3 + [False] * 5


def test_softmax_backward_needs_dy_and_y() -> None:
    assert [t.name for t in backward_tensors(forward.softmax(), ("y",))] == ["dx", "dy", "y"]


def texts() -> str:
    return "\n".join(f"{name}: {differentiate(p, saved=saved)}" for name, (p, saved, _, _) in CASES.items())


def test_the_texts_are_the_same_in_every_process() -> None:
    code = "from tests.program.gradient.test_differentiate import texts; print(texts())"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == texts()


def test_kinds_of_the_result_obey_the_checker() -> None:
    for p, saved, _, _ in CASES.values():
        backward = differentiate(p, saved=saved)
        assert {s.kind for s in backward.stores if s.tensor == "dx"} == {Kind.ELEM}
        assert all(r.kind is Kind.COL for r in backward.reduces if r.names[0] in {"dw", "dweight", "dbias", "dt"})


# -- refusals --------------------------------------------------------------------------------------------------


def test_a_maximum_that_scales_is_refused() -> None:
    p = program("quantise", Load("x", ELEM), total("m", x, ABSMAX), Map("y", ELEM, x / m), Store("y", "y", ELEM))
    with pytest.raises(ProgramError, match="gradient of absmax is supported only where it cancels"):
        differentiate(p)


def test_a_maximum_that_does_not_lead_to_an_input_is_no_obstacle() -> None:
    p = program(
        "scaled",
        Load("x", ELEM),
        Load("w", COL),
        total("m", x, MAX),
        Map("y", ELEM, m * symbol("w")),
        Store("y", "y", ELEM),
    )
    assert [s.tensor for s in differentiate(p, wrt=("w",)).stores] == ["dw"]


def test_a_rewritten_program_is_refused() -> None:
    n, average, m2 = values("n average m2")
    p = program(
        "welford",
        Load("x", ELEM),
        Reduce(("n", "average", "m2"), ROW, WELFORD, (x,)),
        Map("y", ELEM, (x - average) * rsqrt(m2 / n)),
        Store("y", "y", ELEM),
    )
    with pytest.raises(ProgramError, match=r"sums are differentiated.*\n.*welford\n.*as written"):
        differentiate(p)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wrt": ("wieght",)}, "did you mean 'weight'"),
        ({"saved": ("rsdt",)}, "did you mean 'rstd'"),
        ({"saved": ("weight",)}, "row or elem values that it computes"),
        ({"cotangents": ("z",)}, "cotangents belong to stored tensors"),
        ({"cotangents": ()}, "needs an output"),
        ({"accumulate": ("dy",)}, "only a gradient can be accumulated"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        differentiate(forward.layernorm(), **options)


def test_a_gradient_name_that_is_taken_is_refused() -> None:
    p = program(
        "taken", Load("x", ELEM), Map("dx", ELEM, 2 * x), Map("y", ELEM, symbol("dx") + x), Store("y", "y", ELEM)
    )
    with pytest.raises(ProgramError, match=r"must be free .*\n.*dx"):
        differentiate(p)


def test_a_function_without_a_rule_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"besselj has no derivative rule"):
        derivative(sp.besselj(0, x), x)
