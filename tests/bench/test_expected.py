"""References on a bench's own inputs: rows anywhere, sums over repeated rows, and how far off a peer may be."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from normgen import verify
from normgen.bench.expected import Expected, chunks_of
from normgen.choice.first import default_schedule
from normgen.cpu import build_many
from normgen.device import target
from normgen.measure import data
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.spec.reader import load, parse
from normgen.spec.spec import Kind
from normgen.verify import Inputs
from tests.verify import made


def problem_of(op: str, shape: str, dtype: str = "f32", direction: str = "forward") -> Problem:
    return problem_for(load(op), shape=shape, dtype=dtype, direction=direction)


def repeated(sample: Inputs, problem: Problem) -> dict[str, np.ndarray]:
    """What the device holds: the sample's rows again and again."""
    found = {}
    for tensor in problem.tensors:
        if not tensor.is_written:
            array = np.asarray(sample.buffers[tensor.name].array).astype(np.float64)
            by_row = tensor.kind in (Kind.ELEM, Kind.ROW)
            found[tensor.name] = array[np.arange(problem.rows) % len(array)] if by_row else array
    return found


@pytest.mark.parametrize(
    ("op", "direction"),
    [("layernorm", "forward"), ("softmax", "forward"), ("layernorm", "backward"), ("rmsnorm", "backward")],
)
def test_the_float64_result_of_all_rows_is_within_a_hundredth_of_the_limits(
    op: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(op, "1000x96", direction=direction)
    monkeypatch.setattr(data, "FILL_ELEMENTS", 96 * 130)  # 7 times and a rest
    monkeypatch.setattr("normgen.bench.expected.CHECKED_ELEMENTS", 96 * 160)
    sample = data.sample_inputs(problem, seed=3)
    assert sample.problem.rows == 130
    expected = Expected(problem, sample, seed=3)
    assert len(expected.chunks) == 8
    whole = verify.reference(op, direction, repeated(sample, problem), sample.scalars)
    for name, wanted in expected.tensors.items():
        rows = whole[name]
        if wanted.use.kind is not Kind.COL:
            rows = np.concatenate([rows[start:stop] for start, stop in expected.chunks])
        assert expected.share(name, rows) < 0.01, name
        assert expected.share(name, rows * 1.01) > 1, name


def test_a_users_own_backward_is_held_to_its_derived_program() -> None:
    problem = problem_for(made.L2NORM, shape="300x96", dtype="f32", direction="backward")
    sample = data.sample_inputs(problem, seed=3)
    expected = Expected(problem, sample, seed=3)
    t = repeated(sample, problem)
    r = 1 / np.sqrt((t["x"] ** 2).sum(axis=1, keepdims=True) + sample.scalars["eps"])
    along = (t["dy"] * t["gain"] * t["x"]).sum(axis=1, keepdims=True)
    dx = r * t["dy"] * t["gain"] - t["x"] * r**3 * along
    dgain = (t["dy"] * t["x"] * r).sum(axis=0)
    for name, rows in {"dx": dx, "dgain": dgain}.items():
        assert expected.share(name, rows) < 0.01, name
        assert expected.share(name, rows * 1.01) > 1, name


def test_a_peer_may_round_intermediates_but_not_leave_anything_out() -> None:
    problem = problem_of("layernorm", "64x768", "bf16")
    sample = data.sample_inputs(problem, seed=0)
    expected = Expected(problem, sample, seed=0)
    bf16 = problem.dtype.unit_roundoff
    stored = problem.dtype.numpy
    x, w, b = (np.asarray(sample.buffers[n].array).astype(np.float64) for n in ("x", "weight", "bias"))
    centred = x - x.mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    early = ((centred * rstd).astype(stored).astype(np.float64) * w).astype(stored).astype(np.float64) + b
    early = early.astype(stored).astype(np.float64)
    assert expected.share("y", early) > 1  # three roundings where our own kernels have one
    assert expected.share("y", early, peer_roundoff=bf16) < 0.5
    without_bias = centred * rstd * w
    assert expected.share("y", without_bias, peer_roundoff=bf16) > 1
    one_column_less = centred.copy()
    one_column_less[:, -1] = 0
    assert expected.share("y", one_column_less * rstd * w + b, peer_roundoff=bf16) > 1


@pytest.mark.parametrize("op", ["layernorm_to_int8", "rmsnorm_to_fp8"])
def test_a_peer_stores_the_nearest_code_and_the_formats_end_of_what_is_beyond(op: str) -> None:
    problem = problem_of(op, "64x256", "bf16")
    sample = data.sample_inputs(problem, seed=0)
    sample.buffers["scale"].array[...] = 2.0**-6 if "int8" in op else 2.0**-10
    expected = Expected(problem, sample, seed=0)
    want, dtype = expected.tensors["q"].want, problem.tensor("q").dtype
    assert np.abs(want).max() > 1.2 * dtype.largest
    codes = np.rint(want) if dtype.is_integer else want
    codes = np.clip(codes, dtype.least, dtype.largest).astype(dtype.numpy).astype(np.float64)
    assert expected.share("q", codes, peer_roundoff=0.0) == 0
    for wrong in (-codes, np.where(np.abs(want) > dtype.largest, 0.0, codes)):
        assert expected.share("q", wrong, peer_roundoff=0.0) > 1


def test_nan_and_other_shapes_are_infinitely_far_off() -> None:
    problem = problem_of("softmax", "8x16")
    expected = Expected(problem, data.sample_inputs(problem, seed=0), seed=0)
    want = expected.tensors["y"].want
    assert expected.share("y", want) == 0
    poisoned = want.copy()
    poisoned[3, 5] = np.nan
    assert expected.share("y", poisoned) == np.inf
    assert expected.share("y", want[:, :-1]) == np.inf


PRODUCTS = [(op, gradient) for op in ("linear", "linear_add_rms", "rmsnorm_linear") for gradient in ("", "x", "w")]
PRODUCTS += [("linear_bias_gelu", ""), ("linear_swiglu", ""), ("softmax_v", ""), ("causal_softmax_v", "")]
PRODUCTS += [("bmm", gradient) for gradient in ("", "x", "w")] + [("softmax_v", "s"), ("masked_softmax_v", "v")]


@pytest.mark.parametrize("layout", [{}, {"w": "cols_inner"}], ids=["", "turned"])
@pytest.mark.parametrize(("op", "gradient"), PRODUCTS)
def test_what_a_product_stores_is_compared_in_all_directions(
    op: str, gradient: str, layout: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel on the CPU, of rows that repeat a sample's: lines of rows, or of inner that sum all rows."""
    if layout and op not in ("linear", "rmsnorm_linear"):
        return
    monkeypatch.setattr("normgen.bench.expected.CHECKED_ELEMENTS", 24 * 16)
    asked: dict[str, Any] = {"direction": "backward", "gradients": (gradient,)} if gradient else {}
    spec, shape = load(op), (3, 20, 24) if any(t.kind.by_batch for t in load(op).tensors) else (60, 24)
    problem = problem_for(spec, shape=shape, inner=40, layout=layout, **asked)
    monkeypatch.setattr(data, "FILL_ELEMENTS", 24 * (40 if len(shape) > 2 else 25))
    sample = data.sample_inputs(problem, seed=0)
    assert sample.problem.rows < problem.rows
    expected = Expected(problem, sample, seed=0)
    arrays: dict[str, Any] = {}
    for tensor in problem.tensors:
        if tensor.is_written:
            arrays[tensor.name] = np.full(problem.shape_of(tensor), np.nan, tensor.dtype.numpy)
        else:
            array = np.asarray(sample.buffers[tensor.name].array)
            lines = problem.shape_of(tensor)[0]
            repeats = tensor.kind.by_row or tensor.kind.by_batch
            arrays[tensor.name] = array[np.arange(lines) % len(array)] if repeats else array
    [program] = build_many([emit(problem, default_schedule(problem, target("h200")))])
    sizes = {"rows": problem.rows, **problem.lengths, "scalars": sample.scalars}
    assert not program.run(arrays, **sizes).faults
    written = (t.name for t in problem.tensors if t.is_written)
    assert expected.missing({}) == tuple(name for name in written if name not in ("rstd", "row_max", "row_sum"))
    for name, wanted in expected.tensors.items():
        got = expected.lines(wanted.use, lambda chunk, name=name: arrays[name][slice(*chunk)])
        assert got.size < arrays[name].size, "some lines are compared"
        assert expected.share(name, got.astype(np.float64)) < 1, name
        assert expected.share(name, got.astype(np.float64) * 1.01) > 1, name


def test_a_result_may_lack_statistics_only() -> None:
    problem = problem_of("layernorm", "8x16")
    expected = Expected(problem, data.sample_inputs(problem, seed=0), seed=0)
    assert expected.missing({"y": 0}) == ()
    assert expected.missing({"mean": 0, "rstd": 0}) == ("y",)


@pytest.mark.parametrize(
    ("rows", "cols"), [(1, 8), (64, 65536), (16384, 8192), (1 << 20, 128), (9, 1 << 19), (77, 1 << 16)]
)
def test_chunks_are_disjoint_and_have_the_first_and_the_last_row(rows: int, cols: int) -> None:
    problem = replace(problem_of("softmax", "8x16"), rows=rows, cols=cols, pitch=cols)
    chunks = chunks_of(problem, seed=1)
    assert chunks[0][0] == 0
    assert chunks[-1][1] == rows
    assert all(a < b for a, b in chunks)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(chunks))
    assert sum(b - a for a, b in chunks) * cols <= max(1 << 19, 8 * cols)


def test_rows_anywhere_have_the_numbers_that_they_have_in_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = parse(
        'name = "numbered"\n[tensors]\nx = "input"\nseed = "seed"\ny = "output"\n'
        '[formulas]\ny = "x + row + random(seed)"\n'
    )
    problem = problem_for(spec, shape="1000x96")
    monkeypatch.setattr(data, "FILL_ELEMENTS", 96 * 130)
    monkeypatch.setattr("normgen.bench.expected.CHECKED_ELEMENTS", 96 * 160)
    sample = data.sample_inputs(problem, seed=3)
    expected = Expected(problem, sample, seed=3)
    whole = verify.interpret(spec, {**repeated(sample, problem), "seed": sample.buffers["seed"].array})["y"]
    assert expected.share("y", np.concatenate([whole[start:stop] for start, stop in expected.chunks])) < 0.01
