"""A check varies what a caller may vary, and tells which values change nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations as pairs
from itertools import product

import numpy as np
import pytest

from normgen.dtypes import F32
from normgen.errors import SpecError, VerificationError
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.spec.reader import list_specs, load, parse
from normgen.verify import (
    ALL,
    check,
    default_families,
    derivative_proof,
    effects,
    families_apart,
    families_of,
    make_inputs,
    make_outputs,
    prepare,
    proven_program,
    scalar_values,
    signed_parameters,
)
from normgen.verify.check import row_parts
from normgen.verify.rows import TIES_OF_4
from normgen.verify.varied.values import (
    candidates,
    combinations,
    extremes,
    label_scalars,
    of_tensor,
    rows_modulo,
    spread_families,
)
from tests.verify import made

FORWARD = [name for name in sorted(list_specs()) if not load(name).has_inner]  # both sides of products have families


def problem(op: str, rows: int = 60, cols: int = 128, **more: object) -> Problem:
    return problem_for(load(op), shape=(rows, cols), **more)


def own(formulas: str, scalars: str = "", tensors: str = "") -> Problem:
    text = f"""
name = "own"
[tensors]
x = "input"
{tensors}
y = "output"
[scalars]
{scalars}
[formulas]
{formulas}
"""
    return problem_for(parse(text), shape=(40, 48))


# scalars


def test_every_value_and_every_pair_of_two_scalars_values_is_in_a_call() -> None:
    values = {"a": (1.0, 2.0, 3.0), "b": (4.0, 5.0), "c": (6.0, 7.0, 8.0), "fixed": ()}
    calls = combinations(values)
    assert calls[0] == {"a": 1.0, "b": 4.0, "c": 6.0}
    assert {(n, v) for one in calls for n, v in one.items()} == {(n, v) for n, found in values.items() for v in found}
    for a, b in pairs("abc", 2):
        met = {(one.get(a), one.get(b)) for one in [{}, *calls]}
        assert met >= set(product((None, *values[a][:2]), (None, *values[b][:2]))), (a, b)
    assert len(calls) <= 9  # every three values of the three would be 47
    assert combinations({}) == combinations({"fixed": ()}) == []


@pytest.mark.parametrize("op", FORWARD)
def test_no_two_scalars_are_equal_in_a_call_and_none_is_at_its_default(op: str) -> None:
    p = problem(op)
    defaults = dict(p.spec.scalars)
    for one in combinations(scalar_values(p)):
        assert len(set(one.values())) == len(one)
        assert all(value != np.float32(defaults[name]) for name, value in one.items())


def test_a_scalar_keeps_its_sign_where_rows_would_lose_their_values() -> None:
    assert scalar_values(problem("softmax")) == {}
    assert all(value > 0 for value in scalar_values(problem("layernorm"))["eps"])
    assert any(value < 0 for value in scalar_values(problem("causal_softmax"))["scale"])
    root = own('y = "x * sqrt(k)"', "k = 1")
    assert scalar_values(root) == {"k": (0.5, 2.0, 1 / 512, 64.0)}
    assert candidates(root) == {"k": (0.5, 2.0, -2.0, 1 / 512, 64.0)}


def test_ranges_of_a_spec_are_its_contract_and_no_part_of_its_digest() -> None:
    plain = own('y = "x * sqrt(k)"', "k = 1")
    said = own('y = "x * sqrt(k)"', "k = { default = 1, ranges = [[-2, -1], [0.5, 4]] }")
    assert said.spec.scalars == plain.spec.scalars
    assert said.spec.sha256 == plain.spec.sha256
    assert scalar_values(said)["k"] == (-1.0, -2.0, -1.5, 4.0, 0.5, 2.25, -2 + 1 / 64, 0.5 + 3.5 / 64)
    assert said.spec.allows("k", 3.0)
    assert not said.spec.allows("k", 0.0)
    assert plain.spec.allows("k", -7.0)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("{ default = 1, ranges = [0, 2] }", "'ranges' is a list of [least, largest]"),
        ("{ default = 1, ranges = [[2, 0]] }", "a range is [least, largest]"),
        ("{ default = 1, ranges = [[2, 3]] }", "the default of 'k' lies in one of its ranges"),
        ("{ default = 1, range = [[0, 3]] }", "ranges"),
        ("{ ranges = [[0, 3]] }", "a scalar's default is a finite number"),
        ("{ default = 1, ranges = [[0, inf]] }", "the end of a range is a finite number"),
    ],
)
def test_a_range_that_says_nothing_is_refused_with_its_line(entry: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        own('y = "x * k"', f"k = {entry}")
    assert says in str(caught.value)
    assert "<spec>:8" in str(caught.value)


def test_a_derivative_is_proven_at_further_values_of_scalars(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default switches the second term off, so that at the default its derivative may be anything."""
    bent = made.spec("bent_by", {"y": "x + eps * x * x"}, eps=0.0)
    wrong = made.spec("bent_by", {"y": "x + eps * x * x * x"}, eps=0.0)
    p, other = (problem_for(s, shape=(12, 40), direction="backward") for s in (bent, wrong))
    program = derivative_proof.written_program(other)
    monkeypatch.setattr(derivative_proof, "_other_scalars", lambda _: [])
    assert derivative_proof.prove(p, program)
    monkeypatch.undo()
    with pytest.raises(VerificationError, match=r"(?s)the derived dx of spec 'bent_by'.*eps=0\.1 \("):
        derivative_proof.prove(p, program)
    assert proven_program(p)


# labels and other inputs


@pytest.mark.parametrize(("dtype", "largest"), [("i64", {"2^31", "2^40", "-2^63"}), ("i32", {"2^30"})])
def test_labels_are_those_that_the_families_say(dtype: str, largest: set[str]) -> None:
    p = problem("cross_entropy", dtypes={"label": dtype})
    kinds = {"-1", "0", "cols-1", "cols", *largest, "ignore_index"}
    assert set(extremes(p, takes_maximum=True)) == {f"label {kind}" for kind in kinds}
    inputs = make_inputs(p, scalars={"ignore_index": 7.0})
    known = {
        "-1": -1,
        "0": 0,
        "cols-1": 127,
        "cols": 128,
        "2^30": 2**30,
        "2^31": 2**31,
        "2^40": 2**40,
        "-2^63": -(2**63),
    }
    labels = inputs.arrays["label"]
    for family, label in zip(inputs.families, labels.tolist(), strict=True):
        kind = family.partition(" ")[2]
        assert label == {**known, "ignore_index": 7}[kind] if kind else -1 <= label < 128


def test_a_label_is_ignored_beside_labels_of_which_nothing_is_known() -> None:
    """A label that is no column may be NaN: the one that is ignored at the default is so at another value."""
    text = load("cross_entropy").text.replace(
        '"where(is_counted, ', '"where(is_counted, where(label >= 0, 0, inf - inf) + '
    )
    p = problem_for(parse(text), shape=(60, 64))
    assert scalar_values(p)["ignore_index"] == (0.0, -1.0, 255.0)
    found = effects(prepare(p, make_inputs(p, scalars={"ignore_index": -1.0})))
    assert found.seen == ("ignore_index=-1",)


def test_the_first_and_the_last_row_or_all_may_be_ignored() -> None:
    p = problem("cross_entropy", rows=9)
    assert label_scalars(p.spec, p.tensors) == {"label": ("ignore_index",)}
    ends = make_inputs(p, families=("normal",), ends="label ignore_index").arrays["label"]
    assert [row for row, label in enumerate(ends.tolist()) if label == -100] == [0, 8]
    assert set(make_inputs(p, families=("label ignore_index",)).arrays["label"].tolist()) == {-100}


def test_one_input_is_at_an_extreme_and_the_others_are_ordinary() -> None:
    inputs = make_inputs(problem("masked_softmax"))
    x, mask = (inputs.arrays[name].astype(np.float64) for name in ("x", "mask"))
    rows = {family: np.flatnonzero(np.array(inputs.families) == family) for family in set(inputs.families)}
    is_of_mask = np.array([of_tensor(family) == "mask" for family in inputs.families])
    assert np.abs(x[is_of_mask]).max() < 6
    assert np.abs(mask[~is_of_mask]).max() < 6
    assert not mask[rows["mask zeros"]].any()
    assert set(np.unique(mask[rows["mask zero_or_one"]])) == {0.0, 1.0}
    sizes = np.abs(mask[rows["mask thirties"]])
    assert 27 <= sizes.min() <= sizes.max() <= 33
    assert np.isneginf(mask[rows["mask hidden"]]).any(axis=1).all()
    assert np.isfinite(mask[rows["mask hidden"]]).any(axis=1).all()
    assert np.abs(mask[rows["mask huge"]]).max() > 1e16
    assert mask[rows["mask low"]].max() < -1900
    assert (mask[rows["mask lowest"]] == F32.least).all()
    assert not x[rows["mask lowest"]].any()
    assert x[rows["mask low"]].any(axis=1).all()


def test_a_row_whose_mask_is_the_lowest_number_has_a_bound() -> None:
    p = problem("safe_masked_softmax")
    inputs = make_inputs(p, families=("mask lowest",))
    [part] = prepare(p, inputs).parts
    assert (part.want == 1 / p.cols).all()
    assert (part.bound < 1e-5 / p.cols).all()


def test_rows_that_tell_further_scalars_lie_on_one_side_of_0_too() -> None:
    assert "large_mean" in spread_families(families_of(problem("causal_softmax")))


@pytest.mark.parametrize("op", FORWARD)
def test_every_other_input_of_rows_is_at_extremes(op: str) -> None:
    p = problem(op)
    varied = {of_tensor(family) for family in families_of(p)} - {""}
    read = [t for t in p.tensors if not t.is_written and t.kind.by_row and t.name != p.spec.inputs[0].name]
    first = {t.name for t in p.tensors if t.name == p.spec.inputs[0].name and f"{t.name} edges" in families_of(p)}
    wanted = {t.name for t in read if t.dtype.bytes > 1} | first
    assert varied == (set() if p.sums_rows else wanted)  # where rows are summed, in calls of their own
    assert set(default_families(p)) <= {*ALL, TIES_OF_4}
    assert (TIES_OF_4 in default_families(p)) == (p.packed > 1)


def test_where_rows_are_summed_other_inputs_are_at_extremes_in_calls_of_their_own() -> None:
    p = problem("add_rmsnorm", direction="backward")
    assert families_of(p) == default_families(p)
    together, *alone = families_apart(p)
    assert ("dy huge",) in alone
    assert {"dy zeros", "dy thirties", "dh zeros"} <= set(together)
    assert families_apart(problem("add_rmsnorm")) == []


# parameters


def test_a_parameter_is_negative_0_and_1_in_some_columns_and_as_usual_in_others() -> None:
    weight = make_inputs(problem("layernorm", cols=256)).arrays["weight"]
    for is_such in (weight < 0, weight == 0, weight == 1, (weight > 0) & (weight != 1)):
        assert 16 <= is_such.sum() <= 128
    sizes = np.abs(weight[weight < 0])
    assert sizes.min() < 0.2 < 2 < sizes.max()
    usual = make_inputs(problem("layernorm", cols=256), families=("normal",)).arrays["weight"]
    assert (usual > 0).all()


def test_a_parameter_keeps_its_sign_where_the_formula_needs_it() -> None:
    p = own('y = "x * sum(log(w) * x) * v"', tensors='w = "parameter"\nv = "parameter"')
    assert signed_parameters(p) == ("v",)
    inputs = make_inputs(p)
    assert (inputs.arrays["w"] > 0).all()
    assert (inputs.arrays["v"] < 0).any()


def test_one_number_on_the_device_has_either_sign() -> None:
    p = problem("rmsnorm_to_fp8")
    signs = {math.copysign(1, float(make_inputs(p.with_rows(rows)).arrays["scale"][0])) for rows in (60, 61)}
    assert signs == {-1.0, 1.0}


# rows


@pytest.mark.parametrize(
    ("formula", "modulus"),
    [("x", None), ("x * (row % cols)", 0), ("x * (row % 64)", 64), ("x * (row > 3)", 0), ("x * (col % 7)", None)],
)
def test_what_row_numbers_are_taken_modulo_is_read_from_the_formulas(formula: str, modulus: int | None) -> None:
    assert rows_modulo(own(f'y = "{formula}"').spec) == modulus


# what is seen


def test_a_value_is_seen_where_an_element_depends_on_it() -> None:
    p = own('y = "where(t > 0, x * 2, x) + 0.000000001 * k"', "t = 0\nk = 1")
    inputs = make_inputs(p, families=("normal",), scalars={"t": 0.1, "k": 2.0})
    found = effects(prepare(p, inputs))
    assert found.seen == ("t=0.1",)
    assert found.unseen == ("k=2",)  # rounded off
    assert effects(prepare(p, make_inputs(p, families=("normal",)))).seen == ()


def test_a_family_is_seen_where_its_rows_would_differ_with_ordinary_numbers() -> None:
    p = own('y = "x + where(g > 100, 1, 0)"', tensors='g = "input"')
    found = effects(prepare(p, make_inputs(p)))
    assert found.seen == ("g edges", "g huge")
    assert set(found.unseen) == {"g zeros", "g thirties", "g zero_or_one"}


def test_the_oracle_takes_the_scalars_of_the_call() -> None:
    p = problem("layernorm", rows=42, cols=40)
    inputs = make_inputs(p, families=("zeros",), scalars={"eps": 4.0})
    rstd = next(part for part in row_parts(p, inputs, np.arange(42)) if part.tensor.name == "rstd")
    np.testing.assert_allclose(rstd.want, 0.5)
    outputs = make_outputs(p)
    for name in ("y", "mean"):
        outputs.arrays[name][...] = 0.0
    bias = inputs.arrays["bias"]
    outputs.arrays["y"][...] = bias
    outputs.arrays["rstd"][...] = 1 / math.sqrt(1e-5)
    assert not check(p, inputs, outputs).ok
    outputs.arrays["rstd"][...] = 0.5
    assert check(p, inputs, outputs).ok
    assert F32.holds(inputs.scalars["eps"])


def test_labels_count_under_a_contract_of_normal_rows_and_other_extremes_do_not() -> None:
    strict = replace(load("cross_entropy"), accuracy_rows=("normal",))
    p = problem_for(strict, shape=(60, 64))
    outputs = make_outputs(p)
    verdict = check(p, make_inputs(p), outputs)
    assert "label cols" not in verdict.uncounted
    large = problem_for(replace(load("cross_entropy"), accuracy_rows=("large_mean",)), shape=(60, 64))
    assert "label cols" in check(large, make_inputs(large), make_outputs(large)).uncounted
    masked = problem_for(replace(load("masked_softmax"), accuracy_rows=("normal",)), shape=(60, 64))
    assert "mask huge" in check(masked, make_inputs(masked), make_outputs(masked)).uncounted
