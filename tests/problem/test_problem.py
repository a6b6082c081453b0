from typing import Any

import pytest

from normgen.dtypes import BF16, F16, F32
from normgen.errors import SpecError, UsageError
from normgen.knobs import KNOBS
from normgen.problem.problem import LARGEST_TILED, Problem, make_problem
from normgen.problem.question import Direction
from normgen.program.source import problem_for
from normgen.spec.reader import load, parse
from normgen.spec.spec import Kind


def listed(problem: Problem) -> list[str]:
    return [f"{t.name} {t.kind} {t.dtype}{' written' if t.is_written else ''}" for t in problem.tensors]


def test_leading_dimensions_fold_into_rows() -> None:
    problem = make_problem(load("layernorm"), shape="8x1024x768")
    assert (problem.rows, problem.cols, problem.pitch, problem.align) == (8192, 768, 768, 16)
    assert make_problem(load("layernorm"), shape=(8, 1024, 768)) == problem
    assert str(problem) == "layernorm forward 8192 x 768 f32"
    assert problem.compulsory_bytes == (2 * 8192 * 768 + 2 * 8192 + 2 * 768) * 4


def test_tensors_stand_in_abi_order_with_their_dtypes() -> None:
    problem = make_problem(load("layernorm"), shape="4x8", dtype="bfloat16", dtypes={"weight": "f32"})
    assert listed(problem) == [
        "y elem bf16 written",
        "mean row f32 written",
        "rstd row f32 written",
        "x elem bf16",
        "weight col f32",
        "bias col bf16",
    ]
    assert [t.name for t in problem.tensors if t.nullable] == ["mean", "rstd"]
    assert problem.name == "layernorm_fwd_bf16"


def test_the_dtype_of_the_first_input_may_be_given_by_name() -> None:
    problem = make_problem(load("rmsnorm"), shape="4x8", dtypes={"x": "f16", "weight": "bf16"})
    assert [problem.tensor(n).dtype for n in ("x", "y", "weight", "rstd")] == [F16, F16, BF16, F32]


def test_optional_tensors_may_be_left_out_and_others_not() -> None:
    problem = make_problem(load("layernorm"), shape="4x8", without=["bias", "mean"])
    assert problem.present == {"x", "weight", "y", "rstd"}
    with pytest.raises(UsageError, match="tensor 'x' of spec 'layernorm' is not optional"):
        make_problem(load("layernorm"), shape="4x8", without=["x"])
    with pytest.raises(UsageError, match="did you mean 'bias'"):
        make_problem(load("layernorm"), shape="4x8", without=["bais"])


def test_a_statistics_problem_is_named_after_its_input() -> None:
    problem = make_problem(load("row_max_sum"), shape="4x8", dtype="f16")
    assert listed(problem) == ["row_max row f32 written", "row_sum row f32 written", "x elem f16"]
    assert (problem.dtype, problem.name) == (F16, "row_max_sum_fwd_f16")


def test_backward_reads_the_upstream_gradient_and_writes_one_per_tensor() -> None:
    spec = load("layernorm")
    problem = make_problem(spec, shape="4x8", dtype="bf16", dtypes={"weight": "f32"}, direction="backward")
    assert problem.direction is Direction.BACKWARD
    assert listed(problem) == [
        "dx elem bf16 written",
        "dweight col f32 written",
        "dbias col bf16 written",
        "dy elem bf16",
        "x elem bf16",
        "weight col f32",
        "bias col bf16",
        "mean row f32",
        "rstd row f32",
    ]


def test_backward_may_be_narrowed_to_what_is_read_and_wanted() -> None:
    softmax = make_problem(load("softmax"), shape="4x8", direction="backward", reads=["y"])
    assert listed(softmax) == ["dx elem f32 written", "dy elem f32", "y elem f32"]
    frozen = make_problem(
        load("layernorm"),
        shape="4x8",
        direction="backward",
        gradients=["x"],
        reads=["x", "weight", "rstd"],
        without=["mean", "bias"],
    )
    assert [t.name for t in frozen.tensors] == ["dx", "dy", "x", "weight", "rstd"]
    with pytest.raises(UsageError, match="both read and absent"):
        make_problem(load("layernorm"), shape="4x8", direction="backward", reads=["bias"], without=["bias"])
    with pytest.raises(UsageError, match="writes at least one gradient"):
        make_problem(load("softmax"), shape="4x8", direction="backward", gradients=[])


Z_LOSS = """
name = "z_loss"
[tensors]
x = "input"
y = "output"
lse = "statistic"
z = { role = "statistic", optional = true }
[formulas]
top = "max(x)"
lse = "top + log(sum(exp(x - top)))"
z = "lse * lse"
y = "x - lse"
"""


@pytest.mark.parametrize("ask", [make_problem, problem_for], ids=["make_problem", "problem_for"])
def test_a_backward_pass_that_would_lose_the_gradient_of_a_statistic_is_refused(ask: Any) -> None:
    with pytest.raises(SpecError, match=r"(?s)z_loss.toml:6: .* gradient of a statistic.*'lse'.*make it optional"):
        ask(parse(Z_LOSS, file="z_loss.toml"), shape="4x8", direction="backward")
    saved = parse(Z_LOSS + '[backward]\nsaved = ["lse"]\n', file="z_loss.toml")
    with pytest.raises(SpecError, match=r"(?s)z_loss.toml:7: .* gradient of a statistic.*'z'.*--without z"):
        ask(saved, shape="4x8", direction="backward")
    problem = ask(saved, shape="4x8", direction="backward", without=["z"])
    assert [t.name for t in problem.tensors if t.is_written] == ["dx"]
    assert ask(parse(Z_LOSS), shape="4x8").present >= {"lse", "z"}  # forward


@pytest.mark.parametrize("ask", [make_problem, problem_for], ids=["make_problem", "problem_for"])
def test_a_backward_pass_without_an_output_is_refused_with_file_line_and_hint(ask: Any) -> None:
    with pytest.raises(SpecError, match=r"(?s)row_sum.toml:6: .*needs an output.*total.*hint: .*role output"):
        ask(load("row_sum"), shape="4x8", direction="backward")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"shape": "8x"}, "a shape is whole numbers"),
        ({"shape": "8x\N{ARABIC-INDIC DIGIT EIGHT}"}, "a shape is whole numbers"),
        ({"shape": "8x" + "9" * 5000}, r"ten digits at most.*\n.*\(5002 characters\)"),
        ({"shape": "8x0"}, "cols >= 1"),
        ({"shape": (2**16, 2**16, 8)}, "31 bits"),
        ({"dtype": "f64"}, "unknown dtype"),
        ({"direction": "backwards"}, "did you mean 'backward'"),
        ({"pitch": 7}, "the pitch is at least cols"),
        ({"pitch": 10**30}, "the pitch and the alignment must each fit 31 bits"),
        ({"align": 2**100}, "the pitch and the alignment must each fit 31 bits"),
        ({"pitch": "16"}, r"the pitch.* whole numbers\n  received: pitch '16'"),
        ({"pitch": 16.0}, r"the pitch.* whole numbers\n  received: pitch 16.0"),
        ({"align": 16.0}, r"whole numbers\n  received: align 16.0"),
        ({"align": "16"}, r"whole numbers\n  received: align '16'"),
        ({"align": 2}, "at least the largest element, here 4 bytes"),
        ({"align": 12}, "a power of two"),
        ({"dtypes": {"mean": "f16"}}, "tensor 'mean' of spec 'layernorm' is stored as one of: f32"),
        ({"dtypes": {"means": "f16"}}, "did you mean 'mean'"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make_problem(load("layernorm"), **{"shape": "4x8", **changes})


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("axis", ["rows", "cols", "inner"])
def test_an_axis_of_a_product_ends_its_last_tile_within_31_bits(axis: str, direction: str) -> None:
    asked = {"rows": 8, "cols": 8, "inner": 8}

    def made(length: int) -> Problem:
        sizes = asked | {axis: length}
        question = {"direction": direction, "gradients": ("w",)} if direction == "backward" else {}
        return make_problem(load("linear"), shape=(sizes["rows"], sizes["cols"]), inner=sizes["inner"], **question)

    assert made(LARGEST_TILED).sizes.along(axis) == LARGEST_TILED
    assert -(-LARGEST_TILED // max(KNOBS["tile_m"].values)) * max(KNOBS["tile_m"].values) < 2**31
    with pytest.raises(UsageError, match=rf"at most {LARGEST_TILED}.*\n  received: .*{axis} {LARGEST_TILED + 1}"):
        made(LARGEST_TILED + 1)


@pytest.mark.parametrize("batches", ["2", 2.0, True])
def test_a_number_of_batches_is_whole(batches: Any) -> None:
    with pytest.raises(UsageError, match="the number of batches is a whole number\n  received: batches "):
        make_problem(load("bmm"), shape="4x8", inner=3, batches=batches)


def test_layout_reaches_the_problem() -> None:
    problem = make_problem(load("softmax"), shape="4x7", dtype="f16", pitch=9, align=2, any_cols=True)
    assert (problem.pitch, problem.align, problem.any_cols) == (9, 2, True)
    assert problem.row_alignment(problem.tensor("x")) == 2


def test_a_tensor_that_does_not_know_the_first_dtype_takes_its_own() -> None:
    tensors = 'x = "input"\ng = { role = "input", dtypes = ["f32"] }\ny = "output"'
    spec = parse(f'name = "made_up"\n[tensors]\n{tensors}\n[formulas]\ny = "x * g"\n')
    problem = make_problem(spec, shape="4x8", dtype="bf16")
    assert [problem.tensor(n).dtype for n in ("x", "g", "y")] == [BF16, F32, BF16]
    assert problem.tensor("g").kind is Kind.ELEM
