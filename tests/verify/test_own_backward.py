"""Backward kernels of specs that no one wrote a reference for: checked by the derived program, and by hand here."""

from __future__ import annotations

import numpy as np
import pytest

from normgen import verify
from normgen.choice.first import default_schedule
from normgen.cpu import build, find_compiler
from normgen.device import target
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.spec.spec import Spec
from normgen.verify import Inputs, Outputs
from tests.verify import made

Array = np.ndarray
OWN = pytest.mark.parametrize("op", made.OWN, ids=lambda op: op.name)
DTYPES = pytest.mark.parametrize("dtype", ["f32", "bf16"])
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no host C++ compiler")


def l2norm(t: dict[str, Array]) -> dict[str, Array]:
    r = 1 / np.sqrt((t["x"] ** 2).sum(axis=1, keepdims=True) + float(np.float32(1e-6)))
    scaled = t["dy"] * t["gain"]
    along = (scaled * t["x"]).sum(axis=1, keepdims=True)
    return {"dx": r * scaled - t["x"] * r**3 * along, "dgain": (t["dy"] * t["x"] * r).sum(axis=0)}


def gated_norm(t: dict[str, Array]) -> dict[str, Array]:
    r = 1 / np.sqrt((t["x"] ** 2).mean(axis=1, keepdims=True) + float(np.float32(1e-6)))
    s = 1 / (1 + np.exp(-t["g"]))
    scaled = t["dy"] * t["w"] * s
    along = (scaled * t["x"]).mean(axis=1, keepdims=True)
    return {
        "dx": r * scaled - t["x"] * r**3 * along,
        "dg": t["dy"] * t["w"] * t["x"] * r * s * (1 - s),
        "dw": (t["dy"] * t["x"] * r * s).sum(axis=0),
    }


def warm_softmax(t: dict[str, Array]) -> dict[str, Array]:
    z = t["x"] * t["t"]
    y = np.exp(z - z.max(axis=1, keepdims=True))
    y /= y.sum(axis=1, keepdims=True)
    dz = y * (t["dy"] - (t["dy"] * y).sum(axis=1, keepdims=True))
    return {"dx": dz * t["t"], "dt": (dz * t["x"]).sum(axis=0)}


BY_HAND = {"l2norm": l2norm, "gated_norm": gated_norm, "warm_softmax": warm_softmax}


def solved(problem: Problem, **options: tuple[str, ...]) -> tuple[Inputs, Outputs]:
    """The default kernel's results on the CPU executor."""
    inputs, outputs = verify.make_inputs(problem, **options), verify.make_outputs(problem)
    module = emit(problem, default_schedule(problem, target("h200")))
    run = build(module).run(
        {**inputs.arrays, **outputs.arrays}, rows=problem.rows, cols=problem.cols, scalars=inputs.scalars
    )
    assert not run.faults
    return inputs, outputs


@DTYPES
@pytest.mark.parametrize("name", BY_HAND)
def test_the_reference_is_the_gradient_that_a_person_derives(name: str, dtype: str) -> None:
    op = next(op for op in made.OWN if op.name == name)
    problem = problem_for(op, shape=(9, 40), dtype=dtype, direction="backward")
    inputs = verify.make_inputs(problem, families=("normal", "one_outlier"))
    want = BY_HAND[name]({n: a.astype(np.float64) for n, a in inputs.arrays.items()})
    parts = verify.prepare(problem, inputs).parts
    assert {part.tensor.name for part in parts} == set(want)
    for part in parts:
        expected = want[part.tensor.name].reshape(part.want.shape)
        np.testing.assert_allclose(part.want, expected, rtol=1e-11, atol=1e-12)
        assert np.all(np.abs(part.want.astype(np.float32) - expected) <= part.bound)
        assert np.median(part.bound) < 2e-2 * np.abs(expected).max()


@needs_compiler
@DTYPES
@OWN
def test_the_kernel_of_a_users_own_spec_is_right(op: Spec, dtype: str) -> None:
    problem = problem_for(op, shape=(37, 96), dtype=dtype, direction="backward")
    found = verify.check(problem, *solved(problem))
    assert found.ok, found.summary()
    assert all(t.max_ratio > 0 for t in found.tensors) or dtype != "f32"  # what is stored may be as near as there is


@needs_compiler
@OWN
def test_added_gradients_of_single_inputs_are_right(op: Spec) -> None:
    for tensor in op.tensors:
        if not tensor.role.is_written:
            problem = problem_for(op, shape=(21, 37), direction="backward", gradients=(tensor.name,), accumulate=True)
            found = verify.check(problem, *solved(problem))
            assert found.ok, found.summary()
            assert [t.name for t in found.tensors] == [f"d{tensor.name}"]


@needs_compiler
@OWN
def test_a_wrong_element_of_any_gradient_is_found(op: Spec) -> None:
    problem = problem_for(op, shape=(22, 40), direction="backward")
    inputs, outputs = solved(problem, families=("normal",))
    for name, array in outputs.arrays.items():
        kept = array.copy()
        array.reshape(-1)[17] += 1e-3 * np.abs(array).max()
        found = verify.check(problem, inputs, outputs)
        assert [t.name for t in found.tensors if not t.ok] == [name]
        assert found.tensor(name).bad == 1
        array[...] = kept
    assert verify.check(problem, inputs, outputs).ok


@needs_compiler
def test_statistics_that_the_forward_saved_are_read_as_stored() -> None:
    problem = problem_for(made.BENT, shape=(23, 40), dtype="bf16", direction="backward")
    assert "r" in {t.name for t in problem.tensors}
    inputs, outputs = solved(problem)
    assert verify.check(problem, inputs, outputs).ok
    x = inputs.arrays["x"].astype(np.float64)
    r = 1 / np.sqrt(np.abs(x).mean(axis=1) + float(np.float32(1e-5)))
    np.testing.assert_allclose(inputs.arrays["r"], r, rtol=2**-23)
