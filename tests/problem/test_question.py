"""A question becomes arguments in JSON, a command line or a record's key, and is the same question again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import normgen
from normgen.cli.options import problem_arguments, problem_options
from normgen.cli.problems import read_problem
from normgen.errors import NormgenError, UsageError
from normgen.problem.problem import Problem, make_problem
from normgen.problem.question import LINE, PROMISES, Question, Terms
from normgen.problem.words import file_stem, header_stem, options
from normgen.program.source import problem_for
from normgen.records.questions import arguments_of, problem_of
from normgen.spec.reader import load
from normgen.spec.spec import Formula, Role, Spec, Tensor
from tests.codegen.in_place import pairs_of
from tests.samples import CORE, sized

DTYPES = ("f32", "f16", "bf16")
PLAIN_OPTIONS = {
    **dict.fromkeys(("shape", "dtype", "direction", "pitch", "batches", "align")),
    **dict.fromkeys(PROMISES, False),
    **{"dtypes": "", "without": "", "gradients": "", "in_place": (), "layout": (), "size": ()},
}
# Those that the others are like: with optional outputs, labels, groups, values of rows, single numbers.
SPECS = (*CORE, "add_rmsnorm_to_fp8_group", "cross_entropy", "rmsnorm_to_fp8", "softmax_sink")


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Any problem of these built-in specs that is accepted."""
    spec = load(draw(st.sampled_from(SPECS)))
    backward = draw(st.booleans())
    sources = [t.name for t in spec.tensors if t.role in (Role.INPUT, Role.PARAMETER)]
    optional = [t.name for t in spec.tensors if t.optional]
    some = st.lists(st.sampled_from(sources), unique=True, min_size=1)
    group = spec.group or 1
    cols = group * draw(st.integers(1, 4096 // group))
    scales = [t.name for t in spec.tensors if t.kind.is_groups and not backward]
    names = st.sampled_from([t.name for t in spec.tensors if set(DTYPES) <= {*(t.dtypes or DTYPES)}])
    try:
        problem = problem_for(
            spec,
            shape=(draw(st.integers(0, 9999)), cols),
            dtype=draw(st.sampled_from(DTYPES)),
            dtypes=draw(st.dictionaries(names, st.sampled_from(DTYPES), max_size=2)),
            direction="backward" if backward else "forward",
            without=draw(st.lists(st.sampled_from(optional), unique=True)) if optional else (),
            gradients=draw(st.none() | some) if backward else None,
            pitch=cols + draw(st.sampled_from((0, 1, 64))),
            align=draw(st.sampled_from((2, 4, 8, 16, 32))),
            accumulate=backward and draw(st.booleans()),
            deterministic=draw(st.booleans()),
            stable_parameters=draw(st.booleans()),
            layout={name: draw(st.sampled_from(("row_major", "column_major"))) for name in scales},
        )
        places = pairs_of(problem) if not problem.accumulate and draw(st.booleans()) else {}
        return problem_for(spec, **problem.arguments() | {"in_place": places})
    except NormgenError:
        assume(False)
        raise


def from_words(op: str, words: list[str]) -> Problem:
    """The problem that a command reads from its options."""
    found: list[Problem] = []

    @click.command()
    @problem_options
    def command(**options: object) -> None:
        found.append(read_problem(options))

    command.main(["--op", op, *words], standalone_mode=False)
    return found[0]


@settings(max_examples=sized(300, 600), deadline=None)
@given(problems())
def test_a_question_survives_json_a_command_line_and_a_records_key(problem: Problem) -> None:
    spec = problem.spec
    assert problem_for(spec, **json.loads(json.dumps(problem.arguments()))) == problem
    assert from_words(spec.name, options(problem)) == problem
    assert problem_of(problem.question, spec).question == problem.question


def test_the_words_of_a_question_are_those_that_differ_from_the_defaults() -> None:
    spec = load("layernorm")
    plain = problem_for(spec, shape="8x768", dtype="bf16", dtypes={"weight": "f32"}, without=["bias"])
    words = options(plain)
    assert words == ["--shape", "8x768", "--dtype", "bf16", "--dtypes", "weight=f32", "--without", "bias"]


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_is_said_wherever_a_question_is_and_nowhere_unless_it_is_made(promise: str) -> None:
    spec = load("layernorm")
    plain, made = (problem_for(spec, shape="8x768", direction="backward", **more) for more in ({}, {promise: True}))
    assert (getattr(plain, promise), getattr(made, promise)) == (False, True)
    assert (plain.promises, made.promises) == ((), (promise,))
    assert made.arguments() == plain.arguments() | {promise: True}
    assert options(made) == [*options(plain), f"--{promise.replace('_', '-')}"]
    assert header_stem(made) == f"{header_stem(plain)}_{promise}"
    assert made.question.as_dict() == plain.question.as_dict() | {promise: True}
    assert Question.of(made.question.as_dict()) == made.question != plain.question
    assert made.question.slot() != plain.question.slot()
    assert (plain.question.flags, len(made.question.flags)) == ([], 1)
    assert problem_of(made.question, spec) == made


def test_every_fact_of_a_question_stands_in_the_schema_of_records() -> None:
    known = json.loads(Path(normgen.__file__).with_name("records").joinpath("schema.json").read_text(encoding="utf-8"))[
        "properties"
    ]
    assert known.keys() >= {*LINE} == {field.name for field in fields(Question)}
    assert {known[name]["type"] for name in PROMISES} == {"boolean"}
    assert {*PROMISES, "any_cols"} == {field.name for field in fields(Terms) if field.default is False}


@pytest.mark.parametrize("asked", [normgen.kernel, partial(problem_for, load("layernorm"))])
def test_a_keyword_that_is_no_fact_of_a_question_is_a_type_error(asked: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"\(\) got an unexpected keyword argument 'promise'"):
        asked(shape="8x768", promise=True)


@pytest.mark.parametrize(
    "fact",
    [
        *({promise: said} for promise in PROMISES for said in ("no", 2, None)),
        {"without": 5},
        {"without": (5,)},
        {"gradients": 7, "direction": "backward"},
        {"direction": None},
        {"dtypes": [1]},
        {"in_place": {"y": 3}},
        {"layout": "column_major"},
    ],
    ids=str,
)
@pytest.mark.parametrize("asked", [normgen.kernel, normgen.tune, problem_for, make_problem])
def test_a_fact_of_another_kind_is_refused_at_every_door(asked: Callable[..., Any], fact: dict[str, Any]) -> None:
    name = next(iter(fact))
    with pytest.raises(UsageError, match=f"^{name} is ") as refused:
        asked(load("layernorm"), shape="4x8", **fact)
    assert repr(fact[name]) in str(refused.value)


def test_what_takes_the_place_of_what_is_part_of_the_question() -> None:
    problem = problem_for(load("rmsnorm"), shape="8x768", without=["rstd"], in_place={"y": "x"})
    assert problem.arguments()["in_place"] == {"y": "x"}
    assert options(problem)[-2:] == ["--in-place", "y=x"]
    assert header_stem(problem) == "rmsnorm_fwd_f32_without_rstd_y_over_x"
    assert problem.question.as_dict()["in_place"] == {"y": "x"}
    assert "in_place" not in problem_for(load("rmsnorm"), shape="8x768").question.as_dict()
    assert [t.name for t in problem.passed_tensors] == ["x", "weight"]


def linear() -> Spec:
    """y = x @ w: built by hand, for no formula multiplies matrices."""
    tensors = (
        Tensor(name="x", role=Role.INPUT, axes=("rows", "inner")),
        Tensor(name="w", role=Role.PARAMETER, follows="x", axes=("cols", "inner")),
        Tensor(name="y", role=Role.OUTPUT, follows="x"),
    )
    return Spec(name="linear", summary="", tensors=tensors, formulas=(Formula(name="y", text="x"),))


def test_the_length_of_inner_is_part_of_the_question_where_a_tensor_has_the_axis() -> None:
    problem = make_problem(linear(), shape="8x768", inner=96)
    assert problem.sizes == (8, 768, 96, 1)
    assert {t.name: problem.shape_of(t) for t in problem.tensors} == {"x": (8, 96), "w": (768, 96), "y": (8, 768)}
    assert problem.pitches == {"x": 96, "w": 96, "y": 768}
    assert {t.name: problem.row_alignment(t) for t in problem.tensors} == {"x": 16, "w": 16, "y": 16}
    assert problem.arguments()["inner"] == 96
    of_numpy: Any = np.int64(96)
    assert type(make_problem(linear(), shape="8x768", inner=of_numpy).inner) is int
    assert options(problem)[:4] == ["--shape", "8x768", "--size", "inner=96"]
    assert file_stem(problem) == "linear_fwd_f32_8x768_inner_96"
    key = problem.question
    assert key.as_dict()["inner"] == 96
    assert key.slot() != make_problem(linear(), shape="8x768", inner=97).question.slot()
    assert arguments_of(key, linear()) == problem.arguments()
    plain = problem_for(load("rmsnorm"), shape="8x768")
    assert "inner" not in {*plain.arguments(), *plain.question.as_dict()}
    assert problem_arguments({**PLAIN_OPTIONS, "size": ("inner=96",)})["inner"] == 96


def test_the_length_of_inner_is_asked_for_only_where_a_tensor_has_the_axis() -> None:
    with pytest.raises(UsageError, match=r"has a tensor with the axis inner\n.*\n.*--size inner=4096"):
        make_problem(linear(), shape="8x768")
    with pytest.raises(
        UsageError, match="has no tensor with the axis inner\n  received: inner 4\n  hint: leave it out"
    ):
        problem_for(load("rmsnorm"), shape="8x768", inner=4)
    wrongs: tuple[Any, ...] = (0, -3, 2**31, 2.5, "7", True)
    for wrong in wrongs:
        with pytest.raises(UsageError, match=r"inner is a whole number, at least 1, that fits 31 bits\n.*\n.*hint: "):
            make_problem(linear(), shape="8x768", inner=wrong)
    with pytest.raises(UsageError, match=r"--size names an axis once\n  received: inner=4 inner=5"):
        problem_arguments({**PLAIN_OPTIONS, "size": ("inner=4", "inner=5")})
    with pytest.raises(UsageError, match=r"takes the place of a read one; 'x' is none.*\n.*\n.*read here: none"):
        make_problem(linear(), shape="8x768", inner=96, in_place={"y": "x"})
    for text in ("inner=x", "inner=-3", "inner=2.5", "inner=" + "9" * 11):
        with pytest.raises(
            UsageError, match=f"a size is a whole number, at least 1, in digits\n  received: --size {text}"
        ):
            problem_arguments({**PLAIN_OPTIONS, "size": (text,)})
    for text in ("cols=4", "foo=3", "batches=2"):
        with pytest.raises(
            UsageError, match=f"--size says the length of the axis inner; .*\n  received: --size {text}"
        ):
            problem_arguments({**PLAIN_OPTIONS, "size": (text,)})


def test_how_scales_lie_in_memory_is_part_of_the_question() -> None:
    spec = load("quantize_to_fp8_group")
    problem = problem_for(spec, shape="8x768", layout={"scale": "column_major"})
    assert problem.arguments()["layout"] == {"scale": "column_major"}
    assert options(problem)[-2:] == ["--layout", "scale=column_major"]
    assert header_stem(problem) == "quantize_to_fp8_group_fwd_f32_scale_column_major"
    assert problem.question.as_dict()["layout"] == {"scale": "column_major"}
    row_major = problem_for(spec, shape="8x768", layout={"scale": "row_major"})
    assert row_major == problem_for(spec, shape="8x768")
    assert "layout" not in row_major.question.as_dict()


def test_the_order_of_a_matrix_is_part_of_the_question_where_it_is_not_the_specs() -> None:
    turned = problem_for(load("linear"), shape="8x768", inner=96, layout={"w": "cols_inner"})
    assert turned.shape_of(turned.tensor("w")) == (768, 96)
    assert turned.pitches["w"] == 96
    assert turned.arguments()["layout"] == {"w": "cols_inner"}
    assert options(turned)[-2:] == ["--layout", "w=cols_inner"]
    assert header_stem(turned) == "linear_fwd_f32_w_cols_inner"
    key = turned.question
    assert key.as_dict()["layout"] == {"w": "cols_inner"}
    assert arguments_of(key, load("linear")) == turned.arguments()
    plain = problem_for(load("linear"), shape="8x768", inner=96)
    assert key.slot() != plain.question.slot()
    assert problem_for(load("linear"), shape="8x768", inner=96, layout={"w": "inner_cols"}) == plain
    back = make_problem(linear(), shape="8x768", inner=96, layout={"w": "inner_cols"})  # its own order is torch's
    assert back.layout == (("w", "inner_cols"),)
    asked = {"shape": "8x768", "inner": 96, "direction": "backward", "layout": {"w": "cols_inner"}}
    for gradient, turned_one in (("w", "dw"), ("x", "w")):
        backward = problem_for(load("linear"), **asked, gradients=[gradient])
        assert backward.tensor(turned_one).axes == ("cols", "inner")
        assert backward.layout == (("w", "cols_inner"),)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({"w": "column_major"}, "unknown order of a matrix\n.*w=column_major\n.*cols_inner, inner_cols"),
        ({"x": "inner_rows"}, "a layout is for a matrix, or for values of groups of columns; 'x' is none here"),
        ({"v": "cols_inner"}, "'v' is none here"),
    ],
)
def test_an_order_that_no_matrix_has_is_refused(layout: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        problem_for(load("linear"), shape="8x768", inner=96, layout=layout)


def test_rows_side_by_side_are_part_of_the_question_and_asked_for_by_an_axis() -> None:
    problem = problem_for(load("softmax"), shape=(2 * 20, 7), col_stride=20)
    again = problem_for(load("softmax"), **problem.arguments())
    assert (again, again.pitch, again.sharing_rows) == (problem, 140, 20)
    assert options(problem)[:4] == ["--shape", "2x7x20", "--axis", "1"]
    assert file_stem(problem) == "softmax_fwd_f32_40x7_stride_20"
    assert "strided" in header_stem(problem)
    found = problem_arguments({**PLAIN_OPTIONS, "shape": "2x7x4x5", "axis": 1})
    assert (found["shape"], found["col_stride"]) == ("40x7", 20)
    assert "col_stride" not in problem_arguments({**PLAIN_OPTIONS, "shape": "2x7x4x5", "axis": -1})


def test_another_number_of_rows_side_by_side_is_a_whole_number_of_them() -> None:
    problem = problem_for(load("softmax"), shape=(40, 7), col_stride=20, pitch=144)
    assert [problem.with_rows(n).rows for n in (0, 1, 20, 21)] == [0, 20, 20, 40]
    few = problem.with_stride(8)
    assert (few.rows, few.col_stride, few.pitch) == (40, 8, 60)
