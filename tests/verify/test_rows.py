"""Adversarial inputs: families, memory layout, guard bytes, saved statistics."""

from __future__ import annotations

import resource

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.dtypes import DTYPES, FLOATS
from normgen.errors import UsageError
from normgen.verify import ALL, interpret, make_inputs, make_outputs, reference
from normgen.verify.rows import DRAWS, draw_rows
from tests.verify import made


@pytest.mark.parametrize("stored_as", [d.name for d in FLOATS])
@pytest.mark.parametrize("cols", [1, 7, 768])
def test_each_family_is_what_it_says_once_stored(cols: int, stored_as: str) -> None:
    problem = made.forward(made.SOFTMAX, 4 * len(ALL), cols, stored_as)
    inputs = make_inputs(problem, seed=5)
    assert sorted(set(inputs.families)) == sorted(ALL)
    x = inputs.arrays["x"].astype(np.float64)
    of = {name: x[[i for i, family in enumerate(inputs.families) if family == name]] for name in ALL}
    d = DTYPES[stored_as]
    assert np.all(of["constant"] == of["constant"][:, :1])
    assert np.all(of["zeros"] == 0)
    assert np.all(of["tail"][:, :-1] == 0)
    assert np.all(of["tail"][:, -1] != 0)
    assert np.all(np.isneginf(of["inf"][1::3]))
    assert np.all(np.isinf(np.delete(of["inf"], np.s_[1::3], axis=0)).sum(axis=1) == 1)
    assert np.all(np.isnan(of["nan"]).sum(axis=1) == 1)
    assert np.all((np.abs(of["tiny"]) >= d.smallest_normal / 2) & (np.abs(of["tiny"]) <= 4 * d.smallest_normal))
    in_stretch = (of["stretch"] >= 20) & (of["stretch"] <= 24)
    assert np.all(in_stretch | (of["stretch"] == 0))
    assert in_stretch[0, -1]
    assert np.all(in_stretch.any(axis=1) & (in_stretch.sum(axis=1) <= max(1, -(-cols // 16))))
    for name in set(ALL) - {"inf", "nan"}:
        assert np.all(np.isfinite(of[name])), name
    assert np.all(of["large_constant"] == of["large_constant"][:, :1])
    assert np.all(np.abs(of["large_constant"]) >= (2**13 if stored_as == "f16" else 2**19))
    is_masked = of["masked"] == -d.largest
    assert np.all(is_masked[1::2])
    steps = of["large_steps"] - of["large_steps"].min(axis=1, keepdims=True)
    assert np.all((steps == 0) | (steps == 2 * d.unit_roundoff * of["large_steps"].min(axis=1, keepdims=True)))
    if cols > 100:
        assert np.all(is_masked[::2].any(axis=1) & ~is_masked[::2].all(axis=1))
        assert np.all(steps.any(axis=1))
        for name, ratio in (("fine_noise", 1 / 8), ("step_noise", 1), ("large_steps", 8)):
            mean_over_std = np.abs(of[name].mean(axis=1)) / of[name].std(axis=1) * d.unit_roundoff
            assert np.all((mean_over_std > ratio / 2) & (mean_over_std < ratio * 2.1)), name
        spread = np.abs(of["some_mean"].mean(axis=1)) / of["some_mean"].std(axis=1)
        assert np.all((spread > 1.7) & (spread < 40))
        assert set(of["outlier_first"][:, 0]) == {1000.0, -1000.0}
        assert np.all(np.abs(of["large_mean"].mean(axis=1)) > 20 * of["large_mean"].std(axis=1))
        assert np.all(of["large_mean"].std(axis=1) > 0.5)
        assert np.all(np.abs(of["one_outlier"]).max(axis=1) > 100 * np.median(np.abs(of["one_outlier"]), axis=1))
        assert np.all(np.sign(of["mixed_sign"][:, 1:]) == -np.sign(of["mixed_sign"][:, :-1]))


@pytest.mark.parametrize("cols", [1, 5, 16, 100, 6144])
def test_sixteen_stretches_are_a_whole_row(cols: int) -> None:
    x = draw_rows(("stretch",) * min(cols, 16), cols, DTYPES["f32"], np.random.default_rng(0))
    assert np.all((x != 0).sum(axis=0) == 1)


@pytest.mark.parametrize("op", made.BUILT_IN, ids=lambda op: op.name)
def test_huge_rows_have_results_that_float32_can_hold(op: made.Spec) -> None:
    problem = made.forward(op, 4, 4096)
    inputs = make_inputs(problem, families=("huge",))
    for name, value in interpret(op, {"x": inputs.arrays["x"]}).items():
        assert np.all(np.abs(value) < 3.4e38), name
    x = inputs.arrays["x"]
    assert np.all(np.abs(x).max(axis=1) > 1e16)
    assert np.all(np.isfinite(np.sum((2 * x) ** 2, axis=1, dtype=np.float32)))


@given(
    rows=st.integers(0, 9),
    cols=st.integers(1, 20),
    gap=st.integers(0, 5),
    align=st.sampled_from([2, 4, 8, 16, 32]),
    stored_as=st.sampled_from([d.name for d in FLOATS]),
)
@settings(max_examples=60, deadline=None)
def test_arrays_have_the_problems_pitch_and_no_better_alignment(
    rows: int, cols: int, gap: int, align: int, stored_as: str
) -> None:
    problem = made.forward(made.LAYERNORM, rows, cols, stored_as, pitch=cols + gap, align=align)
    inputs, outputs = make_inputs(problem), make_outputs(problem)
    for name, array in {**inputs.arrays, **outputs.arrays}.items():
        use = problem.tensor(name)
        bytes_ = max(align, use.dtype.bytes)
        assert array.ctypes.data % (2 * bytes_) == bytes_, name
        assert array.dtype == use.dtype.numpy
        if array.ndim == 2:
            assert array.strides == ((cols + gap) * use.dtype.bytes, use.dtype.bytes)
    assert all(np.isnan(a.astype(np.float64)).all() for a in outputs.arrays.values())
    assert outputs.overrun() == ()


def test_a_tensor_may_have_a_pitch_of_its_own_and_a_statistic_may_be_null() -> None:
    problem = made.forward(made.LAYERNORM, 4, 5, pitch=8)
    inputs = make_inputs(problem, pitches={"x": 16})
    outputs = make_outputs(problem, pitches={"y": 12}, nulls=("mean",))
    assert inputs.arrays["x"].strides == (64, 4)
    assert outputs.arrays["y"].strides == (48, 4)
    assert set(outputs.arrays) == {"y", "rstd"}
    np.testing.assert_array_equal(inputs.arrays["x"], make_inputs(problem).arrays["x"])
    buffer = outputs.buffers["y"]
    buffer.storage[buffer.offset + 48 + 5 * 4] ^= 1
    assert outputs.overrun() == ("y",)


def test_rows_far_apart_take_only_the_memory_of_their_pages() -> None:
    problem = made.forward(made.SOFTMAX, 3, 5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    inputs = make_inputs(problem, families=("normal",), pitches={"x": 1 << 30})
    x = inputs.arrays["x"]
    assert x.strides[0] * (problem.rows - 1) == 1 << 33
    assert np.all(x != 0)
    assert inputs.buffers["x"].untouched()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB


@pytest.mark.parametrize("where", ["gap", "before", "behind"])
def test_a_write_outside_the_elements_is_seen(where: str) -> None:
    outputs = make_outputs(made.forward(made.LAYERNORM, 3, 5, pitch=8))
    buffer = outputs.buffers["y"]
    at = {"gap": buffer.offset + 5 * 4, "before": buffer.offset - 1, "behind": buffer.offset + 3 * 8 * 4}[where]
    buffer.array[...] = 1.0
    assert outputs.overrun() == ()
    buffer.storage[at] = 0
    assert outputs.overrun() == ("y",)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    problem = made.forward(made.LAYERNORM, 5, 33)
    one, same, other = (make_inputs(problem, seed=s) for s in (1, 1, 2))
    assert one.families == same.families
    for name, array in one.arrays.items():
        assert array.tobytes() == same.arrays[name].tobytes()
    assert one.arrays["x"].tobytes() != other.arrays["x"].tobytes()
    picked = {family for s in range(200) for family in make_inputs(made.forward(made.SOFTMAX, 1, 3), seed=s).families}
    assert picked == set(ALL)


def test_saved_statistics_are_the_float64_forward_rounded_to_float32() -> None:
    problem = made.backward(made.LAYERNORM, 18, 64)
    inputs = make_inputs(problem)
    forward = reference("layernorm", "forward", {"x": inputs.arrays["x"]}, inputs.scalars)
    for name in ("mean", "rstd"):
        np.testing.assert_array_equal(inputs.arrays[name], forward[name].astype(np.float32))
    assert not {"inf", "nan"} & set(inputs.families)


def test_a_saved_output_comes_from_an_x_that_the_backward_never_sees() -> None:
    inputs = make_inputs(made.backward(made.SOFTMAX, 22, 64))
    assert set(inputs.arrays) == {"dy", "y"}
    finite = [i for i, family in enumerate(inputs.families) if family not in ("inf", "nan")]
    np.testing.assert_allclose(inputs.arrays["y"][finite].sum(axis=1), 1, rtol=1e-5)


def test_column_gradients_are_fed_only_families_of_the_contract() -> None:
    narrow = made.spec(
        "rmsnorm",
        {f.name: f.text for f in made.RMSNORM.formulas},
        parameters={"weight": "1"},
        statistics=("rstd",),
        accuracy_rows=("normal", "nan"),
    )
    assert set(make_inputs(made.backward(narrow, 20, 8)).families) == {"normal"}


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'large_mean'"):
        make_inputs(made.forward(made.ROW_SUM, 1, 1), families=("large_men",))


def test_every_family_draws_one_column() -> None:
    rng = np.random.default_rng(0)
    assert draw_rows(tuple(DRAWS), 1, DTYPES["f16"], rng).shape == (len(DRAWS), 1)
